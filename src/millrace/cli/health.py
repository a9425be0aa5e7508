"""What is wrong with a cluster, judged from its status; worst first.

The words in `Problem` are stable: monitors match on them.
"""

from collections.abc import Iterator
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Final

import msgspec

from millrace.cli.quantities import show_size

if TYPE_CHECKING:
    from millrace.client.cluster import ClusterStatus, NodeStatus
    from millrace.core.projection import Projection

ROOM_BYTES_MIN: Final = 1 << 30
ROOM_SHARE_MIN: Final = 0.1  # Warn when both less than this share and ROOM_BYTES_MIN are left.


class Level(IntEnum):
    CRITICAL = 1
    WARNING = 2


class Problem(Enum):
    UNREACHABLE = "unreachable"  # No node answers, or the metadata repository does not.
    NO_KEEPER = "no_keeper"
    NODE_DEAD = "node_dead"
    NODE_SILENT = "node_silent"
    DISK_FULL = "disk_full"
    NO_REDUNDANCY = "no_redundancy"
    DISK_LOW = "disk_low"
    LOG_DEGRADED = "log_degraded"
    SEQUENCER_DEAD = "sequencer_dead"


class Finding(msgspec.Struct, frozen=True):
    problem: Problem
    level: str  # critical or warning
    subject: str  # What has the problem: `node 3`, `log events`, `cluster`.
    detail: str  # What it means and what to do.


class Health(msgspec.Struct, frozen=True):
    """The JSON of `cluster check`."""

    cluster: str
    is_healthy: bool
    nodes: int
    nodes_live: int
    logs: int
    findings: tuple[Finding, ...]


def judge(status: "ClusterStatus") -> Health:
    found = [*_of_cluster(status), *_of_nodes(status), *_of_logs(status)]
    found.sort(key=lambda finding: Level[finding.level.upper()])
    return Health(
        status.name,
        not found,
        len(status.nodes),
        sum(node.is_live for node in status.nodes),
        len(status.logs),
        tuple(found),
    )


def unreachable(detail: str) -> Health:
    """Nothing is known, which is bad enough."""
    finding = _finding(Problem.UNREACHABLE, Level.CRITICAL, "cluster", detail)
    return Health("", False, 0, 0, 0, (finding,))


def _finding(problem: Problem, level: Level, subject: str, detail: str) -> Finding:
    return Finding(problem, level.name.lower(), subject, detail)


def _of_cluster(status: "ClusterStatus") -> Iterator[Finding]:
    if status.keeper is None:
        yield _finding(
            Problem.NO_KEEPER,
            Level.CRITICAL,
            "cluster",
            "no node looks after the logs: lost copies are not replaced. A node takes over "
            "within seconds; if none does, look at the nodes' logs for `keeper.waiting`",
        )


def _of_nodes(status: "ClusterStatus") -> Iterator[Finding]:
    for node in status.nodes:
        subject = f"node {node.info.id}"
        if not node.is_live:
            detail = f"dead: no sign of life from {node.info.address}; start it again"
            yield _finding(Problem.NODE_DEAD, Level.CRITICAL, subject, detail)
        elif node.description is None:
            detail = (
                f"silent: {node.info.address} does not answer here, though the cluster hears of "
                "it: it died just now, or the network between here and there is down"
            )
            yield _finding(Problem.NODE_SILENT, Level.CRITICAL, subject, detail)
        else:
            yield from _of_disk(node, subject)


def _of_disk(node: "NodeStatus", subject: str) -> Iterator[Finding]:
    assert node.description is not None
    used, total = node.description.bytes_used, node.description.bytes_total
    room = f"{show_size(used)} of {show_size(total)} used"
    if node.description.is_full:
        detail = f"disk full ({room}): it takes no more writes; trim logs or add a node"
        yield _finding(Problem.DISK_FULL, Level.CRITICAL, subject, detail)
    elif total - used < min(ROOM_BYTES_MIN, total * ROOM_SHARE_MIN):
        detail = f"disk nearly full ({room}): trim logs or add a node"
        yield _finding(Problem.DISK_LOW, Level.WARNING, subject, detail)


def _of_logs(status: "ClusterStatus") -> Iterator[Finding]:
    names = {info.id: info.name for info in status.logs}
    live = {node.info.id for node in status.nodes if node.is_live}
    for projection in status.projections:
        if projection.log not in names:
            continue  # Being made or being deleted.
        subject = f"log {names[projection.log]}"
        yield from _of_copies(projection, subject)
        if not projection.is_sealed and projection.sequencer not in live:
            detail = (
                f"its sequencer, node {projection.sequencer}, is dead; the next append moves it"
            )
            yield _finding(Problem.SEQUENCER_DEAD, Level.WARNING, subject, detail)


def _of_copies(projection: "Projection", subject: str) -> Iterator[Finding]:
    copies = f"{len(projection.chain)} of {projection.replication} copies"
    if not projection.is_redundant:
        detail = f"no redundancy: {copies}; one more failure loses data. Start more nodes"
        yield _finding(Problem.NO_REDUNDANCY, Level.CRITICAL, subject, detail)
    elif projection.is_degraded:
        detail = f"degraded: {copies}; the keeper adds one when a storage node is free"
        yield _finding(Problem.LOG_DEGRADED, Level.WARNING, subject, detail)
