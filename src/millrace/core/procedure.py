"""How the core asks the world for something: procedures.

A procedure is a generator.  It yields an effect and is sent its answer; what it returns is its
result.  So a protocol with many steps reads from top to bottom, and is still pure: a driver with
sockets runs it in `runtime/procedures.py`, a driver with virtual time in `sim/`, and a text file in
`scenario/`.  A driver whose time for the operation is up throws DeadlinePassed into it.
"""

from collections.abc import Generator, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

import msgspec

from millrace.core.commit.record import CommitRecord
from millrace.core.documents.map import BucketRecord
from millrace.core.epochs import EpochRecord, NodesetChange
from millrace.core.messages import Message
from millrace.core.projection import Projection, ReconfigureReason
from millrace.types import Epoch, LogId, NodeId, NodeInfo

T = TypeVar("T")
Procedure = Generator["Effect", Any, T]


class DeadlinePassed(Exception):
    """Thrown into a procedure whose time is up."""


class FailureKind(Enum):
    """Why there is no answer.  The request may have been carried out in every case but the
    first three."""

    UNKNOWN_NODE = "unknown_node"
    CONNECT = "connect"
    CROWDED = "crowded"  # Our other requests took its time: says nothing against the node.
    LOST = "lost"
    TIMED_OUT = "timed_out"
    METADATA = "metadata"  # The repository does not answer.
    UNKNOWN_LOG = "unknown_log"  # The repository answers that there is no such log (any more).


_NOT_SENT = (FailureKind.UNKNOWN_NODE, FailureKind.CONNECT, FailureKind.CROWDED)


class Failure(msgspec.Struct, frozen=True):
    kind: FailureKind
    detail: str = ""

    @property
    def is_crowded(self) -> bool:
        """The node is not to blame: ask it again."""
        return self.kind is FailureKind.CROWDED

    @property
    def is_definite(self) -> bool:
        return self.kind in _NOT_SENT


Answer = Message | Failure


class Ask(msgspec.Struct, frozen=True):
    """One request; answered with an Answer."""

    node: NodeId
    message: Message
    timeout_ms: int = 0  # 0: the driver's default.


class AskAll(msgspec.Struct, frozen=True):
    """Requests in parallel; answered with a list of Answers in the same order."""

    asks: Sequence[Ask]


class Pause(msgspec.Struct, frozen=True):
    """Wait; the driver adds jitter, so that competing clients do not stay in step."""

    ms: int


class ReadProjection(msgspec.Struct, frozen=True):
    """From the repository; answered with (Projection | None, version) or a Failure."""

    log: LogId


class ReplaceProjection(msgspec.Struct, frozen=True):
    """Compare-and-set; answered with True, False (somebody else was first) or a Failure."""

    projection: Projection
    expected: int


class Refresh(msgspec.Struct, frozen=True):
    """Give me the repository's projection, noting that nodes are at `epoch`; answered with a
    Projection or a Failure."""

    log: LogId
    epoch: Epoch


class Reconfigure(msgspec.Struct, frozen=True):
    """Change the chain of `seen` because of `suspects`; answered with the Projection that
    stands afterwards, or a Failure.  The driver runs one at a time for each log."""

    seen: Projection
    suspects: frozenset[NodeId]
    reason: ReconfigureReason


class ReadEpochs(msgspec.Struct, frozen=True):
    """From the epoch store; answered with (EpochRecord | None, version) or a Failure."""

    log: LogId


class ReplaceEpochs(msgspec.Struct, frozen=True):
    """Compare-and-set; answered with True, False (somebody else was first) or a Failure."""

    record: EpochRecord
    expected: int


class ReadCommits(msgspec.Struct, frozen=True):
    """Of a commit log, from the repository; answered with (CommitRecord | None, version) or a
    Failure."""

    log: LogId


class ReplaceCommits(msgspec.Struct, frozen=True):
    """Compare-and-set; answered with the new version, 0 (somebody else was first) or a Failure."""

    record: CommitRecord
    expected: int


class ReadBucket(msgspec.Struct, frozen=True):
    """From the repository; answered with (BucketRecord | None, version) or a Failure."""

    name: str


class ReplaceBucket(msgspec.Struct, frozen=True):
    """Compare-and-set; answered with the new version, 0 (somebody else was first) or a Failure."""

    record: BucketRecord
    expected: int


class ReadNodesetChanges(msgspec.Struct, frozen=True):
    """All that the log's metadata log says; answered with a tuple of NodesetChange or a Failure."""

    log: LogId


class AppendNodesetChange(msgspec.Struct, frozen=True):
    """To the log's metadata log; answered with True, or a Failure: then it may be there or not."""

    log: LogId
    change: NodesetChange


class ReadStatuses(msgspec.Struct, frozen=True):
    """Answered with the AuthoritativeStatus of each node that has another than the usual one, or a
    Failure."""


class RenewRebuilds(msgspec.Struct, frozen=True):
    """Let all donors look again for what those of the nodes lack that are being rebuilt.  Answered
    as ReadStatuses, with what stands afterwards."""

    nodes: tuple[NodeId, ...]


class ListNodes(msgspec.Struct, frozen=True):
    """Answered with ClusterView or a Failure."""


class ClusterView(msgspec.Struct, frozen=True):
    """`lives` has a number for the present life of each that lives: another one after each start,
    and after each lease that ended.  Those that are `full` take no new blocks."""

    nodes: tuple[NodeInfo, ...]
    live: frozenset[NodeId]
    lives: Mapping[NodeId, int] = {}
    full: frozenset[NodeId] = frozenset()


class Note(msgspec.Struct, frozen=True):
    """Something worth a log line and a counter; answered with None at once."""

    event: str
    fields: dict[str, object]


Effect = (
    Ask
    | AskAll
    | Pause
    | ReadProjection
    | ReplaceProjection
    | Refresh
    | Reconfigure
    | ReadEpochs
    | ReplaceEpochs
    | ReadCommits
    | ReplaceCommits
    | ReadBucket
    | ReplaceBucket
    | ReadNodesetChanges
    | AppendNodesetChange
    | ReadStatuses
    | RenewRebuilds
    | ListNodes
    | Note
)


def ask(node: NodeId, message: Message, timeout_ms: int = 0) -> Procedure[Answer]:
    answer: Answer = yield Ask(node, message, timeout_ms)
    return answer


def ask_all(asks: Sequence[Ask]) -> Procedure[list[Answer]]:
    if not asks:
        return []
    answers: list[Answer] = yield AskAll(asks)
    return answers


def note(event: str, **fields: object) -> Procedure[None]:
    yield Note(event, fields)
