"""Many seeds, all guarantees: and proof that the faults they are held against did happen."""

import gc
import json
import time
from functools import cache
from pathlib import Path

import pytest

from millrace.sim.run import Summary, run_many, run_seed
from millrace.sim.schedule import Schedule
from millrace.sim.seeds import LogKind

SEEDS_FIRST, SEEDS_COUNT, MIXED_COUNT = 10_000, 300, 60
KINDS = (LogKind.CHAIN, LogKind.SEQUENCED, LogKind.COMMIT, None)
SECONDS_MAX = 1_800  # Processors that are slow or shared must not fail it.
KEPT = sorted((Path(__file__).parent / "seeds").glob("*.json"))
SPEED_SEEDS = [f"chain:{number}" for number in range(40)]
EVENTS_PER_CPU_SECOND_MIN = 30_000
PLAIN_EVENTS = 200_000
PLAIN_EVENTS_PER_CPU_SECOND = 800_000  # Where the figure above was asked for and met.
SPEED_TRIES = 4


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_seed_that_once_failed(path: Path) -> None:
    """Each file names what went wrong.  The seed alone no longer shows it once the simulator draws
    something else; `guarantee` and `about` say what to look for."""
    kept = json.loads(path.read_text())
    result = run_seed(kept["seed"])
    assert result.ok, f"{result.violation}\n{result.replay}\n{kept['about']}"


@cache
def summary_of(kind: LogKind | None) -> Summary:
    """None: the numbers draw their kinds."""
    count = MIXED_COUNT if kind is None else SEEDS_COUNT
    return run_many(SEEDS_FIRST, count, jobs=2, kind=kind)


@pytest.mark.timeout(SECONDS_MAX)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_all_guarantees_hold(kind: LogKind | None) -> None:
    failures = summary_of(kind).failures
    assert not failures, "\n".join(f"{one.replay}  # {one.violation}" for one in failures)


@pytest.mark.timeout(SECONDS_MAX)
def test_everything_happened() -> None:
    missing = [set(summary_of(kind).never_happened()) for kind in KINDS]
    assert set.intersection(*missing) == set()


def simulator_speed() -> float:
    started_s = time.process_time()
    events = sum(run_seed(seed).events for seed in SPEED_SEEDS)
    return events / (time.process_time() - started_s)


def plain_speed() -> float:
    """Of a schedule whose events do next to nothing: how fast Python is on this processor now."""
    schedule = Schedule()
    seen: dict[int, str] = {}

    def happen(number: int) -> None:
        seen[number % 1_000] = f"{schedule.now_us} {number}"
        schedule.after(number % 97, happen, number + 1)

    for number in range(1_000):
        schedule.after(number, happen, number)
    started_s = time.process_time()
    schedule.run(2**60, lambda: schedule.events < PLAIN_EVENTS)
    return PLAIN_EVENTS / (time.process_time() - started_s)


def is_fast() -> bool:
    plain = (plain_speed(), plain_speed())
    speed = simulator_speed()
    processor = min(1.0, max(*plain, plain_speed()) / PLAIN_EVENTS_PER_CPU_SECOND)
    print(f"{speed:,.0f} events/s of processor time, on one of {processor:.0%}")
    return speed >= EVENTS_PER_CPU_SECOND_MIN * processor


@pytest.mark.alone
def test_the_simulator_is_fast() -> None:
    """Measured in time of the processor, without the garbage of the tests before, and again if it
    was slow: a processor that shares its core with another is, for a while.  On one that is slow
    for good the figure is scaled by what plain Python does there."""
    gc.collect()
    gc.freeze()
    try:
        assert any(is_fast() for _ in range(SPEED_TRIES))
    finally:
        gc.unfreeze()
