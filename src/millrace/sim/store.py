"""The store of a simulated node: the contract of `store/contract.py` on a simulated disk.

Mutations show at once and are committed in groups, one group at a time, each taking the disk's
time.  A crash keeps what was committed and, of what was not, a prefix: the commit under way may
have reached the disk before the process could say so.

  I1  The contract's, which `tests/sim/test_disk.py` checks with the suite that LMDB passes too.
  I2  What is shown is what the queued mutations make of what the disk holds.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from random import Random

from millrace.codec.blocks import parse_header
from millrace.core.log_state import Fence, LogState
from millrace.core.messages import Refusal
from millrace.errors import CorruptBlock
from millrace.limits import SCAN_BLOCKS_MAX
from millrace.sim import disk as disks
from millrace.sim.disk import Disk, StoredLog
from millrace.store.contract import Done, StoreFailed, Usage
from millrace.store.picture import Picture
from millrace.store.weighing import weigh
from millrace.types import FIRST_LSN, Ack, Block, EntryKind, Extent, LogId, Lsn, NodeId, Weight

COMMIT_WAIT_US = 50_000  # How long memory-acknowledged blocks wait for company.

After = Callable[..., object]  # (delay in microseconds, call, arguments)


class _Barrier:
    __slots__ = ("done",)

    def __init__(self, done: Done | None) -> None:
        self.done = done  # None: answered already, only marks the place.


class OpenLog:
    """One log as the process sees it."""

    __slots__ = ("blocks", "bytes", "fence", "firsts", "is_marked", "picture")

    def __init__(self, stored: StoredLog) -> None:
        self.fence = stored.fence
        self.blocks = {
            first: block
            for first, block in sorted(stored.blocks.items())
            if block.end > stored.trim_end
        }
        self.firsts = list(self.blocks)
        self.bytes = sum(block.size for block in self.blocks.values())
        self.is_marked = stored.is_volatile
        self.picture = Picture(stored.trim_end, stored.trim_end, [])
        for block in self.blocks.values():
            self.picture.add(block.extent())

    def put(self, block: Block) -> None:
        self.picture.add(block.extent())
        self.blocks[block.first] = block
        if not self.firsts or block.first > self.firsts[-1]:
            self.firsts.append(block.first)
        else:
            insort(self.firsts, block.first)
        self.bytes += block.size

    def take_out(self, firsts: set[Lsn]) -> None:
        firsts = {first for first in firsts if first in self.blocks}
        low = min(firsts, default=None)
        end = self.picture.contiguous_end
        run: list[Extent] = []
        if low is not None and low < end:
            run = [
                self.blocks[first].extent()
                for first in self.firsts[bisect_left(self.firsts, low) :]
                if first < end
            ]
        self.picture.remove(firsts, run)
        self._forget(firsts)

    def trim(self, end: Lsn) -> None:
        below = self.firsts[: bisect_left(self.firsts, end)]
        self._forget({first for first in below if self.blocks[first].end <= end})
        self.picture.trim(end)

    def _forget(self, firsts: set[Lsn]) -> None:
        for first in firsts:
            self.bytes -= self.blocks.pop(first).size
        if firsts:
            self.firsts = [first for first in self.firsts if first in self.blocks]

    def within(self, first: Lsn, end: Lsn) -> Sequence[Lsn]:
        """First positions of the blocks that intersect [first, end)."""
        first = max(first, self.picture.trim_end)
        if first >= end:
            return ()
        low = bisect_right(self.firsts, first) - 1
        if low < 0 or self.blocks[self.firsts[low]].end <= first:
            low += 1
        return self.firsts[low : bisect_left(self.firsts, end)]


class SimulatedScan:
    def __init__(self, blocks: list[Block]) -> None:
        self.blocks = blocks
        self.is_released = False

    def release(self) -> None:
        assert not self.is_released, "a scan is released once"
        self.is_released = True


class SimulatedStore:
    def __init__(self, disk: Disk, after: After, rng: Random, commit_us: int) -> None:
        self.disk = disk
        self.commit_us = commit_us
        self._after = after
        self._rng = rng
        disk.open()
        self._logs = {log: OpenLog(stored) for log, stored in disk.logs.items()}
        self._queue: list[disks.Mutation | _Barrier] = []
        self._batch: list[disks.Mutation | _Barrier] = []
        self._origins: dict[int, OpenLog] = {}  # By the identity of a queued put.
        self._is_committing = False
        self._is_timer_set = False
        self._is_refused = False
        self._is_uncovered = False
        self._unreported: StoreFailed | None = None
        self._is_dead = False
        self.commits = 0
        self.on_put: Callable[[Block], None] | None = None
        self.on_remove: Callable[[Block], None] | None = None
        self.on_dirty: Callable[[LogId], None] | None = None

    # -- Mutations ------------------------------------------------------------------------------

    def put(self, block: Block, copyset: tuple[NodeId, ...], ack: Ack) -> None:
        assert not block.is_cut, f"{block!r} was cut for a reader: no store takes it"
        log = self._open(block.log)
        log.put(block)
        if self.on_put is not None:
            self.on_put(block)
        is_marking = ack is Ack.MEMORY and not log.is_marked
        self._is_uncovered |= ack is Ack.DISK or is_marking
        put = disks.Put(block.log, block, ack, is_marking)
        self._origins[id(put)] = log
        self._submit(put)

    def set_fence(self, log: LogId, fence: Fence) -> None:
        self._open(log).fence = fence
        self._is_uncovered = True
        self._submit(disks.SetFence(log, fence))

    def trim(self, log: LogId, end: Lsn) -> None:
        opened = self._open(log)
        if end > opened.picture.trim_end:
            opened.trim(end)
            self._is_uncovered = True
            self._submit(disks.Trim(log, end))

    def remove(self, log: LogId, firsts: Sequence[Lsn]) -> None:
        opened = self._logs.get(log)
        if opened is None or not firsts:
            return
        for first in firsts:
            if self.on_remove is not None and first in opened.blocks:
                self.on_remove(opened.blocks[first])
        opened.take_out(set(firsts))
        self.disk.rotten.get(log, set()).difference_update(firsts)
        self._is_uncovered = True
        self._submit(disks.Remove(log, tuple(firsts)))

    def drop(self, log: LogId) -> None:
        if self._logs.pop(log, None) is not None:
            self.disk.rotten.pop(log, None)
            self._is_uncovered = True
            self._submit(disks.Drop(log))

    def barrier(self, ack: Ack, done: Done) -> None:
        if ack is Ack.DISK or self._is_uncovered:
            self._queue.append(_Barrier(done))
            self._commit_soon(0)
        else:
            self._queue.append(_Barrier(None))
            self._after(1, self._answer, done)
        self._is_uncovered = False

    def _answer(self, done: Done) -> None:
        done(None)

    def _open(self, log: LogId) -> OpenLog:
        opened = self._logs.get(log)
        if opened is None:
            opened = self._logs[log] = OpenLog(StoredLog())
        return opened

    def _submit(self, mutation: disks.Mutation) -> None:
        self._queue.append(mutation)
        if not self._is_timer_set:
            self._is_timer_set = True
            self._after(COMMIT_WAIT_US, self._waited)

    # -- Committing -----------------------------------------------------------------------------

    def _waited(self) -> None:
        self._is_timer_set = False
        self._commit_soon(0)

    def _commit_soon(self, delay_us: int) -> None:
        """Begin a commit unless one is under way: it begins the next when it ends."""
        if self._is_committing or not self._queue:
            return
        self._is_committing = True
        self._batch, self._queue = self._queue, []
        time_us = 1 + int(self.commit_us * (0.5 + self._rng.random()))
        self._after(delay_us + time_us, self._committed)

    def _committed(self) -> None:
        if self._is_dead:
            return
        batch, self._batch = self._batch, []
        failure = self._write(batch)
        self._is_committing = False
        self.commits += 1
        answers = self._answers(batch, failure)
        if self._queue and not all(isinstance(one, _Barrier) for one in self._queue):
            self._commit_soon(0)
        elif self._queue:
            answers += self._answers(self._queue, None)
            self._queue = []
        for done, why in answers:
            done(why)

    def _write(self, batch: list[disks.Mutation | _Barrier]) -> StoreFailed | None:
        mutations = [one for one in batch if not isinstance(one, _Barrier)]
        has_room = self.disk.has_room(mutations)
        used_bytes = self.disk.used_bytes
        self.disk.commit(mutations, with_blocks=has_room)
        if self.disk.used_bytes < used_bytes:
            self._is_refused = False
        failure = None
        if not has_room:
            self._is_refused = True
            failure = StoreFailed(Refusal.DISK_FULL, "the store is full")
        dirty = {
            one.log: None
            for one in mutations
            if isinstance(one, disks.Put) and self._settle_put(one, failure)
        }
        for log in dirty:
            self.set_fence(log, disks.dirtied(self._logs[log].fence))
            if self.on_dirty is not None:
                self.on_dirty(log)
        return failure

    def _settle_put(self, put: disks.Put, failure: StoreFailed | None) -> bool:
        """Whether the log lost a block that was acknowledged."""
        origin = self._origins.pop(id(put))
        if failure is None:
            origin.is_marked |= put.is_marking
            return False
        if origin.blocks.get(put.block.first) is put.block:
            origin.take_out({put.block.first})
        is_acknowledged = put.ack is Ack.MEMORY and not put.is_marking
        return is_acknowledged and self._logs.get(put.log) is origin

    def _answers(
        self, batch: Sequence[disks.Mutation | _Barrier], failure: StoreFailed | None
    ) -> list[tuple[Done, StoreFailed | None]]:
        """A failure is told to the first barrier behind the block."""
        answers: list[tuple[Done, StoreFailed | None]] = []
        for one in batch:
            if isinstance(one, _Barrier):
                if one.done is not None:
                    answers.append((one.done, self._unreported))
                self._unreported = None
            elif isinstance(one, disks.Put):
                self._unreported = failure or self._unreported
        return answers

    # -- Ends -----------------------------------------------------------------------------------

    def crash(self, rng: Random) -> int:
        """The process is gone; how many uncommitted mutations reached the disk all the same."""
        self._is_dead = True
        mutations = [one for one in (*self._batch, *self._queue) if not isinstance(one, _Barrier)]
        kept = mutations[: rng.randrange(len(mutations) + 1)]
        if not self.disk.has_room(kept):
            kept = []
        self.disk.commit(kept, with_blocks=True)
        return len(kept)

    def close(self) -> None:
        """Make everything durable and leave no log DIRTY that was not."""
        if self._is_dead:
            return
        while self._batch or self._queue:
            if not self._batch:
                self._batch, self._queue = self._queue, []
            self._committed()
        self.disk.commit((disks.ClearVolatile(),), with_blocks=True)
        self._is_dead = True

    # -- Reading --------------------------------------------------------------------------------

    def logs(self) -> list[LogId]:
        return sorted(self._logs)

    def opened(self, log: LogId) -> OpenLog | None:
        return self._logs.get(log)

    def opened_blocks(self, log: LogId) -> dict[Lsn, Block]:
        opened = self._logs.get(log)
        return {} if opened is None else opened.blocks

    def state(self, log: LogId) -> LogState | None:
        opened = self._logs.get(log)
        if opened is None:
            return None
        picture = opened.picture
        return LogState(
            opened.fence,
            picture.trim_end,
            picture.contiguous_end,
            picture.end,
            list(picture.sparse),
            len(opened.blocks),
            opened.bytes,
        )

    def block_at(self, log: LogId, lsn: Lsn) -> Block | None:
        opened = self._logs.get(log)
        found = () if opened is None else opened.within(lsn, Lsn(lsn + 1))
        if opened is None or not found or lsn < opened.picture.trim_end:
            return None
        self._check(log, found[0])
        return opened.blocks[found[0]]

    def scan(self, log: LogId, first: Lsn, end: Lsn, bytes_max: int) -> SimulatedScan:
        opened = self._logs.get(log)
        blocks: list[Block] = []
        size = 0
        rotten = self.disk.rotten.get(log, ())
        for at in () if opened is None else opened.within(first, end):
            assert opened is not None
            block = opened.blocks[at]
            size += block.size
            is_enough = size > bytes_max or len(blocks) >= SCAN_BLOCKS_MAX
            if blocks and (is_enough or at in rotten):
                break
            self._check(log, at)
            blocks.append(block)
        return SimulatedScan(blocks)

    def _check(self, log: LogId, first: Lsn) -> None:
        if first in self.disk.rotten.get(log, ()):
            raise CorruptBlock(f"block of log {log} at {first} is damaged")

    def index(self, log: LogId, first: Lsn, end: Lsn, limit: int) -> list[Extent]:
        opened = self._logs.get(log)
        if opened is None:
            return []
        return [opened.blocks[at].extent() for at in opened.within(first, end)[:limit]]

    def find_time(self, log: LogId, timestamp_us: int) -> Lsn:
        opened = self._logs.get(log)
        if opened is None:
            return FIRST_LSN
        for first, block in sorted(opened.blocks.items()):
            stamp = parse_header(block.data).timestamp_max_us
            if block.kind is EntryKind.DATA and stamp >= timestamp_us:
                return max(first, opened.picture.trim_end)
        return opened.picture.end

    def find_size(self, log: LogId, bytes_kept: int) -> Lsn:
        opened = self._logs.get(log)
        if opened is None:
            return FIRST_LSN
        if bytes_kept <= 0:
            return opened.picture.end
        for first in reversed(opened.firsts):
            bytes_kept -= opened.blocks[first].size
            if bytes_kept <= 0:
                return max(first, opened.picture.trim_end)
        return opened.picture.trim_end

    def weigh(self, log: LogId, first: Lsn, end: Lsn, pieces: int) -> list[Weight]:
        opened = self._logs.get(log)
        if opened is None:
            return []
        held = opened.blocks
        return weigh(
            lambda *run: (held[at].extent() for at in opened.within(*run)), first, end, pieces
        )

    def usage(self) -> Usage:
        disk = self.disk
        is_full = disk.room_bytes <= 0 or self._is_refused
        return Usage(disk.used_bytes, disk.capacity_bytes, is_full)

    def gave_room(self) -> None:
        """The disk was made larger."""
        self._is_refused = False
