"""Many seeds, all guarantees: and proof that the faults they are held against did happen."""

import json
import time
from pathlib import Path

import pytest

from millrace.sim.run import run_many, run_seed

SEEDS_FIRST, SEEDS_COUNT = 10_000, 300
KEPT = sorted((Path(__file__).parent / "seeds").glob("*.json"))
SPEED_SEEDS = range(40)
EVENTS_PER_CPU_SECOND_MIN = 30_000


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_seed_that_once_failed(path: Path) -> None:
    """Each file names what went wrong.  The seed alone no longer shows it once the simulator draws
    something else; `guarantee` and `about` say what to look for."""
    kept = json.loads(path.read_text())
    result = run_seed(kept["seed"])
    assert result.ok, f"{result.violation}\n{result.replay}\n{kept['about']}"


def test_all_guarantees_hold_and_everything_happened() -> None:
    summary = run_many(SEEDS_FIRST, SEEDS_COUNT, jobs=2)
    told = "\n".join(f"{one.replay}  # {one.violation}" for one in summary.failures)
    assert not summary.failures, told
    assert summary.never_happened() == []


def test_the_simulator_is_fast() -> None:
    """Measured in time of the processor, so that a busy machine does not fail it."""
    started_s = time.process_time()
    events = sum(run_seed(seed).events for seed in SPEED_SEEDS)
    speed = events / (time.process_time() - started_s)
    print(f"{speed:,.0f} events/s of processor time, {events:,} events")
    assert speed >= EVENTS_PER_CPU_SECOND_MIN
