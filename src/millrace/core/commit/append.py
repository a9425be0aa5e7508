"""Appending one block to a commit log, as the client does it.

One request to the primary of a stream, which answers when the records have their place in the log.
A stream that fails is left for another one, but only by a block that is certainly not in it: what
became of a request without an answer is found out in a later generation of the same stream.

  I1  Acknowledged only when a primary said so, or a committed block of this token was found.
  I2  "Not appended" only when no stream can hold the block; else the outcome is unknown (L6).
  I3  While a stream may hold the block it is sent only to that stream, which knows the token: there
      is never a second copy.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from millrace.core.append import (
    Appended,
    AppendOutcome,
    AppendUnknown,
    NotAppended,
    NotAppendedReason,
)
from millrace.core.attempts import append_by_attempts
from millrace.core.commit.record import CommitRecord, StreamRecord
from millrace.core.commit.streams_known import StreamsKnown
from millrace.core.messages import (
    ActivateCommitter,
    AppendStream,
    AppendUnsettled,
    FindStreamToken,
    Refusal,
    Refused,
    StreamAppended,
    StreamTokenFound,
)
from millrace.core.procedure import (
    Answer,
    Ask,
    ClusterView,
    Failure,
    ListNodes,
    Procedure,
    ReadCommits,
    ask,
)
from millrace.core.sequenced.preferred import preferred_sequencers
from millrace.types import Ack, Block, Epoch, LogId, Lsn, StreamId

FIND_TIMEOUT_MS: Final = 2_000
ACTIVATE_TIMEOUT_MS: Final = 5_000
CANDIDATES_MAX: Final = 3
ATTEMPTS_MAX: Final = 1_000  # They fail at once while a stream is reformed: time is what counts.


class _Attempt(msgspec.Struct, frozen=True):
    """Where the block may be: it was sent to this stream in this generation, when all below `since`
    was committed."""

    stream: StreamId
    generation: Epoch
    since: Lsn


class CommitAppend:
    """One append; `run` is the procedure.  After an unknown outcome `run` may be called again: it
    goes on with the same token, so it never makes a second copy (L6)."""

    def __init__(
        self,
        block: Block,
        ack: Ack,
        known: StreamsKnown,
        now_ms: Callable[[], int],
        only: StreamId | None = None,
    ) -> None:
        self._log = block.log
        self._block = block
        self._ack = ack
        self._known = known
        self._now_ms = now_ms
        self._only = only
        self._open: _Attempt | None = None  # The stream that may hold the block (I3) ...
        self._searched = Lsn(0)  # ... but not below.
        self._is_forgotten = False  # The primary does not know whether it holds it.
        self._trouble = ""

    def run(self) -> Procedure[AppendOutcome]:
        return append_by_attempts(self._attempt, self._stop, "no stream serves", ATTEMPTS_MAX)

    def _stop(self, reason: NotAppendedReason, detail: str) -> AppendOutcome:
        return self._give_up(reason, f"{detail}{self._trouble}")

    def _attempt(self) -> Procedure[AppendOutcome | None]:
        """None: try again."""
        record = self._known.record(self._log, self._now_ms())
        if record is None:
            read = yield from self._read()
            if not isinstance(read, CommitRecord):
                return read
            record = read
        if record.is_sealed and self._open is None:
            return NotAppended(NotAppendedReason.SEALED, "the log is sealed")
        stream = self._choose(record)
        if stream is None:
            self._note("it has no stream that takes appends")
            self._known.doubt(self._log)
            yield from self._wake(record)
            return None
        if self._open is not None and (
            self._is_forgotten or self._open.generation < stream.generation
        ):
            outcome = yield from self._settle(stream, self._open)
            if outcome is not None or self._must_wait(stream):
                return outcome
        return (yield from self._send(record, stream))

    def _must_wait(self, stream: StreamRecord) -> bool:
        """Whether it is not known yet what became of it; otherwise it can be sent, again perhaps:
        the primary knows all that lies above what was searched."""
        if self._open is None:
            return False
        return self._is_forgotten or self._open.generation < stream.generation

    def _choose(self, record: CommitRecord) -> StreamRecord | None:
        """Keeps I3."""
        only = self._open.stream if self._open is not None else self._only
        found = None if only is None else record.stream(only)
        if self._open is not None or (found is not None and found.is_open):
            return found if found is not None and found.generation else None
        return self._known.choose(record, self._now_ms())

    def _send(self, record: CommitRecord, stream: StreamRecord) -> Procedure[AppendOutcome | None]:
        was_open = self._open
        generation = stream.generation if was_open is None else was_open.generation
        request = AppendStream(
            self._log,
            stream.stream,
            generation,
            self._block,
            self._ack,
            is_repeated=was_open is not None,
            searched=self._searched,
        )
        self._open = was_open or _Attempt(stream.stream, generation, stream.local_end)
        answer: Answer = yield Ask(stream.replicas[0], request)
        if isinstance(answer, StreamAppended):
            self._known.served(self._log, stream.stream)
            return Appended(answer.first, answer.last)
        is_refused = isinstance(answer, Refused)
        if is_refused or (isinstance(answer, Failure) and answer.is_definite):
            self._open = was_open  # This request was certainly not done.
        outcome = self._failed(stream, answer)
        if outcome is None and not (isinstance(answer, Failure) and answer.is_crowded):
            self._known.doubt(self._log)
            if not isinstance(answer, Refused) or answer.reason is Refusal.NOT_READY:
                yield from self._wake(
                    record
                )  # A node that lost its disk is noticed by nobody else.
        return outcome

    def _failed(self, stream: StreamRecord, answer: Answer) -> AppendOutcome | None:
        node = stream.replicas[0]
        match answer:
            case Failure() if answer.is_crowded:
                self._note(f"node {node}: {answer.detail}")
                return None
            case Failure():
                self._note(f"node {node}: {answer.kind.value} {answer.detail}")
            case Refused(reason, _, detail):
                self._note(f"node {node}: {reason.value} {detail}")
                final = _FINAL.get(reason)
                if final is not None:
                    return self._give_up(final, detail)
            case AppendUnsettled():
                self._note(f"node {node} cannot tell what became of it")
                self._is_forgotten = True
                return None
            case _:
                self._note(f"node {node}: unexpected {type(answer).__name__}")
        self._known.avoid(self._log, stream.stream, self._now_ms())
        return None

    # -- What became of it ----------------------------------------------------------------------

    def _settle(self, stream: StreamRecord, attempt: _Attempt) -> Procedure[AppendOutcome | None]:
        """Look for the block in the stream that may hold it.  If the generation is over, and it is
        not there, `_open` is None afterwards; in the same one it may still be on its way."""
        question = FindStreamToken(
            self._log, stream.stream, stream.generation, self._block.token, attempt.since
        )
        found = yield from ask(stream.replicas[0], question, FIND_TIMEOUT_MS)
        match found:
            case StreamTokenFound(_, 0, _, end):
                self._is_forgotten = False
                self._searched = end
                if stream.generation > attempt.generation:
                    self._open, self._searched = None, Lsn(0)
            case StreamTokenFound(_, count, first) if first:
                return Appended(first, Lsn(first + count - 1))
            case StreamTokenFound():
                self._note("it is stored, and not committed yet")
            case Refused(reason, _, detail):
                self._note(f"node {stream.replicas[0]}: {reason.value} {detail}")
                self._known.doubt(self._log)
            case _:
                self._note(f"node {stream.replicas[0]} does not say what became of it")
                self._known.doubt(self._log)
        return None

    def _give_up(self, reason: NotAppendedReason, detail: str) -> AppendOutcome:
        """Keeps I2."""
        if self._open is not None:
            return AppendUnknown(self._open.since, self._open.generation, detail)
        return NotAppended(reason, detail)

    def _note(self, trouble: str) -> None:
        self._trouble = f" ({trouble})"

    # -- The record and its committer -------------------------------------------------------------

    def _read(self) -> Procedure[CommitRecord | AppendOutcome | None]:
        read: tuple[CommitRecord | None, int] | Failure = yield ReadCommits(self._log)
        if isinstance(read, Failure):
            self._note(read.detail)
            return None
        if read[0] is None:
            # It holds nothing and never will, whatever was written (I2).
            detail = f"log {self._log} does not exist"
            return NotAppended(NotAppendedReason.UNKNOWN_LOG, detail)
        self._known.learn(read[0])
        return read[0]

    def _wake(self, record: CommitRecord) -> Procedure[None]:
        """Whoever is to reform the stream may have died, too: then somebody takes over."""
        yield from wake_committer(self._log, record, self._known)


_FINAL: Final = {
    Refusal.SEALED: NotAppendedReason.SEALED,
    Refusal.DISK_FULL: NotAppendedReason.DISK_FULL,
    Refusal.BAD_REQUEST: NotAppendedReason.REFUSED,
}


def wake_committer(log: LogId, record: CommitRecord, known: StreamsKnown) -> Procedure[None]:
    """Ask the committer whether it is one; if it does not answer, ask others to take over."""
    if record.committer and record.committer not in known.suspects(log):
        answer = yield from ask(record.committer, ActivateCommitter(log), ACTIVATE_TIMEOUT_MS)
        if not isinstance(answer, Failure | Refused):
            return
        known.suspect(log, record.committer)
    view: ClusterView | Failure = yield ListNodes()
    if isinstance(view, Failure):
        return
    suspects = known.suspects(log)
    candidates = preferred_sequencers(log, view.nodes, view.live)
    candidates.sort(key=lambda node: node in suspects)
    for node in candidates[:CANDIDATES_MAX]:
        answer = yield from ask(node, ActivateCommitter(log, suspects), ACTIVATE_TIMEOUT_MS)
        if not isinstance(answer, Failure | Refused):
            known.doubt(log)
            return
