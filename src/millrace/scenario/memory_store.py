"""A store in memory, for scenarios: what a disk would keep is kept in a second picture.

`live` is what can be read now, `durable` what a crash leaves.  Barriers are answered when `run` is
called, so that a scenario decides when the disk has done its work.  It passes the conformance
suite of stores.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence

import msgspec

from millrace.codec.blocks import parse_header, verify
from millrace.core.commit.record import CommitContext, StreamCommit
from millrace.core.log_state import Fence, LogState, Marks
from millrace.core.messages import Refusal, Standing
from millrace.errors import CorruptBlock
from millrace.limits import MIB, SCAN_BLOCKS_MAX, SHIP_ENTRIES_MAX
from millrace.store.commit_runs import RunList
from millrace.store.contract import Done, StoreFailed, Usage
from millrace.store.held_commits import HeldCommits, HeldStream
from millrace.store.rivals import Verdict, judge
from millrace.store.runs import find_bridge, find_runs
from millrace.store.weighing import weigh, weigh_scattered
from millrace.types import (
    FIRST_LSN,
    NO_TOKEN,
    Ack,
    Block,
    Copy,
    EntryKind,
    Epoch,
    Extent,
    LogId,
    Lsn,
    Placement,
    Run,
    Weight,
)

ROOM_BYTES = 256 * MIB
_BLANK = Fence(Epoch(0), NO_TOKEN, Standing.BLANK)


class MemoryScan:
    def __init__(self, blocks: Sequence[Block]) -> None:
        self.blocks = blocks

    def release(self) -> None:
        """Nothing is mapped, so nothing is held."""


class MemoryShipment(MemoryScan):
    def __init__(self, blocks: Sequence[Block], next_lsn: Lsn) -> None:
        super().__init__(blocks)
        self.next_lsn = next_lsn


class _Log:
    """The blocks of one log by their first position, and its marks."""

    def __init__(self) -> None:
        self.fence = _BLANK
        self.trim_end = FIRST_LSN
        self.firsts: list[Lsn] = []
        self.blocks: dict[Lsn, Block] = {}
        self.placements: dict[Lsn, Placement] = {}
        self.is_scattered = False
        self.marks = Marks()
        self.context: CommitContext | None = None
        self.runs = RunList()
        self.is_lacking = False  # Of its blocks some found no room.

    def copy(self) -> "_Log":
        twin = _Log()
        twin.fence, twin.trim_end = self.fence, self.trim_end
        twin.firsts, twin.blocks = list(self.firsts), dict(self.blocks)
        twin.placements = dict(self.placements)
        twin.is_scattered, twin.marks = self.is_scattered, self.marks
        twin.context, twin.runs = self.context, self.runs.copy()
        return twin

    def commit_as(self, other: "_Log") -> None:
        """Let no more be committed than there."""
        self.context, self.runs = other.context, other.runs.copy()
        self.runs.trim(self.trim_end)

    def put(self, block: Block, placement: Placement) -> None:
        first = max(block.first, self.trim_end)
        assert not self.within(first, block.end), f"{block!r} overlaps what is stored"
        insort(self.firsts, block.first)
        self.blocks[block.first] = block
        self.placements[block.first] = placement

    def remove(self, first: Lsn) -> None:
        if self.blocks.pop(first, None) is not None:
            self.firsts.remove(first)
            del self.placements[first]

    def lose(self, block: Block) -> None:
        if self.blocks.get(block.first) is block:
            self.remove(block.first)

    def uncommit_above(self, durable: "_Log | None", first: Lsn) -> None:
        """Entries from `first` on found no room: nothing says that they are committed."""
        self.is_lacking = True
        if self.context is not None and self.context.local_end > first:
            self.commit_as(durable or _Log())

    def lacks(self, end: Lsn) -> bool:
        """Entries below found no room."""
        is_there = end <= self.trim_end or any(one.end == end for one in self.blocks.values())
        return self.is_lacking and not is_there

    def trim(self, end: Lsn) -> None:
        self.trim_end = max(self.trim_end, end)
        self.runs.trim(end)
        for first in [one for one in self.firsts if self.blocks[one].end <= self.trim_end]:
            self.remove(first)

    def within(self, first: Lsn, end: Lsn) -> list[Block]:
        """The blocks that intersect [first, end), in order."""
        at = bisect_right(self.firsts, first)
        if at and self.blocks[self.firsts[at - 1]].end > first:
            at -= 1
        return [self.blocks[one] for one in self.firsts[at : bisect_left(self.firsts, end)]]

    def copies(self, first: Lsn, end: Lsn) -> list[Copy]:
        found = self.within(first, end) if first < end else []
        return [Copy(block.extent(), self.placements[block.first]) for block in found]

    def extents(self, first: Lsn, end: Lsn) -> list[Extent]:
        return [block.extent() for block in self.within(first, end)]

    def last_below(self, end: Lsn) -> Extent | None:
        at = bisect_left(self.firsts, end)
        return self.blocks[self.firsts[at - 1]].extent() if at else None

    def state(self) -> LogState:
        contiguous_end = self.trim_end
        sparse: list[Extent] = []
        for first in () if self.is_scattered else self.firsts:
            block = self.blocks[first]
            if first <= contiguous_end and not sparse:
                contiguous_end = max(contiguous_end, block.end)
            else:
                sparse.append(block.extent())
        return LogState(
            self.fence,
            self.trim_end,
            contiguous_end,
            max(self.trim_end, self.blocks[self.firsts[-1]].end) if self.firsts else self.trim_end,
            sparse,
            len(self.blocks),
            sum(block.size for block in self.blocks.values()),
            self.is_scattered,
            self.marks,
            self.context,
            self.runs.first,
            self.runs.last,
        )


class _Lost(msgspec.Struct, frozen=True):
    """A block that the disk will not keep, and how it was to be acknowledged."""

    block: Block
    ack: Ack
    failure: StoreFailed


class _Barrier(msgspec.Struct, frozen=True):
    """`leant_on` are blocks without which what it speaks for would not be true."""

    ack: Ack
    done: Done
    leant_on: tuple[Block, ...] = ()


class MemoryStore(HeldCommits):
    def __init__(self, room_bytes: int = ROOM_BYTES) -> None:
        self._room_bytes = room_bytes - room_bytes // 8  # The rest is for fences and trims.
        self._live: dict[LogId, _Log] = {}
        self._durable: dict[LogId, _Log] = {}
        self._in_memory: set[tuple[LogId, Lsn]] = set()  # Acknowledged from memory only.
        self._queue: list[_Lost | _Barrier] = []
        self._overdue: list[_Lost] = []  # Acknowledged from memory; the disk has no room.
        self._unsettled: list[tuple[Block, Ack]] = []  # Put since the last barrier was answered.
        self._leant_on: list[Block] = []  # What the next barrier rests on.

    # -- What a scenario does to it -----------------------------------------------------------

    def run(self) -> None:
        """Answer the barriers that wait; a DISK barrier makes everything durable."""
        failure: StoreFailed | None = None
        gone: list[_Lost] = []
        while self._queue:
            item = self._queue.pop(0)
            if isinstance(item, _Lost):
                if item.ack is Ack.DISK:
                    self._live[item.block.log].lose(item.block)
                    failure = item.failure
                    gone.append(item)
                else:
                    self._overdue.append(item)
                continue
            self._unsettled.clear()
            if item.ack is Ack.DISK:
                self.flush()
            else:
                self._keep_marks()
            missed = [lost.failure for lost in gone if any(lost.block is b for b in item.leant_on)]
            item.done(failure or next(iter(missed), None))
            failure = None

    def flush(self) -> None:
        """All that is held becomes durable, except what there is no room for (I4)."""
        for lost in self._overdue:
            held = self._live[lost.block.log]
            held.lose(lost.block)
            held.fence = _dirty(held.fence)
            held.uncommit_above(self._durable.get(lost.block.log), lost.block.first)
        self._overdue.clear()
        self._in_memory.clear()
        self._durable = {log: held.copy() for log, held in self._live.items()}

    def fail_next(self, reason: Refusal, detail: str = "") -> None:
        """The blocks of the next barrier are not stored: a disk that is full or broken."""
        self._queue += [
            _Lost(block, Ack.DISK, StoreFailed(reason, detail)) for block, _ in self._unsettled
        ]

    def crash(self) -> None:
        """What is not durable is lost; nobody is told."""
        for log in {log for log, _ in self._in_memory}:
            held = self._durable.get(log)
            if held is not None:
                held.fence = _dirty(held.fence)
        self._queue.clear()
        self._overdue.clear()
        self._unsettled.clear()
        self._leant_on.clear()
        self._in_memory.clear()
        self._live = {log: held.copy() for log, held in self._durable.items()}

    def damage(self, log: LogId, lsn: Lsn) -> None:
        """Flip a bit in the stored block that holds `lsn`."""
        (block,) = self._live[log].within(lsn, Lsn(lsn + 1))
        data = bytearray(block.data)
        data[-1] ^= 1
        self._live[log].blocks[block.first] = Block(
            block.log,
            block.first,
            block.count,
            block.epoch,
            block.kind,
            block.token,
            block.checksum,
            bytes(data),
        )
        self.flush()

    def _keep_marks(self) -> None:
        """All but the blocks acknowledged from memory, and the commits that may rest on them,
        becomes durable."""
        before, self._durable = (
            self._durable,
            {log: held.copy() for log, held in self._live.items()},
        )
        for log in {log for log, _ in self._in_memory}:
            if log in self._durable:
                self._durable[log].commit_as(before.get(log, _Log()))
        for log, first in self._in_memory:
            if log in self._durable:
                self._durable[log].remove(first)

    # -- The contract -------------------------------------------------------------------------

    def put(self, block: Block, placement: Placement, ack: Ack) -> None:
        assert not block.is_cut, f"{block!r} was cut for a reader: no store takes it"
        log = self._log(block.log)
        if log.is_scattered and not self._makes_way(log, block, placement):
            return
        is_full = self._used_bytes() + block.size > self._room_bytes
        log.put(block, placement)
        self._unsettled.append((block, ack))
        if ack is Ack.MEMORY:
            self._in_memory.add((block.log, block.first))
        if is_full:
            self._queue.append(_Lost(block, ack, StoreFailed(Refusal.DISK_FULL, "no room")))

    def _makes_way(self, log: _Log, block: Block, placement: Placement) -> bool:
        """Whether a block is to be stored; what it takes the place of is removed then."""
        if block.end <= log.trim_end:
            return False
        rivals = log.copies(max(block.first, log.trim_end), block.end)
        firsts = [rival.extent.first for rival in rivals]
        verdict = judge(block.extent(), placement, rivals)
        if verdict is Verdict.AMEND and not _is_whole(log.blocks[block.first]):
            verdict = Verdict.TAKE
        if verdict is Verdict.TAKE:
            self.remove(block.log, firsts)
            return True
        if verdict is Verdict.AMEND:
            log.placements[block.first] = placement
        self._leant_on += [log.blocks[first] for first in firsts]
        return False

    def scatter(self, log: LogId) -> None:
        held = self._log(log)
        assert held.is_scattered or not held.blocks, f"log {log} holds blocks: it is too late"
        held.is_scattered = True

    def amend(self, log: LogId, amendments: Sequence[tuple[Lsn, Placement]]) -> list[Lsn]:
        held = self._live.get(log)
        missing: list[Lsn] = []
        for first, placement in amendments:
            if held is None or first not in held.blocks:
                missing.append(first)
                continue
            self._leant_on.append(held.blocks[first])
            if placement.precedence >= held.placements[first].precedence:
                held.placements[first] = placement
        return missing

    def set_marks(self, log: LogId, marks: Marks) -> None:
        self._log(log).marks = marks

    def set_fence(self, log: LogId, fence: Fence) -> None:
        self._log(log).fence = fence

    def trim(self, log: LogId, end: Lsn) -> None:
        self._log(log).trim(end)

    def remove(self, log: LogId, firsts: Sequence[Lsn]) -> None:
        for first in firsts:
            self._log(log).remove(first)
            self._in_memory.discard((log, first))

    def drop(self, log: LogId) -> None:
        self._live.pop(log, None)
        self._in_memory = {item for item in self._in_memory if item[0] != log}

    def commit(
        self, log: LogId, context: CommitContext | None, runs: Sequence[StreamCommit]
    ) -> None:
        held = self._log(log)
        if context is None or not held.lacks(context.local_end):
            held.context = context
            held.runs.add(runs)

    def uncommit(self, log: LogId) -> None:
        if log in self._live:
            self._live[log].commit_as(_Log())

    def barrier(self, ack: Ack, done: Done) -> None:
        self._queue.append(_Barrier(ack, done, tuple(self._leant_on)))
        self._leant_on.clear()

    def logs(self) -> list[LogId]:
        return sorted(self._live)

    def state(self, log: LogId) -> LogState | None:
        held = self._live.get(log)
        return None if held is None else held.state()

    def block_at(self, log: LogId, lsn: Lsn) -> Block | None:
        held = self._live.get(log)
        if held is None or lsn < held.trim_end:
            return None
        for block in held.within(lsn, Lsn(lsn + 1)):
            verify(block)
            return block
        return None

    def bridge_over(self, log: LogId, lsn: Lsn) -> Block | None:
        held = self._live.get(log)
        return None if held is None else find_bridge(log, held.last_below, lsn)

    def scan(self, log: LogId, first: Lsn, end: Lsn, bytes_max: int) -> MemoryScan:
        held = self._live.get(log)
        found: list[Block] = []
        size = 0
        for block in [] if held is None or first >= end else held.within(first, end):
            if found and (size + block.size > bytes_max or len(found) >= SCAN_BLOCKS_MAX):
                break
            try:
                verify(block)
            except CorruptBlock:
                if not found:
                    raise
                break
            found.append(block)
            size += block.size
        return MemoryScan(found)

    def ship(
        self, log: LogId, first: Lsn, end: Lsn, bytes_max: int, ships: Callable[[Copy], bool]
    ) -> MemoryShipment:
        held = self._live.get(log)
        found: list[Block] = []
        size = 0
        copies = [] if held is None else held.copies(max(first, held.trim_end), end)
        for looked, copy in enumerate(copies):
            assert held is not None
            block = held.blocks[copy.extent.first]
            if looked >= SHIP_ENTRIES_MAX:
                return MemoryShipment(found, block.first)
            if not ships(copy):
                continue
            size += block.size
            if found and (size > bytes_max or len(found) >= SCAN_BLOCKS_MAX):
                return MemoryShipment(found, block.first)
            if found and not _is_whole(block):
                return MemoryShipment(found, block.first)
            verify(block)
            found.append(block)
        return MemoryShipment(found, max(first, end))

    def _stream(self, log: LogId) -> HeldStream | None:
        held = self._live.get(log)
        return None if held is None else HeldStream(held.runs, held.trim_end, held.within, verify)

    def index(self, log: LogId, first: Lsn, end: Lsn, limit: int) -> list[Extent]:
        return [copy.extent for copy in self.copies(log, first, end, limit)]

    def copies(self, log: LogId, first: Lsn, end: Lsn, limit: int) -> list[Copy]:
        held = self._live.get(log)
        return [] if held is None else held.copies(max(first, held.trim_end), end)[:limit]

    def find_time(self, log: LogId, timestamp_us: int) -> Lsn:
        def is_new(block: Block) -> bool:
            newest = parse_header(block.data).timestamp_max_us
            return block.kind is EntryKind.DATA and newest >= timestamp_us

        return self._find(log, is_new)

    def find_size(self, log: LogId, bytes_kept: int) -> Lsn:
        held = self._live.get(log)
        if held is None:
            return FIRST_LSN
        at, size = held.state().end, 0
        for first in reversed(held.firsts):
            if size >= bytes_kept:
                break
            size += held.blocks[first].size
            at = first
        return max(at, held.trim_end)

    def weigh(self, log: LogId, first: Lsn, end: Lsn, pieces: int) -> list[Weight]:
        held = self._live.get(log)
        if held is None:
            return []
        if held.is_scattered:
            return weigh_scattered(held.extents, held.last_below, first, end, pieces)
        return weigh(held.extents, first, end, pieces)

    def runs(self, log: LogId, first: Lsn, end: Lsn, limit: int) -> list[Run]:
        held = self._live.get(log)
        if held is None:
            return []
        return find_runs(held.extents, held.last_below, first, end, limit)

    def usage(self) -> Usage:
        used = self._used_bytes()
        return Usage(used, self._room_bytes, is_full=used > self._room_bytes * 9 // 10)

    def close(self) -> None:
        self.run()
        self.flush()

    def _find(self, log: LogId, is_wanted: Callable[[Block], bool]) -> Lsn:
        held = self._live.get(log)
        if held is None:
            return FIRST_LSN
        for first in held.firsts:
            if is_wanted(held.blocks[first]):
                return max(first, held.trim_end)
        return held.state().end

    def _log(self, log: LogId) -> _Log:
        return self._live.setdefault(log, _Log())

    def _used_bytes(self) -> int:
        return sum(block.size for held in self._live.values() for block in held.blocks.values())


def _is_whole(block: Block) -> bool:
    try:
        verify(block)
    except CorruptBlock:
        return False
    return True


def _dirty(fence: Fence) -> Fence:
    if fence.standing is not Standing.MEMBER:
        return fence
    return Fence(fence.epoch, fence.proposer, Standing.DIRTY)
