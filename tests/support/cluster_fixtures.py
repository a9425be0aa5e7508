"""Clusters of real processes as fixtures.  A `conftest.py` imports those it offers, and the hook:
when a test fails, the ends of the logs of the processes it used are shown."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace.local import LocalCluster
from tests.support.clusters import QUICK_KEEPER, MakeCluster

LOG_CHARS_SHOWN = 3_000


@pytest.fixture
def make_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeCluster]:
    """Lay out and start a cluster that this test may break."""
    made: list[LocalCluster] = []
    request.node.clusters = made

    def make(nodes: int, *, is_started: bool = True, **options: Any) -> LocalCluster:
        options = {"keeper": QUICK_KEEPER, "lease_ttl_ms": 1_500, **options}
        cluster = LocalCluster.create(tmp_path / f"cluster-{len(made)}", nodes, **options)
        made.append(cluster)
        if is_started:
            cluster.start()
        return cluster

    yield make
    for cluster in made:
        cluster.destroy()


@pytest.fixture(scope="session")
def calm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes for tests that harm none of them; each test uses logs of its own.  They pile up,
    so the keeper that looks after all of them does so less often than elsewhere."""
    folder = tmp_path_factory.mktemp("calm") / "cluster"
    keeper = msgspec.structs.replace(QUICK_KEEPER, interval_ms=300)
    with LocalCluster.create(folder, 3, keeper=keeper, lease_ttl_ms=4_000) as cluster:
        cluster.start()
        yield cluster


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome: Any = yield
    report = outcome.get_result()
    if report.when == "call" and report.failed:
        _add_logs(item, report)


def _add_logs(item: pytest.Item, report: pytest.TestReport) -> None:
    used = getattr(item, "funcargs", {}).values()
    for value in used:
        if hasattr(value, "daemon_logs"):
            report.sections.append(("logs of Spark's daemons", value.daemon_logs()))
    clusters = [value for value in used if isinstance(value, LocalCluster)]
    for cluster in [*clusters, *getattr(item, "clusters", [])]:
        for node in cluster.nodes:
            text = cluster.log_text(node.id)[-LOG_CHARS_SHOWN:]
            report.sections.append((f"log of node {node.id}", text))
