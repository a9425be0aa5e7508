"""The commit logs that a node has replicas of: finding the one that something is about, and telling
readers when more of it can be read.

I1  State is kept only of logs of which there is a replica here.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import count

from millrace.core.commit.log_part import STORING, LogPart, nothing_taken
from millrace.core.commit.looking import StreamQuestion, answer_about
from millrace.core.commit.primary import Place
from millrace.core.commit.record import is_stream_log, log_of_stream, stream_of
from millrace.core.commit.replica import StreamReplica
from millrace.core.commit.source import CommitSource
from millrace.core.commit.stream_part import OpenLog, StreamRequest
from millrace.core.effects import (
    AskCommitter,
    AskReplicate,
    NodeEffect,
    Reply,
    SetStreamTimer,
    Settle,
    Ticket,
)
from millrace.core.messages import Commit, Refusal, Refused
from millrace.core.procedure import Answer
from millrace.core.send_streams import SendStreams
from millrace.types import LogId, Lsn, NodeId


class CommitLogs:
    def __init__(self, open_log: OpenLog, me: NodeId, place: Place, readers: SendStreams) -> None:
        self._open_log = open_log
        self._me = me
        self._place = place
        self._readers = readers
        self._parts: dict[LogId, LogPart] = {}
        self._numbers = count(1)

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[LogPart]:
        return iter(self._parts.values())

    def source(self, log: LogId) -> CommitSource | None:
        part = self._parts.get(log)
        return None if part is None else part.source

    def refusals(self) -> Counter[str]:
        """What the replicas that are here did not take, by kind and reason."""
        found = Counter[str]()
        for part in self._parts.values():
            for replica in part.streams:
                found.update(replica.counts.refusals())
        return found

    def replicas(self, log: LogId) -> tuple[StreamReplica, ...]:
        part = self._parts.get(log)
        return () if part is None else part.streams

    def has(self, log: LogId) -> bool:
        """Whether it is one of these, or the log of a stream of one."""
        return is_stream_log(log) or log in self._parts

    def find(self, logs: Iterable[LogId]) -> list[NodeEffect]:
        """At start: which of the logs that the store holds are streams."""
        for log in logs:
            if is_stream_log(log):
                part = self._parts.setdefault(log_of_stream(log), self._new(log_of_stream(log)))
                part.adopt(stream_of(log))
        return [effect for part in self._parts.values() for effect in part.look()]

    # -- Requests -----------------------------------------------------------------------------

    def step(
        self, ticket: Ticket, request: StreamRequest, refuse_writes: Refusal | None
    ) -> list[NodeEffect]:
        part = self._parts.get(request.log) or self._new(request.log)
        if isinstance(request, STORING):  # The hot case: readers get nothing by it yet.
            return part.step(ticket, request, refuse_writes)
        before = _reach(part)
        effects = part.step(ticket, request, refuse_writes)
        return [*effects, *self._after(part, before)]

    def commit(self, ticket: Ticket, commit: Commit) -> list[NodeEffect]:
        part = self._parts.get(commit.log)
        if part is None:
            return [Reply(ticket, nothing_taken(commit))]
        before = _reach(part)
        effects = part.commit(ticket, commit)
        return [*effects, *self._after(part, before)]

    def look_at(self, ticket: Ticket, question: StreamQuestion) -> list[NodeEffect]:
        """What the store holds of a stream, asked for by the stream's own log number."""
        part = self._parts.get(log_of_stream(question.log))
        return [answer_about(part, ticket, question)]

    def drop(self, log: LogId) -> list[NodeEffect]:
        """The log was deleted."""
        part = self._parts.get(log)
        if part is None:
            return []
        effects = part.drop()
        return [*effects, *self._after(part, None)]

    # -- The store ----------------------------------------------------------------------------

    def settled(self, settle: Settle) -> list[NodeEffect]:
        part = self._parts.get(self._log_of(settle.log))
        if part is None:
            return [Reply(settle.ticket, settle.message)]
        if not is_stream_log(settle.log):
            return part.commit_settled(settle)
        return part.settled(stream_of(settle.log), settle)

    def store_failed(self, settle: Settle, refused: Refused) -> list[NodeEffect]:
        part = self._parts.get(self._log_of(settle.log))
        if part is None or not is_stream_log(settle.log):
            return [Reply(settle.ticket, refused)]
        before = _reach(part)
        effects = part.store_failed(stream_of(settle.log), settle, refused)
        return [*effects, *self._after(part, before)]

    def dirtied(self, stream_log: LogId) -> list[NodeEffect]:
        part = self._parts.get(log_of_stream(stream_log))
        if part is None:
            return []
        before = _reach(part)
        effects = part.dirtied(stream_of(stream_log))
        return [*effects, *self._after(part, before)]

    # -- Other nodes --------------------------------------------------------------------------

    def replicated(self, order: AskReplicate, answer: Answer) -> list[NodeEffect]:
        part = self._parts.get(log_of_stream(order.log))
        return [] if part is None else part.replicated(stream_of(order.log), order, answer)

    def reported(self, order: AskCommitter, answer: Answer) -> list[NodeEffect]:
        part = self._parts.get(order.log)
        if part is None:
            return []
        before = _reach(part)
        effects = part.reported(order, answer)
        return [*effects, *self._after(part, before)]

    def report_due(self, log: LogId) -> list[NodeEffect]:
        part = self._parts.get(log)
        return [] if part is None else part.report_due()

    def timer_fired(self, timer: SetStreamTimer) -> list[NodeEffect]:
        part = self._parts.get(self._log_of(timer.log))
        if part is None:
            return []
        if is_stream_log(timer.log):
            return part.feed_timer_fired(stream_of(timer.log), timer)
        return part.report_timer_fired(timer)

    # -- Keeping ------------------------------------------------------------------------------

    def _log_of(self, log: LogId) -> LogId:
        return log_of_stream(log) if is_stream_log(log) else log

    def _new(self, log: LogId) -> LogPart:
        return LogPart(log, self._open_log, self._me, self._place, self._numbers)

    def _after(self, part: LogPart, before: tuple[Lsn, Lsn] | None) -> list[NodeEffect]:
        """Serve readers; keeps I1."""
        if part.is_empty:
            self._parts.pop(part.log, None)
            return self._readers.fenced(part.source, detail="no replica of the log is here")
        self._parts[part.log] = part
        return [] if _reach(part) == before else self._readers.advanced(part.source)


def _reach(part: LogPart) -> tuple[Lsn, Lsn]:
    return part.source.readable_end, part.source.trim_end
