"""What a committer orders of its shell."""

import msgspec

from millrace.core.commit.record import CommitRecord, StreamRecord
from millrace.core.commit.reform import ReformPlan, SealedReplicas
from millrace.core.effects import Ticket
from millrace.core.messages import Commit, Message
from millrace.types import Lsn, NodeId, StreamId


class Write(msgspec.Struct, frozen=True):
    """Compare-and-set of the record; told with `Committer.written`."""

    record: CommitRecord


class AskCommit(msgspec.Struct, frozen=True):
    """Told with `Committer.answered`."""

    node: NodeId
    commit: Commit
    timeout_ms: int


class RunSeal(msgspec.Struct, frozen=True):
    """`reform.seal_replicas`; told with `Committer.sealed`."""

    stream: StreamId
    plan: ReformPlan


class RunJoin(msgspec.Struct, frozen=True):
    """`reform.join_replicas`; told with `Committer.joined`."""

    stream: StreamId
    plan: ReformPlan
    sealed: SealedReplicas


class RunSync(msgspec.Struct, frozen=True):
    """`reform.sync_replica`; told with `Committer.synced`."""

    stream: StreamRecord
    destination: NodeId


class RunOpen(msgspec.Struct, frozen=True):
    """`reform.open_replicas`; told with `Committer.opened`."""

    stream: StreamRecord
    end: Lsn


class Answer(msgspec.Struct, frozen=True):
    ticket: Ticket
    message: Message


class SetTimer(msgspec.Struct, frozen=True):
    """`Committer.time_passed` is due; the newest one counts, an earlier one may still fire."""

    ms: int


class Over(msgspec.Struct, frozen=True):
    """This node is the committer no more."""


CommitterEffect = (
    Write | AskCommit | RunSeal | RunJoin | RunSync | RunOpen | Answer | SetTimer | Over
)
Effects = list[CommitterEffect]
