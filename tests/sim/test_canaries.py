"""Every planted bug is caught by some checker, within a bounded number of seeds."""

import pytest

from millrace.sim.canaries import CANARIES
from millrace.sim.run import run_seed

SEEDS_MAX = 250
CAUGHT_LAST_TIME = {  # Tried first, to save time; any other seed will do.
    "write_once_ignores_islands": 6,
    "dirty_opens_as_member": 81,
    "trim_moves_down": 5,
    "sequencer_goes_back": 19,
    "reconcile_skips_completing": 49,
    "members_without_a_seal": 15,
    "sequencer_starts_low": 12,
    "learner_keeps_surplus": 94,
    "grows_without_learning": 94,
    "seal_by_two_proposers": 5,
    "positions_outlive_their_sequencer": 67,
}


@pytest.mark.parametrize("name", CANARIES)
def test_a_canary_is_caught(name: str) -> None:
    for seed in (CAUGHT_LAST_TIME.get(name, 0), *range(SEEDS_MAX)):
        if not run_seed(seed, canary=name).ok:
            return
    pytest.fail(f"no checker sees {name} in {SEEDS_MAX} seeds")


def test_there_are_enough_canaries() -> None:
    assert len(CANARIES) >= 12


def test_a_canary_leaves_nothing_behind() -> None:
    healthy = run_seed(1)
    assert not run_seed(1, canary="written_before_durable").ok
    assert run_seed(1) == healthy
