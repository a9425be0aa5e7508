"""May a stream begin: the table of a producer's answers."""

import pytest

from millrace.core.documents.document import FailoverId, PartitionState, Seq
from millrace.core.documents.failover_log import FailoverEntry, FailoverLog
from millrace.core.documents.messages import (
    StreamAnswered,
    StreamFlag,
    StreamRequest,
    StreamStatus,
)
from millrace.core.documents.partition import Partition
from millrace.core.documents.partition_row import PartitionRow
from millrace.core.documents.stream_rules import Accepted, judge
from tests.core.documents.stream_rig import P0

DEAD, CAFE, BA5E = FailoverId(0xDEAD), FailoverId(0xCAFE), FailoverId(0xBA5E)
LOG = FailoverLog((FailoverEntry(DEAD, Seq(8)), FailoverEntry(CAFE, Seq(0))))
NEWEST = StreamFlag.NEWEST_ID
NO_FLAGS = StreamFlag(0)


def partition(
    high: int = 20, purged: int = 0, undo: int | None = None, persisted: int | None = None
) -> Partition:
    state = PartitionState.ACTIVE if undo is None else PartitionState.REPLICA
    seq = Seq(high)
    undo_to = None if undo is None else Seq(undo)
    found = Partition(P0, PartitionRow(state, 1, LOG, seq, seq, seq, seq, Seq(purged), undo_to))
    found.persisted = seq if persisted is None else Seq(persisted)
    return found


def request(
    start: int,
    id: FailoverId = DEAD,
    snapshot: tuple[int, int] | None = None,
    end: int = 2**63 - 1,
    flags: StreamFlag = NO_FLAGS,
) -> StreamRequest:
    first, last = snapshot or (start, start)
    return StreamRequest(P0, Seq(start), id, Seq(first), Seq(last), Seq(end), flags)


def answer(asked: StreamRequest, held: Partition) -> object:
    judged = judge(asked, held, None)
    if isinstance(judged, Accepted):
        return judged.start
    is_rollback = judged.status is StreamStatus.ROLLBACK
    return (judged.status, judged.rollback) if is_rollback else judged.status


ROLL_BACK = StreamStatus.ROLLBACK


@pytest.mark.parametrize(
    ("asked", "held", "wanted"),
    [
        pytest.param(request(0, CAFE), partition(), 0, id="from 0 under an old id"),
        pytest.param(request(0, BA5E), partition(), 0, id="from 0 under an unknown id"),
        pytest.param(
            request(0, BA5E, flags=StreamFlag.STRICT_ID),
            partition(),
            (ROLL_BACK, 0),
            id="from 0 under an unknown id, strictly",
        ),
        pytest.param(request(7), partition(), 7, id="under the newest id"),
        pytest.param(request(20), partition(), 20, id="all is there"),
        pytest.param(request(21), partition(), (ROLL_BACK, 20), id="above the highest"),
        pytest.param(request(7, CAFE), partition(), 7, id="old id, below the next entry"),
        pytest.param(request(9, CAFE), partition(), (ROLL_BACK, 8), id="old id, beyond it"),
        pytest.param(request(7, BA5E), partition(), (ROLL_BACK, 0), id="unknown id"),
        pytest.param(
            request(7, CAFE, (6, 8)), partition(), 7, id="T5: the snapshot ends at the entry"
        ),
        pytest.param(
            request(7, CAFE, (6, 9)),
            partition(),
            (ROLL_BACK, 6),
            id="T5: it ends above: back to its first",
        ),
        pytest.param(
            request(6, CAFE, (6, 9)), partition(), 6, id="nothing of the snapshot was taken"
        ),
        pytest.param(
            request(9, CAFE, (6, 9)), partition(), (ROLL_BACK, 8), id="all of the snapshot was"
        ),
        pytest.param(request(7), partition(purged=9), (ROLL_BACK, 0), id="below the purge seq"),
        pytest.param(request(9), partition(purged=9), 9, id="at the purge seq"),
        pytest.param(request(0), partition(purged=9), 0, id="from 0 nothing is missing"),
        pytest.param(request(9, end=8), partition(), StreamStatus.RANGE, id="start above end"),
        pytest.param(
            request(9, snapshot=(3, 8)), partition(), StreamStatus.RANGE, id="beyond its snapshot"
        ),
        pytest.param(
            request(2, snapshot=(3, 8)), partition(), StreamStatus.RANGE, id="before its snapshot"
        ),
        pytest.param(
            request(7), partition(undo=5), StreamStatus.TEMPORARY_FAILURE, id="undo pending"
        ),
    ],
)
def test_the_protocols_own_rule(asked: StreamRequest, held: Partition, wanted: object) -> None:
    assert answer(asked, held) == wanted


@pytest.mark.parametrize(
    ("asked", "held", "wanted"),
    [
        pytest.param(request(7, flags=NEWEST), partition(), 7, id="it is the newest"),
        pytest.param(
            request(0, CAFE, flags=NEWEST),
            partition(),
            StreamStatus.WRONG_FAILOVER_ID,
            id="an older one, even from 0",
        ),
        pytest.param(
            request(21, flags=NEWEST), partition(), StreamStatus.RANGE, id="above the highest"
        ),
        pytest.param(
            request(7, flags=NEWEST), partition(purged=9), (ROLL_BACK, 0), id="below the purge seq"
        ),
        pytest.param(
            request(0, flags=NEWEST),
            partition(purged=9),
            (ROLL_BACK, 0),
            id="from 0, and the purge seq was not told",
        ),
        pytest.param(
            request(15, snapshot=(10, 21), flags=NEWEST),
            partition(),
            StreamStatus.RANGE,
            id="a copy that lags behind the snapshot begun elsewhere",
        ),
        pytest.param(
            request(15, snapshot=(10, 20), flags=NEWEST), partition(), 15, id="it has all of it"
        ),
    ],
)
def test_who_compared_the_logs_says_which_id_is_the_newest(
    asked: StreamRequest, held: Partition, wanted: object
) -> None:
    assert answer(asked, held) == wanted


def test_who_compared_the_logs_and_begins_at_0_knows_what_is_forgotten() -> None:
    asked, held = request(0, flags=NEWEST), partition(purged=9)
    assert isinstance(judge(asked, held, Seq(9)), Accepted)
    late = judge(asked, held, Seq(5))
    assert isinstance(late, StreamAnswered)
    assert late.status is StreamStatus.ROLLBACK


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        pytest.param(request(3), Accepted(Seq(3), Seq(2**63 - 1)), id="for ever"),
        pytest.param(request(3, end=9), Accepted(Seq(3), Seq(9)), id="to a seq"),
        pytest.param(
            request(3, flags=StreamFlag.TO_LATEST), Accepted(Seq(3), Seq(20)), id="to now"
        ),
        pytest.param(
            request(3, flags=StreamFlag.DISK_ONLY), Accepted(Seq(3), Seq(12)), id="what is on disk"
        ),
        pytest.param(
            request(0, BA5E, flags=StreamFlag.FROM_LATEST),
            Accepted(Seq(20), Seq(2**63 - 1)),
            id="from now: nothing to roll back",
        ),
    ],
)
def test_where_a_stream_begins_and_ends(asked: StreamRequest, wanted: Accepted) -> None:
    assert judge(asked, partition(persisted=12), None) == wanted


def test_a_refusal_says_why() -> None:
    judged = judge(request(7, BA5E), partition(), None)
    assert isinstance(judged, StreamAnswered)
    assert judged.detail == "failover id 000000000000ba5e is unknown here"
