"""What is wrong with a cluster, judged from its status; worst first.

The words in `Problem` are stable: monitors match on them.
"""

from collections.abc import Iterator, Sequence
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Final

import msgspec

from millrace.cli.quantities import show_size
from millrace.cli.redundancy import Presence, Redundancy, redundancy_of
from millrace.types import AuthoritativeStatus, Role

if TYPE_CHECKING:
    from millrace.client.blocked_rebuilds import BlockedLog
    from millrace.client.cluster import ClusterStatus, NodeStatus
    from millrace.client.log_standing import LogStanding
    from millrace.core.epochs import EpochRecord

BLOCKED_SHOWN: Final = 3  # Logs named in one finding; JSON has all.
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
    DOCUMENTS_FULL = "documents_full"  # Logs may have room: their store is another one.
    PARTITION_DAMAGED = "partition_damaged"  # A node cannot write its copy of it.
    NO_REDUNDANCY = "no_redundancy"
    DISK_LOW = "disk_low"
    LOG_DEGRADED = "log_degraded"
    SEQUENCER_DEAD = "sequencer_dead"
    COMMITTER_DEAD = "committer_dead"
    NOT_WRITABLE = "not_writable"  # Too few live nodes for a sequenced log's copies.
    COPIES_LOST = "copies_lost"  # A node's copies of sequenced logs are gone or away.
    NO_MASTER = "no_master"  # Partitions of a bucket that nobody serves.
    REPLICAS_MISSING = "replicas_missing"
    DRAIN_STUCK = "drain_stuck"  # No other node can take the copies of one that is drained.


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
    found = [*_of_cluster(status), *_of_nodes(status), *_of_logs(status), *_of_buckets(status)]
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
        if is_drained_and_stopped(node, status):
            continue
        if not node.is_live:
            detail = f"dead: no sign of life from {node.info.address}; start it again"
            if _is_waited_for(node, status):
                detail += (
                    ". Its status is fully_authoritative until it has been away for "
                    "keeper.rebuild_after_ms: its copies of sequenced logs are made anew only then"
                )
            yield _finding(Problem.NODE_DEAD, Level.CRITICAL, subject, detail)
        elif node.description is None:
            detail = (
                f"silent: {node.info.address} does not answer here, though the cluster hears of "
                "it: it died just now, or the network between here and there is down"
            )
            yield _finding(Problem.NODE_SILENT, Level.CRITICAL, subject, detail)
        else:
            yield from _of_disk(node, subject)
            yield from _of_documents(node, status, subject)
        yield from _of_status(node, status, subject)


def is_drained_and_stopped(node: "NodeStatus", status: "ClusterStatus") -> bool:
    """It is gone as its operator wants it: nobody misses anything that it had."""
    standing = status.statuses.get(node.info.id)
    if node.is_live or standing is None:
        return False
    is_empty = standing.entry.status is AuthoritativeStatus.AUTHORITATIVE_EMPTY
    return is_empty and standing.entry.is_draining


def _is_waited_for(node: "NodeStatus", status: "ClusterStatus") -> bool:
    """Nobody has given up yet that it comes back."""
    standing = status.statuses.get(node.info.id)
    usual = AuthoritativeStatus.FULLY_AUTHORITATIVE
    is_storage = Role.STORAGE in node.info.roles
    return is_storage and (standing is None or standing.entry.status is usual)


def _of_status(node: "NodeStatus", status: "ClusterStatus", subject: str) -> Iterator[Finding]:
    """A node that is drained is where its operator wants it, as long as it gets anywhere."""
    standing = status.statuses.get(node.info.id)
    if standing is None or not standing.entry.rebuild:
        return
    if standing.entry.is_draining:
        if standing.blocked:
            detail = (
                f"its drain is stuck: {show_blocked(standing.blocked)}. Start dead nodes or add "
                f"others, or take it back: `millrace cluster drain {node.info.id} --cancel`"
            )
            yield _finding(Problem.DRAIN_STUCK, Level.WARNING, subject, detail)
        return
    donors = standing.donors.values()
    finished = sum(report.is_finished for report in donors)
    left = max((report.blocks_left for report in donors), default=0)
    detail = (
        f"{standing.entry.status.value} ({standing.entry.reason}): its copies of sequenced logs "
        f"are made anew elsewhere; {finished} donors have finished, another has {left} blocks left"
    )
    if standing.blocked:
        detail += f"; {show_blocked(standing.blocked)}"
    yield _finding(Problem.COPIES_LOST, Level.WARNING, subject, detail)


