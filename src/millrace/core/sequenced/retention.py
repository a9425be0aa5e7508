"""What a sequenced log may forget (L7): by age, by size, and on which nodes.

Every node knows only the blocks that it holds.  A block is young if any node says so, and a node's
part of the log is as large as its share of all bytes, so the lowest answer is always safe.
"""

from collections.abc import Collection, Mapping, Sequence

from millrace.core.epochs import EpochRange
from millrace.core.messages import (
    DescribeSequenced,
    FindSize,
    FindTime,
    Position,
    SequencedDescribed,
    Trimmed,
    TrimSequenced,
)
from millrace.core.procedure import Ask, Procedure, ask_all
from millrace.core.replication import Authority, Locations, authority
from millrace.core.statuses import Statuses
from millrace.types import LSN_MAX, Epoch, LogId, Lsn, NodeId

Held = Mapping[NodeId, SequencedDescribed]


def members(ranges: Sequence[EpochRange]) -> list[NodeId]:
    """All nodes that may hold blocks."""
    return sorted({node for each in ranges for node in each.nodeset})


def has_authority(
    ranges: Sequence[EpochRange],
    locations: Locations,
    statuses: Statuses,
    answered: Collection[NodeId],
) -> bool:
    """Whether nobody who is silent can hold a block that those who answered do not know."""
    return all(
        authority(each.replication, each.nodeset, locations, statuses, answered)
        is not Authority.NONE
        for each in ranges
    )


def retention_point(
    log: LogId,
    ranges: Sequence[EpochRange],
    locations: Locations,
    statuses: Statuses,
    oldest_us: int | None,
    bytes_kept: int | None,
    kept_us: int | None = None,
) -> Procedure[Lsn | None]:
    """Below which position the log may be forgotten; None if too few nodes answer.  What is younger
    than `kept_us` is not for its size."""
    nodes = members(ranges)
    answers = yield from ask_all([Ask(node, DescribeSequenced(log)) for node in nodes])
    held = {
        node: answer
        for node, answer in zip(nodes, answers, strict=True)
        if isinstance(answer, SequencedDescribed)
    }
    if not has_authority(ranges, locations, statuses, held):
        return None
    end = Lsn(max(each.released for each in held.values()) + 1)
    point = Lsn(0)
    if oldest_us is not None:
        young = yield from _young(log, held, oldest_us)
        if young is None:
            return None
        point = max(point, min(young, end))
    if bytes_kept is not None:
        surplus = yield from _surplus(log, held, bytes_kept * ranges[-1].replication.copies)
        if surplus and kept_us is not None:
            young = yield from _young(log, held, kept_us)
            surplus = None if young is None else min(surplus, young)
        if surplus is None:
            return None
        point = max(point, min(surplus, end))
    return point


def _young(log: LogId, held: Held, moment_us: int) -> Procedure[Lsn | None]:
    """Where the first block begins that is younger."""
    asks = [Ask(node, FindTime(log, Epoch(0), moment_us)) for node in held]
    return (yield from _lowest(asks, len(held)))


def _surplus(log: LogId, held: Held, bytes_kept: int) -> Procedure[Lsn | None]:
    """Below which position there is more than is to be kept; 0 if there is not."""
    total = sum(each.bytes for each in held.values())
    if total <= bytes_kept:
        return Lsn(0)
    asks = [
        Ask(node, FindSize(log, Epoch(0), bytes_kept * each.bytes // total))
        for node, each in held.items()
        if each.blocks
    ]
    return (yield from _lowest(asks, len(asks)))


def _lowest(asks: Sequence[Ask], wanted: int) -> Procedure[Lsn | None]:
    answers = yield from ask_all(asks)
    found = [answer.lsn for answer in answers if isinstance(answer, Position)]
    return None if len(found) < wanted else min(found, default=LSN_MAX)


def trim_sequenced(log: LogId, nodes: Sequence[NodeId], end: Lsn) -> Procedure[list[NodeId]]:
    """Those that did not trim."""
    answers = yield from ask_all([Ask(node, TrimSequenced(log, end)) for node in nodes])
    return [
        node for node, answer in zip(nodes, answers, strict=True) if not isinstance(answer, Trimmed)
    ]
