"""A node in the hands of a test's process, and what that process tells whoever will kill it.

The node is the product's: core, shell and LMDB store.  What lies around it is played, in the same
process (`played_appends.py`, `played_learning.py`).  What the test must know is told through a
pipe, so that it is known whenever the process dies.

  I1  What is told is written in one piece: a life that ends leaves no half of it.
"""

import itertools
import os
import select
import sys
from collections.abc import Callable
from enum import Enum
from typing import Final

import msgspec

from millrace.core.commit.record import CommitRecord
from millrace.core.messages import Message
from millrace.server.shell import NodeShell, Release
from millrace.types import LogId, Lsn, StreamId
from tests.store.rig import NODE, LmdbRig

LOG: Final = LogId(9)
SESSION: Final = 1


class Task(Enum):
    APPEND = "append"
    APPEND_CONTEXT_FIRST = "append, context first"  # With a bug that a check must find.
    LEARN = "learn"


class Life(msgspec.Struct, frozen=True):
    """What a process is to do until it is killed."""

    number: int
    path: str
    task: Task
    record: CommitRecord


class Begun(msgspec.Struct, frozen=True, tag=True):
    process_id: int


class Decided(msgspec.Struct, frozen=True, tag=True):
    """The record is in the repository."""

    record: CommitRecord


class Acknowledged(msgspec.Struct, frozen=True, tag=True):
    """`values` begin at `first` of the log and at `local` of the stream."""

    stream: StreamId
    local: Lsn
    first: Lsn
    values: tuple[str, ...]


class Learned(msgspec.Struct, frozen=True, tag=True):
    """The replica is whole: it has all below `local_end`."""

    local_end: Lsn


class Over(msgspec.Struct, frozen=True, tag=True):
    """The process is dead."""


Told = Begun | Decided | Acknowledged | Learned | Over


def tell(told: Told) -> None:
    """Keeps I1."""
    line = msgspec.json.encode(told) + b"\n"
    assert len(line) <= select.PIPE_BUF, "a longer line may be cut off"
    os.write(sys.stdout.fileno(), line)


class PlayedNode:
    """The node, and who asks it."""

    def __init__(self, rig: LmdbRig) -> None:
        self._rig = rig
        self._requests = itertools.count(1)
        self._waiting: dict[int, Callable[[Message], None]] = {}  # By request.
        self._shell = NodeShell(rig.store, self, lambda order: None, me=NODE)

    # -- What the node says: this is its outbox -------------------------------------------------

    def answer(
        self, session: int, request: int, message: Message, release: Release | None = None
    ) -> None:
        self._waiting.pop(request)(message)

    def push(self, session: int, message: Message, release: Release | None = None) -> None:
        raise AssertionError("nobody reads")

    def is_writable(self, session: int) -> bool:
        return True

    def after_others(self, call: Callable[[], None]) -> None:
        self._rig.calls.put(call)

    # -- Asking it ------------------------------------------------------------------------------

    def _ask(self, request: Message, answered: Callable[[Message], None]) -> None:
        number = next(self._requests)
        self._waiting[number] = answered
        self._shell.handle(SESSION, number, request)

    def _answer_to(self, request: Message) -> Message:
        answers: list[Message] = []
        self._ask(request, answers.append)
        self._rig.run_until(lambda: bool(answers))
        return answers[0]
