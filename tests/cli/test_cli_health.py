import msgspec
import pytest

from millrace.cli.health import Problem, judge, unreachable
from millrace.client.cluster import ClusterStatus, NodeStatus
from millrace.core.commit.record import CommitRecord, StreamRecord
from millrace.core.documents.document import FailoverId, PartitionId
from millrace.core.documents.map import BucketAttributes, BucketRecord, Seat
from millrace.core.epochs import EpochRecord
from millrace.core.messages import NodeDescribed
from millrace.core.messages.cluster import DamagedPartition, HostedDocuments
from millrace.core.projection import Projection
from millrace.core.replication import Replication
from millrace.types import (
    Epoch,
    LogAttributes,
    LogId,
    LogInfo,
    NodeId,
    NodeInfo,
    StreamId,
    WritePath,
)

GIB = 1 << 30


NO_ROOM = HostedDocuments(2 * GIB, 2 * GIB, is_full=True)
DAMAGED = HostedDocuments(
    GIB, 2 * GIB, False, (DamagedPartition(1, PartitionId(3)),), "its row is damaged"
)


def node(
    number: int,
    *,
    live: bool = True,
    answers: bool = True,
    used: int = GIB,
    full: bool = False,
    documents: HostedDocuments | None = None,
) -> NodeStatus:
    info = NodeInfo(NodeId(number), f"127.0.0.1:{number}")
    told = NodeDescribed(info, 1_000, 1, used, 10 * GIB, full, False, 1, "millrace", documents)
    return NodeStatus(info, live, told if answers else None)


def status(
    *nodes: NodeStatus,
    chain: tuple[int, ...] = (1, 2),
    replication: int = 2,
    sequencer: int = 1,
    keeper: int | None = 1,
) -> ClusterStatus:
    log = LogId(1)
    members = tuple(NodeId(n) for n in chain)
    projection = Projection(log, Epoch(1), members, NodeId(sequencer), replication)
    info = LogInfo(log, "events", LogAttributes(replication=replication))
    return ClusterStatus(
        "c",
        nodes or (node(1), node(2)),
        (projection,),
        (info,),
        None if keeper is None else NodeId(keeper),
    )


def sequenced(
    *nodes: NodeStatus, sequencer: int = 1, copies: int = 2, is_sealed: bool = False
) -> ClusterStatus:
    log = LogId(1)
    record = EpochRecord(
        log,
        Epoch(3),
        NodeId(sequencer),
        (NodeId(1), NodeId(2)),
        Replication.of(copies),
        Epoch(1),
        is_sealed=is_sealed,
    )
    info = LogInfo(log, "events", LogAttributes(replication=copies))
    return ClusterStatus("c", nodes or (node(1), node(2)), (), (info,), NodeId(1), (record,))


def committed(*nodes: NodeStatus) -> ClusterStatus:
    log = LogId(1)
    stream = StreamRecord(StreamId(1), Epoch(1), (NodeId(1), NodeId(2), NodeId(3)))
    record = CommitRecord(log, Epoch(1), NodeId(1), 3, (stream,))
    info = LogInfo(log, "events", LogAttributes(WritePath.COMMIT))
    everybody = nodes or (node(1), node(2), node(3))
    return ClusterStatus("c", everybody, (), (info,), NodeId(2), commits=(record,))


