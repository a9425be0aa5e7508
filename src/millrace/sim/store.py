"""The store of a simulated node: the contract of `store/contract.py` on a simulated disk.

Mutations show at once and are committed in groups, one group at a time, each taking the disk's
time.  A crash keeps what was committed and, of what was not, a prefix: the commit under way may
have reached the disk before the process could say so.

  I1  The contract's, which `tests/sim/test_disk.py` checks with the suite that LMDB passes too.
  I2  What is shown is what the queued mutations make of what the disk holds.
"""

from collections.abc import Callable, Sequence
from random import Random

from millrace.codec.blocks import parse_header
from millrace.core.commit.record import CommitContext, StreamCommit
from millrace.core.log_state import Fence, LogState, Marks
from millrace.core.messages import Refusal
from millrace.errors import CorruptBlock
from millrace.limits import SCAN_BLOCKS_MAX, SHIP_ENTRIES_MAX
from millrace.sim import disk as disks
from millrace.sim.disk import Disk, StoredLog
from millrace.sim.open_log import Fate, OpenLog
from millrace.store.contract import Done, StoreFailed, Usage
from millrace.store.held_commits import HeldCommits, HeldStream
from millrace.store.rivals import Verdict, judge
from millrace.store.runs import find_bridge, find_runs
from millrace.store.weighing import weigh, weigh_scattered
from millrace.types import (
    FIRST_LSN,
    Ack,
    Block,
    Copy,
    EntryKind,
    Extent,
    LogId,
    Lsn,
    Placement,
    Run,
    Weight,
)

COMMIT_WAIT_US = 50_000  # How long memory-acknowledged blocks wait for company.

After = Callable[..., object]  # (delay in microseconds, call, arguments)

_Note = disks.SetMarks | disks.CommitRuns

_FULL = StoreFailed(Refusal.DISK_FULL, "the store is full")


class _Barrier:
    __slots__ = ("done", "leant_on")

    def __init__(self, done: Done | None, leant_on: Sequence[Fate] = ()) -> None:
        self.done = done  # None: answered already, only marks the place.
        self.leant_on = leant_on

    def failure(self) -> StoreFailed | None:
        """Why what it rests on is not there, once that is settled."""
        return _FULL if any(fate.is_lost for fate in self.leant_on) else None


class SimulatedScan:
    def __init__(self, blocks: list[Block]) -> None:
        self.blocks = blocks
        self.is_released = False

    def release(self) -> None:
        assert not self.is_released, "a scan is released once"
        self.is_released = True


class SimulatedShipment(SimulatedScan):
    def __init__(self, blocks: list[Block], next_lsn: Lsn) -> None:
        super().__init__(blocks)
        self.next_lsn = next_lsn


