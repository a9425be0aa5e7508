"""What a node says of a stream's entries as its store holds them: how many, how old, which blocks.

These are the questions that are asked about other logs, too, put with the stream's own log number;
positions are those of the stream.  They are for looking after a log (retention, verifying): readers
get positions of the commit log.

I1  A replica that is not whole answers none of them: what it lacks would be taken for trimmed.
"""

from millrace.core.commit.log_part import LogPart
from millrace.core.commit.record import stream_of
from millrace.core.effects import (
    AnswerCopies,
    AnswerDescribe,
    AnswerFind,
    NodeEffect,
    Reply,
    Ticket,
)
from millrace.core.messages import Copies, Describe, FindSize, FindTime, Refusal, Refused
from millrace.types import FIRST_LSN

StreamQuestion = FindTime | FindSize | Describe | Copies


def answer_about(part: LogPart | None, ticket: Ticket, question: StreamQuestion) -> NodeEffect:
    stream = stream_of(question.log)
    streams = () if part is None else part.streams
    replica = next((each for each in streams if each.stream_log == question.log), None)
    if replica is None:
        detail = f"no replica of stream {stream} is here"
        return Reply(ticket, Refused(Refusal.NOT_READY, detail=detail))
    if not replica.is_valid:  # Keeps I1.
        return Reply(ticket, replica.refused(Refusal.INCOMPLETE, replica.why))
    match question:
        case FindTime(log, _, timestamp_us):
            return AnswerFind(ticket, log, timestamp_us, None)
        case FindSize(log, _, bytes_kept):
            return AnswerFind(ticket, log, None, bytes_kept)
        case Describe(log):
            return AnswerDescribe(ticket, log, replica.generation, replica.local_end)
        case Copies(log, first, end):
            return AnswerCopies(ticket, log, first, end, FIRST_LSN)
