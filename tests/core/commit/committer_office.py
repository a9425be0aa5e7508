"""A committer with all that it needs: a repository, nodes that do what they are told, a clock."""

from collections.abc import Mapping
from typing import Any

import msgspec

from millrace.core.commit import committer_effects as e
from millrace.core.commit.committer import Committer
from millrace.core.commit.record import CommitRecord, StreamRecord
from millrace.core.commit.reform import (
    CannotReform,
    OpenedReplicas,
    join_replicas,
    seal_replicas,
)
from millrace.core.messages import (
    Commit,
    CommitTaken,
    ReplicaState,
    Report,
    StreamReport,
    StreamSealed,
    StreamSynced,
    SyncStream,
)
from millrace.core.procedure import Answer, Ask, Failure, FailureKind, Procedure
from millrace.types import Epoch, LogId, Lsn, NodeId, StreamId, Version
from tests.core.commit.playing import played

LOG = LogId(7)
ONE, TWO = StreamId(1), StreamId(2)
TERM = Epoch(3)
ME = NodeId(1)
NODES = tuple(NodeId(number) for number in range(1, 6))
TICKET = (1, 1)
SILENCE = Failure(FailureKind.LOST)


def stream_of(number: StreamId, *replicas: int, **fields: object) -> StreamRecord:
    nodes = tuple(NodeId(each) for each in replicas)
    return msgspec.structs.replace(StreamRecord(number, Epoch(1), nodes), **fields)


def record_of(*streams: StreamRecord, copies: int = 3) -> CommitRecord:
    return CommitRecord(LOG, TERM, ME, copies, streams)


