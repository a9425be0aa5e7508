"""A simulated disk: what survives a crash, and what can go wrong with it.

It holds what was committed, as LMDB would: a commit is on it whole or not at all.  The process's
own view of it, with what still waits to be committed, is `store.SimulatedStore`.

  I1  Only a commit changes what is here, except rot, which takes a block's readability.
  I2  Fences, trims, removals, drops and commits find room when blocks do not.
"""

from collections.abc import Callable, Iterable

import msgspec

from millrace.core.commit.record import CommitContext, StreamCommit
from millrace.core.log_state import Fence, Marks
from millrace.core.messages import Standing
from millrace.store.commit_runs import RunList
from millrace.store.layout import NO_FENCE
from millrace.types import FIRST_LSN, Ack, Block, LogId, Lsn, Placement

ROW_BYTES = 64  # What a block takes beside its own bytes.
RESERVE_SHARE = 16


class Put(msgspec.Struct, frozen=True):
    log: LogId
    block: Block
    placement: Placement
    ack: Ack
    is_marking: bool  # The first memory-acknowledged block of its log sets the flag.
    replaces: tuple[Lsn, ...] = ()


class Scatter(msgspec.Struct, frozen=True):
    log: LogId


class Amend(msgspec.Struct, frozen=True):
    log: LogId
    placements: tuple[tuple[Lsn, Placement], ...]


class SetFence(msgspec.Struct, frozen=True):
    log: LogId
    fence: Fence


class SetMarks(msgspec.Struct, frozen=True):
    log: LogId
    marks: Marks


class Trim(msgspec.Struct, frozen=True):
    log: LogId
    end: Lsn


class Remove(msgspec.Struct, frozen=True):
    log: LogId
    firsts: tuple[Lsn, ...]


class Drop(msgspec.Struct, frozen=True):
    log: LogId


class CommitRuns(msgspec.Struct, frozen=True):
    log: LogId
    context: CommitContext | None
    runs: tuple[StreamCommit, ...]  # Empty: the context alone.


class Uncommit(msgspec.Struct, frozen=True):
    log: LogId


class ClearVolatile(msgspec.Struct, frozen=True):
    """What closing in order does."""


Mutation = (
    Put
    | Scatter
    | Amend
    | SetFence
    | SetMarks
    | Trim
    | Remove
    | Drop
    | CommitRuns
    | Uncommit
    | ClearVolatile
)


class StoredLog:
    """One log as it lies on the disk."""

    __slots__ = (
        "blocks",
        "context",
        "fence",
        "is_lacking",
        "is_scattered",
        "is_volatile",
        "marks",
        "placements",
        "runs",
        "trim_end",
    )

    def __init__(self) -> None:
        self.fence = NO_FENCE
        self.trim_end = FIRST_LSN
        self.blocks: dict[Lsn, Block] = {}
        self.placements: dict[Lsn, Placement] = {}
        self.is_volatile = False
        self.is_scattered = False
        self.marks = Marks()
        self.context: CommitContext | None = None
        self.runs = RunList()
        self.is_lacking = False  # Of its blocks some found no room.

    def reaches(self, end: Lsn) -> bool:
        """Whether a block ends there, or nothing that is not trimmed lies below."""
        newest_first = reversed(self.blocks.values())
        return end <= self.trim_end or any(block.end == end for block in newest_first)


class Disk:
    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.logs: dict[LogId, StoredLog] = {}
        self.rotten: dict[LogId, set[Lsn]] = {}
        self.on_durable: Callable[[Block], None] | None = None

    @property
    def room_bytes(self) -> int:
        """What blocks may still take; a reserve is kept for everything else (I2)."""
        return self.capacity_bytes - self.capacity_bytes // RESERVE_SHARE - self.used_bytes

    def has_room(self, mutations: Iterable[Mutation]) -> bool:
        need = sum(one.block.size + ROW_BYTES for one in mutations if isinstance(one, Put))
        return need == 0 or need <= self.room_bytes

    def commit(self, mutations: Iterable[Mutation], *, with_blocks: bool) -> None:
        for mutation in mutations:
            match mutation:
                case Put():
                    for first in mutation.replaces:
                        self._delete(mutation.log, first)
                    if with_blocks:
                        self._put(mutation)
                    else:
                        self._log(mutation.log).is_lacking = True
                case SetFence(log, fence):
                    self._log(log).fence = fence
                case SetMarks(log, marks):
                    self._log(log).marks = marks
                case Scatter(log):
                    self._log(log).is_scattered = True
                case Amend(log, placements):
                    self._amend(log, placements)
                case Trim(log, end):
                    self._trim(log, end)
                case Remove(log, firsts):
                    for first in firsts:
                        self._delete(log, first)
                case Drop(log):
                    for first in list(self._log(log).blocks):
                        self._delete(log, first)
                    del self.logs[log]
                case CommitRuns(log, context, runs):
                    self._commit_runs(self._log(log), context, runs)
                case Uncommit(log):
                    self._log(log).context = None
                    self._log(log).runs.clear()
                case ClearVolatile():
                    for stored in self.logs.values():
                        stored.is_volatile = False

    def wipe(self) -> None:
        self.logs.clear()
        self.rotten.clear()
        self.used_bytes = 0

    def rot(self, log: LogId, first: Lsn) -> None:
        self.rotten.setdefault(log, set()).add(first)

    def open(self) -> None:
        """What opening finds: a log that took memory-acknowledged blocks and was not closed may
        have lost some."""
        for stored in self.logs.values():
            if stored.is_volatile:
                stored.fence = dirtied(stored.fence)
                stored.is_volatile = False

    def _log(self, log: LogId) -> StoredLog:
        stored = self.logs.get(log)
        if stored is None:
            stored = self.logs[log] = StoredLog()
        return stored

    def _put(self, put: Put) -> None:
        stored = self._log(put.log)
        stored.blocks[put.block.first] = put.block
        stored.placements[put.block.first] = put.placement
        stored.is_volatile |= put.is_marking
        self.used_bytes += put.block.size + ROW_BYTES
        if self.on_durable is not None:
            self.on_durable(put.block)

    def _amend(self, log: LogId, placements: Iterable[tuple[Lsn, Placement]]) -> None:
        stored = self._log(log)
        stored.placements.update(one for one in placements if one[0] in stored.blocks)

    def _commit_runs(
        self, stored: StoredLog, context: CommitContext | None, runs: Iterable[StreamCommit]
    ) -> None:
        """Nothing says that entries are there which found no room."""
        ends = [run.local_end for run in runs]
        if context is not None:
            ends.append(context.local_end)
        if not ends or not stored.is_lacking or stored.reaches(max(ends)):
            stored.context = context
            stored.runs.add(runs)

    def _trim(self, log: LogId, end: Lsn) -> None:
        stored = self._log(log)
        if end <= stored.trim_end:
            return
        stored.trim_end = end
        stored.runs.trim(end)
        for first in [first for first, block in stored.blocks.items() if block.end <= end]:
            self._delete(log, first)

    def _delete(self, log: LogId, first: Lsn) -> None:
        stored = self._log(log)
        block = stored.blocks.pop(first, None)
        if block is not None:
            del stored.placements[first]
            self.used_bytes -= block.size + ROW_BYTES
            self.rotten.get(log, set()).discard(first)


def dirtied(fence: Fence) -> Fence:
    if fence.standing is Standing.MEMBER:
        return msgspec.structs.replace(fence, standing=Standing.DIRTY)
    return fence
