"""When a reader of a commit log may be told of a loss: the record must say that nothing moved."""

import msgspec
import pytest

from millrace.core.commit.reading import LossCheck, range_of
from millrace.core.commit.record import CommitRecord, StreamRecord
from millrace.types import Epoch, Gap, GapKind, LogId, Lsn, NodeId, StreamId

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
RECORD = CommitRecord(
    LogId(7), Epoch(1), ONE, 2, (StreamRecord(StreamId(1), Epoch(2), (ONE, TWO)),)
)


def gap(kind: GapKind, first: int) -> Gap:
    return Gap(kind, Lsn(first), Lsn(first))


LOSS, TRIM, LATER_LOSS = gap(GapKind.DATALOSS, 1), gap(GapKind.TRIM, 2), gap(GapKind.DATALOSS, 3)


def with_stream(**fields: object) -> CommitRecord:
    stream = msgspec.structs.replace(RECORD.streams[0], **fields)
    return msgspec.structs.replace(RECORD, streams=(stream,))


def told_of(record: CommitRecord = RECORD) -> LossCheck:
    check = LossCheck()
    check.tell(record)
    return check


def test_what_is_no_loss_is_handed_over_at_once() -> None:
    assert told_of().arrived(TRIM) == [TRIM]


def test_behind_a_loss_everything_waits_in_order() -> None:
    check = told_of()
    assert check.arrived(LOSS) == check.arrived(TRIM) == check.arrived(LATER_LOSS) == []
    assert check.is_due
    assert check.confirmed() == [LOSS, TRIM], "the later loss is checked by itself"
    assert check.is_due
    assert check.confirmed() == [LATER_LOSS]
    assert not check.is_due


@pytest.mark.parametrize(
    ("record", "while_reading", "with_a_loss"),
    [
        pytest.param(RECORD, True, True, id="the-same"),
        pytest.param(with_stream(replicas=(TWO, ONE)), True, True, id="another-primary"),
        pytest.param(with_stream(replicas=(ONE, THREE)), False, False, id="other-replicas"),
        pytest.param(with_stream(generation=Epoch(4)), True, False, id="left-and-come-back"),
    ],
)
def test_a_stream_goes_on_by_the_record_it_was_told(
    record: CommitRecord, while_reading: bool, with_a_loss: bool
) -> None:
    check = told_of()
    assert check.is_current(record) is while_reading
    check.arrived(LOSS)
    assert check.is_current(record) is with_a_loss


def test_one_that_was_told_nothing_yet_goes_on() -> None:
    assert LossCheck().is_current(RECORD)


def test_silence_proves_a_loss_only_of_the_smallest_set_of_replicas() -> None:
    alone = StreamRecord(StreamId(2), Epoch(1), (THREE,))
    both = msgspec.structs.replace(RECORD, streams=(*RECORD.streams, alone))
    found = range_of(both)
    assert (found.nodeset, found.replication.copies) == ((ONE, TWO, THREE), 1)
