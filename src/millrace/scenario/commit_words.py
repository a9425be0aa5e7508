"""How scenario files write the things of commit logs, in the order that seed 004 names them in.

  (v1,2,3,4)                       a commit: version, local offset, global offset, length
  1(v1,2,4)                        a report of stream 1: version, local offset, length
  1(quarantined)                   one of a replica that cannot tell
  1(v1,2,3,4)(v2,6,9,1), 1()       the commits of stream 1, or none: an empty one
  (v1,2,3,4),high=9,last=6,trim=2  a context; the trim point is left out if nothing is trimmed
  1:gap                            stream 1 refuses a commit, and why

A generation other than the first stands behind the stream: `1g2()`.  A primary's report names the
backups that it cannot reach: `1(v1,2,4)!SN2,SN3`.
"""

import re
from collections.abc import Iterable

from millrace.core.commit.record import CommitContext, CommitRecord, StreamCommit
from millrace.core.messages import (
    CommitVerdict,
    RefusedCommit,
    ReplicaState,
    StreamCommits,
    StreamReport,
)
from millrace.scenario import words as w
from millrace.types import FIRST_LSN, Epoch, Lsn, NodeId, StreamId, Version

FIRST_GENERATION = Epoch(1)
COMMITTER = NodeId(99)  # Stands apart from SN1, SN2, ...
COMMITTER_NAME = "CM"

_COMMIT = re.compile(r"\(v(-?\d+),(-?\d+),(-?\d+),(-?\d+)\)")
_STREAM = re.compile(r"(\d+)(?:g(\d+))?(.*)")
_REPORT = re.compile(r"\((?:v(-?\d+),(-?\d+),(-?\d+)|([a-z]+))\)(?:!(.+))?")
_MARK = re.compile(r",(high|last|trim)=(\d+)")


def parse_node(word: str) -> NodeId:
    return COMMITTER if word == COMMITTER_NAME else w.parse_node(word)


def show_node(node: NodeId) -> str:
    return COMMITTER_NAME if node == COMMITTER else w.show_node(node)


def parse_commit(word: str) -> StreamCommit:
    match = _COMMIT.fullmatch(word)
    if match is None:
        raise ValueError(word)
    version, local, first, count = map(int, match.groups())
    return StreamCommit(Version(version), Lsn(local), Lsn(first), count)


def show_commit(commit: StreamCommit | CommitContext) -> str:
    return f"(v{commit.version},{commit.local},{commit.first},{commit.count})"


def parse_context(word: str) -> CommitContext:
    match = _COMMIT.match(word)
    if match is None:
        raise ValueError(word)
    commit, rest = parse_commit(match[0]), word[match.end() :]
    marks = {name: Lsn(int(value)) for name, value in _MARK.findall(rest)}
    if _MARK.sub("", rest) or not {"high", "last"} <= marks.keys():
        raise ValueError(word)
    return CommitContext(
        commit.version,
        marks["high"],
        commit.local,
        commit.first,
        commit.count,
        marks["last"],
        marks.get("trim", FIRST_LSN),
    )


def show_context(context: CommitContext | None) -> str:
    if context is None:
        return "none"
    trim = f",trim={context.trim_end}" if context.trim_end > FIRST_LSN else ""
    return f"{show_commit(context)},high={context.high_watermark},last={context.last}{trim}"


def parse_commits(word: str) -> StreamCommits:
    stream, generation, rest = _split(word)
    commits = () if rest == "()" else tuple(map(parse_commit, re.findall(r"\([^)]*\)", rest)))
    if rest != "()" and "".join(map(show_commit, commits)) != rest:
        raise ValueError(word)
    return StreamCommits(stream, generation, commits)


def show_commits(told: StreamCommits) -> str:
    return f"{show_stream(told.stream, told.generation)}{_show_all(told.commits)}"


def parse_report(word: str) -> StreamReport:
    stream, generation, rest = _split(word)
    match = _REPORT.fullmatch(rest)
    if match is None:
        raise ValueError(word)
    suspects = () if match[5] is None else w.parse_nodes(match[5])
    if match[4] is not None:
        return StreamReport(stream, generation, ReplicaState(match[4]), suspects=suspects)
    version, local, count = int(match[1]), int(match[2]), int(match[3])
    numbers = Version(version), Lsn(local), count
    return StreamReport(stream, generation, ReplicaState.OPEN, *numbers, suspects=suspects)


def show_report(report: StreamReport) -> str:
    said = f"v{report.version},{report.local},{report.count}"
    if report.state is not ReplicaState.OPEN:
        said = report.state.value
    suspects = f"!{w.show_nodes(report.suspects)}" if report.suspects else ""
    return f"{show_stream(report.stream, report.generation)}({said}){suspects}"


def parse_refused(word: str) -> RefusedCommit:
    stream, _, verdict = word.partition(":")
    return RefusedCommit(StreamId(int(stream)), CommitVerdict(verdict))


def show_refused(refused: RefusedCommit) -> str:
    return f"{refused.stream}:{refused.verdict.value}"


def show_stream(stream: StreamId, generation: Epoch) -> str:
    return str(stream) if generation == FIRST_GENERATION else f"{stream}g{generation}"


def show_record(record: CommitRecord) -> str:
    """What of it changes with commits and reforms; the commits are those that some replica may not
    have taken."""
    shown = [f"version {record.version} high {record.high_watermark}"]
    if record.trim_end > FIRST_LSN:
        shown.append(f"trim {record.trim_end}")
    for each in record.streams:
        name = show_stream(each.stream, each.generation)
        closed = "" if each.is_open else " closed"
        shown.append(f"{name}{_show_all(each.history)} on {w.show_nodes(each.replicas)}{closed}")
    return " ".join(shown)


def _show_all(commits: Iterable[StreamCommit]) -> str:
    return "".join(map(show_commit, commits)) or "()"


def _split(word: str) -> tuple[StreamId, Epoch, str]:
    match = _STREAM.fullmatch(word)
    if match is None:
        raise ValueError(word)
    return StreamId(int(match[1])), Epoch(int(match[2] or FIRST_GENERATION)), match[3]
