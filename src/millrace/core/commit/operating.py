"""What operators ask of a committer: more streams, other replicas, an end, a trim point."""

from typing import Final

import msgspec

from millrace.core.commit import committer_effects as e
from millrace.core.commit.arithmetic import with_stream
from millrace.core.commit.committer import Change, Committer
from millrace.core.commit.record import STREAMS_MAX, CommitRecord, StreamRecord
from millrace.core.effects import Ticket
from millrace.core.messages import (
    AddStream,
    CommitsChanged,
    GiveUpStream,
    MoveReplica,
    Refusal,
    Refused,
    SealCommits,
    SetStreamOpen,
    TrimCommits,
)
from millrace.types import NO_NODE, Epoch, LogId, Lsn, NodeId, StreamId

Operation = AddStream | SetStreamOpen | GiveUpStream | MoveReplica | TrimCommits | SealCommits
NO_GENERATION: Final = Epoch(0)  # Of a stream that no replica has heard of: a reform makes it.


def operate(
    committer: Committer, ticket: Ticket, operation: Operation, now_ms: int
) -> list[e.CommitterEffect]:
    wrong = _complaint(committer, operation)
    if wrong:
        return [e.Answer(ticket, Refused(Refusal.BAD_REQUEST, committer.record.term, wrong))]
    done = CommitsChanged(committer.record.term, committer.record.high_watermark)
    match operation:
        case AddStream(log):
            change = _add(log, committer.choose_takers())
        case SetStreamOpen(_, stream, is_open):
            committer.care[stream].should_be_open = is_open
            return [e.Answer(ticket, done), *committer.next(now_ms)]
        case GiveUpStream(_, stream):
            committer.care[stream].gives_up = True
            committer.care[stream].retry_ms = 0
            return [e.Answer(ticket, done), *committer.next(now_ms)]
        case TrimCommits(_, end):
            change = _trim(end)
        case SealCommits():
            change = _seal
        case MoveReplica(_, stream, source, destination):
            care = committer.care[stream]
            if destination == NO_NODE:
                care.leaving |= {source}
            else:
                care.invite(destination, None if source == NO_NODE else source)
            return [e.Answer(ticket, done), *committer.next(now_ms)]
    return committer.change(ticket, change, done, now_ms)


def _complaint(committer: Committer, operation: Operation) -> str:
    record = committer.record
    if record.is_sealed and isinstance(operation, AddStream | SetStreamOpen):
        return "the log is sealed: its streams take no more appends"
    match operation:
        case AddStream():
            if len(record.streams) >= STREAMS_MAX:
                return f"a log has at most {STREAMS_MAX} streams"
            if len(committer.takers) < record.copies:
                return f"{record.copies} live nodes are needed; there are {len(committer.takers)}"
        case TrimCommits(_, end):
            if end > record.high_watermark + 1:
                return f"{end - 1} lies beyond the log's last position {record.high_watermark}"
        case SetStreamOpen(_, stream) | MoveReplica(_, stream) | GiveUpStream(_, stream):
            if record.stream(stream) is None:
                return f"there is no stream {stream}; there are {len(record.streams)}"
    return _complaint_about_move(committer, operation) if type(operation) is MoveReplica else ""


def _complaint_about_move(committer: Committer, move: MoveReplica) -> str:
    stream = committer.record.stream(move.stream)
    assert stream is not None
    if move.source != NO_NODE and move.source not in stream.replicas:
        return f"node {move.source} has no replica of stream {move.stream}"
    if move.destination in stream.replicas:
        return f"node {move.destination} has a replica of stream {move.stream} already"
    if move.destination != NO_NODE and move.destination not in committer.takers:
        return f"node {move.destination} is not alive, or takes no copies"
    if move.destination != NO_NODE and committer.care[move.stream].is_moving:
        return f"another node is being brought to stream {move.stream}: try again later"
    if move.destination == NO_NODE and stream.replicas == (move.source,):
        return "it is the only replica: bring it elsewhere first"
    return ""


def _add(log: LogId, nodes: tuple[NodeId, ...]) -> Change:
    def change(record: CommitRecord) -> CommitRecord:
        number = StreamId(1 + max((each.stream for each in record.streams), default=0))
        return with_stream(record, StreamRecord(number, NO_GENERATION, nodes))

    return change


def _trim(end: Lsn) -> Change:
    def change(record: CommitRecord) -> CommitRecord:
        return msgspec.structs.replace(record, trim_end=max(record.trim_end, end))

    return change


def _seal(record: CommitRecord) -> CommitRecord:
    return msgspec.structs.replace(record, is_sealed=True)
