"""Rate and lag of queries: the computation, and what Spark's events make of it."""

import io
import logging
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console

from millrace.spark import progress
from millrace.spark.lag import ENDS_MAX, RUNS_MAX, LagTracker, LogStatus, QueryStatus
from tests.support.clusters import soon

STARTED_S = 1_700_000_000.0
END = 1_000  # Of the log of the query that is run.
STEP = 400
SCHEMA = "lsn bigint"


def offset(**logs: int | tuple[int, int]) -> dict[str, Any]:
    """An offset document: each log's next position, or its id and that."""
    places = {
        name: {"id": place[0], "next": place[1]}
        if isinstance(place, tuple)
        else {"id": 7, "next": place}
        for name, place in logs.items()
    }
    return {"cluster": "5f0c", "logs": places}


def batch(
    at_s: float,
    start: object,
    end: object,
    latest: object,
    rows_per_s: float = 0.0,
    **more: object,
) -> dict[str, Any]:
    """The document of a batch planned so many seconds after the start."""
    moment = datetime.fromtimestamp(STARTED_S + at_s, UTC)
    source = {
        "description": "millrace",
        "startOffset": start,
        "endOffset": end,
        "latestOffset": latest,
        "inputRowsPerSecond": rows_per_s,
    }
    return {
        "id": "0a1b2c3d-0000-0000-0000-000000000000",
        "runId": "run",
        "name": "copy",
        "timestamp": moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "batchId": 3,
        "batchDuration": 250,
        "sources": [source],
        **more,
    }


def only(tracker: LagTracker, at_s: float) -> QueryStatus:
    [status] = tracker.status(STARTED_S + at_s)
    return status


def log_of(tracker: LagTracker, at_s: float, name: str = "clicks") -> LogStatus:
    [status] = [log for log in only(tracker, at_s).logs if log.name == name]
    return status


def test_a_query_that_has_caught_up_has_no_lag_however_long_ago_it_did() -> None:
    tracker = LagTracker()
    tracker.take(batch(0, offset(clicks=0), offset(clicks=100), offset(clicks=100)))
    assert log_of(tracker, 60) == LogStatus("clicks", 0.0, 0, 0.0, is_lag_s_exact=True)


def test_lag_in_seconds_counts_from_when_the_log_first_passed_the_query() -> None:
    tracker = LagTracker()
    tracker.take(batch(0, offset(clicks=0), offset(clicks=100), offset(clicks=100)))
    for at_s, end, latest in ((10, 150, 200), (20, 180, 300), (30, 200, 400), (40, 250, 500)):
        tracker.take(batch(at_s, None, offset(clicks=end), offset(clicks=latest)))
    # It is at 250.  The log was seen at 200 at 10 s, and beyond 250 first at 20 s.
    assert log_of(tracker, 45) == LogStatus("clicks", 0.0, 250, 25.0, is_lag_s_exact=True)


def test_a_query_that_starts_behind_has_at_least_the_lag_that_was_seen() -> None:
    tracker = LagTracker()
    tracker.take(batch(0, offset(clicks=0), offset(clicks=100), offset(clicks=1_000)))
    assert log_of(tracker, 5) == LogStatus("clicks", 0.0, 900, 5.0, is_lag_s_exact=False)
    tracker.take(batch(6, offset(clicks=100), offset(clicks=1_000), offset(clicks=1_500)))
    assert log_of(tracker, 8) == LogStatus("clicks", 0.0, 500, 2.0, is_lag_s_exact=True)


def test_an_idle_query_has_caught_up() -> None:
    tracker = LagTracker()
    tracker.take(batch(0, None, offset(clicks=100), offset(clicks=1_000), rows_per_s=50.0))
    tracker.idle("run")
    tracker.idle("another")
    assert log_of(tracker, 60) == LogStatus("clicks", 0.0, 0, 0.0, is_lag_s_exact=True)


def test_each_log_has_its_own_lag_and_its_share_of_the_rate() -> None:
    tracker = LagTracker()
    start, end = offset(clicks=100, orders=0), offset(clicks=400, orders=100)
    tracker.take(batch(0, start, end, offset(clicks=450, orders=100), rows_per_s=80.0))
    status = only(tracker, 2)
    assert [(log.name, log.rows_per_s, log.lag_records, log.lag_s) for log in status.logs] == [
        ("clicks", 60.0, 50, 2.0),
        ("orders", 20.0, 0, 0.0),
    ]
    assert (status.rows_per_s, status.lag_records, status.lag_s) == (80.0, 50, 2.0)
    assert (status.name, status.batch, status.batch_s) == ("copy", 3, 0.25)


