"""One etcd for all tests that only need some etcd."""

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("tests.conformance.repository_suite")

from tests.support.etcd import EtcdCluster  # noqa: E402


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster
