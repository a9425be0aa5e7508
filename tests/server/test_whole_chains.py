"""Which chains need not be asked whether their members lost something."""

from itertools import pairwise

import msgspec
import pytest

from millrace.config import KeeperSettings
from millrace.core.projection import Projection
from millrace.server.whole_chains import ASK_AGAIN_S, Lives, WholeChains
from millrace.types import Epoch, LogId, NodeId

LOG = LogId(1)
CHAIN = Projection(LOG, Epoch(3), (NodeId(1), NodeId(2)), NodeId(1), 2)
LIVES = {NodeId(1): 10, NodeId(2): 20, NodeId(3): 30}


@pytest.mark.parametrize(
    ("chain", "lives", "after_s", "is_known"),
    [
        (CHAIN, LIVES, ASK_AGAIN_S - 1, True),
        (CHAIN, {**LIVES, NodeId(3): 31}, 0.0, True),
        (CHAIN, {**LIVES, NodeId(2): 21}, 0.0, False),
        (CHAIN, {NodeId(1): 10}, 0.0, False),
        (msgspec.structs.replace(CHAIN, epoch=Epoch(4)), LIVES, 0.0, False),
        (msgspec.structs.replace(CHAIN, log=LogId(2)), LIVES, 0.0, False),
        (CHAIN, LIVES, ASK_AGAIN_S, False),
    ],
    ids=[
        "as it was",
        "another node started",
        "a member started",
        "a member is gone",
        "another epoch",
        "another log",
        "after a while",
    ],
)
def test_a_chain_is_whole_until_something_happens(
    chain: Projection, lives: Lives, after_s: float, is_known: bool
) -> None:
    whole = WholeChains()
    assert not whole.has(CHAIN, LIVES, 100.0)
    whole.add(CHAIN, LIVES, 100.0)
    assert whole.has(chain, lives, 100.0 + after_s) is is_known


def test_a_chain_with_which_all_is_well_is_asked_in_few_rounds_of_chores() -> None:
    """It was asked in each: what was known lasted as long as from one to the next."""
    whole = WholeChains()
    asked_s: list[float] = []
    round_s = KeeperSettings().retention_interval_ms / 1000 + 0.1  # One is never early.
    for now_s in (number * round_s for number in range(100)):
        if not whole.has(CHAIN, LIVES, now_s):
            asked_s.append(now_s)
            whole.add(CHAIN, LIVES, now_s)
    assert 10 < len(asked_s) <= 20
    assert all(after - before <= ASK_AGAIN_S + round_s for before, after in pairwise(asked_s))


def test_chains_that_are_gone_are_forgotten() -> None:
    whole = WholeChains()
    whole.add(CHAIN, LIVES, 0.0)
    whole.keep_only({LogId(2)})
    assert not whole.has(CHAIN, LIVES, 0.0)
