"""When a view has seen all that the masters have."""

import msgspec
import pytest

from millrace.core.documents.change_query import (
    MasterState,
    PartitionRange,
    Receipt,
    receipt_of,
)
from millrace.core.documents.document import FailoverId, PartitionId, Seq
from millrace.core.documents.failover_log import FailoverEntry, FailoverLog
from millrace.spark.changes.offsets import (
    BucketDocument,
    ChangesOffset,
    PlaceDocument,
    RingDocument,
    place_of,
)
from millrace.spark.pipelines.bucket_state.seen import reached_by, uncovered

OLD, NEW = "00000000cafe0001", "00000000cafe0002"


def master(id: str, high: int) -> MasterState:
    return MasterState(FailoverLog((FailoverEntry(FailoverId(int(id, 16)), Seq(0)),)), Seq(high))


def place(id: str, seq: int, last: int | None) -> PlaceDocument:
    return PlaceDocument(seq, 0, last, ((id, 0),))


@pytest.mark.parametrize(
    ("seen", "now", "is_covered"),
    [
        (None, master(OLD, 0), True),
        (None, master(OLD, 1), False),
        (place(OLD, 7, 7), master(OLD, 7), True),
        (place(OLD, 9, 9), master(OLD, 7), True),
        (place(OLD, 6, 6), master(OLD, 7), False),
        (place(OLD, 7, 9), master(OLD, 7), False),
        (place(OLD, 7, None), master(OLD, 7), False),
        (place(OLD, 9, 9), master(NEW, 7), False),
        (place(NEW, 9, 9), master(OLD, 7), False),
    ],
    ids=[
        "nothing ever written",
        "nothing read",
        "all read",
        "more read than asked for",
        "one change is missing",
        "in the middle of a snapshot: a document may have changed again and be left out",
        "how far it was read is in doubt",
        "read from a master whose history was taken back",
        "read from a master after the one that was asked",
    ],
)
def test_what_was_seen_covers_what_a_master_has(
    seen: PlaceDocument | None, now: MasterState, is_covered: bool
) -> None:
    places = {} if seen is None else {"3": seen}
    assert uncovered(places, {PartitionId(3): now}) == ([] if is_covered else [3])


BEFORE = place(OLD, 4, 4)
PLANNED = PlaceDocument(7, 4, None, ((OLD, 0),), before=BEFORE)


def receipt(seq: int, *, partition: int = 3, id: str = OLD) -> Receipt:
    """Of an attempt at the range that came to the end of a snapshot there."""
    before, end = place_of(BEFORE), place_of(place(id, seq, seq))
    wanted = PartitionRange(PartitionId(partition), before, Seq(7))
    return receipt_of(wanted, end, 0)


@pytest.mark.parametrize(
    ("receipts", "reached"),
    [
        ([receipt(9)], place(OLD, 9, 9)),
        ([receipt(9), receipt(9)], place(OLD, 9, 9)),
        ([receipt(9), receipt(8)], place(OLD, 8, None)),
        ([receipt(9, partition=4)], place(OLD, 7, None)),
        ([], place(OLD, 7, None)),
    ],
    ids=[
        "tasks read on to the end of a snapshot",
        "two attempts came as far",
        "two attempts, one of them less far: in doubt until the next batch",
        "another partition's",
        "nobody said how far",
    ],
)
def test_a_batch_came_as_far_as_its_tasks_say(
    receipts: list[Receipt], reached: PlaceDocument
) -> None:
    offset = ChangesOffset(
        "cluster", BucketDocument(1, "b"), {"3": PLANNED}, RingDocument("@ring/1", 1)
    )
    found = reached_by(offset, receipts).partitions["3"]
    assert (found.seq, found.last, found.log) == (reached.seq, reached.last, reached.log)


def test_what_is_in_doubt_and_was_not_read_is_not_whole() -> None:
    doubted = {"3": msgspec.structs.replace(BEFORE, doubtful=True)}
    offset = ChangesOffset("cluster", BucketDocument(1, "b"), doubted, RingDocument("@ring/1", 1))
    assert reached_by(offset, []).partitions["3"].last is None


def test_what_no_task_was_to_read_stays_as_it_is() -> None:
    offset = ChangesOffset(
        "cluster", BucketDocument(1, "b"), {"3": BEFORE}, RingDocument("@ring/1", 1)
    )
    assert reached_by(offset, [receipt(9)]) == offset
