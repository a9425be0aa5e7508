"""Replicas leave nodes that are drained: others come first, and the stream goes on meanwhile."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.commit.care import SYNC_RETRY_MS
from millrace.core.commit.committer import SYNCS_AT_ONCE
from millrace.core.commit.record import StreamRecord
from millrace.types import NodeId, StreamId
from tests.core.commit.committer_office import (
    NODES,
    ONE,
    TWO,
    Office,
    record_of,
    replicas_of,
    stream_of,
)


def drain(office: Office, *nodes: int, live: tuple[NodeId, ...] = NODES) -> None:
    drained = {NodeId(node) for node in nodes}
    takers = [node for node in live if node not in drained]
    office.perform(office.committer.live_changed(live, takers, office.now_ms, drained))


def stream(office: Office, number: StreamId = ONE) -> StreamRecord:
    found = office.record.stream(number)
    assert found is not None
    return found


def sizes(office: Office) -> list[int]:
    """How many replicas the stream had in each record."""
    return [len(each.replicas) for record in office.written for each in record.streams]


def test_another_node_takes_the_place_of_one_that_is_drained() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    office.write(ONE, 5)
    drain(office, 2)
    assert replicas_of(office) == {1, 3, 4}
    assert set(sizes(office)) == {3}, "never fewer, and no more than needed"
    office.write(ONE, 5)
    assert office.record.high_watermark == 10


def test_a_drained_primary_hands_over() -> None:
    office = Office(record_of(stream_of(ONE, 2, 3, 1)))
    drain(office, 2)
    assert stream(office).replicas[0] == 3


def test_nothing_changes_before_the_new_replica_has_the_stream() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    office.holds_syncs = True
    drain(office, 2)
    office.write(ONE, 5)
    assert (replicas_of(office), office.seals) == ({1, 2, 3}, [])
    assert office.record.high_watermark == 5, "appends go on meanwhile"
    office.finish_sync(ONE)
    assert replicas_of(office) == {1, 3, 4}


def test_a_node_that_cannot_take_a_replica_is_passed_over_after_a_pause() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    office.holds_syncs = True
    drain(office, 2)
    office.finish_sync(ONE, "its disk is full")
    assert office.syncs == [4]
    office.pass_time(SYNC_RETRY_MS)
    assert office.syncs == [4, 5]
    office.finish_sync(ONE)
    assert replicas_of(office) == {1, 3, 5}


def test_a_replica_that_misses_the_last_entries_is_not_tried_without_a_pause() -> None:
    """Each attempt seals the stream."""
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    office.cannot_sync = True
    drain(office, 2)
    assert (replicas_of(office), len(office.seals)) == ({1, 2, 3}, 1)
    office.pass_time(SYNC_RETRY_MS - 1)
    assert len(office.seals) == 1
    office.cannot_sync = False
    office.pass_time(1)
    assert replicas_of(office) == {1, 3, 5}


def test_all_replicas_leave_one_after_another() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2), copies=2))
    office.write(ONE, 5)
    drain(office, 1, 2)
    assert replicas_of(office) == {3, 4}
    assert set(sizes(office)) == {2}


@pytest.mark.parametrize(
    ("live", "says"),
    [
        pytest.param(NODES[:3], "1 more nodes that take copies are needed", id="nobody is left"),
        pytest.param(NODES[:4], "", id="one is left"),
    ],
)
def test_a_replica_that_nobody_can_take_stays_and_it_is_said_why(
    live: tuple[NodeId, ...], says: str
) -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    office.holds_syncs = True
    drain(office, 2, live=live)
    assert replicas_of(office) == {1, 2, 3}
    streams = office.committer.explain(0)["streams"]
    assert isinstance(streams, dict)
    trouble = streams[ONE]["trouble"]
    assert trouble.startswith(says) if says else trouble == ""


def test_a_drain_that_is_cancelled_leaves_the_replica_where_it_is() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    drain(office, 2, live=NODES[:3])
    drain(office)
    assert (replicas_of(office), office.syncs) == ({1, 2, 3}, [])


def test_a_node_that_is_drained_while_it_joins_does_not() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    office.holds_syncs = True
    drain(office, 2)
    drain(office, 2, 4)
    office.finish_sync(ONE)
    assert (replicas_of(office), office.syncs) == ({1, 2, 3}, [4, 5])
    office.finish_sync(ONE)
    assert replicas_of(office) == {1, 3, 5}


def test_a_node_that_dies_while_it_joins_holds_nobody_up() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    office.holds_syncs = True
    drain(office, 2)
    alive = tuple(node for node in NODES if node != 4)
    drain(office, 2, live=alive)
    office.holds_syncs = False
    office.finish_sync(ONE)
    assert replicas_of(office) == {1, 3, 5}


def test_a_stream_that_is_closed_leaves_a_drained_node_as_well() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3, is_open=False)))
    drain(office, 2)
    assert replicas_of(office) == {1, 3, 4}
    assert not stream(office).is_open


def test_what_the_replicas_hold_is_committed_before_another_joins() -> None:
    """It gets what is committed, and would cut off the rest."""
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    office.holds_syncs = office.holds_writes = True
    drain(office, 2)
    office.write(ONE, 5)
    office.write(ONE, 2)
    office.finish_write()
    assert office.record.high_watermark == 5
    office.finish_sync(ONE)
    office.holds_writes = False
    office.finish_write()
    assert office.record.high_watermark == 7
    assert replicas_of(office) == {1, 3, 4}
    assert office.ends[ONE, NodeId(1)] == 8, "nothing was cut off"


def test_few_streams_are_moved_at_a_time() -> None:
    streams = [stream_of(StreamId(number), 1, 2, 3) for number in range(1, 10)]
    office = Office(record_of(*streams))
    office.holds_syncs = True
    drain(office, 2)
    assert len(office.syncs) == SYNCS_AT_ONCE
    office.finish_sync(ONE)
    assert len(office.syncs) == SYNCS_AT_ONCE + 1


def test_the_replicas_of_a_log_are_spread_over_the_nodes_that_take_them() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3), stream_of(TWO, 1, 2, 3)))
    drain(office, 2)
    assert replicas_of(office, ONE) | replicas_of(office, TWO) == {1, 3, 4, 5}


def test_a_node_that_is_gone_for_good_is_replaced() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    office.away.add(NodeId(3))
    alive = tuple(node for node in NODES if node != 3)
    drain(office, 3, live=alive)
    assert replicas_of(office) == {1, 2, 4}


def events() -> st.SearchStrategy[list[tuple[str, int]]]:
    kinds = ("drain", "take back", "write", "synced", "not synced", "wait", "last entries missed")
    return st.lists(st.tuples(st.sampled_from(kinds), st.sampled_from(NODES)), max_size=40)


def happen(office: Office, drained: set[int], kind: str, node: int) -> None:
    match kind:
        case "drain" if len(drained) < 2:
            drained.add(node)
            drain(office, *drained)
        case "take back":
            drained.discard(node)
            drain(office, *drained)
        case "write":
            office.write(ONE, node)
        case "synced" | "not synced":
            office.finish_sync(ONE, "" if kind == "synced" else "its disk is full")
        case "wait":
            office.pass_time(300 * node)
        case "last entries missed":
            office.cannot_sync = not office.cannot_sync


@given(events())
def test_whatever_is_drained_and_taken_back_a_stream_keeps_its_replicas_and_entries(
    happenings: list[tuple[str, int]],
) -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    office.holds_syncs = True
    drained: set[int] = set()
    written = 0
    for kind, node in happenings:
        happen(office, drained, kind, node)
        written += node if kind == "write" else 0
        assert office.record.high_watermark == written, "nothing was cut off"
        assert len(stream(office).replicas) == 3
    office.cannot_sync = False
    for _ in range(10):
        office.pass_time(SYNC_RETRY_MS)
        office.finish_sync(ONE)
    assert not replicas_of(office) & drained
    assert len(stream(office).replicas) == 3
