"""A node's part in one commit log: its replicas, what it reports of them, what readers get.

I1  Clients are answered when a Commit comes: the record has it, and the entries are safe.  What is
    new in it becomes durable with the entries that come next, and is reported then (replica.py,
    I4).  If none may come, or many commits wait like this, the Commit is made durable by itself and
    answered afterwards: nothing else would tell the committer.
I2  Whatever changes what a replica reports is reported.
I3  A replica is dropped when the committer, having heard which generation it is of, does not know
    it: one that was made since is another matter.
"""

from collections.abc import Iterator

from millrace.core.commit.primary import Place
from millrace.core.commit.record import stream_log_of
from millrace.core.commit.replica import ACCEPTED, StreamReplica
from millrace.core.commit.reporter import Reporter, strangers
from millrace.core.commit.source import CommitSource
from millrace.core.commit.stream_part import OpenLog, StreamPart, StreamRequest
from millrace.core.effects import (
    AskCommitter,
    AskReplicate,
    DropLog,
    NodeEffect,
    Reply,
    ReportSoon,
    SetStreamTimer,
    Settle,
    Ticket,
)
from millrace.core.messages import (
    AppendStream,
    Commit,
    CommitTaken,
    CommitVerdict,
    Dropped,
    OpenStream,
    Refusal,
    Refused,
    RefusedCommit,
    ReplicaState,
    RetireStream,
    SealStream,
    StreamBlock,
    StreamReport,
)
from millrace.core.procedure import Answer
from millrace.types import Ack, LogId, NodeId, StreamId

STORING = (StreamBlock, AppendStream)  # They change what is reported when they are safe.


