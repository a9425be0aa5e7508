"""A producer: the handshake, snapshots in turn, filters, and how streams end."""

import msgspec
import pytest

from millrace.core.documents.change_stream import VIEW_MS_MAX
from millrace.core.documents.document import FailoverId, PartitionState, Seq
from millrace.core.documents.messages import (
    Answered,
    Changes,
    CloseStream,
    Control,
    EndReason,
    FailoverLogGot,
    GetFailoverLog,
    MarkerFlag,
    Open,
    SnapshotMarker,
    StreamAnswered,
    StreamFlag,
    StreamStatus,
)
from millrace.core.documents.producer import Producer
from tests.core.documents.produced import (
    NO_FLAGS,
    P1,
    P2,
    PLENTY,
    pump,
    request,
    streaming,
)
from tests.core.documents.stream_rig import P0, Node, delete, master, opened, put, replica

# -- The handshake --------------------------------------------------------------------------------


def test_a_connection_is_opened_first_and_once() -> None:
    producer = Producer(master(), 0)
    early = producer.handle(GetFailoverLog(P0), 0)
    assert early == Answered(StreamStatus.INVALID, "the connection was not opened")
    assert producer.handle(Open("replica:3"), 0) == Answered(StreamStatus.OK)
    again = producer.handle(Open("replica:4"), 0)
    assert isinstance(again, Answered)
    assert again.status is StreamStatus.INVALID


def test_a_failover_log_comes_with_what_decides_where_to_begin() -> None:
    node = master()
    put(node, "a")
    producer = opened(node)
    got = producer.handle(GetFailoverLog(P0), 0)
    log = node.partitions[P0].log
    assert got == FailoverLogGot(P0, log, Seq(1), Seq(0), PartitionState.ACTIVE)


@pytest.mark.parametrize(
    ("state", "states", "flags", "status"),
    [
        ("active", "active,replica", NO_FLAGS, StreamStatus.OK),
        ("replica", "active,replica", NO_FLAGS, StreamStatus.OK),
        ("replica", "active,replica", StreamFlag.ACTIVE_ONLY, StreamStatus.NOT_MY_PARTITION),
        ("replica", "active", NO_FLAGS, StreamStatus.NOT_MY_PARTITION),
        ("dead", "active,replica", NO_FLAGS, StreamStatus.NOT_MY_PARTITION),
        ("dead", "active", StreamFlag.TAKEOVER, StreamStatus.OK),
        ("pending", "pending", NO_FLAGS, StreamStatus.OK),
    ],
)
def test_a_partition_is_streamed_in_the_states_that_are_wanted(
    state: str, states: str, flags: StreamFlag, status: StreamStatus
) -> None:
    node = master()
    if state != "active":
        node.partitions[P0].set_state(PartitionState(state), 2)
    producer = opened(node)
    producer.handle(Control("states", states), 0)
    answer = producer.handle(request(flags=flags), 0)
    assert isinstance(answer, StreamAnswered)
    assert answer.status is status


def test_a_partition_that_is_not_here_and_one_that_is_streamed_already() -> None:
    producer = streaming(master())
    missing, again = producer.handle(request(1), 0), producer.handle(request(0), 0)
    assert missing == StreamAnswered(
        P1, StreamStatus.NOT_MY_PARTITION, detail="partition 1 is not here"
    )
    assert again == StreamAnswered(P0, StreamStatus.EXISTS, detail="it is streamed already")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("connection_buffer_size", "many"),
        ("connection_buffer_size", "-1"),
        ("connection_buffer_size", "9" * 5_000),
        ("enable_noop", "yes"),
        ("set_noop_interval", "0"),
        ("set_noop_interval", "nan"),
        ("states", "active,alive"),
        ("key_prefix", "x" * 251),
        ("speed", "high"),
    ],
    ids=lambda text: text[:20],
)
def test_a_setting_that_makes_no_sense_is_refused(key: str, value: str) -> None:
    answer = opened(master()).handle(Control(key, value), 0)
    assert isinstance(answer, Answered)
    assert answer.status is StreamStatus.INVALID
    assert key in answer.detail or "states" in answer.detail


# -- Snapshots ------------------------------------------------------------------------------------


