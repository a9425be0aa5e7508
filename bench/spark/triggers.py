"""What a trigger with one record costs.

A source may wait for data inside `latestOffset`, which Spark counts into `triggerExecution`.  So
records come in bursts and each trigger takes one of them: once the burst is there, each trigger
has data when it begins, nobody waits for anything, and `triggerExecution` is the cost of a trigger
with all that the source does in it.
"""

import queue
import time
from collections.abc import Sequence
from typing import Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)
from pyspark.sql.streaming.query import StreamingQuery

from bench.peer import PeerFailure
from bench.progress import progress
from bench.spark.feeds import FedStream, fed_streams, next_of, running, turned
from bench.spark.profile import LOW_RATE_BYTES, SparkProfile, rounds
from bench.spark.results import Times, times_text
from bench.spark.stage import Stage
from bench.workloads import size_text

NAME: Final = f"trigger, one record, {size_text(LOW_RATE_BYTES)}"
WARM_UP_BURSTS: Final = 2
# Of a burst: its records may still be coming when the first trigger begins.
TRIGGERS_LEFT_OUT: Final = 2
WHOLE: Final = "triggerExecution"


def measure(stage: Stage, profile: SparkProfile, into: list[Times]) -> None:
    progress("Spark triggers with one record each")
    streams = fed_streams(stage, "triggers", {"maxRecordsPerTrigger": "1"})
    times = {stream.source: Times(NAME, stream.source) for stream in streams}
    into += times.values()
    listener = _Listener()
    stage.spark.streams.addListener(listener)
    try:
        with running(stage, streams, lambda each: each.frame.writeStream.format("noop")) as queries:
            for number in range(WARM_UP_BURSTS):
                for stream in turned(streams, number):
                    listener.burst(stream, queries[stream.source], profile.burst_records)
            deadline = time.perf_counter() + profile.burst_seconds_max
            for number in rounds(profile.bursts, deadline):
                for stream in turned(streams, number):
                    query = queries[stream.source]
                    batches = listener.burst(stream, query, profile.burst_records)
                    _take(times[stream.source], batches[TRIGGERS_LEFT_OUT:])
    finally:
        stage.spark.streams.removeListener(listener)
    for each in into:
        progress(times_text(each))


class _Listener(StreamingQueryListener):
    """Hands over the progress of each micro-batch that had rows."""

    def __init__(self) -> None:
        self._batches: queue.Queue[StreamingQueryProgress] = queue.Queue()

    def burst(
        self, stream: FedStream, query: StreamingQuery, records: int
    ) -> list[StreamingQueryProgress]:
        """Add records at once and wait until each was read in a micro-batch of its own."""
        for _ in range(records):
            stream.feed.add()
        batches: list[StreamingQueryProgress] = []
        while len(batches) < records:
            batch = next_of(self._batches, f"a record of {stream.source.value}")
            if str(batch.runId) != str(query.runId) or batch.numInputRows != 1:
                raise PeerFailure(
                    f"{stream.source.value}: {batch.numInputRows} rows in a micro-batch of query "
                    f"{batch.runId}; one row of query {query.runId} was due"
                )
            batches.append(batch)
        return batches

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Nothing was read yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        if event.progress.numInputRows:
            self._batches.put(event.progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """It waits for its turn."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Whoever waits for rows will say that none came."""


def _take(times: Times, batches: Sequence[StreamingQueryProgress]) -> None:
    """As one round."""
    times.rounds_ms.append([float(batch.durationMs[WHOLE]) for batch in batches])
    for batch in batches:
        for name, value in batch.durationMs.items():
            if name != WHOLE:
                times.parts_ms.setdefault(name, []).append(float(value))
