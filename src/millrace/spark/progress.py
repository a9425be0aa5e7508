"""Shows how fast streaming queries read logs and how far behind they are.

    with millrace.spark.progress.watch(spark):   # A line for each query, on stderr.
        query.awaitTermination()

    rich.print(millrace.spark.progress.table(query))   # Once, log by log.

The computation is in `lag.py`.  Whatever goes wrong in the listener is logged, and the query goes
on.
"""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from millrace.spark.lag import LagTracker, LogStatus, QueryStatus

LINE_INTERVAL_S: Final = 1.0
REFRESH_PER_S: Final = 4
LOGS_SHOWN: Final = 3

logger = logging.getLogger("millrace.spark")


def watch(spark: SparkSession, console: Console | None = None) -> "Watch":
    """Show the queries of this session until `close` or the end of the `with` block.  A terminal
    gets a line for each query that is kept up to date, anything else a line a second at most; both
    get a last line when a query ends."""
    return Watch(spark, console or Console(stderr=True))


def snapshot(query: StreamingQuery) -> QueryStatus | None:
    """Where a query stands, from the progress that Spark keeps of it; None before its first batch,
    and for a query that reads no log."""
    tracker = LagTracker()
    for progress in query.recentProgress:
        tracker.take(json.loads(progress.json))
    if query.isActive and not query.status["isDataAvailable"]:
        tracker.idle(str(query.runId))
    return next(iter(tracker.status(time.time())), None)


def table(query: StreamingQuery) -> Table:
    """`snapshot` as a table, a row for each log."""
    status = snapshot(query)
    shown = Table("log", title=f"{status.name}, batch {status.batch}" if status else "no batch yet")
    for column in ("rows/s", "lag in records", "lag in time"):
        shown.add_column(column, justify="right")
    for log in status.logs if status else ():
        shown.add_row(
            Text(log.name), f"{log.rows_per_s:,.0f}", f"{log.lag_records:,}", lag_time(log)
        )
    return shown


def line(status: QueryStatus) -> str:
    """A query in one line; of many logs, the ones that are furthest behind."""
    behind = sorted(status.logs, key=lambda log: log.lag_records, reverse=True)
    logs = [
        f"{log.name} {log.rows_per_s:,.0f} rows/s, lag {log.lag_records:,} records, {lag_time(log)}"
        for log in behind[:LOGS_SHOWN]
    ]
    if len(behind) > LOGS_SHOWN:
        logs.append(f"{len(behind) - LOGS_SHOWN} more logs")
    return f"{status.name} batch {status.batch} in {status.batch_s:.1f} s: {'; '.join(logs)}"


def lag_time(log: LogStatus) -> str:
    is_known = log.is_lag_s_exact or not log.lag_records
    return f"{'' if is_known else 'over '}{log.lag_s:.1f} s"


class Watch:
    """A running display.  `status` is what it shows, for programs."""

    def __init__(self, spark: SparkSession, console: Console) -> None:
        self._spark = spark
        self._console = console
        self._tracker = LagTracker()
        self._lock = (
            threading.Lock()
        )  # Of the tracker.  Nothing is printed under it: rich has its own.
        self._printed_s = -LINE_INTERVAL_S
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(
                console=console, refresh_per_second=REFRESH_PER_S, get_renderable=self._lines
            )
            self._live.start()
        self._listener = _Listener(self)
        spark.streams.addListener(self._listener)

    def status(self) -> tuple[QueryStatus, ...]:
        with self._lock:
            return self._tracker.status(time.time())

    def close(self) -> None:
        with _harmless():  # Spark may have been stopped, and the terminal may be gone.
            self._spark.streams.removeListener(self._listener)
        with _harmless():
            if self._live is not None:
                self._live.stop()

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- Called by the listener, from Spark's threads ---------------------------------------------

    def progressed(self, document: Mapping[str, Any]) -> None:
        with self._lock:
            self._tracker.take(document)
            queries = self._tracker.status(time.time())
            now_s = time.monotonic()
            is_due = now_s - self._printed_s >= LINE_INTERVAL_S
            if self._live is not None or not queries or not is_due:
                return
            self._printed_s = now_s
        self._print(" | ".join(line(query) for query in queries))

    def idled(self, run_id: str) -> None:
        with self._lock:
            self._tracker.idle(run_id)

    def ended(self, run_id: str) -> None:
        with self._lock:
            status = self._tracker.ended(run_id, time.time())
        if status is not None:
            self._print(f"{line(status)}; ended")

    def _print(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def _lines(self) -> Group:
        lines = (Text(line(query), no_wrap=True, overflow="ellipsis") for query in self.status())
        return Group(*lines)


class _Listener(StreamingQueryListener):
    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """There is nothing to show before the first batch."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        with _harmless():
            self._watch.progressed(json.loads(event.progress.json))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        with _harmless():
            self._watch.idled(str(event.runId))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        with _harmless():
            self._watch.ended(str(event.runId))


@contextlib.contextmanager
def _harmless() -> Iterator[None]:
    """To show a query is a convenience: what goes wrong with it must not end the query."""
    try:
        yield
    except Exception:
        logger.exception("a query's progress could not be shown")
