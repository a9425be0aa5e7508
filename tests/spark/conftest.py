"""One Spark session and one cluster of logs for all tests here, and Spark's own cluster for those
that need it.  When a test fails, the logs of the processes it used are shown."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.cluster_fixtures import add_node_logs, calm_cluster, make_cluster
from tests.support.spark import StandaloneCluster, spark, standalone_cluster

__all__ = ["calm_cluster", "make_cluster", "spark"]


@pytest.fixture(scope="module")
def standalone() -> Iterator[StandaloneCluster]:
    """A master and two workers with a core each."""
    with standalone_cluster() as cluster:
        yield cluster


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome: Any = yield
    report = outcome.get_result()
    if report.when == "call" and report.failed:
        add_node_logs(item, report)
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, StandaloneCluster):
                report.sections.append(("logs of Spark's daemons", value.logs()))
