"""How long a record is on its way from its writer to a sink of Spark, when few come.

One record at a time comes while the query waits for it, a random moment after the last one was
seen.  The clock runs from the acknowledgement of its append (for memory: from when it can be read)
until `foreachBatch` has collected it, in the process that appended it.
"""

import queue
import random
import time
from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import DataFrame

from bench.progress import progress
from bench.spark.feeds import FedStream, fed_streams, next_of, running, turned
from bench.spark.profile import LOW_RATE_BYTES, SparkProfile, rounds
from bench.spark.results import Source, Times, times_text
from bench.spark.stage import Stage
from bench.workloads import size_text

NAME: Final = f"record to sink, {size_text(LOW_RATE_BYTES)}"
WARM_UP_RECORDS: Final = 5
PAUSE_SECONDS: Final = (0.15, 0.35)  # Between a record that was seen and the next one.
_SEED: Final = 40


def measure(stage: Stage, profile: SparkProfile, into: list[Times]) -> None:
    progress("one record at a time, from its acknowledgement to foreachBatch")
    streams = fed_streams(stage, "latency", {})
    times = {stream.source: Times(NAME, stream.source) for stream in streams}
    into += times.values()
    sinks = {stream.source: _Sink() for stream in streams}
    pauses = random.Random(_SEED)
    with running(
        stage, streams, lambda each: each.frame.writeStream.foreachBatch(sinks[each.source].take)
    ):
        _round(streams, sinks, pauses, WARM_UP_RECORDS)
        deadline = time.perf_counter() + profile.latency_seconds_max
        for _ in rounds(profile.latency_rounds, deadline):
            found = _round(streams, sinks, pauses, profile.latency_records)
            for source, values_ms in found.items():
                times[source].rounds_ms.append(values_ms)
    for each in into:
        progress(times_text(each))


class _Sink:
    """Notes when each record was there."""

    def __init__(self) -> None:
        self._seen: queue.Queue[tuple[int, int]] = queue.Queue()

    def take(self, frame: DataFrame, batch: int) -> None:
        rows = frame.collect()
        now_ns = time.perf_counter_ns()
        for row in rows:
            self._seen.put((row.lsn, now_ns))

    def wait_for(self, lsn: int) -> int:
        """When it was seen; records come in order."""
        while True:
            seen, seen_ns = next_of(self._seen, f"record {lsn}")
            if seen == lsn:
                return seen_ns


def _round(
    streams: Sequence[FedStream],
    sinks: Mapping[Source, _Sink],
    pauses: random.Random,
    records: int,
) -> dict[Source, list[float]]:
    """The milliseconds of each record, the sources in turns."""
    found: dict[Source, list[float]] = {stream.source: [] for stream in streams}
    for number in range(records):
        for stream in turned(streams, number):
            time.sleep(pauses.uniform(*PAUSE_SECONDS))
            lsn = stream.feed.add()
            added_ns = time.perf_counter_ns()
            seen_ns = sinks[stream.source].wait_for(lsn)
            found[stream.source].append((seen_ns - added_ns) / 1e6)
    return found
