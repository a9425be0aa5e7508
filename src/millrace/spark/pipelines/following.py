"""Follows streaming queries until they end or are to stop, and reports what Spark says of them.

`StreamingQuery.stop` interrupts the batch that runs.  A pipeline that is asked to stop is not in
such a hurry: the batch of that moment may finish, and what is interrupted is the planning of the
next one.  Either way the checkpoint says where to go on.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from millrace.spark.lag import LagTracker
from millrace.spark.pipelines.folder import Progress

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from millrace.spark.pipelines.context import Context

POLL_S: Final = 0.5
BETWEEN_BATCHES_S: Final = 0.02  # Far less than Spark needs to plan a batch.
PROCESSING: Final = "Processing new data"  # What Spark says of a query while a batch runs.
LAST_BATCH_PATIENCE_S: Final = 300.0  # A batch that takes longer is interrupted, and done again.


def follow(
    context: "Context",
    queries: "Sequence[StreamingQuery]",
    lag: Callable[[], int | None] | None,
    note: Callable[[], str] | None = None,
) -> None:
    watched = Watched(context.reported(), lag, note)
    try:
        while all(query.isActive for query in queries) and not context.wait(POLL_S):
            _take(context, watched, queries)
        if context.is_stopping:
            context.say("stopping when the current batch is done")
            _finish_batches(queries)
    finally:
        for query in queries:
            query.stop()
        _take(context, watched, queries)
    for query in queries:
        failure = query.exception()
        if failure is not None:
            raise failure


class Watched:
    """Turns Spark's progress documents into ours: pure, but for the question for the lag."""

    def __init__(
        self,
        before: Progress,
        lag: Callable[[], int | None] | None,
        note: Callable[[], str] | None = None,
    ) -> None:
        self._progress = Progress(batch=before.batch, rows=before.rows, lag=before.lag)
        self._lag = lag
        self._note = note
        self._tracker = LagTracker()
        self._seen: dict[str, tuple[int, str]] = {}  # The last document of each query.

    def is_next(self, run: str, batch: int) -> bool:
        """Whether no batch of the query lies between those that were taken and this one."""
        return batch <= self._seen.get(run, (-1, ""))[0] + 1

    def take(self, run: str, documents: Sequence[Mapping[str, Any]]) -> Progress | None:
        """What to report when these are the newest documents of a query, in order; None if none of
        them is new."""
        _, seen = self._seen.get(run, (-1, ""))
        fresh = [document for document in documents if document["timestamp"] > seen]
        if not fresh:
            return None
        self._seen[run] = (fresh[-1]["batchId"], fresh[-1]["timestamp"])
        for document in fresh:
            self._add(document)
        return self._progress

    def _add(self, document: Mapping[str, Any]) -> None:
        rows = int(document.get("numInputRows", 0))
        batch_ms = int(document.get("batchDuration", 0))
        self._progress = Progress(
            batch=int(document["batchId"]),
            rows=self._progress.rows + rows,
            rows_per_s=rows * 1000 / batch_ms if batch_ms else 0.0,
            lag=self._lag_after(document),
            batch_ms=batch_ms,
            note="" if self._note is None else self._note(),
        )

    def _lag_after(self, document: Mapping[str, Any]) -> int | None:
        if self._lag is not None:
            return self._lag()
        self._tracker.take(document)
        if not document.get("numInputRows"):
            self._tracker.idle(str(document["runId"]))
        queries = self._tracker.status(time.time())
        return sum(query.lag_records for query in queries) if queries else None


def _take(context: "Context", watched: Watched, queries: "Sequence[StreamingQuery]") -> None:
    for query in queries:
        last = query.lastProgress
        if last is None:
            continue
        run = str(query.runId)
        # Documents name every offset, so all that Spark keeps are only asked for when need be.
        news = [last] if watched.is_next(run, last.batchId) else query.recentProgress
        progress = watched.take(run, [json.loads(each.json) for each in news])
        if progress is not None:
            context.report(progress)


def _finish_batches(queries: "Sequence[StreamingQuery]") -> None:
    deadline_s = time.monotonic() + LAST_BATCH_PATIENCE_S
    for query in queries:
        while query.isActive and query.status["message"] == PROCESSING:
            if time.monotonic() > deadline_s:
                return
            time.sleep(BETWEEN_BATCHES_S)