@pytest.mark.parametrize(
    ("found", "problems"),
    [
        pytest.param(status(), [], id="healthy"),
        pytest.param(sequenced(), [], id="healthy, sequenced"),
        pytest.param(
            sequenced(node(1), node(2), node(3, live=False), sequencer=3),
            [Problem.NODE_DEAD, Problem.SEQUENCER_DEAD],
            id="sequencer of a sequenced log",
        ),
        pytest.param(
            sequenced(node(1), node(2, live=False)),
            [Problem.NODE_DEAD, Problem.NO_REDUNDANCY, Problem.NOT_WRITABLE],
            id="too few nodes for a copyset",
        ),
        pytest.param(
            sequenced(node(1), node(2, live=False), is_sealed=True),
            [Problem.NODE_DEAD, Problem.NO_REDUNDANCY],
            id="nobody wants to write to a sealed log",
        ),
        pytest.param(committed(), [], id="healthy, commit"),
        pytest.param(
            committed(node(1), node(2), node(3, live=False)),
            [Problem.NODE_DEAD, Problem.LOG_DEGRADED],
            id="a stream of a commit log lacks a replica",
        ),
        pytest.param(
            committed(node(1, live=False), node(2), node(3, live=False)),
            [Problem.NODE_DEAD, Problem.NODE_DEAD, Problem.NO_REDUNDANCY, Problem.COMMITTER_DEAD],
            id="a commit log with one replica and no committer",
        ),
        pytest.param(status(chain=(1,), replication=1), [], id="one copy is what was asked for"),
        pytest.param(status(keeper=None), [Problem.NO_KEEPER], id="no keeper"),
        pytest.param(status(node(1), node(2), node(3, live=False)), [Problem.NODE_DEAD], id="dead"),
        pytest.param(
            status(node(1), node(2), node(3, answers=False)), [Problem.NODE_SILENT], id="silent"
        ),
        pytest.param(status(node(1), node(2, full=True)), [Problem.DISK_FULL], id="full"),
        pytest.param(
            status(node(1), node(2, used=10 * GIB - 1)), [Problem.DISK_LOW], id="nearly full"
        ),
        pytest.param(
            status(node(1), node(2, documents=NO_ROOM)),
            [Problem.DOCUMENTS_FULL],
            id="no room for documents",
        ),
        pytest.param(
            status(node(1), node(2, documents=DAMAGED)), [Problem.PARTITION_DAMAGED], id="damaged"
        ),
        pytest.param(status(chain=(1, 2), replication=3), [Problem.LOG_DEGRADED], id="degraded"),
        pytest.param(status(chain=(1,)), [Problem.NO_REDUNDANCY], id="no redundancy"),
        pytest.param(status(sequencer=9), [Problem.SEQUENCER_DEAD], id="sequencer"),
        pytest.param(
            status(node(1), node(2), node(3, live=False), chain=(1, 2), replication=3),
            [Problem.NODE_DEAD, Problem.LOG_DEGRADED],
            id="critical first",
        ),
    ],
)
def test_findings(found: ClusterStatus, problems: list[Problem]) -> None:
    verdict = judge(found)
    assert [finding.problem for finding in verdict.findings] == problems
    assert verdict.is_healthy == (not problems)


def test_the_numbers_are_those_of_the_store_that_is_full() -> None:
    """It read as a full disk with the logs' numbers, which had room."""
    (told,) = judge(status(node(1), node(2, documents=NO_ROOM))).findings
    assert "(2.0 GiB of 2.0 GiB used)" in told.detail
    assert "documents" in told.detail
    (told,) = judge(status(node(1), node(2, full=True))).findings
    assert "(1.0 GiB of 10.0 GiB used)" in told.detail
    assert "logs" in told.detail


def test_a_damaged_partition_is_named_with_its_bucket_and_its_cause() -> None:
    bucket = BucketRecord(1, "users", BucketAttributes(), ())
    found = status(node(1), node(2, documents=DAMAGED))
    (told,) = judge(msgspec.structs.replace(found, buckets=(bucket,))).findings
    assert told.subject == "node 2"
    assert "partition 3 of bucket users" in told.detail
    assert "its row is damaged" in told.detail


def test_nothing_known_is_not_healthy() -> None:
    assert not unreachable("nobody answers").is_healthy


@pytest.mark.parametrize(
    ("active", "replicas", "found"),
    [
        pytest.param(1, (2,), [], id="well"),
        pytest.param(0, (1, 2), [Problem.NO_MASTER], id="none is chosen"),
        pytest.param(3, (2,), [Problem.NO_MASTER], id="the master is dead"),
        pytest.param(1, (3,), [Problem.REPLICAS_MISSING], id="the replica is dead"),
        pytest.param(1, (), [Problem.REPLICAS_MISSING], id="there is no replica"),
    ],
)
def test_partitions_of_a_bucket(
    active: int, replicas: tuple[int, ...], found: list[Problem]
) -> None:
    seat = Seat(1, FailoverId(7), NodeId(active), tuple(map(NodeId, replicas)))
    bucket = BucketRecord(1, "users", BucketAttributes(), (seat,))
    nodes = (node(1), node(2), node(3, live=False))
    told = judge(msgspec.structs.replace(status(*nodes), buckets=(bucket,))).findings
    assert [each.problem for each in told if each.subject == "bucket users"] == found
