"""How what is said on a change stream's connection is written in scenario files.

There are few partitions, and in most files one, so they are named only where a machine has several.
Details, which are prose for people, are not shown.
"""

from typing import Final, assert_never

from millrace.core.documents.messages import (
    AllPartitions,
    Answered,
    BarrierReached,
    Changes,
    CloseStream,
    FailoverLogGot,
    Fetch,
    Fetched,
    GetFailoverLog,
    MarkerFlag,
    Noop,
    ProducerAnswer,
    ProducerPush,
    Repair,
    Repaired,
    SeqAdvanced,
    SnapshotMarker,
    StreamAnswered,
    StreamEnd,
    StreamFlag,
    StreamRequest,
    StreamStatus,
)
from millrace.scenario import document_words as dw

Question = GetFailoverLog | StreamRequest | CloseStream | Fetch | Repair
OfPartition = SnapshotMarker | Changes | SeqAdvanced | StreamEnd  # Pushes that concern one.
FLAGS: Final = {str(flag.name).lower().replace("_", "-"): flag for flag in StreamFlag}


def show_question(question: Question) -> str:
    match question:
        case GetFailoverLog():
            return "failover-log"
        case StreamRequest(start=start, id=id, snapshot_first=first, snapshot_last=last):
            shown = f"stream from {start} id {dw.show_id(id)}"
            is_within = first < start < last
            return f"{shown} in {dw.show_snapshot(first, last)}" if is_within else shown
        case CloseStream():
            return "close"
        case Fetch(keys=keys):
            return f"fetch {dw.show_keys(keys)}"
        case Repair(rollback=rollback, documents=documents):
            return f"repair above {rollback} {dw.show_changes(documents)}"
        case _:
            assert_never(question)


def show_answer(answer: ProducerAnswer | None) -> str:
    match answer:
        case FailoverLogGot(log=log, high=high, purged=purged):
            shown = f"failover-log {dw.show_log(log)} high {high}"
            return f"{shown} purged {purged}" if purged else shown
        case StreamAnswered(status=StreamStatus.OK):
            return "streaming"
        case StreamAnswered(status=StreamStatus.ROLLBACK, rollback=rollback):
            return f"roll back to {rollback}"
        case Answered(status=StreamStatus.OK):
            return "ok"
        case StreamAnswered(status=status) | Answered(status=status):
            return f"refused {status.name.lower()}"
        case Fetched(documents):
            return f"fetched {dw.show_changes(documents)}"
        case Repaired(keys):
            return f"repaired {dw.show_keys(keys)}"
        case None:
            return "nothing"
        case _:
            assert_never(answer)


def show_push(push: ProducerPush) -> str:
    match push:
        case SnapshotMarker(first=first, last=last, flags=flags):
            source = "disk" if flags & MarkerFlag.DISK else "memory"
            return f"snapshot {dw.show_snapshot(first, last)} {source}"
        case Changes(documents=documents):
            return f"changes {dw.show_changes(documents)}"
        case SeqAdvanced(seq=seq):
            return f"advanced {seq}"
        case StreamEnd(reason=reason):
            return f"end {reason.name.lower()}"
        case AllPartitions(cycle):
            return f"all-partitions {cycle}"
        case BarrierReached(cookie):
            return f"barrier-reached {cookie}"
        case Noop():
            return "noop"
        case _:
            assert_never(push)


def show_with_partition(push: ProducerPush) -> str:
    shown = show_push(push)
    return f"p{push.partition} {shown}" if isinstance(push, OfPartition) else shown


def join_changes(pushes: list[ProducerPush]) -> list[ProducerPush]:
    """Runs of changes become one message, however they were cut."""
    joined: list[ProducerPush] = []
    for push in pushes:
        match joined[-1] if joined else None, push:
            case Changes(_, before), Changes(number, more):
                joined[-1] = Changes(number, before + more)
            case _:
                joined.append(push)
    return joined