class SimulatedStore(HeldCommits):
    def __init__(self, disk: Disk, after: After, rng: Random, commit_us: int) -> None:
        self.disk = disk
        self.commit_us = commit_us
        self._after = after
        self._rng = rng
        disk.open()
        self._logs = {log: OpenLog(stored) for log, stored in disk.logs.items()}
        self._queue: list[disks.Mutation | _Barrier] = []
        self._batch: list[disks.Mutation | _Barrier] = []
        self._origins: dict[int, tuple[OpenLog, Fate]] = {}  # By the identity of a queued put.
        # To be written with the next commit.
        self._notes: dict[tuple[type[_Note], LogId], _Note] = {}
        self._leant_on: list[Fate] = []  # What the next barrier rests on.
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

    def put(self, block: Block, placement: Placement, ack: Ack) -> None:
        assert not block.is_cut, f"{block!r} was cut for a reader: no store takes it"
        log = self._open(block.log)
        replaced = tuple(log.within(block.first, block.end)) if log.is_scattered else ()
        if log.is_scattered and not self._prevails(log, block, placement, replaced):
            return
        self._take_out(block.log, log, replaced)
        fate = log.put(block, placement)
        if self.on_put is not None:
            self.on_put(block)
        is_marking = ack is Ack.MEMORY and not log.is_marked
        self._is_uncovered |= ack is Ack.DISK or is_marking or bool(replaced)
        put = disks.Put(block.log, block, placement, ack, is_marking, replaced)
        self._origins[id(put)] = log, fate
        self._submit(put)

    def _prevails(
        self, log: OpenLog, block: Block, placement: Placement, firsts: Sequence[Lsn]
    ) -> bool:
        """Whether a block is to be stored, in the place of what overlaps it."""
        if block.end <= log.picture.trim_end:
            return False
        verdict = judge(block.extent(), placement, [log.copy_at(first) for first in firsts])
        is_rotten = block.first in self.disk.rotten.get(block.log, ())
        if verdict is Verdict.TAKE or (verdict is Verdict.AMEND and is_rotten):
            return True
        if verdict is Verdict.AMEND:
            self.amend(block.log, [(block.first, placement)])
        else:
            self._lean_on(log, firsts)
        return False

    def scatter(self, log: LogId) -> None:
        opened = self._open(log)
        if not opened.is_scattered:
            assert not opened.blocks, f"log {log} holds blocks: it is too late to scatter it"
            opened.scatter()
            self._is_uncovered = True
            self._submit(disks.Scatter(log))

    def amend(self, log: LogId, amendments: Sequence[tuple[Lsn, Placement]]) -> list[Lsn]:
        opened = self._logs.get(log)
        missing = [first for first, _ in amendments if opened is None or first not in opened.blocks]
        if opened is None:
            return missing
        self._lean_on(opened, [first for first, _ in amendments])
        amended: dict[Lsn, Placement] = {}
        for first, placement in amendments:
            held = opened.placements.get(first)
            if held is not None and placement.precedence >= held.precedence and placement != held:
                amended[first] = opened.placements[first] = placement
        if amended:
            self._is_uncovered = True
            self._submit(disks.Amend(log, tuple(amended.items())))
        return missing

    def _lean_on(self, log: OpenLog, firsts: Sequence[Lsn]) -> None:
        """What comes next is decided because of these blocks, and shares their fate."""
        fates = [log.fates[first] for first in firsts if first in log.fates]
        self._leant_on += fates
        self._is_uncovered |= bool(fates)

    def set_marks(self, log: LogId, marks: Marks) -> None:
        self._open(log).marks = marks
        self._notes[disks.SetMarks, log] = disks.SetMarks(log, marks)

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
        self._take_out(log, opened, firsts)
        self._is_uncovered = True
        self._submit(disks.Remove(log, tuple(firsts)))

    def _take_out(self, log: LogId, opened: OpenLog, firsts: Sequence[Lsn]) -> None:
        for first in firsts:
            if self.on_remove is not None and first in opened.blocks:
                self.on_remove(opened.blocks[first])
        if firsts:
            opened.take_out(set(firsts))
            self.disk.rotten.get(log, set()).difference_update(firsts)

    def drop(self, log: LogId) -> None:
        if self._logs.pop(log, None) is not None:
            self.disk.rotten.pop(log, None)
            self._notes.pop((disks.SetMarks, log), None)
            self._notes.pop((disks.CommitRuns, log), None)
            self._is_uncovered = True
            self._submit(disks.Drop(log))

    def commit(
        self, log: LogId, context: CommitContext | None, runs: Sequence[StreamCommit]
    ) -> None:
        opened = self._open(log)
        opened.context = context
        commit = disks.CommitRuns(log, context, tuple(runs))
        if not runs:
            self._notes[disks.CommitRuns, log] = commit
            return
        opened.runs.add(runs)
        self._notes.pop((disks.CommitRuns, log), None)
        self._is_uncovered |= not opened.is_marked
        self._submit(commit)

    def uncommit(self, log: LogId) -> None:
        opened = self._logs.get(log)
        if opened is not None:
            opened.context = None
            opened.runs.clear()
            self._notes.pop((disks.CommitRuns, log), None)
            self._is_uncovered = True
            self._submit(disks.Uncommit(log))

    def barrier(self, ack: Ack, done: Done) -> None:
        if ack is Ack.DISK or self._is_uncovered:
            self._queue.append(_Barrier(done, self._leant_on))
            self._leant_on = []
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
        self._take_batch()
        time_us = 1 + int(self.commit_us * (0.5 + self._rng.random()))
        self._after(delay_us + time_us, self._committed)

    def _take_batch(self) -> None:
        self._batch, self._queue = self._queue, []
        if not all(isinstance(one, _Barrier) for one in self._batch):
            self._batch += self._notes.values()
            self._notes.clear()

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
            failure = _FULL
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
        origin, fate = self._origins.pop(id(put))
        fate.is_lost = failure is not None
        origin.settle(put.block, fate)
        if failure is None:
            origin.is_marked |= put.is_marking
            return False
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
                    answers.append((one.done, self._unreported or one.failure()))
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
                self._take_batch()
            self._committed()
        self.disk.commit((*self._notes.values(), disks.ClearVolatile()), with_blocks=True)
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
        return None if opened is None else opened.state()

    def block_at(self, log: LogId, lsn: Lsn) -> Block | None:
        opened = self._logs.get(log)
        found = () if opened is None else opened.within(lsn, Lsn(lsn + 1))
        if opened is None or not found or lsn < opened.picture.trim_end:
            return None
        self._check(log, found[0])
        return opened.blocks[found[0]]

    def bridge_over(self, log: LogId, lsn: Lsn) -> Block | None:
        opened = self._logs.get(log)
        return None if opened is None else find_bridge(log, opened.last_below, lsn)

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

    def ship(
        self, log: LogId, first: Lsn, end: Lsn, bytes_max: int, ships: Callable[[Copy], bool]
    ) -> SimulatedShipment:
        opened = self._logs.get(log)
        blocks: list[Block] = []
        size = 0
        rotten = self.disk.rotten.get(log, ())
        for looked, at in enumerate(() if opened is None else opened.within(first, end)):
            assert opened is not None
            if looked >= SHIP_ENTRIES_MAX:
                return SimulatedShipment(blocks, at)
            if not ships(opened.copy_at(at)):
                continue
            size += opened.blocks[at].size
            is_enough = size > bytes_max or len(blocks) >= SCAN_BLOCKS_MAX
            if blocks and (is_enough or at in rotten):
                return SimulatedShipment(blocks, at)
            self._check(log, at)
            blocks.append(opened.blocks[at])
        return SimulatedShipment(blocks, max(first, end))

    def _stream(self, log: LogId) -> HeldStream | None:
        opened = self._logs.get(log)
        if opened is None:
            return None
        held = opened.blocks
        return HeldStream(
            opened.runs,
            opened.picture.trim_end,
            lambda first, end: [held[at] for at in opened.within(first, end)],
            lambda block: self._check(log, block.first),
        )

    def _check(self, log: LogId, first: Lsn) -> None:
        if first in self.disk.rotten.get(log, ()):
            raise CorruptBlock(f"block of log {log} at {first} is damaged")

    def index(self, log: LogId, first: Lsn, end: Lsn, limit: int) -> list[Extent]:
        return [copy.extent for copy in self.copies(log, first, end, limit)]

    def copies(self, log: LogId, first: Lsn, end: Lsn, limit: int) -> list[Copy]:
        opened = self._logs.get(log)
        if opened is None:
            return []
        return [opened.copy_at(at) for at in opened.within(first, end)[:limit]]

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
        if opened.is_scattered:
            return weigh_scattered(opened.extents, opened.last_below, first, end, pieces)
        return weigh(opened.extents, first, end, pieces)

    def runs(self, log: LogId, first: Lsn, end: Lsn, limit: int) -> list[Run]:
        opened = self._logs.get(log)
        if opened is None:
            return []
        return find_runs(opened.extents, opened.last_below, first, end, limit)

    def usage(self) -> Usage:
        disk = self.disk
        is_full = disk.room_bytes <= 0 or self._is_refused
        return Usage(disk.used_bytes, disk.capacity_bytes, is_full)

    def gave_room(self) -> None:
        """The disk was made larger."""
        self._is_refused = False
