import pytest

from millrace.cli.health import Problem, judge, unreachable
from millrace.client.cluster import ClusterStatus, NodeStatus
from millrace.core.messages import NodeDescribed
from millrace.core.projection import Projection
from millrace.types import Epoch, LogAttributes, LogId, LogInfo, NodeId, NodeInfo

GIB = 1 << 30


def node(
    number: int, *, live: bool = True, answers: bool = True, used: int = GIB, full: bool = False
) -> NodeStatus:
    info = NodeInfo(NodeId(number), f"127.0.0.1:{number}")
    told = NodeDescribed(info, 1_000, 1, used, 10 * GIB, full, False, 1, "millrace")
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


@pytest.mark.parametrize(
    ("found", "problems"),
    [
        pytest.param(status(), [], id="healthy"),
        pytest.param(status(chain=(1,), replication=1), [], id="one copy is what was asked for"),
        pytest.param(status(keeper=None), [Problem.NO_KEEPER], id="no keeper"),
        pytest.param(status(node(1), node(3, live=False)), [Problem.NODE_DEAD], id="dead"),
        pytest.param(status(node(1), node(3, answers=False)), [Problem.NODE_SILENT], id="silent"),
        pytest.param(status(node(1), node(2, full=True)), [Problem.DISK_FULL], id="full"),
        pytest.param(
            status(node(1), node(2, used=10 * GIB - 1)), [Problem.DISK_LOW], id="nearly full"
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


def test_nothing_known_is_not_healthy() -> None:
    assert not unreachable("nobody answers").is_healthy