def test_partitions_are_streamed_in_turn_and_then_there_is_silence() -> None:
    node = master(0, 1, 2)
    put(node, "a", number=P2)
    put(node, "b", number=P0)
    put(node, "c", number=P2)
    producer = streaming(node)
    assert pump(producer) == ["p0 (0, 1]", "b@1", "p2 (0, 2]", "a@1", "c@2", "all 1"]
    assert not producer.wants_to_pump
    assert pump(producer) == []
    assert node.views == 0


def test_who_has_everything_is_told_once_that_nothing_is_missing() -> None:
    producer = streaming(master(0, 1))
    assert pump(producer) == ["all 1"]
    assert pump(producer) == []


def test_what_changed_since_is_the_next_snapshot() -> None:
    node = master()
    producer = streaming(node)
    put(node, "a")
    pump(producer)
    put(node, "a")
    delete(node, "a")
    assert producer.wants_to_pump
    assert pump(producer) == ["p0 (1, 3]", "a-@3", "all 2"]


def test_a_partition_that_changes_behind_comes_in_the_same_round_ahead_of_it_in_the_next() -> None:
    node = master(0, 1, 2)
    put(node, "a", number=P1)
    put(node, "b", number=P1)
    producer = streaming(node)
    assert pump(producer, bytes_max=1) == ["p1 (0, 2]", "a@1"]
    put(node, "c", number=P0)
    put(node, "d", number=P2)
    assert pump(producer) == ["b@2", "p2 (0, 1]", "d@1", "all 1", "p0 (0, 1]", "c@1", "all 2"]


def test_markers_say_whether_the_disk_was_read() -> None:
    node = master()
    put(node, "a")
    producer = streaming(node)
    node.flush()
    put(node, "b")
    markers = [push for push in producer.pump(0, PLENTY) if isinstance(push, SnapshotMarker)]
    put(node, "c")
    markers += [push for push in producer.pump(0, PLENTY) if isinstance(push, SnapshotMarker)]
    assert [marker.flags for marker in markers] == [MarkerFlag.DISK, MarkerFlag.MEMORY]


def test_a_replica_streams_onward_only_what_is_whole() -> None:
    leader, node = master(), replica()
    documents = [put(leader, key) for key in "abc"]
    partition = node.partitions[P0]
    partition.finish_undo(leader.partitions[P0].log)
    producer = streaming(node)
    partition.begin_snapshot(Seq(0), Seq(3))
    partition.apply(documents[:2])
    assert pump(producer) == ["all 1"]
    partition.apply(documents[2:])
    assert pump(producer) == ["p0 (0, 3]", "a@1", "b@2", "c@3", "all 2"]


# -- Filters and ends -----------------------------------------------------------------------------


def test_what_is_filtered_out_is_told_as_an_advance() -> None:
    node = master()
    for key in ("user:1", "other", "user:2", "other:2"):
        put(node, key, "value")
    producer = opened(node)
    producer.handle(Control("key_prefix", "user:"), 0)
    producer.handle(request(), 0)
    assert pump(producer) == ["p0 (0, 4]", "user:1@1", "user:2@3", "advanced 4", "all 1"]
    put(node, "other")
    assert pump(producer) == ["p0 (4, 5]", "advanced 5", "all 2"]


def test_who_wants_keys_gets_no_values() -> None:
    node = master()
    stored = put(node, "a", "value")
    pushes = streaming(node, StreamFlag.KEYS_ONLY).pump(0, PLENTY)
    assert Changes(P0, (msgspec.structs.replace(stored, value=b""),)) in pushes


def test_a_purged_tombstone_at_the_end_does_not_stop_a_consumer() -> None:
    node = master()
    put(node, "a")
    tombstone = delete(node, "a")
    node.flush()
    assert tombstone is not None
    node.partitions[P0].purge([tombstone])
    node.flush()
    assert pump(streaming(node)) == ["p0 (0, 2]", "advanced 2", "all 1"]


def test_a_finite_stream_ends_with_the_snapshot_that_reaches_its_end() -> None:
    """Cut at its end it would lack the documents that changed since."""
    node = master()
    put(node, "a")
    put(node, "b")
    producer = streaming(node, StreamFlag.TO_LATEST)
    put(node, "a")
    assert pump(producer) == ["p0 (0, 3]", "b@2", "a@3", "p0 ended OK", "all 1"]
    put(node, "c")
    assert pump(producer) == []


def test_a_finite_stream_of_nothing_ends_at_once() -> None:
    assert pump(streaming(master(), StreamFlag.TO_LATEST)) == ["p0 ended OK", "all 1"]


