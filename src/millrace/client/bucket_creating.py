"""Making, finding and deleting buckets.

A new bucket is one record in the repository, with wanted copies and no masters.  The keeper gives
each partition its first master, and tells the master after it has written that down.  Whoever made
the bucket waits until the masters say that they serve: any client may use it then.
"""

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import msgspec

from millrace.client.bucket import Bucket
from millrace.client.bucket_map import MapRead, PartitionMap
from millrace.config import NAME_PATTERN, decoder_complaint
from millrace.core.documents.document import PartitionId, PartitionState
from millrace.core.documents.map import (
    PARTITIONS_MAX,
    REPLICAS_MAX,
    BucketAttributes,
    BucketRecord,
)
from millrace.core.documents.placement import Copies, place
from millrace.core.documents.seats import new_bucket
from millrace.core.messages.documents import BucketsDescribed, DescribeBuckets
from millrace.errors import (
    BucketExists,
    BucketNotReady,
    TooFewNodes,
    Unavailable,
    UnknownBucket,
    UsageError,
)
from millrace.limits import DOCUMENT_FRAME_BYTES_MAX, MIB
from millrace.meta.directory import ClusterDirectory
from millrace.runtime.procedures import AskNode
from millrace.types import NO_NODE, NodeId, Role

TIMEOUT_MS: Final = 30_000
BUCKET_NAME_CHARS_MAX: Final = 100
MEMORY_BYTES_MIN: Final = 1 * MIB
VALUE_BYTES_MAX: Final = DOCUMENT_FRAME_BYTES_MAX - MIB  # A frame has more than the value.
LOOK_S: Final = 0.02
LOOK_S_MAX: Final = 0.5
ASK_MS: Final = 2_000


# What each attribute may be.
_RANGES: Final = {
    "partitions": (1, PARTITIONS_MAX),
    "replicas": (0, REPLICAS_MAX),
    "memory_bytes": (MEMORY_BYTES_MIN, 2**63 - 1),
    "value_bytes_max": (1, VALUE_BYTES_MAX),
    "purge_after_s": (0, 2**31 - 1),
}


def choose(name: str, attributes: Mapping[str, Any]) -> BucketAttributes:
    """Raises UsageError that says what cannot be."""
    if not re.fullmatch(NAME_PATTERN, name) or len(name) > BUCKET_NAME_CHARS_MAX:
        raise UsageError(
            f"{name!r} is not a bucket name: letters, digits, '.', '_', '-', beginning with a "
            f"letter or digit, at most {BUCKET_NAME_CHARS_MAX} characters"
        )
    for attribute, value in attributes.items():
        if attribute not in _RANGES:
            raise UsageError(f"a bucket has no {attribute}; it has {', '.join(_RANGES)}")
        least, most = _RANGES[attribute]
        if not isinstance(value, int) or not least <= value <= most:
            raise UsageError(f"{attribute}={value!r}: give a number from {least} to {most}")
    try:
        return msgspec.convert(dict(attributes), BucketAttributes)
    except msgspec.ValidationError as error:
        raise UsageError(decoder_complaint(error)) from None


