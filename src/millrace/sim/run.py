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
from millrace.sim.shape import Family
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
        world = World(seed, listener=trace)
        return _run(world)


def _run(world: World) -> RunResult:
    guarantee = violation = ""
    try:
        world.run()
    except Violation as broken:
        guarantee, violation = broken.guarantee, str(broken)
    except Exception as error:  # The run is over: whatever a core lets out is a finding.
        guarantee, violation = "crash", f"crash: {type(error).__name__}: {error}"
    return RunResult(
        world.seed,
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
) -> Summary:
    """Seeds first, first + 1, ..., on `jobs` processes; results come in order."""
    started_s = time.monotonic()
    seeds = range(first, first + count)
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