class Office:
    """A committer, its repository, and replicas that have whatever a test writes to them."""

    def __init__(self, record: CommitRecord) -> None:
        self.committer = Committer(record)
        self.now_ms = 0
        self.away: set[NodeId] = set()
        self.wiped: set[NodeId] = set()  # They have no replicas any more.
        self.lags: set[NodeId] = set()  # What they are told does not become durable.
        self.holds_answers: set[NodeId] = set()  # They do not answer yet.
        self.ends: dict[tuple[StreamId, NodeId], int] = {}
        self.versions: dict[NodeId, Version] = {}
        self.local_ends: dict[tuple[StreamId, NodeId], Lsn] = {}
        self.answers: list[object] = []
        self.commits: list[tuple[NodeId, Commit]] = []
        self.seals: list[StreamId] = []
        self.syncs: list[NodeId] = []
        self.written: list[CommitRecord] = []
        self.is_over = False
        self.holds_writes = False
        self.holds_syncs = False
        self.cannot_sync = False  # While its stream stands still.
        self.waiting: list[CommitRecord] = []
        self.perform(self.committer.live_changed(NODES, NODES, 0))
        self.perform(self.committer.begin(0))

    @property
    def record(self) -> CommitRecord:
        return self.committer.record

    # -- Replicas -------------------------------------------------------------------------------

    def write(self, stream: StreamId, count: int, *only: int) -> None:
        """Entries to the replicas, and their reports."""
        found = self.record.stream(stream)
        assert found is not None
        for node in found.replicas:
            if not only or node in only:
                self.ends[stream, node] = self.ends.get((stream, node), 1) + count
        for node in found.replicas:
            if node not in self.away:
                report = Report(LOG, TERM, node, self.reports(node))
                self.perform(self.committer.reported(TICKET, report, self.now_ms))

    def reports(self, node: NodeId) -> tuple[StreamReport, ...]:
        mine = [each for each in self.record.streams if node in each.replicas]
        return tuple(self._report(node, each) for each in mine)

    def _report(self, node: NodeId, stream: StreamRecord) -> StreamReport:
        local = self.local_ends.get((stream.stream, node), Lsn(1))
        end = self.ends.get((stream.stream, node), 1)
        version = self.versions.get(node, Version(0))
        return StreamReport(
            stream.stream, stream.generation, ReplicaState.OPEN, version, local, end - local
        )

    def _take(self, node: NodeId, commit: Commit) -> CommitTaken:
        if node in self.wiped:
            return CommitTaken(())
        if node in self.lags:
            return CommitTaken(self.reports(node))
        self.versions[node] = commit.version
        for stream in commit.streams:
            for each in stream.commits:
                self.local_ends[stream.stream, node] = each.local_end
        return CommitTaken(self.reports(node))

    # -- Carrying out ---------------------------------------------------------------------------

    def perform(self, effects: e.Effects) -> None:
        for effect in effects:
            match effect:
                case e.Answer(_, message):
                    self.answers.append(message)
                case e.Write(record):
                    self.waiting.append(record)
                    if not self.holds_writes:
                        self.finish_write()
                case e.AskCommit(node, commit):
                    self.commits.append((node, commit))
                    if node in self.holds_answers:
                        continue
                    answer = SILENCE if node in self.away else self._take(node, commit)
                    again = self.committer.answered(node, commit, answer, self.now_ms)
                    self.perform(again)
                case e.RunSeal(stream, plan):
                    self.seals.append(stream)
                    answers = {
                        node: SILENCE if node in self.away else self._seal(stream, node)
                        for node in (*plan.stream.replicas, *plan.joining)
                    }
                    sealed = answered(seal_replicas(plan), answers)
                    self.perform(self.committer.sealed(stream, sealed, self.now_ms))
                case e.RunJoin(stream, plan, waiting):
                    synced = SILENCE if self.cannot_sync else StreamSynced(plan.stream.local_end)
                    joined = answered(join_replicas(plan, waiting), {}, synced)
                    self.perform(self.committer.joined(stream, joined, self.now_ms))
                case e.RunOpen(stream, end):
                    for node in stream.replicas:
                        self.ends[stream.stream, node] = end
                        self.local_ends[stream.stream, node] = stream.local_end
                        self.versions[node] = self.record.version
                    reports = {node: self._report(node, stream) for node in stream.replicas}
                    opened = OpenedReplicas(reports, ())
                    self.perform(self.committer.opened(stream.stream, opened, self.now_ms))
                case e.RunSync(stream, destination):
                    self.syncs.append(destination)
                    if not self.holds_syncs:
                        self.finish_sync(stream.stream)
                case e.SetTimer():
                    pass
                case e.Over():
                    self.is_over = True

    def _seal(self, stream: StreamId, node: NodeId) -> StreamSealed:
        found = self.record.stream(stream)
        assert found is not None
        end = Lsn(self.ends.get((stream, node), 1))
        local_end = self.local_ends.get((stream, node), Lsn(1))
        version, generation = self.versions.get(node, Version(0)), Epoch(found.generation + 1)
        has_opened = node in found.replicas and node not in self.wiped
        opened = found.generation if has_opened else Epoch(0)
        return StreamSealed(generation, version, local_end, end, True, "", opened)

    def finish_sync(self, stream: StreamId, why_not: str = "") -> None:
        result = CannotReform(why_not) if why_not else StreamSynced(Lsn(1))
        self.perform(self.committer.synced(stream, result, self.now_ms))

    def finish_write(self, is_mine: bool = True) -> None:
        record = self.waiting.pop(0)
        self.written.append(record)
        self.perform(self.committer.written(is_mine, self.now_ms))

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        self.perform(self.committer.next(self.now_ms))


def answered(
    procedure: Procedure[Any], seals: Mapping[NodeId, Answer], synced: Answer = SILENCE
) -> Any:
    """What comes of it when all take what they are told."""

    def answer_to(ask: Ask) -> Answer:
        if isinstance(ask.message, Commit):
            return CommitTaken(())
        return synced if isinstance(ask.message, SyncStream) else seals[ask.node]

    return played(procedure, answer_to)


def replicas_of(office: Office, stream: StreamId = ONE) -> set[int]:
    found = office.record.stream(stream)
    assert found is not None
    return set(found.replicas)
