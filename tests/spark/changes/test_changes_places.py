"""Where a query stands, as its offsets say it."""

from typing import Any

import pytest

from millrace.core.documents.change_query import ERAS_UNKNOWN_MAX, QueryPlace, Settled
from millrace.core.documents.document import FailoverId, PartitionId, Seq
from millrace.core.documents.failover_log import FailoverEntry, FailoverLog
from millrace.spark.changes.offsets import BucketDocument, ChangesOffset, RingDocument, unread
from millrace.spark.changes.places import Places, _unknown

P3 = PartitionId(3)
LOG = FailoverLog((FailoverEntry(FailoverId(0xCAFE), Seq(0)),))


PLACE = QueryPlace(LOG, Seq(5), Seq(5), Seq(5), 1)


def unread_offset(settled: Settled) -> ChangesOffset:
    partitions = {"3": unread(settled)}
    return ChangesOffset("cluster", BucketDocument(1, "b"), partitions, RingDocument("@ring/1", 1))


@pytest.mark.parametrize("is_doubtful", [True, False])
def test_a_micro_batch_that_does_not_read_a_partition_settles_no_doubt(is_doubtful: bool) -> None:
    settled = Settled(PLACE, is_doubtful)
    offset = unread_offset(settled)
    nobody: Any = None
    places = Places(nobody)
    places._receipts = []
    assert places._settle(offset) == {P3: settled}


def test_without_its_ring_a_partition_in_doubt_is_read_again() -> None:
    """What the attempts at it handed out is not known any more."""
    doubted = _unknown(unread_offset(Settled(PLACE, True)))[P3].place
    assert (doubted.seq, doubted.era) == (PLACE.since, PLACE.era + ERAS_UNKNOWN_MAX)
    settled = Settled(PLACE, False)
    assert _unknown(unread_offset(settled)) == {P3: settled}
