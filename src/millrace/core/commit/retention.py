"""What a commit log may forget (L7), by age and by size: a position of the log.

Each stream knows the age and the size of its own entries, at positions of its own.  The first
entry of a stream that must be kept is looked up in the log; the lowest of all streams is safe for
each of them, because the order in a stream is that of the log.
"""

from typing import Final

import msgspec

from millrace.core.commit.record import CommitRecord, StreamRecord, stream_log_of
from millrace.core.messages import (
    Describe,
    Described,
    FetchStream,
    FindSize,
    FindTime,
    Position,
    StreamPage,
)
from millrace.core.procedure import Procedure, ask
from millrace.types import Epoch, LogId, Lsn, NodeId

NO_EPOCH: Final = Epoch(0)  # A stream is asked whatever its generation.


class _Holding(msgspec.Struct, frozen=True):
    """A stream, and a replica of it that answers."""

    stream: StreamRecord
    log: LogId
    node: NodeId
    bytes: int


def retention_point(
    record: CommitRecord,
    oldest_us: int | None,
    bytes_kept: int | None,
    kept_us: int | None = None,
) -> Procedure[Lsn | None]:
    """Below which position the log may be forgotten; None if a stream cannot be asked now.  What is
    younger than `kept_us` is not for its size."""
    holdings: list[_Holding] = []
    for stream in record.streams:
        if stream.last >= record.trim_end:  # Otherwise nothing of it is left.
            holding = yield from _find_replica(record, stream)
            if holding is None:
                return None
            holdings.append(holding)
    point = record.trim_end
    if oldest_us is not None:
        young = yield from _young(record, holdings, oldest_us)
        if young is None:
            return None
        point = max(point, young)
    total = sum(each.bytes for each in holdings)
    if bytes_kept is not None and total > bytes_kept:
        shares = [bytes_kept * each.bytes // total for each in holdings]
        sizes = [
            FindSize(each.log, NO_EPOCH, share)
            for each, share in zip(holdings, shares, strict=True)
        ]
        surplus = yield from _lowest(record, holdings, sizes)
        if surplus is not None and kept_us is not None:
            young = yield from _young(record, holdings, kept_us)
            surplus = None if young is None else min(surplus, young)
        if surplus is None:
            return None
        point = max(point, surplus)
    return point


def _young(
    record: CommitRecord, holdings: "list[_Holding]", moment_us: int
) -> Procedure[Lsn | None]:
    """Where the first entry is that is younger."""
    questions = [FindTime(each.log, NO_EPOCH, moment_us) for each in holdings]
    return (yield from _lowest(record, holdings, questions))


def _find_replica(record: CommitRecord, stream: StreamRecord) -> Procedure[_Holding | None]:
    log = stream_log_of(record.log, stream.stream)
    for node in stream.replicas:
        told = yield from ask(node, Describe(log))
        if isinstance(told, Described):
            return _Holding(stream, log, node, told.bytes)
    return None


def _lowest(
    record: CommitRecord,
    holdings: "list[_Holding]",
    questions: "list[FindTime] | list[FindSize]",
) -> Procedure[Lsn | None]:
    """The lowest position of the log that some stream wants to keep."""
    lowest = Lsn(record.high_watermark + 1)
    for holding, question in zip(holdings, questions, strict=True):
        found = yield from ask(holding.node, question)
        if not isinstance(found, Position):
            return None
        if found.lsn < holding.stream.local_end:
            place = yield from _place_of(record.log, holding, found.lsn)
            if place is None:
                return None
            lowest = min(lowest, place)
    return lowest


def _place_of(log: LogId, holding: _Holding, local: Lsn) -> Procedure[Lsn | None]:
    """Where the block at this position of the stream begins in the log."""
    question = FetchStream(log, holding.stream.stream, local, Lsn(local + 1), bytes_max=1)
    page = yield from ask(holding.node, question)
    return page.firsts[0] if isinstance(page, StreamPage) and page.firsts else None
