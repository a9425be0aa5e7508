"""How fast Spark follows a bucket's changes, beside a consumer that takes them as Arrow columns.

Both read all changes of one bucket from the beginning, as an indexer does that was made today.

1. A stream is timed by Spark, `triggerExecution` of the micro-batches that had rows; a batch read
   from `spark.read` to the end of the action; the consumer from its making to the last change.
2. A round that did not read every change counts as a failure, not as a fast round.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from bench.documents.requests import VALUE_BYTES, make_documents
from bench.measure import Sample, cpu_seconds
from bench.peer import PeerFailure
from bench.pipelines.profile import PipelinesProfile
from bench.pipelines.results import CHANGES, CONSUMER, SNAPSHOT, STREAM, Measured
from bench.progress import progress
from bench.spark.stage import Stage
from bench.spark.throughput import QUERY_SECONDS_MAX, trigger_seconds
from millrace.client import connect
from millrace.client.changes import ChangeConsumer

BUCKET: Final = "changes"
FORMAT: Final = "millrace-changes"
PARTITIONS: Final = 64
LOAD_TIMEOUT_MS: Final = 120_000
ARRIVAL_SECONDS_MAX: Final = 60.0


def measure(stage: Stage, profile: PipelinesProfile, into: list[Measured]) -> None:
    progress(f"{profile.changes:,} changes of {VALUE_BYTES} bytes")
    fill(stage, BUCKET, profile.changes)
    ways: dict[str, Callable[[], float]] = {
        CONSUMER: lambda: asyncio.run(_consume(stage, profile.changes)),
        STREAM: lambda: _stream(stage, profile.changes),
        SNAPSHOT: lambda: _read(stage, profile.changes),
    }
    measured = [Measured(CHANGES, peer) for peer in ways]
    into += measured
    for way in ways.values():
        way()  # Warm-up.
    for number in range(profile.rounds):
        turn = number % len(measured)
        for each in measured[turn:] + measured[:turn]:
            each.samples.append(_timed(stage, profile.changes, ways[each.peer]))
            progress(f"  {each.peer:20}{each.samples[-1].records_per_second:12,.0f}/s")


def fill(stage: Stage, name: str, count: int) -> None:
    documents = make_documents(count)
    bucket = stage.client.create_bucket(name, partitions=PARTITIONS, replicas=0)
    items = zip(documents.keys, documents.values, strict=True)
    bucket.set_many(items, timeout_ms=LOAD_TIMEOUT_MS)


def options(stage: Stage) -> dict[str, str]:
    return {"cluster": ",".join(stage.cluster.addresses), "bucket": BUCKET}


def _timed(stage: Stage, changes: int, way: Callable[[], float]) -> Sample:
    before = cpu_seconds(stage.process_ids)
    seconds = way()
    after = cpu_seconds(stage.process_ids)
    spent = None if before is None or after is None else after - before
    return Sample(changes, changes * VALUE_BYTES, seconds, spent, None)


async def _consume(stage: Stage, changes: int) -> float:
    rows = 0
    async with await connect(stage.cluster.addresses) as client:
        bucket = await client.bucket(BUCKET)
        started = time.perf_counter()
        async with (
            asyncio.timeout(ARRIVAL_SECONDS_MAX),
            ChangeConsumer(bucket, "bench:pipelines", is_finite=True) as consumer,
        ):
            while (batch := await consumer.take()) is not None:
                rows += batch.to_arrow().num_rows
        seconds = time.perf_counter() - started
    _check(rows, changes)
    return seconds


def _stream(stage: Stage, changes: int) -> float:
    reader = stage.spark.readStream.format(FORMAT).options(**options(stage))
    query = (
        reader.load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(stage.new_path("checkpoint")))
        .trigger(availableNow=True)
        .start()
    )
    if not query.awaitTermination(QUERY_SECONDS_MAX):
        query.stop()
        raise PeerFailure(f"the stream did not end within {QUERY_SECONDS_MAX} s")
    return trigger_seconds(query, changes)


def _read(stage: Stage, changes: int) -> float:
    started = time.perf_counter()
    frame = stage.spark.read.format(FORMAT).options(**options(stage)).load()
    frame.write.format("noop").mode("overwrite").save()
    seconds = time.perf_counter() - started
    _check(frame.count(), changes)
    return seconds


def _check(found: int, wanted: int) -> None:
    """Keeps 2."""
    if found != wanted:
        raise PeerFailure(f"{found} changes came instead of {wanted}")
