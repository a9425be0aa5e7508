"""How a task of a restore writes documents, and what a restore can be asked for, without Spark."""

import pytest

from millrace.client.loop_thread import run
from millrace.core.documents.document import Cas
from millrace.core.documents.revisions import Revision
from millrace.core.documents.waits import WaitOutcome
from millrace.errors import UsageError
from millrace.spark.pipelines.restore import RestoreSettings
from millrace.spark.pipelines.restore.buckets import Conflict, Wish, write_some
from tests.spark.served_documents import ending_waits, served
from tests.support.served_bucket import ServedBucket

__all__ = ["served"]

K = b"k"
SAVED = Revision(K, b"saved", Cas(5), 3, datatype=2)


@pytest.mark.parametrize(
    ("conflict", "is_there", "counts", "waits"),
    [
        pytest.param(Conflict.REFUSE, False, (1, 0, 0), 1, id="a new one"),
        pytest.param(Conflict.NEWER, True, (0, 1, 0), 1, id="the newer one that stays"),
        pytest.param(Conflict.OVERWRITE, True, (0, 0, 1), 2, id="one that is written over"),
    ],
)
def test_a_document_counts_when_it_is_as_durable_as_was_asked_for(
    served: ServedBucket,
    conflict: Conflict,
    is_there: bool,
    counts: tuple[int, int, int],
    waits: int,
) -> None:
    if is_there:
        run(served.bucket.set(K, b"newer"))
    host = served.host_of(K)
    confirming = ending_waits(host, [WaitOutcome.OK] * waits)
    assert write_some(served.bucket, [SAVED], Wish(conflict, "majority")) == counts
    assert confirming.done(), "it was waited for each time"
    there = run(served.bucket.read_revisions([K]))[K]
    assert there.datatype == (0 if conflict is Conflict.NEWER else SAVED.datatype)


def test_a_failover_meanwhile_is_lived_through(served: ServedBucket) -> None:
    host = served.host_of(K)
    ending = ending_waits(host, (WaitOutcome.WRONG_ID, WaitOutcome.OK))
    write_some(served.bucket, [SAVED], Wish(Conflict.REFUSE, "majority"))
    assert ending.done()
    assert run(served.bucket.read_revisions([K])) == {K: SAVED}


def test_nobody_waits_if_that_was_asked_for(served: ServedBucket) -> None:
    served.host_of(K).is_everything_safe = False
    assert write_some(served.bucket, [SAVED], Wish(Conflict.REFUSE, None)) == (1, 0, 0)


def test_the_majority_is_waited_for_if_nothing_is_said() -> None:
    assert RestoreSettings(cluster="-", folder="-").durability == "majority"
    with pytest.raises(UsageError, match="give one of none, majority"):
        RestoreSettings(cluster="-", folder="-", durability="much")
