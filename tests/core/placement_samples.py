"""Nodes, where they are, and how a log is replicated: what tests of placement are about."""

from collections.abc import Mapping

from hypothesis import strategies as st

from millrace.types import NodeId

Said = int | Mapping[str, int]  # A replication as a user says it.

REPLICATIONS: st.SearchStrategy[Said] = st.sampled_from(
    [1, 2, 3, {"rack": 2}, {"rack": 2, "node": 3}, {"region": 2, "rack": 3, "node": 4}]
)
_PLACES = st.sampled_from(["a.d.c.w.r1", "a.d.c.w.r2", "a.d.c.v.r1", "b.d.c.w.r1", "b", ""])


def nodes(*numbers: int) -> tuple[NodeId, ...]:
    return tuple(NodeId(number) for number in numbers)


def first(count: int) -> tuple[NodeId, ...]:
    return nodes(*range(1, count + 1))


def in_racks(*sizes: int) -> dict[NodeId, str]:
    """Nodes from 1, so many in each rack."""
    racks = [rack for rack, size in enumerate(sizes) for _ in range(size)]
    return {NodeId(1 + at): f"eu.dc1.c1.row1.rack{rack}" for at, rack in enumerate(racks)}


def located_nodes(size_max: int) -> st.SearchStrategy[dict[NodeId, str]]:
    """Few nodes in places that share racks, rows and regions, or do not say where they are."""
    return st.lists(_PLACES, min_size=1, max_size=size_max).map(
        lambda places: dict(zip(first(len(places)), places, strict=True))
    )
