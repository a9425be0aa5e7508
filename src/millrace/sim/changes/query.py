"""A query: its driver plans micro-batches, its tasks read them, a table is merged from the rows.

It lives as Spark's do.  The offset of a batch is written before it runs, its commit afterwards, and
the driver may die in between.  Tasks fail and are repeated; some run twice at the same time, and
the first to finish counts.  The sink takes the rows of attempts that count, all at once, or, in
half of the worlds, whatever any attempt hands out, as it comes.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from millrace.core.documents.change_query import (
    MasterState,
    PartitionRange,
    Planned,
    Settled,
    cut_to,
    keep_at_most,
    plan_partition,
    settle,
    shared_out,
)
from millrace.core.documents.change_ring import Begin
from millrace.core.documents.document import PartitionId, Seq
from millrace.core.documents.messages import (
    FailoverLogGot,
    GetFailoverLog,
    ProducerAnswer,
    ProducerPush,
)
from millrace.core.documents.rollback import Refuse
from millrace.sim.changes.attempt import Attempt
from millrace.sim.changes.checkpoint import Batch, QueryCheckpoint, Row, SimRing
from millrace.sim.changes.lines import LinePool, QueryLine
from millrace.sim.documents.lines import LineProcess
from millrace.sim.schedule import MS
from millrace.sim.violation import Violation

if TYPE_CHECKING:
    from millrace.sim.changes.world import ChangesWorld

POLL_US = 20 * MS
ANSWERS_US = 60 * MS
TASK_US = 5 * MS
TASKS_MAX = 2
LIMITS = (None, None, 1, 5)
DEATH_US = 150 * MS
RESTART_US = 100 * MS


class Query(LineProcess):
    world: "ChangesWorld"

    def __init__(self, world: "ChangesWorld", number: int, name: str) -> None:
        super().__init__(world, number, name)
        keys_max = self.rng.choice((0, world.shape.ring_entries, 100_000))
        self.checkpoint = QueryCheckpoint(world.shape.partitions, SimRing(keys_max))
        self.settled_before = 0
        self._is_transactional = self.rng.random() < 0.5
        self._limit: int | None = self.rng.choice(LIMITS)
        self._attempts: dict[int, list[Attempt]] = {}
        self._rows: dict[int, list[Row]] = {}  # Of tasks that are done.
        self._ranges: dict[int, list[PartitionRange]] = {}
        self._states: dict[PartitionId, MasterState] = {}
        self._pool: LinePool
        self.is_idle = False

    def now_ms(self) -> int:
        return self.world.schedule.now_us // MS

    def on_start(self) -> None:
        super().on_start()
        self._attempts, self._rows, self._ranges = {}, {}, {}
        self._pool = LinePool(self, self)
        self.is_idle = False
        if not self.world.is_healed:
            self.later(self._within(DEATH_US), self._may_die)
        if self.checkpoint.is_open:
            self.world.count("query.batch_again")
            self._run(is_fresh=False)
        else:
            self._trigger()

    def _within(self, mean_us: int) -> int:
        return 1 + int(2 * self.rng.random() * mean_us)

    def _may_die(self) -> None:
        if self.world.is_healed:
            return
        if self.rng.random() < 0.3:
            self.world.count("query.killed")
            self.crash()
            self.world.schedule.after(self._within(RESTART_US), self._again)
            return
        if self.rng.random() < 0.5:
            self._kill_attempt()
        self.later(self._within(DEATH_US), self._may_die)

    def _again(self) -> None:
        if not self.is_up:
            self.start()

    def _kill_attempt(self) -> None:
        running = [each for some in self._attempts.values() for each in some]
        if running:
            self.world.count("query.task_failed")
            self.attempt_failed(self.rng.choice(running))

    # -- Planning -------------------------------------------------------------------------------

    def _trigger(self) -> None:
        self._states = {}
        for number in self.checkpoint.last.ends:
            line = self._pool.to_master(number)
            if line is not None and line.is_open:
                line.put(GetFailoverLog(number), partial(self._answered, number))
        self.later(ANSWERS_US, self._plan)

    def _answered(self, number: PartitionId, answer: ProducerAnswer) -> None:
        if isinstance(answer, FailoverLogGot) and answer.log.entries:
            self._states[number] = MasterState(answer.log, answer.high, answer.purged)
        else:
            self._pool.reload_map()

    def push_came(self, line: QueryLine, push: ProducerPush, opaque: int) -> None: ...

    def line_lost(self, line: QueryLine, why: str) -> None:
        self._pool.forget(line)

    def settled(self) -> dict[PartitionId, Settled]:
        last = self.checkpoint.last
        receipts = self.checkpoint.ring.receipts(last.ring_began)
        return {
            number: settle(
                last.ranges[number].place, end, [one for one in receipts if one.partition == number]
            )
            if number in last.ranges
            else Settled(end, number in last.doubted)
            for number, end in last.ends.items()
        }

    def _plan(self) -> None:
        settled = self.settled()
        planned: dict[PartitionId, Planned] = {}
        for number, state in self._states.items():
            found = plan_partition(number, settled[number], state)
            if isinstance(found, Refuse):
                self.world.count(f"query.refused.{found.reason.value}")
                self._pool.reload_map()
            elif found is not None:
                planned[number] = found
        if not planned:
            self.is_idle = len(self._states) == len(settled)
            self.later(POLL_US, self._trigger)
            return
        self.is_idle = False
        if self._limit is not None:
            planned = cut_to(planned, self._limit)
        self._write_offset(settled, planned)
        self._run(is_fresh=True)

    def _write_offset(
        self, settled: dict[PartitionId, Settled], planned: dict[PartitionId, Planned]
    ) -> None:
        checkpoint = self.checkpoint
        ends = {
            number: planned[number].end if number in planned else each.place
            for number, each in settled.items()
        }
        ranges = {number: each.range for number, each in planned.items()}
        is_doubtful = any(each.is_doubtful for each in settled.values())
        ring_next = checkpoint.last.ring_next if is_doubtful else checkpoint.ring.next
        checkpoint.ring.trim(checkpoint.last.ring_next)
        doubted = {at for at, each in settled.items() if each.is_doubtful} - planned.keys()
        batch = Batch(ends, ranges, ring_next, checkpoint.ring.next, frozenset(doubted))
        checkpoint.batches.append(batch)
        self.world.count("query.batch")

    # -- Running --------------------------------------------------------------------------------

    def _run(self, *, is_fresh: bool) -> None:
        batch = self.checkpoint.last
        self.settled_before = batch.ring_next
        ranges = keep_at_most(list(batch.ranges.values()), self.checkpoint.ring.keys_max)
        if not is_fresh:
            ranges = [_doubted(each) for each in ranges]
        tasks = shared_out(ranges, TASKS_MAX)
        self._ranges = dict(enumerate(tasks))
        self._rows, self._attempts = {}, {task: [] for task in self._ranges}
        for task in self._ranges:
            self.later(self._within(TASK_US), self._begin, task, is_fresh)

    def _begin(self, task: int, is_first: bool) -> None:
        if task not in self._attempts:
            return
        ranges = self._ranges[task]
        doubted = ranges if is_first else [_doubted(each) for each in ranges]
        attempt = Attempt(self, task, doubted, is_again=not is_first)
        self._attempts[task].append(attempt)
        attempt.start()
        if is_first and self.rng.random() < 0.2:
            self.world.count("query.speculated")
            self.later(self._within(TASK_US), self._begin, task, False)

    def handed_out(self, rows: Sequence[Row]) -> None:
        if not self._is_transactional:
            self.checkpoint.table.merge(rows)

    def attempt_failed(self, attempt: Attempt) -> None:
        attempt.end()
        mine = self._attempts[attempt.task]
        mine.remove(attempt)
        if not mine:
            self.later(self._within(TASK_US), self._begin, attempt.task, False)

    def attempt_done(self, attempt: Attempt) -> None:
        """Those that lost may go on for a while, but nobody listens."""
        attempt.end()
        if attempt.is_unwanted:
            return
        for each in self._attempts.pop(attempt.task):
            each.is_unwanted = True
            if self.rng.random() < 0.5:
                each.end()
        self._rows[attempt.task] = attempt.rows
        if not self._attempts:
            self.later(self._within(TASK_US), self._sink)

    def _sink(self) -> None:
        if self._is_transactional:
            for rows in self._rows.values():
                self.checkpoint.table.merge(rows)
        self.later(self._within(TASK_US), self._commit)

    def _commit(self) -> None:
        self.checkpoint.committed = len(self.checkpoint.batches) - 1
        self._trigger()

    # -- What tasks say -------------------------------------------------------------------------

    def era_begun(self, number: PartitionId, found: Begin) -> None:
        self.world.count("query.reread" if found.is_reread else "query.undo")
        if found.is_reread:
            self.checkpoint.reread[number] = max(self.checkpoint.reread.get(number, 0), found.era)

    def compensated(self, number: PartitionId, rows: Sequence[Row], start: Seq) -> None:
        """Only keys that were changed above the rollback point are touched."""
        self.world.count("query.compensated", len(rows))
        for row in rows:
            known = self.checkpoint.table.handed_out.get((number, row.key), ())
            if not any(one.era < row.era and one.seq > start for one in known):
                detail = f"{self.name} compensates {row.key!r} of partition {number} above {start}"
                raise Violation("compensation", f"{detail}, which was not changed there: {known}")

    def explain(self) -> str:
        running = [each.explain() for some in self._attempts.values() for each in some]
        places = {number: each.place for number, each in self.settled().items()}
        return f"{self.name}: {'; '.join(running) or 'no task runs'}; it stands at {places}"


def _doubted(wanted: PartitionRange) -> PartitionRange:
    return msgspec.structs.replace(wanted, is_doubtful=True)
