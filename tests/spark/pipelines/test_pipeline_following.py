"""Spark's progress documents become a pipeline's progress."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.spark.pipelines.folder import Progress
from millrace.spark.pipelines.following import Watched


def document(number: int, batch: int, rows: int, batch_ms: int = 100) -> dict[str, Any]:
    return {
        "runId": "run",
        "timestamp": f"2026-01-01T00:00:{number // 1000:02d}.{number % 1000:03d}Z",
        "batchId": batch,
        "numInputRows": rows,
        "batchDuration": batch_ms,
        "sources": [],
    }


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    rows=st.lists(st.integers(0, 1_000), min_size=1, max_size=30),
    looks=st.lists(st.integers(1, 5), min_size=1, max_size=10),
)
def test_every_row_counts_once_however_often_one_looks(rows: list[int], looks: list[int]) -> None:
    documents = [document(number, number, count) for number, count in enumerate(rows)]
    watched = Watched(Progress(rows=7), None)
    seen, shown = 0, None
    for step in [*looks, len(rows)]:
        seen = min(len(rows), seen + step)
        shown = watched.take("run", documents[:seen]) or shown
    assert shown is not None
    assert shown.rows == 7 + sum(rows)


def test_a_look_without_news_reports_nothing() -> None:
    watched = Watched(Progress(), None)
    assert watched.take("run", [document(1, 0, 5)]) is not None
    assert watched.take("run", [document(1, 0, 5)]) is None


def test_rate_and_time_are_those_of_the_last_batch() -> None:
    watched = Watched(Progress(), lambda: 42)
    shown = watched.take("run", [document(1, 0, 5), document(2, 1, 300, batch_ms=1_500)])
    assert shown is not None
    assert (shown.batch, shown.rows_per_s, shown.batch_ms, shown.lag) == (1, 200.0, 1_500, 42)


def test_rows_of_queries_that_belong_together_are_added() -> None:
    watched = Watched(Progress(), None)
    watched.take("forth", [document(1, 0, 5)])
    shown = watched.take("back", [document(1, 0, 6)])
    assert shown is not None
    assert shown.rows == 11


def test_a_gap_between_batches_is_noticed() -> None:
    watched = Watched(Progress(), None)
    watched.take("run", [document(1, 0, 5)])
    assert watched.is_next("run", 1)
    assert not watched.is_next("run", 2)