class LogPart:
    def __init__(
        self, log: LogId, open_log: OpenLog, me: NodeId, place: Place, numbers: Iterator[int]
    ) -> None:
        self.log = log
        self._open_log = open_log
        self._me = me
        self._place = place
        self._parts: dict[StreamId, StreamPart] = {}
        self._replicas: dict[StreamId, StreamReplica] = {}
        self.source = CommitSource(log, self._replicas)
        self._reporter = Reporter(log, me)
        self._numbers = numbers  # Of settles, of the whole node.
        self._is_report_due = False

    @property
    def is_empty(self) -> bool:
        return not self._parts

    @property
    def streams(self) -> tuple[StreamReplica, ...]:
        return tuple(self._replicas.values())

    def adopt(self, stream: StreamId) -> StreamPart:
        """There is a replica here, as the store says, or a new one."""
        stream_log = stream_log_of(self.log, stream)
        part = StreamPart(stream_log, self._open_log, self._me, self._place, self._numbers)
        self._parts[stream] = part
        self._replicas[stream] = part.replica
        return part

    def reports(self) -> tuple[StreamReport, ...]:
        return tuple(each.report() for each in self._replicas.values())

    def look(self) -> list[NodeEffect]:
        """Keeps I2."""
        return self._reporter.look(self.reports())

    def _look_soon(self) -> list[NodeEffect]:
        """Keeps I2.  A store makes many blocks safe at one moment: one report tells of them all,
        where the first would otherwise hold up the others until it is answered."""
        if self._is_report_due:
            return []
        self._is_report_due = True
        return [ReportSoon(self.log)]

    def report_due(self) -> list[NodeEffect]:
        self._is_report_due = False
        return self.look()

    # -- Requests -----------------------------------------------------------------------------

    def step(
        self, ticket: Ticket, request: StreamRequest, refuse_writes: Refusal | None
    ) -> list[NodeEffect]:
        part = self._parts.get(request.stream)
        if part is None:
            if not isinstance(request, SealStream | OpenStream):
                return _without_replica(ticket, request)
            part = self.adopt(request.stream)
        part.replica.refuse_writes = refuse_writes
        effects = part.step(ticket, request)
        if isinstance(request, RetireStream) and request.generation >= part.replica.generation:
            return [*effects, *self._drop(request.stream, ticket)]
        return effects if isinstance(request, STORING) else [*effects, *self.look()]

    def commit(self, ticket: Ticket, commit: Commit) -> list[NodeEffect]:
        if not self._reporter.heard(commit.committer, commit.term):
            detail = f"node {self._reporter.committer} is the committer"
            return [Reply(ticket, Refused(Refusal.EPOCH, self._reporter.term, detail))]
        number = next(self._numbers)
        effects, stored = list[NodeEffect](), list[NodeEffect]()
        acks: set[Ack] = set()
        can_wait = True
        refused: list[RefusedCommit] = []
        self._leave_out(commit)
        marks = commit.version, commit.high_watermark, commit.trim_end
        for told in commit.streams:
            part = self._parts.get(told.stream)
            if part is None:
                refused.append(RefusedCommit(told.stream, CommitVerdict.NO_REPLICA))
                continue
            ordered, fresh, verdict = part.replica.commit(told, *marks, number, commit.first)
            if verdict not in ACCEPTED:
                refused.append(RefusedCommit(told.stream, verdict))
            stored += ordered
            effects += part.primary.committed(fresh)
            acks |= {part.replica.ack_of(fresh)} if fresh else set()
            can_wait &= part.replica.can_wait or not fresh
        ack = Ack.DISK if Ack.DISK in acks else Ack.MEMORY
        if not acks or (can_wait and ack is Ack.DISK):
            return [*effects, *stored, Reply(ticket, self._taken(tuple(refused)))]
        taken = CommitTaken((), tuple(refused))
        return [*effects, *stored, Settle(self.log, number, ack, ticket, taken)]  # Keeps I1.

    def _leave_out(self, commit: Commit) -> None:
        """The committer speaks to replicas of its record: the others here hold nobody up."""
        told = {each.stream for each in commit.streams}
        for replica in self._replicas.values():
            is_open = replica.state is ReplicaState.OPEN
            replica.is_left_out = replica.stream not in told and not is_open
            replica.is_disowned &= replica.stream not in told and is_open

    def _taken(self, refused: tuple[RefusedCommit, ...]) -> CommitTaken:
        reports = self.reports()
        self._reporter.told(reports)
        return CommitTaken(reports, refused)

    # -- The store ----------------------------------------------------------------------------

    def commit_settled(self, settle: Settle) -> list[NodeEffect]:
        self._commits_settled(settle.number)
        assert isinstance(settle.message, CommitTaken), "nothing else settles for a whole log"
        return [Reply(settle.ticket, self._taken(settle.message.refused))]

    def _commits_settled(self, number: int) -> None:
        for replica in self._replicas.values():
            replica.commits_settled(number)

    def settled(self, stream: StreamId, settle: Settle) -> list[NodeEffect]:
        if settle.ack is Ack.DISK:  # Commits that were taken before it are durable, too.
            self._commits_settled(settle.number)
        part = self._parts.get(stream)
        if part is None:
            return [Reply(settle.ticket, settle.message)]
        return [*part.settled(settle), *self._look_soon()]

    def store_failed(self, stream: StreamId, settle: Settle, refused: Refused) -> list[NodeEffect]:
        part = self._parts.get(stream)
        if part is None:
            return [Reply(settle.ticket, refused)]
        return [*part.store_failed(settle, refused), *self.look()]

    def dirtied(self, stream: StreamId) -> list[NodeEffect]:
        part = self._parts.get(stream)
        return [] if part is None else [*part.dirtied(), *self.look()]

    # -- Other nodes --------------------------------------------------------------------------

    def replicated(self, stream: StreamId, order: AskReplicate, answer: Answer) -> list[NodeEffect]:
        part = self._parts.get(stream)
        if part is None:
            return []
        return [*part.primary.replicated(order, answer), *self.look()]

    def feed_timer_fired(self, stream: StreamId, timer: SetStreamTimer) -> list[NodeEffect]:
        part = self._parts.get(stream)
        return [] if part is None else part.primary.resume(timer.node)

    def report_timer_fired(self, timer: SetStreamTimer) -> list[NodeEffect]:
        return self._reporter.timer_fired(timer.number, self.reports())

    def reported(self, order: AskCommitter, answer: Answer) -> list[NodeEffect]:
        effects: list[NodeEffect] = []
        for each in strangers(order, answer):
            replica = self._replicas.get(each.stream)
            if replica is None or replica.generation != each.generation:
                continue
            if replica.state is ReplicaState.OPEN:
                # The committer may have been replaced and not know it, so the replica stays; but
                # nobody waits for what it may never hear of.
                replica.is_disowned = True
            else:  # Keeps I3.
                effects += self._parts[each.stream].primary.abandon()
                effects += self._drop(each.stream)
        return [*effects, *self._reporter.answered(order, answer, self.reports())]

    # -- Ending -------------------------------------------------------------------------------

    def drop(self) -> list[NodeEffect]:
        """The log was deleted."""
        effects: list[NodeEffect] = []
        for stream in list(self._parts):
            effects += self._parts[stream].primary.abandon()
            effects += self._drop(stream)
        return effects

    def _drop(self, stream: StreamId, ticket: Ticket | None = None) -> list[NodeEffect]:
        del self._parts[stream], self._replicas[stream]
        stream_log = stream_log_of(self.log, stream)
        dropping: list[NodeEffect] = [DropLog(stream_log)]
        if ticket is not None:
            dropping.append(Settle(stream_log, 0, Ack.DISK, ticket, Dropped()))
        return dropping


def nothing_taken(commit: Commit) -> CommitTaken:
    """By a node that has no replica of the log."""
    streams = (each.stream for each in commit.streams)
    return CommitTaken((), tuple(RefusedCommit(each, CommitVerdict.NO_REPLICA) for each in streams))


def _without_replica(ticket: Ticket, request: StreamRequest) -> list[NodeEffect]:
    if isinstance(request, RetireStream):
        return [Reply(ticket, Dropped())]
    detail = f"there is no replica of stream {request.stream} here"
    return [Reply(ticket, Refused(Refusal.NOT_READY, detail=detail))]
