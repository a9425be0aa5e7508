"""Which nodes a log should lie on, now that nodes were added, drained or lost."""

from collections.abc import Collection
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.epochs import (
    EpochRange,
    EpochRecord,
    NodesetChange,
    metadata_log_of,
    ranges,
)
from millrace.core.messages import ChangeNodeset
from millrace.core.procedure import ClusterView
from millrace.core.replication import Authority, Replication, authority, can_replicate
from millrace.core.sequenced.arranging import Scene, Wish, arrange, widened, wish_of
from millrace.core.statuses import NodeStatusEntry, came, drain, gone, rebuilt
from millrace.types import Epoch, LogAttributes, LogId, NodeId
from tests.core.core_samples import node_info
from tests.core.sequenced_cluster import nodes

LOG = LogId(7)
TWICE, THRICE = Replication.of(2), Replication.of(3)


def must(entry: NodeStatusEntry | None) -> NodeStatusEntry:
    assert entry is not None
    return entry


DRAINED = must(drain(None, "disk", 1))
EMPTIED = must(rebuilt(DRAINED, 2))
AWAY = must(gone(None, "disk", 1))
WIPED = must(came(None, "old disk", "new disk", 1))


def scene(registered: int, *, dead: Collection[int] = (), **statuses: NodeStatusEntry) -> Scene:
    """Nodes 1 to `registered`; `n3=DRAINED` gives node 3 a status."""
    infos = tuple(node_info(number) for number in range(1, registered + 1))
    live = frozenset(info.id for info in infos if info.id not in dead)
    entries = {NodeId(int(name[1:])): entry for name, entry in statuses.items()}
    return Scene(ClusterView(infos, live), entries)


def record(*members: int, **fields: Any) -> EpochRecord:
    usual: dict[str, Any] = {"log": LOG, "epoch": Epoch(4), "sequencer": NodeId(1)}
    usual |= {"nodeset": nodes(*members), "replication": TWICE, "since": Epoch(2)}
    return EpochRecord(**(usual | fields))


def moved_to(change: ChangeNodeset | None) -> set[int] | None:
    return None if change is None else set(change.nodeset)


# -- The nodeset --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "size", "around", "expected"),
    [
        pytest.param((1, 2, 3), None, scene(3), None, id="nothing changed"),
        pytest.param((1, 2, 3), None, scene(5), {1, 2, 3, 4, 5}, id="two were added"),
        pytest.param((1, 2, 3), 3, scene(5), None, id="added, but the size is limited"),
        pytest.param((1, 2, 3), None, scene(3, dead=(2,)), None, id="one is dead for a while"),
        pytest.param((1, 2, 3), None, scene(3, n2=AWAY), None, id="one is away for long"),
        pytest.param((1, 2, 3), None, scene(4, dead=(4,)), None, id="the one added is dead"),
        pytest.param((1, 2, 3), None, scene(3, n2=DRAINED), {1, 3}, id="one is drained"),
        pytest.param((1, 2, 3), None, scene(3, n2=EMPTIED), {1, 3}, id="one was drained"),
        pytest.param((1, 2, 3), None, scene(3, n2=WIPED), None, id="one was wiped"),
        pytest.param((1, 2), None, scene(2, n2=DRAINED), None, id="drained, and needed"),
        pytest.param((1, 2, 9), None, scene(3), {1, 2, 3}, id="one is not registered any more"),
    ],
)
def test_where_a_log_should_lie(
    members: tuple[int, ...], size: int | None, around: Scene, expected: set[int] | None
) -> None:
    assert moved_to(arrange(record(*members), Wish(TWICE, size), around)) == expected


def test_a_log_whose_size_was_reduced_keeps_some_of_its_nodes() -> None:
    change = arrange(record(1, 2, 3, 4), Wish(TWICE, 3), scene(6))
    assert change is not None
    assert len(change.nodeset) == 3
    assert set(change.nodeset) < {1, 2, 3, 4}


def test_a_log_with_a_size_moves_as_little_as_possible() -> None:
    change = arrange(record(1, 2, 3), Wish(TWICE, 3), scene(6, n2=DRAINED))
    assert change is not None
    assert change.nodeset[:2] == nodes(1, 3)
    assert len(change.nodeset) == 3


