"""What a log looks like now, asked of everybody who has a part in it.

I1  Only looks: a node that does not answer is reported, and never taken out of the chain for it.
I2  Answers within its time, with what is known by then.
"""

import asyncio
import contextlib
from typing import TYPE_CHECKING

import msgspec

from millrace.core.messages import Describe, Described, Message, Peek, Peeked
from millrace.core.projection import Projection
from millrace.errors import MetadataUnavailable, Unavailable, UnknownLog
from millrace.meta.deadline import Deadline
from millrace.types import LogInfo, Lsn, NodeId

if TYPE_CHECKING:
    from millrace.client.cluster import Client

ASK_TIMEOUT_MS = 3_000
ROUNDS_MAX = 3  # The chain may change while it is looked at.


class LogDescription(msgspec.Struct, frozen=True):
    """Everything `millrace log info` shows."""

    info: LogInfo
    projection: Projection
    trim_end: Lsn | None  # None: the tail, who knows, does not answer.
    readable_end: Lsn | None
    issued_last: Lsn | None  # None: the sequencer does not answer.
    members: dict[int, Described | None]  # None: the node does not answer.


async def describe_log(
    client: "Client", info: LogInfo, seen: Projection, timeout_ms: int
) -> LogDescription:
    """`seen` is the projection to begin with.  Raises UnknownLog if the log was deleted."""
    deadline = Deadline(timeout_ms)
    ask_timeout_ms = max(1, min(ASK_TIMEOUT_MS, timeout_ms // ROUNDS_MAX))  # Keeps I2.
    for _ in range(ROUNDS_MAX):
        described = await _look(client, info, seen, min(ask_timeout_ms, deadline.left_ms()))
        if all(
            each is not None and each.epoch == seen.epoch for each in described.members.values()
        ):
            break
        newest = await _newest(client, info, seen, deadline)
        if newest.epoch == seen.epoch:
            break
        seen = newest
    return described


async def _look(
    client: "Client", info: LogInfo, projection: Projection, timeout_ms: int
) -> LogDescription:
    asks = [_ask(client, node, Describe(info.id), timeout_ms) for node in projection.chain]
    peek = _ask(client, projection.sequencer, Peek(info.id, projection.epoch), timeout_ms)
    *answers, peeked = await asyncio.gather(*asks, peek)
    members = {
        int(node): answer if isinstance(answer, Described) else None
        for node, answer in zip(projection.chain, answers, strict=True)
    }
    tail = members[projection.tail]
    return LogDescription(
        info,
        projection,
        None if tail is None else tail.trim_end,
        None if tail is None else tail.readable_end,
        peeked.last if isinstance(peeked, Peeked) else None,
        members,
    )


async def _ask(client: "Client", node: NodeId, message: Message, timeout_ms: int) -> Message | None:
    """None: no answer."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):  # Also for finding its address.
            return await client.ask_node(node, message, timeout_ms)
    except (Unavailable, TimeoutError):
        return None


async def _newest(
    client: "Client", info: LogInfo, seen: Projection, deadline: Deadline
) -> Projection:
    """As the repository has it; what was seen last must do while it is away."""
    with contextlib.suppress(MetadataUnavailable, TimeoutError):
        async with asyncio.timeout(deadline.left_ms() / 1000):
            found, _ = await client.directory.read_projection(info.id)
            if found is None:
                raise UnknownLog(f"log {info.name!r} was deleted")
            return found
    return seen
