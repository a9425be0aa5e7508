"""Change streams: a consumer that takes every batch as Arrow columns, beside a bare transfer.

The stream from disk is a consumer that begins at the beginning, as an indexer does that was made
today.  The other one follows while documents are written as fast as the node takes them, so that
the node stores, flushes and streams at once.  The loopback moves as many bytes of values.

1. Every change is counted by what its batch holds, and a round is over when all have come.
"""

import asyncio
from functools import partial
from typing import Final

import pyarrow as pa

from bench.documents.lanes import drive
from bench.documents.profile import DocumentsProfile
from bench.documents.requests import (
    VALUE_BYTES,
    Documents,
    Operation,
    check,
    lane,
    make_documents,
)
from bench.documents.results import BACKFILL, LIVE, LOOPBACK, Measured, Round
from bench.documents.rounds import RoundClock, play
from bench.documents.servers import MillraceServer, routes_of, settled
from bench.limits import BYTES_MIN
from bench.loopback import Loopback
from bench.peer import PeerFailure
from millrace.client import Bucket
from millrace.client.changes import ChangeConsumer

STREAM_BUCKET: Final = "stream"
LOAD_TIMEOUT_MS: Final = 120_000
ARRIVAL_SECONDS_MAX: Final = 60.0  # Of all changes of a round.


async def measure(
    server: MillraceServer, loopback: Loopback, profile: DocumentsProfile, into: list[Measured]
) -> None:
    documents, count = make_documents(profile.changes), profile.changes
    bucket = await server.make_bucket(STREAM_BUCKET)
    items = zip(documents.keys, documents.values, strict=True)
    await bucket.set_many(items, timeout_ms=LOAD_TIMEOUT_MS)
    await settled(bucket)
    transfer = partial(_transfer, loopback, count)
    backfill = partial(_backfill, server, bucket, count)
    await play(BACKFILL, {server.name: backfill, LOOPBACK: transfer}, profile.rounds, into)
    async with ChangeConsumer(bucket, "bench:live") as consumer:
        await _take(consumer, count)
        follow = partial(_follow, server, bucket, consumer, documents)
        await play(LIVE, {server.name: follow, LOOPBACK: transfer}, profile.rounds, into)


async def _backfill(server: MillraceServer, bucket: Bucket, count: int) -> Round:
    clock = RoundClock(server.process_ids())
    async with ChangeConsumer(bucket, "bench:backfill", is_finite=True) as consumer:
        await _take(consumer, count)
        clock.answered()
    return clock.settled(count, VALUE_BYTES)


async def _follow(
    server: MillraceServer, bucket: Bucket, consumer: ChangeConsumer, documents: Documents
) -> Round:
    (route,) = routes_of(bucket, documents, is_map_known=True)
    written = lane(Operation.MULTI_SET, route)
    clock = RoundClock(server.process_ids())
    # In a thread: it moves encoded bytes, and leaves the interpreter to the consumer.
    writing = asyncio.create_task(asyncio.to_thread(drive, [written]))
    try:
        await _take(consumer, len(documents))
        clock.answered()
    finally:
        await writing
    await settled(bucket)
    check(Operation.MULTI_SET, route, written)
    return clock.settled(len(documents), VALUE_BYTES)


async def _take(consumer: ChangeConsumer, count: int) -> None:
    """Keeps 1.  Raises PeerFailure if they do not come."""
    rows = value_bytes = 0
    try:
        async with asyncio.timeout(ARRIVAL_SECONDS_MAX):
            while rows < count:
                batch = await consumer.take()
                if batch is None:
                    break
                columns = batch.to_arrow()
                rows += columns.num_rows
                value_bytes += _bytes_of(columns)
    except TimeoutError:
        raise PeerFailure(f"{rows} of {count} changes came: {consumer.explain()}") from None
    if (rows, value_bytes) != (count, count * VALUE_BYTES):
        raise PeerFailure(f"{rows} changes with {value_bytes} bytes came instead of {count}")


def _bytes_of(columns: pa.RecordBatch) -> int:
    """Of the values; the offsets, four bytes a row and one more, are none."""
    size: int = columns.column("value").get_total_buffer_size()
    return size - 4 * (columns.num_rows + 1)


async def _transfer(loopback: Loopback, count: int) -> Round:
    clock = RoundClock([loopback.process_id])
    moved = loopback.transfer(max(count * VALUE_BYTES, BYTES_MIN))
    clock.answered()
    return clock.settled(moved // VALUE_BYTES, VALUE_BYTES)
