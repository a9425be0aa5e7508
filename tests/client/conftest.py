"""A cluster of real processes that a test may pause: it is well again afterwards."""

from collections.abc import Iterator

import pytest

from millrace.local import LocalCluster


@pytest.fixture(scope="session")
def three_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("client") / "cluster"
    with LocalCluster.create(folder, 3, lease_ttl_ms=4_000) as cluster:
        cluster.start()
        yield cluster
