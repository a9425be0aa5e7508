"""Which commit logs keep a node from being removed."""

import pytest

from millrace.core.commit.holding import resting_on
from millrace.types import NodeId
from tests.core.commit.committer_office import ONE, TWO, record_of, stream_of

NODE = NodeId(1)


@pytest.mark.parametrize(
    ("streams", "lost", "is_resting"),
    [
        pytest.param([(2, 3), (3, 4)], (), False, id="it has no replica"),
        pytest.param([(2, 3), (3, 1)], (), True, id="of one stream"),
        pytest.param([(1,)], (), True, id="it is the only one"),
        pytest.param([(1, 2)], (1,), True, id="lost, and left out soon"),
        pytest.param([(1,)], (1,), False, id="nothing can be had of it any more"),
        pytest.param([(1, 2)], (1, 2), False, id="nor of any other replica"),
        pytest.param([(1, 2)], (2,), True, id="it has the last replica"),
    ],
)
def test_a_log_rests_on_the_nodes_that_have_replicas(
    streams: list[tuple[int, ...]], lost: tuple[int, ...], is_resting: bool
) -> None:
    numbers = (ONE, TWO)
    found = [stream_of(number, *nodes) for number, nodes in zip(numbers, streams, strict=False)]
    record = record_of(*found)
    held = resting_on(NODE, [record], [NodeId(node) for node in lost])
    assert held == ([record] if is_resting else [])