def test_dead_nodes_are_replaced_where_the_log_could_not_be_written_otherwise() -> None:
    change = arrange(record(1, 2, 3, replication=THRICE), Wish(THRICE, 3), scene(5, dead=(2,)))
    assert change is not None
    assert change.nodeset[:3] == nodes(1, 2, 3)
    assert len(change.nodeset) == 4


def test_only_the_sequencer_of_that_epoch_is_to_change_it() -> None:
    change = arrange(record(1, 2, 3, epoch=Epoch(9)), Wish(TWICE), scene(4))
    assert change is not None
    assert (change.log, change.epoch, change.replication) == (LOG, 9, TWICE)


def test_another_replication_is_a_reason_too() -> None:
    assert arrange(record(1, 2, 3), Wish(THRICE), scene(3)) == ChangeNodeset(
        LOG, Epoch(4), nodes(1, 2, 3), THRICE
    )


def test_a_replication_that_cannot_be_is_not_tried() -> None:
    assert arrange(record(1, 2, 3), Wish(THRICE), scene(3, n3=DRAINED)) is None


def test_a_sealed_log_stays() -> None:
    assert arrange(record(1, 2, 3, is_sealed=True), Wish(THRICE), scene(5)) is None


def test_a_metadata_log_gains_nodes_and_loses_none() -> None:
    log = metadata_log_of(LOG)
    change = arrange(record(1, 2, 3, log=log), Wish(TWICE, 5), scene(4, n2=DRAINED))
    assert change is not None
    assert change.nodeset == nodes(1, 2, 3, 4)
    assert change.wider == ()


def test_attributes_are_a_wish() -> None:
    attributes = LogAttributes(replication=3, across=(("rack", 2),), nodeset_size=6)
    assert wish_of(attributes) == Wish(Replication.of({"rack": 2, "node": 3}), 6)


@pytest.mark.parametrize(
    ("around", "is_urgent"),
    [
        pytest.param(scene(3, n1=DRAINED), True, id="drained, and no copyset without it"),
        pytest.param(scene(3, dead=(1,)), False, id="dead for a while"),
        pytest.param(scene(3), False, id="all well"),
    ],
)
def test_when_appends_wait_for_a_move(around: Scene, is_urgent: bool) -> None:
    assert around.is_urgent(record(1, 2, 3, replication=THRICE)) == is_urgent


# -- Old epochs ---------------------------------------------------------------------------------


def test_old_epochs_that_cannot_do_without_a_drained_node_are_widened() -> None:
    old = EpochRange(Epoch(1), Epoch(1), nodes(1, 2, 3), THRICE)
    current = record(1, 2, 3, 4, replication=THRICE)
    change = arrange(current, Wish(THRICE), scene(4, n2=DRAINED), [old])
    assert change is not None
    assert set(change.nodeset) == {1, 3, 4}
    assert change.wider == (NodesetChange(Epoch(1), nodes(1, 2, 3, 4), THRICE),)


def test_the_epochs_that_end_with_the_change_are_old_ones_too() -> None:
    current = record(1, 2, 3, replication=THRICE)
    change = arrange(current, Wish(THRICE), scene(4, n2=DRAINED))
    assert change is not None
    assert change.wider == (NodesetChange(Epoch(2), nodes(1, 2, 3, 4), THRICE),)


def test_a_log_whose_nodeset_stays_begins_an_epoch_for_its_old_ones() -> None:
    old = EpochRange(Epoch(1), Epoch(1), nodes(3, 4), TWICE)
    change = arrange(record(1, 2), Wish(TWICE, 2), scene(4, n4=DRAINED), [old])
    assert change is not None
    assert change.nodeset == nodes(1, 2)
    assert change.wider == (NodesetChange(Epoch(1), nodes(3, 4, 1), TWICE),)


