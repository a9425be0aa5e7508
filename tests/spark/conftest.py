"""One Spark session and one cluster of logs for all tests here, and Spark's own cluster for those
that need it."""

import secrets
from collections.abc import Iterator

import pytest

from millrace import sync
from millrace.local import LocalCluster
from tests.support.cluster_fixtures import calm_cluster, make_cluster, pytest_runtest_makereport
from tests.support.spark import StandaloneCluster, spark, standalone_cluster

__all__ = ["calm_cluster", "make_cluster", "pytest_runtest_makereport", "spark"]


@pytest.fixture
def client(calm_cluster: LocalCluster) -> Iterator[sync.SyncClient]:
    with sync.connect(calm_cluster.addresses) as client:
        yield client


@pytest.fixture
def log(client: sync.SyncClient) -> sync.SyncLog:
    """Empty, and this test's own."""
    return client.create_log(f"log-{secrets.token_hex(4)}", compression=False, write_path="chain")


@pytest.fixture
def bucket(client: sync.SyncClient) -> sync.SyncBucket:
    """Empty, and this test's own."""
    return client.create_bucket(f"bucket-{secrets.token_hex(4)}", partitions=8, replicas=1)


@pytest.fixture(scope="module")
def standalone() -> Iterator[StandaloneCluster]:
    """A master and two workers with a core each."""
    with standalone_cluster() as cluster:
        yield cluster
