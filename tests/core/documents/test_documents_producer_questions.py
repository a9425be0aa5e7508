"""What a producer answers to those who undo, repair, wait for durability, or look."""

import msgspec
import pytest

from millrace.core.documents.document import Document, FailoverId, PartitionId, PartitionState, Seq
from millrace.core.documents.messages import (
    Answered,
    Fetch,
    Fetched,
    Open,
    Repair,
    Repaired,
    SeqAck,
    StreamStatus,
)
from millrace.core.documents.producer import Producer
from millrace.core.documents.undoing import ANSWER_BYTES_MAX
from tests.core.documents.produced import (
    CAFE,
    pump,
    request,
)
from tests.core.documents.stream_rig import P0, delete, master, opened, put

# -- For an undo ----------------------------------------------------------------------------------


def test_fetched_are_the_newest_versions_tombstones_included() -> None:
    node = master()
    put(node, "a")
    kept = put(node, "a")
    put(node, "b")
    tombstone = delete(node, "b")
    assert tombstone is not None
    node.flush()
    fetched = opened(node).handle(Fetch(P0, CAFE, (b"a", b"b", b"c"), Seq(0)), 0)
    assert fetched == Fetched((kept, tombstone))


def test_a_copy_that_is_behind_says_nothing_of_what_it_may_lack() -> None:
    """A replica takes its master's failover log before it has its documents."""
    node = master()
    node.partitions[P0].set_state(PartitionState.REPLICA, 2)
    refused = opened(node).handle(Fetch(P0, CAFE, (b"a",), Seq(1)), 0)
    assert isinstance(refused, Answered) and refused.status is StreamStatus.TEMPORARY_FAILURE


def test_what_is_too_much_for_one_answer_is_to_be_asked_for_in_parts() -> None:
    node = master()
    large = [put(node, key, "x" * ANSWER_BYTES_MAX) for key in ("a", "b")]
    refused = opened(node).handle(Fetch(P0, CAFE, (b"a", b"b"), Seq(0)), 0)
    assert isinstance(refused, Answered) and refused.status is StreamStatus.TOO_LARGE
    assert opened(node).handle(Fetch(P0, CAFE, (b"a",), Seq(0)), 0) == Fetched((large[0],))


def test_a_repair_takes_what_was_not_changed_since() -> None:
    node = master()
    put(node, "old")
    put(node, "new")
    mine = [version(key, 9) for key in (b"old", b"new", b"added")]
    repaired = opened(node).handle(Repair(P0, CAFE, Seq(1), tuple(mine)), 1)
    assert repaired == Repaired((b"old", b"added"))
    assert node.contents()[b"old"] == (b"of a replica", 3)


def test_a_repair_takes_nothing_that_a_client_could_not_have_stored() -> None:
    """A key that no disk can file ended the store of every holder."""
    node = master()
    producer = Producer(node, 0, value_bytes_max=len(b"of a replica"))
    producer.handle(Open("replica:7"), 0)
    larger = msgspec.structs.replace(version(b"large", 8), value=b"of a replica.")
    mine = (version(b"k" * 251, 7), version(b"", 7), larger, version(b"k" * 250, 9))
    assert producer.handle(Repair(P0, CAFE, Seq(1), mine), 1) == Repaired((b"k" * 250,))
    assert node.contents().keys() == {b"k" * 250}


def test_a_repair_respects_a_tombstone_that_is_on_disk_alone() -> None:
    node = master()
    put(node, "a")
    delete(node, "a")
    node.flush()
    repaired = opened(node).handle(Repair(P0, CAFE, Seq(1), (version(b"a", 9),)), 1)
    assert repaired == Repaired(())


@pytest.mark.parametrize("kind", ["fetch", "repair"])
def test_under_another_id_nothing_is_undone(kind: str) -> None:
    asked = (
        Fetch(P0, FailoverId(1), (), Seq(0))
        if kind == "fetch"
        else Repair(P0, FailoverId(1), Seq(0), ())
    )
    answer = opened(master()).handle(asked, 0)
    assert isinstance(answer, Answered)
    assert answer.status is StreamStatus.WRONG_FAILOVER_ID


def test_only_a_master_is_repaired() -> None:
    node = master()
    node.partitions[P0].set_state(PartitionState.REPLICA, 2)
    answer = opened(node).handle(Repair(P0, CAFE, Seq(0), (version(b"a", 9),)), 0)
    assert answer == Answered(StreamStatus.NOT_MY_PARTITION, "partition 0 is replica")


def version(key: bytes, seq: int) -> Document:
    stored = put(master(), "any", "of a replica")
    return msgspec.structs.replace(stored, key=key, seq=Seq(seq))


# -- For durability and for people ----------------------------------------------------------------


def test_acknowledged_seqs_go_to_whoever_waits() -> None:
    heard: list[tuple[str, SeqAck]] = []
    producer = Producer(master(), 0, lambda name, ack: heard.append((name, ack)))
    producer.handle(Open("replica:3"), 0)
    ack = SeqAck(P0, CAFE, Seq(8), Seq(5))
    assert producer.handle(ack, 0) is None
    assert heard == [("replica:3", ack)]


def test_stats_have_the_connections_name_and_the_partition() -> None:
    node = master(0, 5)
    put(node, "a", number=PartitionId(5))
    producer = opened(node, "replica:3")
    producer.handle(request(5), 0)
    stats = producer.stats()
    assert stats["sent_seq:5:replica:3"] == 0
    assert stats["lag:5:replica:3"] == 1
    assert stats["streams:all:replica:3"] == 1
    pump(producer)
    assert producer.stats()["lag:5:replica:3"] == 0
