"""A store in memory, for scenarios: what a disk would keep is kept in a second picture.

`live` is what can be read now, `durable` what a crash leaves.  Barriers are answered when `run` is
called, so that a scenario decides when the disk has done its work.  It passes the conformance
suite of stores.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence

import msgspec

from millrace.codec.blocks import parse_header, verify
from millrace.core.log_state import Fence, LogState
from millrace.core.messages import Refusal, Standing
from millrace.errors import CorruptBlock
from millrace.limits import MIB, SCAN_BLOCKS_MAX
from millrace.store.contract import Done, StoreFailed, Usage
from millrace.store.weighing import weigh
from millrace.types import (
    FIRST_LSN,
    NO_TOKEN,
    Ack,
    Block,
    EntryKind,
    Epoch,
    Extent,
    LogId,
    Lsn,
    NodeId,
    Weight,
)

ROOM_BYTES = 256 * MIB
_BLANK = Fence(Epoch(0), NO_TOKEN, Standing.BLANK)


class MemoryScan:
    def __init__(self, blocks: Sequence[Block]) -> None:
        self.blocks = blocks

    def release(self) -> None:
        """Nothing is mapped, so nothing is held."""


class _Log:
    """The blocks of one log by their first position, and its marks."""

    def __init__(self) -> None:
        self.fence = _BLANK
        self.trim_end = FIRST_LSN
        self.firsts: list[Lsn] = []
        self.blocks: dict[Lsn, Block] = {}

    def copy(self) -> "_Log":
        twin = _Log()
        twin.fence, twin.trim_end = self.fence, self.trim_end
        twin.firsts, twin.blocks = list(self.firsts), dict(self.blocks)
        return twin

    def put(self, block: Block) -> None:
        first = max(block.first, self.trim_end)
        assert not self.within(first, block.end), f"{block!r} overlaps what is stored"
        insort(self.firsts, block.first)
        self.blocks[block.first] = block

    def remove(self, first: Lsn) -> None:
        if self.blocks.pop(first, None) is not None:
            self.firsts.remove(first)

    def trim(self, end: Lsn) -> None:
        self.trim_end = max(self.trim_end, end)
        for first in [one for one in self.firsts if self.blocks[one].end <= self.trim_end]:
            self.remove(first)

    def within(self, first: Lsn, end: Lsn) -> list[Block]:
        """The blocks that intersect [first, end), in order."""
        at = bisect_right(self.firsts, first)
        if at and self.blocks[self.firsts[at - 1]].end > first:
            at -= 1
        return [self.blocks[one] for one in self.firsts[at : bisect_left(self.firsts, end)]]

    def state(self) -> LogState:
        contiguous_end = self.trim_end
        sparse: list[Extent] = []
        for first in self.firsts:
            block = self.blocks[first]
            if first <= contiguous_end and not sparse:
                contiguous_end = max(contiguous_end, block.end)
            else:
                sparse.append(block.extent())
        end = Lsn(sparse[-1].last + 1) if sparse else contiguous_end
        size = sum(block.size for block in self.blocks.values())
        return LogState(
            self.fence, self.trim_end, contiguous_end, end, sparse, len(self.blocks), size
        )


class _Lost(msgspec.Struct, frozen=True):
    """A block that the disk will not keep, and how it was to be acknowledged."""

    block: Block
    ack: Ack
    failure: StoreFailed


class MemoryStore:
    def __init__(self, room_bytes: int = ROOM_BYTES) -> None:
        self._room_bytes = room_bytes - room_bytes // 8  # The rest is for fences and trims.
        self._live: dict[LogId, _Log] = {}
        self._durable: dict[LogId, _Log] = {}
        self._in_memory: set[tuple[LogId, Lsn]] = set()  # Acknowledged from memory only.
        self._queue: list[_Lost | tuple[Ack, Done]] = []
        self._overdue: list[_Lost] = []  # Acknowledged from memory; the disk has no room.
        self._unsettled: list[tuple[Block, Ack]] = []  # Put since the last barrier was answered.

    # -- What a scenario does to it -----------------------------------------------------------

    def run(self) -> None:
        """Answer the barriers that wait; a DISK barrier makes everything durable."""
        failure: StoreFailed | None = None
        while self._queue:
            item = self._queue.pop(0)
            if isinstance(item, _Lost):
                if item.ack is Ack.DISK:
                    self._live[item.block.log].remove(item.block.first)
                    failure = item.failure
                else:
                    self._overdue.append(item)
                continue
            ack, done = item
            self._unsettled.clear()
            if ack is Ack.DISK:
                self.flush()
            else:
                self._keep_marks()
            done(failure)
            failure = None

    def flush(self) -> None:
        """All that is held becomes durable, except what there is no room for (I4)."""
        for lost in self._overdue:
            held = self._live[lost.block.log]
            held.remove(lost.block.first)
            held.fence = _dirty(held.fence)
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
        """All but the blocks acknowledged from memory becomes durable."""
        self._durable = {log: held.copy() for log, held in self._live.items()}
        for log, first in self._in_memory:
            if log in self._durable:
                self._durable[log].remove(first)

    # -- The contract -------------------------------------------------------------------------

    def put(self, block: Block, copyset: tuple[NodeId, ...], ack: Ack) -> None:
        assert not block.is_cut, f"{block!r} was cut for a reader: no store takes it"
        is_full = self._used_bytes() + block.size > self._room_bytes
        self._log(block.log).put(block)
        self._unsettled.append((block, ack))
        if ack is Ack.MEMORY:
            self._in_memory.add((block.log, block.first))
        if is_full:
            self._queue.append(_Lost(block, ack, StoreFailed(Refusal.DISK_FULL, "no room")))

    def set_fence(self, log: LogId, fence: Fence) -> None:
        self._log(log).fence = fence

    def trim(self, log: LogId, end: Lsn) -> None:
        self._log(log).trim(end)

    def remove(self, log: LogId, firsts: Sequence[Lsn]) -> None:
        for first in firsts:
            self._log(log).remove(first)

    def drop(self, log: LogId) -> None:
        self._live.pop(log, None)
        self._in_memory = {item for item in self._in_memory if item[0] != log}

    def barrier(self, ack: Ack, done: Done) -> None:
        self._queue.append((ack, done))

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

    def index(self, log: LogId, first: Lsn, end: Lsn, limit: int) -> list[Extent]:
        held = self._live.get(log)
        if held is None or first >= end:
            return []
        return [block.extent() for block in held.within(first, end)[:limit]]

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
        return weigh(lambda *run: (one.extent() for one in held.within(*run)), first, end, pieces)

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


def _dirty(fence: Fence) -> Fence:
    if fence.standing is not Standing.MEMBER:
        return fence
    return Fence(fence.epoch, fence.proposer, Standing.DIRTY)