def test_from_now_on_nothing_older_is_sent() -> None:
    node = master()
    put(node, "a")
    producer = streaming(node, StreamFlag.FROM_LATEST)
    put(node, "b")
    assert pump(producer) == ["p0 (1, 2]", "b@2", "all 1"]


def test_a_take_over_ends_when_the_dead_master_has_sent_everything() -> None:
    node = master()
    put(node, "a")
    producer = streaming(node, StreamFlag.TAKEOVER)
    assert pump(producer)[-1] == "all 1"
    put(node, "b")
    node.partitions[P0].set_state(PartitionState.DEAD, 2)
    assert pump(producer) == ["p0 (1, 2]", "b@2", "p0 ended OK", "all 2"]


def become_dead(node: Node) -> None:
    node.partitions[P0].set_state(PartitionState.DEAD, 2)


def get_another_id(node: Node) -> None:
    node.partitions[P0].set_state(PartitionState.REPLICA, 2)
    node.partitions[P0].promote(3, FailoverId(0xBEEF), is_takeover=False)


def begin_an_undo(node: Node) -> None:
    node.partitions[P0].set_state(PartitionState.REPLICA, 2)
    node.partitions[P0].begin_undo(Seq(0))


def finish_an_undo(node: Node) -> None:
    """Under the same id: it is over before anybody looks."""
    begin_an_undo(node)
    node.partitions[P0].wipe()
    node.partitions[P0].finish_undo(node.partitions[P0].log)


@pytest.mark.parametrize(
    ("happen", "reason"),
    [
        (become_dead, EndReason.STATE_CHANGED),
        (get_another_id, EndReason.STATE_CHANGED),
        (begin_an_undo, EndReason.ROLLBACK),
        (finish_an_undo, EndReason.ROLLBACK),
    ],
)
def test_a_stream_ends_when_what_it_stands_on_is_gone(happen: object, reason: EndReason) -> None:
    node = master()
    for key in "abc":
        put(node, key)
    producer = streaming(node)
    pump(producer, bytes_max=1)
    assert callable(happen)
    happen(node)
    assert pump(producer) == [f"p0 ended {reason.name}", "all 1"]
    assert node.views == 0


def test_a_stream_ends_when_another_partition_stands_there() -> None:
    node = master()
    put(node, "a")
    producer = streaming(node)
    node.crash()
    assert pump(producer) == ["p0 ended STATE_CHANGED", "all 1"]


def test_a_stream_that_deletions_were_purged_ahead_of_begins_anew() -> None:
    node = master()
    put(node, "a")
    producer = streaming(node)
    pump(producer)
    tombstone = delete(node, "a")
    put(node, "b")
    node.flush()
    assert tombstone is not None
    node.partitions[P0].purge([tombstone])
    assert pump(producer) == ["p0 ended ROLLBACK", "all 2"]


def test_a_stream_from_0_goes_on_below_what_was_purged_before_it_began() -> None:
    """Ended there, it would begin anew, and again come no further than its first view."""
    node = master()
    put(node, "a")
    tombstone = delete(node, "a")
    assert tombstone is not None
    put(node, "b")
    put(node, "c")
    put(node, "c")
    delete(node, "b")
    node.flush()
    node.partitions[P0].purge([tombstone, *node.newest(P0, [b"b"])])
    node.flush()
    put(node, "d")
    producer = streaming(node)
    assert pump(producer, bytes_max=1) == ["p0 (0, 7]", "c@5"]
    producer.pump(VIEW_MS_MAX, 0)
    assert node.views == 0
    assert pump(producer) == ["d@7", "all 1"]


def test_a_damaged_document_ends_its_stream_alone() -> None:
    node = master(0, 1)
    put(node, "a")
    put(node, "b", number=P1)
    node.flush(P0)
    node.disk.rot(1, P0, b"a")
    pushed = pump(streaming(node))
    assert pushed == ["p0 (0, 1]", "p0 ended BACKFILL_FAILED", "p1 (0, 1]", "b@1", "all 1"]


def test_a_closed_stream_is_silent() -> None:
    node = master()
    put(node, "a")
    put(node, "b")
    producer = streaming(node)
    pump(producer, bytes_max=1)
    assert producer.handle(CloseStream(P0), 0) == Answered(StreamStatus.OK)
    assert pump(producer) == ["all 1"]
    assert producer.handle(CloseStream(P0), 0) == Answered(StreamStatus.NOT_FOUND, "no such stream")
    assert node.views == 0
