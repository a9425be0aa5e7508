"""Running seeds: one, or many on several cores.

A run either holds all guarantees or ends at the event that broke one.  Anything else that a core
lets out, an assertion for example, is a finding just the same.
"""

import gc
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext

import msgspec

from millrace.sim.canaries import CANARIES
from millrace.sim.changes.world import ChangesWorld
from millrace.sim.commit.shape import CommitTrouble
from millrace.sim.documents.shape import DocumentsTrouble
from millrace.sim.documents.world import DocumentsWorld
from millrace.sim.seeds import LogKind, parse, seed_of
from millrace.sim.sequenced.shape import Trouble
from millrace.sim.shape import Family
from millrace.sim.stage import Stage
from millrace.sim.trace import Listener
from millrace.sim.violation import Violation
from millrace.sim.world import World

REPLAY = "millrace sim explain {seed}"
_CHUNK_SEEDS = 4

REQUIRED_COUNTERS = (
    *(f"fault.{family.value}" for family in Family if family is not Family.LONG_DELAY),
    "network.long_delay",
    "network.dead_peer",
    "ask.timed_out",
    "driver.deadline",
    "disk.unsynced_kept",
    "store.dirtied",
    "lease.expired",
    "append.Appended",
    "append.NotAppended",
    "append.AppendUnknown",
    "append.resolved",
    "append.trimmed_unknown",
    "gap.hole",
    "gap.trim",
    "gap.dataloss",
    "repair.completed",
    "repair.filled",
    "repair.not_issued",
    "repair.trouble",
    "repair.waiting",
    "reader.copied_elsewhere",
    "reader.napped",
    "select.bare",
    "select.cut",
    "select.whole",
    "reconfigure.disk_full",
    "reconfigure.fenced",
    "reconfigure.incomplete",
    "reconfigure.joined",
    "reconfigure.sequencer_lost",
    "reconfigure.unreachable",
    "keeper.grow",
    "keeper.shrink",
    "keeper.replace_sequencer",
    "note.chain.reconciled",
    "note.chain.no_redundancy",
    "note.chain.lost",
    "note.log.learned",
    "trim.done",
    "heal.left_dead",
    *(f"trouble.{trouble.value}" for trouble in (*Trouble, *CommitTrouble)),
    "trouble.block_overtaken",
    "trouble.sealed_restarted",
    "trouble.straggler_left",
    "recovery.short_block",
    "rebuild.short_mended",
    "rebuild.renewed",
    "status.refilled",
    "status.rebuilt",
    "status.emptied",
    "epochs.begun",
    "store.later_wave",
    "store.preempted",
    "junk.bridge",
    "junk.hole",
    "note.recovery.again",
    "note.recovery.closed.complete",
    "note.recovery.closed.incomplete",
    "note.recovery.closed.non_authoritative",
    "note.recovery.node_left_out",
    "purge.clean",
    "node.asks_for_release",
    "status.unavailable",
    "status.underreplication",
    "rewind.damaged",
    "rewind.incomplete",
    "rewind.no_progress",
    "rewind.nobody_left",
    "rewind.returned",
    "rewind.second_chance",
    "rewind.sender_lost",
    "rewind.slid",
    "rewind.slow",
    "rewind.started_timeout",
    "rewind.status",
    "reader.finished",
    "reader.unhealthy",
    "sequenced.gap.bridge",
    "sequenced.gap.dataloss",
    "sequenced.gap.hole",
    "sequenced.gap.trim",
    "sequenced.trim_done",
    "ledger.copies_lost",
    "trouble.reform_killed_struck",
    "trouble.opening_missed_struck",
    "trouble.sync_killed_struck",
    "commit.committed",
    "commit.reformed",
    "commit.lost",
    "commit.reading_anew",
    "commit.loss_confirmed",
    "commit.operation_done",
    "commit.operation_refused",
    "commit.quarantine.context_missing",
    "commit.quarantine.memory_lost",
    "commit.gap.trim",
    "commit.gap.dataloss",
    "note.term.claimed",
)

