"""Documents in memory, served over a real socket, and a client of the binary protocol."""

from collections.abc import Iterator

import pytest

from tests.support.document_backend import MemoryHost, ServedDocuments, default_backend
from tests.support.memcached_wire import WireClient


@pytest.fixture
def served() -> Iterator[ServedDocuments]:
    with ServedDocuments(default_backend()) as served:
        yield served


@pytest.fixture
def client(served: ServedDocuments) -> Iterator[WireClient]:
    with WireClient(served.port) as client:
        yield client


@pytest.fixture
def host(served: ServedDocuments) -> MemoryHost:
    return served.default()