@pytest.mark.parametrize(
    ("helpers", "barred", "expected"),
    [
        pytest.param((4, 5), (), (1, 2, 3), id="all are well"),
        pytest.param((4, 5), (9,), (1, 2, 3), id="a stranger is drained"),
        pytest.param((4, 5), (2,), (1, 2, 3, 4), id="one helper is enough"),
        pytest.param((3, 4, 5), (1, 2), (1, 2, 3, 4, 5), id="two are needed"),
        pytest.param((4,), (1, 2), (1, 2, 3), id="too few helpers"),
    ],
)
def test_how_far_old_epochs_are_widened(
    helpers: tuple[int, ...], barred: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    span = EpochRange(Epoch(1), Epoch(3), nodes(1, 2, 3), THRICE)
    assert widened(span, nodes(*helpers), nodes(*barred), {}) == nodes(*expected)


# -- What the metadata log says of it -----------------------------------------------------------

FIRST = NodesetChange(Epoch(1), nodes(1, 2), TWICE)


def nodeset_of_first(*changes: NodesetChange, since: int = 3) -> tuple[NodeId, ...]:
    current = record(7, 8, since=Epoch(since), epoch=Epoch(since))
    return ranges(changes, current)[0].nodeset


def test_a_widening_counts_from_the_change_that_it_was_made_for() -> None:
    wider = msgspec.structs.replace(FIRST, nodeset=nodes(1, 2, 3), counts_from=Epoch(5))
    assert nodeset_of_first(FIRST, wider, since=4) == nodes(1, 2)
    assert nodeset_of_first(FIRST, wider, since=5) == nodes(1, 2, 3)
    assert nodeset_of_first(FIRST, wider, since=6) == nodes(1, 2, 3)


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 1, 0)])
def test_a_range_only_gains_nodes_in_whichever_order_they_were_recorded(
    order: tuple[int, ...],
) -> None:
    changes = (
        FIRST,
        msgspec.structs.replace(FIRST, nodeset=nodes(1, 2, 3)),
        msgspec.structs.replace(FIRST, nodeset=nodes(1, 2, 4)),
    )
    assert set(nodeset_of_first(*(changes[at] for at in order))) == {1, 2, 3, 4}


# -- Properties ---------------------------------------------------------------------------------

numbers = st.integers(1, 8)


def some_scene(registered: int, dead: set[int], drained: set[int], away: set[int]) -> Scene:
    statuses = {f"n{node}": AWAY for node in away} | {f"n{node}": DRAINED for node in drained}
    return scene(registered, dead=dead, **statuses)


clusters = st.builds(
    some_scene,
    st.integers(1, 8),
    st.sets(numbers, max_size=4),
    st.sets(numbers, max_size=3),
    st.sets(numbers, max_size=3),
)


@given(
    around=clusters,
    members=st.sets(numbers, min_size=1),
    size=st.none() | st.integers(1, 8),
    copies=st.integers(1, 3),
    wanted=st.integers(1, 3),
)
def test_what_was_arranged_needs_no_arranging(
    around: Scene, members: set[int], size: int | None, copies: int, wanted: int
) -> None:
    before = record(*sorted(members), replication=Replication.of(copies))
    wish = Wish(Replication.of(wanted), size)
    change = arrange(before, wish, around)
    if change is None:
        return
    after = msgspec.structs.replace(
        before,
        epoch=Epoch(5),
        since=Epoch(5),
        nodeset=change.nodeset,
        replication=change.replication,
    )
    old = EpochRange(before.since, before.epoch, before.nodeset, before.replication)
    wide = {each.since: each.nodeset for each in change.wider}
    old = msgspec.structs.replace(old, nodeset=wide.get(old.first, old.nodeset))
    assert arrange(after, wish, around, [old]) is None


@given(around=clusters, members=st.sets(numbers, min_size=1), size=st.none() | st.integers(1, 8))
def test_nobody_moves_to_where_it_could_not_be_written(
    around: Scene, members: set[int], size: int | None
) -> None:
    change = arrange(record(*sorted(members)), Wish(TWICE, size), around)
    if change is not None and set(change.nodeset) != members:
        takers = set(change.nodeset) - around.barred
        assert can_replicate(TWICE, takers & around.view.live, around.locations)
        assert not around.leaving & set(change.nodeset)


@given(
    members=st.sets(numbers, min_size=1),
    more=st.sets(numbers),
    heard=st.sets(numbers),
    copies=st.integers(1, 3),
)
def test_a_majority_of_a_wider_nodeset_is_one_of_the_narrower(
    members: set[int], more: set[int], heard: set[int], copies: int
) -> None:
    """So whoever knows the wider one misses nothing that was acknowledged."""
    wants, votes = Replication.of(copies), nodes(*sorted(heard))
    majority = (Authority.COMPLETE, Authority.INCOMPLETE)
    wide = authority(wants, nodes(*sorted(members | more)), {}, {}, votes)
    if wide in majority and heard & members:
        assert authority(wants, nodes(*sorted(members)), {}, {}, votes) in majority