# What worlds of documents must have seen.
REQUIRED_OF_DOCUMENTS = (
    *(f"trouble.{trouble.value}" for trouble in DocumentsTrouble),
    "trouble.undo_killed_struck",
    "trouble.successor_killed_struck",
    "trouble.delivery_killed",
    "network.dead_peer",
    "ask.timed_out",
    "lease.expired",
    "node.stopped_in_order",
    "command.ok",
    "command.ambiguous",
    "command.not_my_partition",
    "command.temporary_failure",
    "command.unanswered",
    *(f"wait.{outcome}" for outcome in ("ok", "timed_out", "not_my_partition")),
    "durable.majority",
    "durable.majority_and_persist_on_master",
    "durable.persist_to_majority",
    "durable.excused",
    "keeper.left_out",
    "keeper.still_serves",
    "stale_master.change",
    "promoted.in_a_snapshot",
    "undo.begun",
    "undo.to_zero",
    "undo.fetched_ahead",
    "repair.taken",
    "purge.raised",
    "document.expired",
    "view.renewed",
    "snapshot.from_disk",
    "reload.stale_master",
    "follower.undone",
    "follower.forgot_all",
    "follower.below_its_ring",
    "barrier.reached",
    "move.done",
    "move.master_failed",
    "keeper.all_lost",
    "keeper.forced",
    "keeper.too_few_answers",
    "keeper.undo_pending",
    "keeper.waiting",
    *(
        f"note.partition.seat_changed.{reason}"
        for reason in (
            "abandoned",
            "master_gone",
            "master_lost",
            "master_unclean",
            "moving",
            "operator",
            "promoted",
            "surplus",
        )
    ),
)

# What worlds with queries must have seen.
REQUIRED_OF_CHANGES = (
    "query.batch",
    "query.batch_again",
    "query.killed",
    "query.task_failed",
    "query.speculated",
    "query.undo",
    "query.line_lost_in_undo",
    "query.reread",
    "query.compensated",
    "query.refused.stale_master",
)


class RunResult(msgspec.Struct, frozen=True):
    seed: int | str
    ok: bool
    violation: str  # Empty when all is well.
    guarantee: str  # G1, G2, ..., liveness; "crash" for what a core let out.
    events: int
    virtual_us: int
    trace_hash: str
    counters: dict[str, int]

    @property
    def replay(self) -> str:
        return REPLAY.format(seed=self.seed)


class Summary(msgspec.Struct, frozen=True):
    runs: int
    events: int
    seconds: float
    failures: list[RunResult]
    counters: dict[str, int]

    @property
    def events_per_second(self) -> float:
        return self.events / self.seconds if self.seconds else 0.0

    def never_happened(self, required: Iterable[str] = REQUIRED_COUNTERS) -> list[str]:
        """What the seeds did not exercise: a test that never fails proves nothing."""
        return [name for name in required if not self.counters.get(name)]


def run_seed(
    seed: int | str, *, canary: str | None = None, trace: Listener | None = None
) -> RunResult:
    """One run.  `canary` plants a bug; `trace` hears every event."""
    with CANARIES[canary]() if canary is not None else nullcontext():
        return _run(make_world(seed, trace))


def make_world(seed: int | str, listener: Listener | None = None) -> Stage:
    kind = parse(seed).kind
    if kind is LogKind.DOCUMENTS:
        return DocumentsWorld(seed, listener)
    if kind is LogKind.CHANGES:
        return ChangesWorld(seed, listener)
    return World(seed, listener=listener)


def _run(world: Stage) -> RunResult:
    guarantee = violation = ""
    try:
        world.run()
    except Violation as broken:
        guarantee, violation = broken.guarantee, str(broken)
    except Exception as error:  # The run is over: whatever a core lets out is a finding.
        guarantee, violation = "crash", f"crash: {type(error).__name__}: {error}"
    return RunResult(
        world.name,
        not violation,
        violation,
        guarantee,
        world.schedule.events,
        world.schedule.now_us,
        world.trace.digest(),
        dict(sorted(world.counters.items())),
    )


def run_many(
    first: int,
    count: int,
    jobs: int = 2,
    progress: Callable[[RunResult], None] | None = None,
    kind: LogKind | None = None,
) -> Summary:
    """Seeds first, first + 1, ..., on `jobs` processes; results come in order.  Without a `kind`
    the numbers draw theirs."""
    started_s = time.monotonic()
    numbers = range(first, first + count)
    seeds = [seed_of(number, kind) for number in numbers]
    totals: Counter[str] = Counter()
    failures: list[RunResult] = []
    events = 0

    def take(results: Iterable[RunResult]) -> None:
        nonlocal events
        for result in results:
            events += result.events
            totals.update(result.counters)
            if not result.ok:
                failures.append(result)
            if progress is not None:
                progress(result)

    if jobs <= 1:
        take(map(run_seed, seeds))
    else:
        # Spawned, not forked: the caller may have threads, and a run depends on nothing but its
        # seed.
        context = multiprocessing.get_context("spawn")
        with context.Pool(jobs, initializer=_prepare) as pool:
            take(pool.imap(run_seed, seeds, chunksize=_CHUNK_SEEDS))
    seconds = time.monotonic() - started_s
    return Summary(count, events, seconds, failures, dict(sorted(totals.items())))


def _prepare() -> None:
    """A run makes many objects and few cycles: looking for those less often saves a tenth."""
    gc.set_threshold(50_000, 20, 20)
