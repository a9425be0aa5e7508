"""Every planted bug is caught by some checker, within a bounded number of seeds."""

import pytest

from millrace.sim.canaries import CANARIES
from millrace.sim.run import run_seed

SEEDS_MAX = 250


@pytest.mark.parametrize("name", CANARIES)
def test_a_canary_is_caught(name: str) -> None:
    for seed in range(SEEDS_MAX):
        if not run_seed(seed, canary=name).ok:
            return
    pytest.fail(f"no checker sees {name} in {SEEDS_MAX} seeds")


def test_there_are_enough_canaries() -> None:
    assert len(CANARIES) >= 12


def test_a_canary_leaves_nothing_behind() -> None:
    healthy = run_seed(1)
    assert not run_seed(1, canary="written_before_durable").ok
    assert run_seed(1) == healthy
