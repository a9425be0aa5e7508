"""The arithmetic of chains and sequencers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.projection import choose_chain, sequencer_candidates
from millrace.types import LogId, NodeId, Role
from tests.core.core_samples import node_info, projection

BOTH = (Role.STORAGE, Role.SEQUENCER)


@pytest.mark.parametrize(
    ("chain", "replication", "is_redundant", "is_degraded"),
    [
        ((1, 2, 3), 3, True, False),
        ((1, 2), 3, True, True),
        ((1,), 3, False, True),
        ((1,), 1, True, False),
    ],
)
def test_redundancy(
    chain: tuple[int, ...], replication: int, is_redundant: bool, is_degraded: bool
) -> None:
    one = projection(chain=chain, replication=replication)
    assert (one.is_redundant, one.is_degraded) == (is_redundant, is_degraded)
    assert (one.head, one.tail) == (chain[0], chain[-1])


@given(
    st.integers(1, 50),
    st.integers(1, 5),
    st.dictionaries(st.integers(1, 12), st.sampled_from("abc"), max_size=8),
    st.sets(st.integers(1, 12)),
)
def test_a_chain_is_live_distinct_as_long_as_it_can_be_and_across_racks(
    log: int, replication: int, racks: dict[int, str], live: set[int]
) -> None:
    nodes = [node_info(node, rack, BOTH) for node, rack in racks.items()]
    chain = choose_chain(LogId(log), replication, nodes, {NodeId(node) for node in live})
    able = set(racks) & live
    assert len(chain) == len(set(chain)) == min(replication, len(able))
    assert set(chain) <= able
    used = {racks[node] for node in chain}
    available = {racks[node] for node in able}
    assert len(used) == min(len(available), len(chain))


def test_logs_begin_at_different_nodes() -> None:
    nodes = [node_info(node) for node in (1, 2, 3, 4)]
    live = {node.id for node in nodes}
    heads = [choose_chain(LogId(log), 3, nodes, live)[0] for log in range(1, 9)]
    assert heads == [1, 2, 3, 4, 1, 2, 3, 4]


def test_only_storage_nodes_are_in_a_chain() -> None:
    nodes = [node_info(1), node_info(2, roles=(Role.SEQUENCER,)), node_info(3)]
    assert choose_chain(LogId(1), 3, nodes, {node.id for node in nodes}) == (1, 3)


@pytest.mark.parametrize(
    ("current", "live", "expected"),
    [
        (2, (1, 2, 3), [2, 3, 1]),
        (2, (1, 3), [2, 3, 1]),
        (7, (1, 2, 3), [2, 3, 1]),
        (0, (3,), [3]),
        (2, (), [2]),
        (0, (), []),
    ],
    ids=["current first", "current though dead", "current unknown", "one", "only current", "none"],
)
def test_who_may_sequence(current: int, live: tuple[int, ...], expected: list[int]) -> None:
    nodes = [node_info(node, roles=BOTH) for node in (1, 2, 3)]
    nodes.append(node_info(4, roles=(Role.STORAGE,)))
    alive = {NodeId(node) for node in (*live, 4)}
    assert sequencer_candidates(LogId(1), NodeId(current), nodes, alive) == expected
