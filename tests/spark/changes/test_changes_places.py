"""Where a query stands, as its offsets say it."""

from typing import Any

import pytest

from millrace.core.documents.change_query import QueryPlace, Settled
from millrace.core.documents.document import FailoverId, PartitionId, Seq
from millrace.core.documents.failover_log import FailoverEntry, FailoverLog
from millrace.spark.changes.offsets import BucketDocument, ChangesOffset, RingDocument, unread
from millrace.spark.changes.places import Places

P3 = PartitionId(3)
LOG = FailoverLog((FailoverEntry(FailoverId(0xCAFE), Seq(0)),))


@pytest.mark.parametrize("is_doubtful", [True, False])
def test_a_micro_batch_that_does_not_read_a_partition_settles_no_doubt(is_doubtful: bool) -> None:
    settled = Settled(QueryPlace(LOG, Seq(5), Seq(5), Seq(5), 1), is_doubtful)
    offset = ChangesOffset(
        "cluster", BucketDocument(1, "b"), {"3": unread(settled)}, RingDocument("@ring/1", 1)
    )
    nobody: Any = None
    places = Places(nobody)
    places._receipts = []
    assert places._settle(offset) == {P3: settled}
