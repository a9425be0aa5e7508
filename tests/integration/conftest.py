"""Clusters of real processes for the tests here."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.cluster_fixtures import add_node_logs, calm_cluster, make_cluster

__all__ = ["calm_cluster", "make_cluster"]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome: Any = yield
    report = outcome.get_result()
    if report.when == "call" and report.failed:
        add_node_logs(item, report)
