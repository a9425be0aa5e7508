"""What a sequenced log looks like now, asked of everybody who has a part in it.

I1  Only looks: nobody becomes a sequencer because of it, and a node that is silent is only shown
    so.
I2  Answers within its time, with what is known by then.
"""

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from millrace.client.epoch_history import EpochHistory, Known
from millrace.core.epochs import EpochRecord
from millrace.core.messages import (
    AskTail,
    DescribeSequenced,
    Message,
    SequencedDescribed,
    Tail,
)
from millrace.core.procedure import DeadlinePassed
from millrace.errors import MetadataUnavailable, Unavailable
from millrace.types import AuthoritativeStatus, Epoch, LogInfo, Lsn, NodeId

if TYPE_CHECKING:
    from millrace.client.cluster import Client

ASK_TIMEOUT_MS: Final = 3_000
PARTS: Final = 3  # Questions that wait for one another share the time.

T = TypeVar("T")


class SequencedDescription(msgspec.Struct, frozen=True):
    """Everything `millrace log info` shows of a sequenced log."""

    info: LogInfo
    record: EpochRecord  # The newest that is known.
    trim_end: Lsn | None  # None: the metadata repository does not answer.
    tail: Tail | None  # None: no sequencer answers; the next append or the keeper finds one.
    statuses: dict[int, AuthoritativeStatus]  # Of the nodes that have another than the usual one.
    members: dict[int, SequencedDescribed | None]  # None: the node does not answer.


async def describe_sequenced(
    client: "Client", info: LogInfo, history: EpochHistory, timeout_ms: int
) -> SequencedDescription:
    """Raises UnknownLog if the log was deleted."""
    part_ms = max(1, min(ASK_TIMEOUT_MS, timeout_ms // PARTS))  # Keeps I2.
    record, trim_end = await asyncio.gather(
        _in_time(history.refresh(), part_ms),
        _in_time(client.directory.trim_end(info.id), part_ms),
    )
    record = record or history.record
    known = await _in_time(history.known(Epoch(1)), part_ms)
    nodes = _nodes(known, record)
    asks = [_ask(client, node, DescribeSequenced(info.id), part_ms) for node in nodes]
    glance = _ask(client, record.sequencer, AskTail(info.id, is_glance=True), part_ms)
    *answers, tail = await asyncio.gather(*asks, glance)
    return SequencedDescription(
        info,
        record,
        trim_end,
        tail if isinstance(tail, Tail) else None,
        {} if known is None else {int(n): s for n, s in known.statuses.items() if n in nodes},
        {
            int(node): answer if isinstance(answer, SequencedDescribed) else None
            for node, answer in zip(nodes, answers, strict=True)
        },
    )


def _nodes(known: Known | None, record: EpochRecord) -> list[NodeId]:
    """Of all its epochs; those of the newest one if the older ones cannot be looked up now."""
    if known is None:
        return sorted(record.nodeset)
    return sorted({node for each in known.ranges for node in each.nodeset})


async def _ask(client: "Client", node: NodeId, message: Message, timeout_ms: int) -> Message | None:
    """None: no answer, or nobody to ask."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):  # Also for finding its address.
            return await client.ask_node(node, message, timeout_ms) if node else None
    except (Unavailable, TimeoutError):
        return None


async def _in_time(work: Coroutine[Any, Any, T], timeout_ms: int) -> T | None:
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await work
    except (MetadataUnavailable, DeadlinePassed, TimeoutError):
        return None