def test_records_are_counted_where_positions_do_not_tell() -> None:
    """Of a sequenced log: the batch ends at e1n101, and the log at e2n21."""
    tracker = LagTracker()
    old, new = 1 << 32, 2 << 32
    start, end = offset(clicks=old + 1, orders=1), offset(clicks=old + 101, orders=301)
    latest = offset(clicks=new + 21, orders=301)
    latest["logs"]["clicks"] |= {"taken": 100, "waiting": 20}
    latest["logs"]["orders"] |= {"taken": 300, "waiting": 0}
    tracker.take(batch(0, start, end, latest, rows_per_s=80.0))
    assert [(log.name, log.rows_per_s, log.lag_records) for log in only(tracker, 2).logs] == [
        ("clicks", 20.0, 20),
        ("orders", 60.0, 0),
    ]
    tracker.idle("run")
    assert log_of(tracker, 3).lag_records == 0


def test_the_first_batch_has_the_rate_of_its_processing() -> None:
    document = batch(0, None, offset(clicks=100), offset(clicks=100))
    document["sources"][0]["processedRowsPerSecond"] = 30.0
    tracker = LagTracker()
    tracker.take(document)
    assert log_of(tracker, 0).rows_per_s == 30.0


def test_a_log_made_again_starts_anew() -> None:
    tracker = LagTracker()
    tracker.take(batch(0, None, offset(clicks=(7, 900)), offset(clicks=(7, 1_000))))
    tracker.take(batch(10, None, offset(clicks=(8, 5)), offset(clicks=(8, 5))))
    assert log_of(tracker, 20) == LogStatus("clicks", 0.0, 0, 0.0, is_lag_s_exact=True)


def test_logs_that_are_read_no_more_are_forgotten() -> None:
    tracker = LagTracker()
    tracker.take(batch(0, None, offset(a=1, b=1), offset(a=1, b=9)))
    tracker.take(batch(1, None, offset(a=1), offset(a=1)))
    assert [log.name for log in only(tracker, 2).logs] == ["a"]


def test_a_query_without_a_name_goes_by_its_id() -> None:
    tracker = LagTracker()
    tracker.take(batch(0, None, offset(clicks=1), offset(clicks=1), name=None))
    assert only(tracker, 0).name == "0a1b2c3d"


@pytest.mark.parametrize(
    "foreign",
    [
        None,
        7,
        "17",
        {"topic": {"0": 23}},
        {"cluster": "5f0c", "logs": {"clicks": 7}},
        {"cluster": "5f0c", "logs": {"clicks": {"id": 1, "next": "x"}}},
    ],
    ids=repr,
)
def test_other_sources_are_passed_over(foreign: object) -> None:
    tracker = LagTracker()
    tracker.take(batch(0, foreign, foreign, foreign))
    assert tracker.status(STARTED_S) == ()