async def create(
    directory: ClusterDirectory,
    ask: AskNode,
    name: str,
    attributes: BucketAttributes,
    timeout_ms: int,
) -> BucketRecord:
    """Raises BucketExists, TooFewNodes, BucketNotReady."""
    until_s = asyncio.get_running_loop().time() + timeout_ms / 1000
    if (await directory.read_bucket(name))[0] is not None:
        raise _exists(name)
    wanted = await _place(directory, attributes)
    id = await directory.next_bucket_id()
    record = new_bucket(id, name, attributes, wanted, time.time_ns() // 1_000_000)
    if not await directory.replace_bucket(record, 0):
        # It is ours all the same if the answer was lost and the keeper has gone on with it.
        found, _ = await directory.read_bucket(name)
        if found is None or found.id != id:
            raise _exists(name)
    return await _when_ready(directory, ask, record, until_s)


async def _place(directory: ClusterDirectory, attributes: BucketAttributes) -> tuple[Copies, ...]:
    view = await directory.view()
    able = [n for n in view.nodes if Role.DOCUMENTS in n.roles and n.id in view.live]
    if len(able) <= attributes.replicas:
        raise TooFewNodes(
            f"replicas={attributes.replicas} besides the master need {attributes.replicas + 1} "
            f"nodes with the role documents, and {len(able)} live; "
            "start more, or give fewer replicas"
        )
    locations = {node.id: node.location for node in view.nodes}
    nobody = [Copies(NO_NODE)] * attributes.partitions
    return place((node.id for node in able), locations, attributes.replicas, nobody)


async def _when_ready(
    directory: ClusterDirectory, ask: AskNode, made: BucketRecord, until_s: float
) -> BucketRecord:
    loop = asyncio.get_running_loop()
    pause_s = LOOK_S
    while True:
        record, _ = await directory.read_bucket(made.name)
        if record is None or record.id != made.id:
            raise UnknownBucket(f"bucket {made.name!r} was deleted while it was made")
        missing = sum(seat.active == NO_NODE for seat in record.seats)
        lacking = "have no master yet; do its nodes and the keeper live?"
        if not missing:
            ask_ms = min(ASK_MS, max(1, int(1_000 * (until_s - loop.time()))))
            missing = len(record.seats) - await _count_served(ask, record, ask_ms)
            lacking = "are not served by their masters yet; do these nodes live?"
        if not missing:
            return record
        if loop.time() + pause_s > until_s:
            raise BucketNotReady(
                f"bucket {made.name!r} is made, but {missing} of {len(record.seats)} partitions "
                f"{lacking}"
            )
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LOOK_S_MAX)


async def _count_served(ask: AskNode, record: BucketRecord, ask_ms: int) -> int:
    """The partitions whose masters say that they serve them."""
    led: defaultdict[NodeId, list[PartitionId]] = defaultdict(list)
    for number, seat in enumerate(record.seats):
        led[seat.active].append(PartitionId(number))
    questions = {node: DescribeBuckets(record.id, tuple(numbers)) for node, numbers in led.items()}
    asks = (_count_served_by(ask, node, asked, ask_ms) for node, asked in questions.items())
    return sum(await asyncio.gather(*asks))


async def _count_served_by(
    ask: AskNode, master: NodeId, asked: DescribeBuckets, ask_ms: int
) -> int:
    try:
        answer = await ask(master, asked, ask_ms)
    except Unavailable:
        return 0
    described = answer.buckets if isinstance(answer, BucketsDescribed) else ()
    return sum(
        each.state is PartitionState.ACTIVE and each.is_ordered and each.is_confirmed
        for bucket in described
        if bucket.is_serving
        for each in bucket.partitions
    )


async def read_map(directory: ClusterDirectory, name: str) -> MapRead:
    """Raises UnknownBucket."""
    (record, _), view = await asyncio.gather(directory.read_bucket(name), directory.view())
    if record is None:
        raise UnknownBucket(f"there is no bucket {name!r}; `millrace bucket ls` lists the buckets")
    return MapRead(record, {node.id: node.documents for node in view.nodes})


def opened(directory: ClusterDirectory, read: MapRead) -> Bucket:
    return Bucket(PartitionMap(read, partial(read_map, directory, read.record.name)))


async def delete(directory: ClusterDirectory, name: str) -> None:
    """Raises UnknownBucket."""
    if (await directory.read_bucket(name))[0] is None:
        raise UnknownBucket(f"there is no bucket {name!r}; `millrace bucket ls` lists the buckets")
    await directory.remove_bucket(name)


def _exists(name: str) -> BucketExists:
    return BucketExists(
        f"there is a bucket {name!r} already; `millrace bucket info {name}` shows it"
    )
