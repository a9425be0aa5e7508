"""What a consumer that is no replica keeps, and what it does in which order."""

import msgspec
import pytest

from millrace.core.documents.backing import Offset
from millrace.core.documents.consumer_effects import (
    Deliver,
    FollowerState,
    ForgetAll,
    KeepEntries,
    Undo,
)
from millrace.core.documents.document import NO_SEQ, SEQ_MAX, Document, FailoverId, Seq
from millrace.core.documents.failover_log import FailoverEntry, FailoverLog
from millrace.core.documents.ring_backing import RingBacking
from millrace.core.documents.ring_buffer import RingBuffer, RingEntry
from tests.core.documents.stream_rig import master, put

CAFE = FailoverLog((FailoverEntry(FailoverId(0xCAFE), Seq(0)),))
BEEF = FailoverLog((FailoverEntry(FailoverId(0xBEEF), Seq(1)), *CAFE.entries))


def new_backing() -> RingBacking:
    backing = RingBacking(RingBuffer(100))
    backing.finish_undo(CAFE, NO_SEQ)
    return backing


def documents(*keys: str) -> list[Document]:
    leader = master()
    return [put(leader, key) for key in keys]


def version(key: str, seq: int) -> Document:
    return msgspec.structs.replace(documents(key)[0], seq=Seq(seq))


def test_entries_are_kept_before_documents_are_processed() -> None:
    backing = new_backing()
    a, b = documents("a", "b")
    backing.begin_snapshot(Seq(0), Seq(2))
    effects = backing.apply([a, b])
    entries = (RingEntry(Seq(1), b"a"), RingEntry(Seq(2), b"b"))
    after = FollowerState(CAFE, Seq(2), Seq(2), Seq(2))
    assert effects == [KeepEntries(entries), Deliver((a, b), after)]


def test_a_state_in_the_middle_of_a_snapshot_says_so() -> None:
    backing = new_backing()
    backing.begin_snapshot(Seq(0), Seq(2))
    backing.apply(documents("a"))
    assert backing.state() == FollowerState(CAFE, Seq(0), Seq(1), Seq(2))
    assert backing.offset == Offset(Seq(1), Seq(0), Seq(2))


def test_a_snapshot_that_broke_off_is_whole_where_it_was_to_end() -> None:
    backing = new_backing()
    a, b, c = documents("a", "b", "c")
    backing.begin_snapshot(Seq(0), Seq(3))
    backing.apply([a])
    backing.begin_snapshot(Seq(1), Seq(2))
    backing.apply([b])
    assert backing.snapshot == 0
    backing.begin_snapshot(Seq(2), Seq(3))
    backing.apply([c])
    assert backing.snapshot == 3


def test_after_a_crash_the_ring_buffer_says_what_may_have_been_processed() -> None:
    ring = RingBuffer(100)
    ring.add_many(RingEntry(Seq(seq), b"a") for seq in (1, 2, 3))
    backing = RingBacking(ring, FollowerState(CAFE, Seq(1), Seq(1), Seq(1)))
    assert (backing.place.seen, backing.place.running) == (3, SEQ_MAX)
    assert backing.offset == Offset(Seq(1), Seq(1), Seq(1))
    assert backing.undo_needed(Seq(2), CAFE)
    assert not backing.undo_needed(Seq(3), CAFE)


def test_an_undo_keeps_the_ring_buffer_until_it_is_over() -> None:
    backing = new_backing()
    backing.begin_snapshot(Seq(0), Seq(3))
    backing.apply(documents("a", "b", "c"))
    backing.begin_undo(Seq(1))
    assert backing.state() == FollowerState(CAFE, Seq(1), Seq(1), Seq(1), Seq(1))
    assert backing.keys_above(Seq(1)) == [b"b", b"c"]
    leader = master()
    put(leader, "x")
    fetched = put(leader, "b")
    assert backing.undo_documents([fetched], [b"c"]) == [Undo((fetched,), (b"c",))]
    backing.finish_undo(BEEF, NO_SEQ)
    assert backing.state() == FollowerState(BEEF, Seq(1), Seq(1), Seq(1))
    assert backing.ring.entries == (RingEntry(Seq(1), b"a"), RingEntry(Seq(2), b"b"))


def test_what_an_undo_fetched_can_be_undone_again() -> None:
    backing = new_backing()
    backing.begin_undo(Seq(0))
    leader = master()
    put(leader, "x")
    backing.undo_documents([put(leader, "b")], [])
    backing.finish_undo(CAFE, NO_SEQ)
    assert backing.undo_needed(Seq(0), BEEF)
    assert backing.keys_above(Seq(0)) == [b"b"]


def test_also_what_lies_below_where_the_undo_went_back_to() -> None:
    """The snapshot told of k's change at 4 alone; the master after that has k as it was at 2."""
    backing = new_backing()
    backing.begin_snapshot(Seq(0), Seq(4))
    backing.apply([version("a", 1), version("b", 3), version("k", 4)])
    backing.begin_undo(Seq(3))
    backing.undo_documents([version("k", 2)], [])
    backing.finish_undo(BEEF, NO_SEQ)
    assert backing.keys_above(Seq(1)) == [b"b", b"k"]


def test_below_what_the_master_had_forgotten_nothing_can_be_undone() -> None:
    backing = RingBacking(RingBuffer(100))
    backing.finish_undo(CAFE, Seq(5))
    backing.begin_snapshot(Seq(0), Seq(9))
    backing.apply([version("a", 7), version("b", 9)])
    assert backing.keys_above(Seq(4)) is None
    assert backing.keys_above(Seq(5)) == [b"a", b"b"]
    assert not backing.is_blind_to(Seq(5))
    assert not backing.is_blind_to(Seq(8))  # It heard of what was deleted since.


def test_a_start_from_nothing_forgets_everything() -> None:
    backing = new_backing()
    backing.begin_snapshot(Seq(0), Seq(1))
    backing.apply(documents("a"))
    backing.begin_undo(NO_SEQ)
    assert backing.wipe() == [ForgetAll()]
    backing.finish_undo(BEEF, NO_SEQ)
    assert backing.state() == FollowerState(BEEF)
    assert len(backing.ring) == 0


def test_from_now_on_nothing_older_can_be_undone() -> None:
    backing = new_backing()
    backing.begin_at(Seq(50))
    assert backing.offset == Offset(Seq(50), Seq(50), Seq(50))
    assert backing.keys_above(Seq(49)) is None


@pytest.mark.parametrize(
    ("first", "last", "keys"),
    [(0, 1, "ab"), (5, 9, "a"), (0, 0, "a")],
    ids=["beyond the snapshot", "a hole", "no snapshot"],
)
def test_what_cannot_follow_is_refused(first: int, last: int, keys: str) -> None:
    backing = new_backing()
    with pytest.raises(ValueError, match=r"cannot follow|beyond the snapshot"):
        begin_and_apply(backing, Seq(first), Seq(last), keys)
    assert backing.seen == 0


def begin_and_apply(backing: RingBacking, first: Seq, last: Seq, keys: str) -> None:
    backing.begin_snapshot(first, last)
    backing.apply(documents(*keys))