def test_a_long_history_gets_coarser_and_keeps_its_beginning() -> None:
    tracker = LagTracker()
    tracker.take(batch(0, None, offset(clicks=0), offset(clicks=0)))
    seconds = 10 * ENDS_MAX
    for at_s in range(1, seconds + 1):
        tracker.take(batch(at_s, None, offset(clicks=0), offset(clicks=at_s)))
    [run] = tracker._runs.values()
    [log] = run.logs.values()
    assert len(log._ends) <= ENDS_MAX
    assert log_of(tracker, seconds).lag_s == seconds - 1
    tracker.take(batch(seconds, None, offset(clicks=seconds // 2), offset(clicks=seconds)))
    assert log_of(tracker, seconds).lag_s == pytest.approx(seconds / 2, rel=0.05)


def test_queries_are_forgotten_when_they_end_or_are_too_many() -> None:
    tracker = LagTracker()
    for number in range(RUNS_MAX + 5):
        here = offset(clicks=1)
        tracker.take(batch(0, None, here, here, name=str(number), runId=f"run-{number}"))
    assert [query.name for query in tracker.status(STARTED_S)] == [
        str(number) for number in range(5, RUNS_MAX + 5)
    ]
    ended = tracker.ended("run-6", STARTED_S)
    assert ended is not None and ended.name == "6"
    assert tracker.ended("run-0", STARTED_S) is None
    assert len(tracker.status(STARTED_S)) == RUNS_MAX - 1


def test_a_line_shows_the_logs_that_are_furthest_behind() -> None:
    logs = tuple(LogStatus(f"log-{n}", 1_500.0, n * 1_000, float(n), n != 4) for n in range(5))
    assert progress.line(QueryStatus("copy", 12, 0.42, logs)) == (
        "copy batch 12 in 0.4 s: "
        "log-4 1,500 rows/s, lag 4,000 records, over 4.0 s; "
        "log-3 1,500 rows/s, lag 3,000 records, 3.0 s; "
        "log-2 1,500 rows/s, lag 2,000 records, 2.0 s; 2 more logs"
    )


# -- With Spark -----------------------------------------------------------------------------------


def counting_source() -> type[DataSource]:
    """A source with offsets like ours that reads `STEP` positions in a batch.  Made in a function,
    so that it is sent to Spark's workers as it is and not by its name."""

    end_of_log, step = END, STEP

    def document(position: int) -> dict[str, Any]:
        return {"cluster": "5f0c", "logs": {"clicks": {"id": 7, "next": position}}}

    class Range(InputPartition):
        pass

    class Reader(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, Any]:  # noqa: N802
            return document(0)

        def latestOffset(self, start: dict[str, Any], limit: object) -> dict[str, Any]:  # noqa: N802
            return document(min(start["logs"]["clicks"]["next"] + step, end_of_log))

        def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
            return document(end_of_log)

        def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
            return [Range((start["logs"]["clicks"]["next"], end["logs"]["clicks"]["next"]))]

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            for position in range(*partition.value):
                yield (position,)

    class Counting(DataSource):
        @classmethod
        def name(cls) -> str:
            return "counting"

        def schema(self) -> str:
            return "lsn bigint"

        def streamReader(self, schema: object) -> DataSourceStreamReader:  # noqa: N802
            return Reader()

    return Counting


def start(spark: SparkSession, folder: Path) -> StreamingQuery:
    spark.dataSource.register(counting_source())
    stream = spark.readStream.format("counting").load()
    writer = stream.writeStream.format("noop").queryName("copy")
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start()


def test_a_watched_query_is_shown_until_it_ends(spark: SparkSession, tmp_path: Path) -> None:
    file, terminal = io.StringIO(), io.StringIO()
    with (
        progress.watch(spark, Console(file=file)) as watch,
        progress.watch(spark, Console(file=terminal, force_terminal=True, width=200)),
    ):
        query = start(spark, tmp_path)
        try:
            query.processAllAvailable()
            [status] = soon(watch.status, lambda seen: bool(seen) and seen[0].batch == 2)
            soon(lambda: "copy batch 2" in terminal.getvalue(), what="a line on the terminal")
            table = io.StringIO()
            Console(file=table, width=100).print(progress.table(query))
        finally:
            query.stop()
        soon(lambda: not watch.status(), what="the end of the query")
        for shown in (file, terminal):
            soon(lambda shown=shown: "; ended" in shown.getvalue(), what="a last line")
    assert [(log.name, log.lag_records, log.lag_s) for log in status.logs] == [("clicks", 0, 0.0)]
    first, *_, last = file.getvalue().splitlines()
    assert re.match(rf"copy batch \d in .* lag {END - STEP} records, over ", first)
    assert re.match(r"copy batch 2 in .* lag 0 records, 0.0 s; ended$", last)
    assert "copy, batch 2" in table.getvalue() and "clicks" in table.getvalue()


def test_a_display_that_fails_does_not_harm_the_query(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    closed = io.StringIO()
    closed.close()
    with (
        caplog.at_level(logging.ERROR, "millrace.spark"),
        progress.watch(spark, Console(file=closed)),
    ):
        query = start(spark, tmp_path)
        try:
            query.processAllAvailable()
            soon(lambda: "could not be shown" in caplog.text, what="an entry in the log")
            assert query.isActive
        finally:
            query.stop()
