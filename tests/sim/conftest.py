from collections.abc import Callable

import pytest

from millrace.types import Block
from tests.conformance import store_suite


@pytest.fixture
def make_block() -> Callable[[int], Block]:
    return store_suite.make_block