def show_blocked(blocked: "Sequence[BlockedLog]") -> str:
    """`too few other nodes can take its copies of log 'events' (...)`."""
    names = [f"{'the metadata of ' * each.is_metadata}log {each.log!r}" for each in blocked]
    more = len(names) - BLOCKED_SHOWN
    shown = ", ".join(names[:BLOCKED_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return f"too few other nodes can take its copies of {shown} ({blocked[0].lack})"


def _of_disk(node: "NodeStatus", subject: str) -> Iterator[Finding]:
    assert node.description is not None
    used, total = node.description.bytes_used, node.description.bytes_total
    room = f"{show_size(used)} of {show_size(total)} used"
    advice = "trim logs or add a node"
    if node.description.is_full:
        detail = f"disk full ({room}): it takes no more blocks of logs; {advice}"
        yield _finding(Problem.DISK_FULL, Level.CRITICAL, subject, detail)
    elif total - used < min(ROOM_BYTES_MIN, total * ROOM_SHARE_MIN):
        detail = f"disk nearly full ({room}): {advice}"
        yield _finding(Problem.DISK_LOW, Level.WARNING, subject, detail)


def _of_documents(node: "NodeStatus", status: "ClusterStatus", subject: str) -> Iterator[Finding]:
    assert node.description is not None
    documents = node.description.documents
    if documents is None:
        return
    if documents.is_full:
        room = f"{show_size(documents.bytes_used)} of {show_size(documents.bytes_total)} used"
        detail = (
            f"no room for documents ({room}): of them it takes deletions alone; delete documents "
            "or add a node"
        )
        yield _finding(Problem.DOCUMENTS_FULL, Level.CRITICAL, subject, detail)
    if documents.damaged:
        names = {record.id: record.name for record in status.buckets}
        shown = ", ".join(
            f"{each.number} of bucket {names.get(each.bucket, each.bucket)}"
            for each in documents.damaged
        )
        detail = (
            f"it cannot write partition {shown}, and takes no changes there ({documents.damage}). "
            "Start the node anew: another copy takes over, and this one is made anew; without "
            "another copy the partition is lost then"
        )
        yield _finding(Problem.PARTITION_DAMAGED, Level.CRITICAL, subject, detail)


def _of_logs(status: "ClusterStatus") -> Iterator[Finding]:
    names = {info.id: f"log {info.name}" for info in status.logs}
    presence = Presence.of(status)
    # A log without a name is being made or being deleted.
    for projection in status.projections:
        if projection.log in names:
            subject = names[projection.log]
            yield from _of_copies(projection, presence, subject)
            if not projection.is_sealed and projection.sequencer not in presence.live:
                node = projection.sequencer
                detail = f"its sequencer, node {node}, is dead; the next append moves it"
                yield _finding(Problem.SEQUENCER_DEAD, Level.WARNING, subject, detail)
    for record in status.epochs:
        if record.log in names:
            yield from _of_epochs(record, status, presence, names[record.log])
    for commits in status.commits:
        if commits.log in names:
            subject = names[commits.log]
            yield from _of_copies(commits, presence, subject)
            if commits.committer and commits.committer not in presence.live:
                node = commits.committer
                detail = f"its committer, node {node}, is dead; the next append finds another"
                yield _finding(Problem.COMMITTER_DEAD, Level.WARNING, subject, detail)


def _of_buckets(status: "ClusterStatus") -> Iterator[Finding]:
    live = {node.info.id for node in status.nodes if node.is_live}
    for record in status.buckets:
        subject, count = f"bucket {record.name}", len(record.seats)
        headless = sum(seat.active not in live for seat in record.seats)
        if headless:
            detail = (
                f"{headless} of {count} partitions have no master: one is chosen when enough "
                f"copies answer; `millrace bucket info {record.name}` says what holds it up"
            )
            yield _finding(Problem.NO_MASTER, Level.CRITICAL, subject, detail)
        short = sum(
            sum(node in live for node in seat.replicas) < record.attributes.replicas
            for seat in record.seats
            if seat.active in live
        )
        if short:
            detail = (
                f"{short} of {count} partitions lack replicas: start the dead nodes; after a while "
                "they are made anew on others, if there are enough"
            )
            yield _finding(Problem.REPLICAS_MISSING, Level.WARNING, subject, detail)


def _of_epochs(
    record: "EpochRecord", status: "ClusterStatus", presence: Presence, subject: str
) -> Iterator[Finding]:
    from millrace.core.replication import cannot_replicate

    yield from _of_copies(record, presence, subject)
    if record.sequencer and record.sequencer not in presence.live:
        detail = f"its sequencer, node {record.sequencer}, is dead; the keeper appoints another"
        yield _finding(Problem.SEQUENCER_DEAD, Level.WARNING, subject, detail)
    locations = {node.info.id: node.info.location for node in status.nodes}
    left = [node for node in record.nodeset if node in presence.live]
    lack = cannot_replicate(record.replication, left, locations)
    if lack and not record.is_sealed:
        detail = f"appends wait: {lack}. Start the dead nodes"
        yield _finding(Problem.NOT_WRITABLE, Level.CRITICAL, subject, detail)


def _of_copies(standing: "LogStanding", presence: Presence, subject: str) -> Iterator[Finding]:
    found: Redundancy = redundancy_of(standing, presence)
    copies = f"{found.left} of {found.wanted} copies"
    if not found.is_redundant:
        lost = "one more failure loses data" if found.left else "some of it cannot be read now"
        detail = f"no redundancy: {copies}; {lost}. Start the dead nodes, or more"
        yield _finding(Problem.NO_REDUNDANCY, Level.CRITICAL, subject, detail)
    elif found.is_degraded:
        detail = f"degraded: {copies}; missing ones are made anew when a storage node is free"
        yield _finding(Problem.LOG_DEGRADED, Level.WARNING, subject, detail)
