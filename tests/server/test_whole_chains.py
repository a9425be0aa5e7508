"""Which chains need not be asked whether their members lost something."""

import msgspec
import pytest

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


def test_chains_that_are_gone_are_forgotten() -> None:
    whole = WholeChains()
    whole.add(CHAIN, LIVES, 0.0)
    whole.keep_only({LogId(2)})
    assert not whole.has(CHAIN, LIVES, 0.0)
