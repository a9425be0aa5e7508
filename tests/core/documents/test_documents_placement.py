"""Where the partitions of a bucket should be."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.documents.placement import Copies, place
from millrace.types import NO_NODE, NodeId

NOWHERE = Copies(NO_NODE)


def ids(count: int) -> list[NodeId]:
    return [NodeId(number) for number in range(1, count + 1)]


def in_racks(sizes: Sequence[int]) -> dict[NodeId, str]:
    """Nodes 1, 2, ... fill one rack after the other."""
    racks = [rack for rack, size in enumerate(sizes) for _ in range(size)]
    return {NodeId(at + 1): f"eu.d.c.w.k{rack}" for at, rack in enumerate(racks)}


def masters(wanted: Sequence[Copies], nodes: Sequence[NodeId]) -> list[int]:
    load = Counter(copies.active for copies in wanted)
    return [load[node] for node in nodes]


def replicas(wanted: Sequence[Copies], nodes: Sequence[NodeId]) -> list[int]:
    load = Counter(node for copies in wanted for node in copies.replicas)
    return [load[node] for node in nodes]


def spread(loads: Sequence[int]) -> int:
    return max(loads) - min(loads)


def new_copies(before: Sequence[Copies], after: Sequence[Copies]) -> int:
    """How many copies must be made."""
    return sum(
        len(set(new.holders) - set(old.holders)) for old, new in zip(before, after, strict=True)
    )


partition_counts = st.integers(1, 130)
node_counts = st.integers(1, 9)
replica_counts = st.integers(0, 3)


@given(partition_counts, node_counts, replica_counts)
def test_loads_differ_by_at_most_one(partitions: int, count: int, wanted_replicas: int) -> None:
    wanted = place(ids(count), {}, wanted_replicas, [NOWHERE] * partitions)
    assert spread(masters(wanted, ids(count))) <= 1
    assert spread(replicas(wanted, ids(count))) <= 1


@given(partition_counts, node_counts, replica_counts)
def test_copies_of_a_partition_are_on_different_nodes(
    partitions: int, count: int, wanted_replicas: int
) -> None:
    for copies in place(ids(count), {}, wanted_replicas, [NOWHERE] * partitions):
        assert len(set(copies.holders)) == 1 + min(wanted_replicas, count - 1)


@given(partition_counts, st.integers(2, 4), st.integers(1, 3), replica_counts)
def test_racks_of_equal_size_are_kept_apart_and_loads_are_level(
    partitions: int, racks: int, size: int, wanted_replicas: int
) -> None:
    locations = in_racks([size] * racks)
    nodes = list(locations)
    wanted = place(nodes, locations, wanted_replicas, [NOWHERE] * partitions)
    outside = size * (racks - 1)
    for copies in wanted:
        home = locations[copies.active]
        at_home = [node for node in copies.replicas if locations[node] == home]
        assert len(at_home) == max(0, len(copies.replicas) - outside)
    assert spread(masters(wanted, nodes)) <= 1
    assert spread(replicas(wanted, nodes)) <= (1 if wanted_replicas == 1 else 2)


@given(partition_counts, st.lists(st.integers(1, 4), min_size=2, max_size=4), st.integers(1, 2))
def test_a_rack_that_fails_takes_no_partition_with_it(
    partitions: int, sizes: list[int], wanted_replicas: int
) -> None:
    locations = in_racks(sizes)
    nodes = list(locations)
    wanted = place(nodes, locations, wanted_replicas, [NOWHERE] * partitions)
    if max(sizes) <= len(nodes) * 2 / 3:
        assert all(len({locations[node] for node in copies.holders}) > 1 for copies in wanted)
    else:  # Else the few others would have to hold nearly everything.
        assert spread(replicas(wanted, nodes)) <= 1
    assert spread(masters(wanted, nodes)) <= 1


@given(partition_counts, st.lists(st.integers(1, 4), min_size=1, max_size=4), replica_counts)
def test_what_is_wanted_stays_wanted(
    partitions: int, sizes: list[int], wanted_replicas: int
) -> None:
    locations = in_racks(sizes)
    wanted = place(list(locations), locations, wanted_replicas, [NOWHERE] * partitions)
    assert place(list(locations), locations, wanted_replicas, wanted) == wanted


@given(partition_counts, st.integers(1, 8), replica_counts)
def test_a_node_that_joins_gets_its_share_and_nobody_else_gets_masters(
    partitions: int, count: int, wanted_replicas: int
) -> None:
    before = place(ids(count), {}, wanted_replicas, [NOWHERE] * partitions)
    after = place(ids(count + 1), {}, wanted_replicas, before)
    joined = NodeId(count + 1)
    moves = [new for old, new in zip(before, after, strict=True) if old.active != new.active]
    assert all(copies.active == joined for copies in moves)
    assert len(moves) == partitions // (count + 1)
    assert spread(replicas(after, ids(count + 1))) <= 1


@given(partition_counts, st.integers(2, 8), replica_counts)
def test_a_node_that_leaves_has_nothing_any_more(
    partitions: int, count: int, wanted_replicas: int
) -> None:
    before = place(ids(count), {}, wanted_replicas, [NOWHERE] * partitions)
    staying = ids(count)[1:]
    after = place(staying, {}, wanted_replicas, before)
    assert all(NodeId(1) not in copies.holders for copies in after)
    assert spread(masters(after, staying)) <= 1
    assert spread(replicas(after, staying)) <= 1


@pytest.mark.parametrize(
    ("before", "after", "copies_made"),
    [(3, 4, 32), (4, 5, 24), (2, 3, 42)],
    ids=["three to four", "four to five", "two to three"],
)
def test_joining_costs_only_the_copies_of_the_node_that_joins(
    before: int, after: int, copies_made: int
) -> None:
    """64 partitions with a replica each: its share of the masters and of the replicas."""
    current = place(ids(before), {}, 1, [NOWHERE] * 64)
    assert new_copies(current, place(ids(after), {}, 1, current)) <= copies_made


def test_a_master_moves_to_where_a_copy_is() -> None:
    current = [Copies(NodeId(1), (NodeId(2),)) for _ in range(4)]
    wanted = place(ids(2), {}, 1, current)
    assert masters(wanted, ids(2)) == [2, 2]
    assert new_copies(current, wanted) == 0


def test_a_partition_without_a_master_gets_one_that_has_a_copy() -> None:
    current = [Copies(NO_NODE, (NodeId(3), NodeId(2))), Copies(NodeId(1), (NodeId(2),))]
    wanted = place(ids(3), {}, 1, current)
    assert wanted[0].active in (NodeId(2), NodeId(3))


def test_replicas_that_stay_keep_their_order() -> None:
    current = [Copies(NodeId(1), (NodeId(3), NodeId(2)))]
    assert place(ids(3), {}, 2, current) == (current[0],)
