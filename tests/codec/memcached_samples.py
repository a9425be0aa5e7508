"""One of everything that is said on a change stream, for tests of its frames."""

from millrace.core.documents.document import (
    Cas,
    ChangeKind,
    Document,
    FailoverId,
    PartitionId,
    PartitionState,
    Seq,
)
from millrace.core.documents.failover_log import FailoverEntry, FailoverLog
from millrace.core.documents.messages import (
    AllPartitions,
    Answered,
    Barrier,
    BarrierReached,
    BufferAck,
    Changes,
    CloseStream,
    ConsumerNotice,
    ConsumerRequest,
    Control,
    EndReason,
    FailoverLogGot,
    Fetch,
    Fetched,
    GetFailoverLog,
    MarkerFlag,
    Noop,
    Open,
    ProducerAnswer,
    ProducerPush,
    Repair,
    Repaired,
    SeqAck,
    SeqAdvanced,
    SnapshotMarker,
    StreamAnswered,
    StreamEnd,
    StreamFlag,
    StreamRequest,
    StreamStatus,
)
from millrace.core.documents.revisions import Revision

PARTITION = PartitionId(0x210)
ID = FailoverId(0xFEDC_BA98_7654_3210)
LOG = FailoverLog((FailoverEntry(ID, Seq(8)), FailoverEntry(FailoverId(7), Seq(0))))
DOCUMENTS = (
    Document(b"hello", b"world", Seq(4), Cas(2**64 - 1), 0xDEADBEEF, 3600, datatype=1),
    Document(b"k", b"", Seq(5), Cas(1)),
    Document(b"gone", b"", Seq(6), Cas(17), 0, 1_700_000_000, ChangeKind.DELETION),
    Document(b"late", b"", Seq(2**63 - 1), Cas(18), 0, 2**32 - 1, ChangeKind.EXPIRATION),
)
REVISIONS = (
    Revision(b"hello", b"world", Cas(2**63), 7, 3600),
    Revision(b"gone", None, Cas(17)),
)

MESSAGES: tuple[ConsumerRequest | ConsumerNotice, ...] = (
    Open("indexer:eu-1"),
    Open("copier:3", "bücket"),
    Open("replica:3", "bücket", 5),
    Control("connection_buffer_size", "1048576"),
    GetFailoverLog(PARTITION),
    StreamRequest(PARTITION, Seq(5), ID),
    StreamRequest(
        PARTITION, Seq(5), ID, Seq(4), Seq(9), Seq(99), StreamFlag.NEWEST_ID | StreamFlag.TO_LATEST
    ),
    CloseStream(PARTITION),
    Barrier("after lunch"),
    BufferAck(4096),
    SeqAck(PARTITION, ID, Seq(8), Seq(5)),
    Fetch(PARTITION, ID, (b"a", b"bb", b"ccc"), Seq(7)),
    Fetch(PARTITION, ID, (), Seq(0)),
    Repair(PARTITION, ID, Seq(3), DOCUMENTS),
)
ANSWERS: tuple[tuple[ConsumerRequest, ProducerAnswer], ...] = (
    (Control("enable_noop", "true"), Answered(StreamStatus.OK)),
    (Barrier("twice"), Answered(StreamStatus.EXISTS, "the cookie is there already")),
    (
        GetFailoverLog(PARTITION),
        FailoverLogGot(PARTITION, LOG, Seq(12), Seq(2), PartitionState.REPLICA),
    ),
    (GetFailoverLog(PARTITION), Answered(StreamStatus.NOT_MY_PARTITION, "ask node 2")),
    (
        StreamRequest(PARTITION, Seq(5), ID),
        StreamAnswered(PARTITION, StreamStatus.OK, LOG),
    ),
    (
        StreamRequest(PARTITION, Seq(5), ID),
        StreamAnswered(PARTITION, StreamStatus.ROLLBACK, rollback=Seq(3)),
    ),
    (
        StreamRequest(PARTITION, Seq(5), ID),
        StreamAnswered(PARTITION, StreamStatus.WRONG_FAILOVER_ID, detail="it has another"),
    ),
    (Fetch(PARTITION, ID, (b"a",), Seq(7)), Fetched(DOCUMENTS)),
    (Repair(PARTITION, ID, Seq(3), DOCUMENTS), Repaired((b"hello", b"gone"))),
)
PUSHES: tuple[ProducerPush, ...] = (
    SnapshotMarker(PARTITION, Seq(5), Seq(8), MarkerFlag.DISK),
    Changes(PARTITION, DOCUMENTS),
    SeqAdvanced(PARTITION, Seq(11)),
    StreamEnd(PARTITION, EndReason.STATE_CHANGED),
    AllPartitions(3),
    BarrierReached("after lunch"),
    Noop(),
)


def name_of(sample: object) -> str:
    """For the ids of tables."""
    parts = sample if isinstance(sample, tuple) else (sample,)
    return "-".join(type(part).__name__ for part in parts)
