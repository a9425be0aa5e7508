"""One log's committer on a node, from the claim of a term to its end.

I1  Whoever asks while a term is being claimed waits for the outcome; no more than WAITING_MAX do.
I2  A committer that lost its place is forgotten: the next request finds out who has it.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

import msgspec

from millrace.core.commit import committer_effects as e
from millrace.core.commit.claiming import Claimed, ClaimedByOther, Replaced, Written, claim, write
from millrace.core.commit.committer import Committer
from millrace.core.commit.operating import Operation, operate
from millrace.core.commit.record import StreamRecord
from millrace.core.commit.reform import (
    join_replicas,
    open_replicas,
    seal_replicas,
    sync_replica,
)
from millrace.core.effects import Ticket
from millrace.core.messages import (
    ActivateCommitter,
    Commit,
    CommitsDescribed,
    DescribeCommits,
    Message,
    Redirected,
    Refusal,
    Refused,
    Report,
)
from millrace.core.procedure import (
    Answer,
    ClusterView,
    DeadlinePassed,
    Failure,
    FailureKind,
    ListNodes,
    Procedure,
)
from millrace.core.projection import choose_chain
from millrace.server.needs import Surroundings
from millrace.server.probing import probe
from millrace.types import LogId, Lsn, NodeId, StreamId

WAITING_MAX: Final = 1_024
CLAIM_TIMEOUT_MS: Final = 10_000
WRITE_TIMEOUT_MS: Final = 10_000
SEAL_TIMEOUT_MS: Final = 30_000
SYNC_TIMEOUT_MS: Final = 600_000
OPEN_TIMEOUT_MS: Final = 5_000
LOOK_MS: Final = 1_000  # How often it looks who is alive.

T = TypeVar("T")
CommitterRequest = Report | ActivateCommitter | DescribeCommits | Operation


class HostedCommitter:
    """One log's committer, or the attempt to become it."""

    def __init__(
        self,
        log: LogId,
        me: NodeId,
        surroundings: Surroundings,
        forget: Callable[["HostedCommitter"], None],
    ) -> None:
        self.log = log
        self._me = me
        self._around = surroundings
        self._forget = forget
        self._committer: Committer | None = None
        self._version = 0  # The repository's, of the record.
        self._is_claiming = False
        self._waiting: list[tuple[Ticket, CommitterRequest]] = []
        self._timer_due_ms: int | None = None

    @property
    def is_active(self) -> bool:
        return self._committer is not None

    def handle(self, ticket: Ticket, request: CommitterRequest) -> None:
        if self._committer is not None:
            self._serve(self._committer, ticket, request)
            return
        if len(self._waiting) >= WAITING_MAX:  # Keeps I1.
            busy = Refused(Refusal.BUSY, detail="many wait for this log's committer already")
            self._around.answer(ticket, busy)
            return
        self._waiting.append((ticket, request))
        if not self._is_claiming:
            suspects = request.suspects if isinstance(request, ActivateCommitter) else ()
            self._begin(tuple(node for node in suspects if node != self._me))

    def _serve(self, committer: Committer, ticket: Ticket, request: CommitterRequest) -> None:
        now_ms = self._around.now_ms()
        match request:
            case Report():
                self._perform(committer.reported(ticket, request, now_ms))
            case ActivateCommitter():
                self._around.answer(ticket, Redirected(self._me, committer.record.term))
                self._perform(committer.doubted(now_ms))
            case DescribeCommits():
                explanation = msgspec.json.encode(committer.explain(now_ms)).decode()
                answer = CommitsDescribed(committer.record.term, explanation)
                self._around.answer(ticket, answer)
            case _:
                self._perform(operate(committer, ticket, request, now_ms))

    # -- Claiming -----------------------------------------------------------------------------

    def _begin(self, suspects: tuple[NodeId, ...]) -> None:
        """Look whether those whom somebody could not reach are really away."""
        self._is_claiming = True
        probe(self._around, suspects, ActivateCommitter(self.log), (Redirected,), self._claim)

    def _claim(self, suspects: tuple[NodeId, ...]) -> None:
        self._around.run(claim(self.log, self._me, suspects), CLAIM_TIMEOUT_MS, self._claimed)

    def _claimed(self, result: Claimed | ClaimedByOther | Failure) -> None:
        self._is_claiming = False
        waiting, self._waiting = self._waiting, []
        if isinstance(result, Claimed):
            self._committer = committer = Committer(result.record)
            self._version = result.version
            self._look(committer)
            self._perform(committer.begin(self._around.now_ms()))
            for ticket, request in waiting:
                self.handle(ticket, request)
            return
        answer: Message
        if isinstance(result, ClaimedByOther):
            answer = Redirected(result.node, result.term)
        else:
            detail = f"no term could be claimed: {result.detail}"
            answer = Refused(Refusal.NOT_READY, detail=detail)
        for ticket, _ in waiting:
            self._around.answer(ticket, answer)
        self._forget(self)

    # -- Who is alive -------------------------------------------------------------------------

    def _look(self, committer: Committer) -> None:
        if committer is self._committer:
            seen = partial(self._looked, committer)
            self._around.run(_view(), LOOK_MS, seen)

    def _looked(self, committer: Committer, view: ClusterView | Failure) -> None:
        if committer is not self._committer:
            return
        if isinstance(view, ClusterView):
            count = len(view.nodes)
            takers = choose_chain(self.log, count, view.nodes, view.live)
            disabled = self._around.disabled()
            well = [node for node in takers if node not in disabled]
            now_ms = self._around.now_ms()
            self._perform(committer.live_changed(view.live, well, now_ms, disabled))
        self._around.later(LOOK_MS, partial(self._look, committer))

    # -- Carrying out -------------------------------------------------------------------------

    def _perform(self, effects: e.Effects) -> None:
        for effect in effects:
            match effect:
                case e.Answer(ticket, message):
                    self._around.answer(ticket, message)
                case e.AskCommit(node, commit, timeout_ms):
                    done = partial(self._answered, self._committer, node, commit)
                    self._around.ask(node, commit, timeout_ms, done)
                case e.Write(record):
                    written = partial(self._written, self._committer)
                    self._around.run(write(record, self._version), WRITE_TIMEOUT_MS, written)
                case e.RunSeal(stream, plan):
                    self._run(seal_replicas(plan), SEAL_TIMEOUT_MS, Committer.sealed, stream)
                case e.RunJoin(stream, plan, sealed):
                    self._run(
                        join_replicas(plan, sealed), SEAL_TIMEOUT_MS, Committer.joined, stream
                    )
                case e.RunOpen(record, end):
                    self._open(record, end)
                case e.RunSync(record, destination):
                    syncing = sync_replica(self.log, record, destination)
                    self._run(syncing, SYNC_TIMEOUT_MS, Committer.synced, record.stream)
                case e.SetTimer(ms):
                    self._set_timer(ms)
                case e.Over():
                    self._end()

    def _open(self, record: StreamRecord, end: Lsn) -> None:
        opening = open_replicas(self.log, record, end)
        self._run(opening, OPEN_TIMEOUT_MS, Committer.opened, record.stream)

    def _run(
        self,
        procedure: Procedure[T],
        timeout_ms: int,
        tell: Callable[[Committer, StreamId, T, int], e.Effects],
        stream: StreamId,
    ) -> None:
        committer = self._committer

        def done(result: T) -> None:
            if committer is not None and committer is self._committer:
                self._perform(tell(committer, stream, result, self._around.now_ms()))

        self._around.run(procedure, timeout_ms, done)

    def _answered(
        self, committer: Committer | None, node: NodeId, commit: Commit, answer: Answer
    ) -> None:
        if committer is not None and committer is self._committer:
            self._perform(committer.answered(node, commit, answer, self._around.now_ms()))

    def _written(self, committer: Committer | None, result: Written | Replaced | Failure) -> None:
        if committer is None or committer is not self._committer:
            return
        if isinstance(result, Written):
            self._version = result.version
        is_mine = isinstance(result, Written)
        self._perform(committer.written(is_mine, self._around.now_ms()))

    def _set_timer(self, ms: int) -> None:
        due_ms = self._around.now_ms() + ms
        if self._timer_due_ms is not None and self._timer_due_ms <= due_ms:
            return  # One that fires earlier is set already, and sets the next one.
        self._timer_due_ms = due_ms
        self._around.later(ms, partial(self._timer_fired, self._committer, due_ms))

    def _timer_fired(self, committer: Committer | None, due_ms: int) -> None:
        if self._timer_due_ms == due_ms:
            self._timer_due_ms = None
        if committer is not None and committer is self._committer:
            self._perform(committer.next(self._around.now_ms()))

    # -- Ending -------------------------------------------------------------------------------

    def _end(self) -> None:
        """Keeps I2."""
        self.close()
        self._forget(self)

    def close(self) -> None:
        committer, self._committer = self._committer, None
        if committer is not None:
            for effect in committer.close():
                if isinstance(effect, e.Answer):
                    self._around.answer(effect.ticket, effect.message)
        waiting, self._waiting = self._waiting, []
        gone = Refused(Refusal.NOT_READY, detail="this node does not commit the log any more")
        for ticket, _ in waiting:
            self._around.answer(ticket, gone)

    def explain(self) -> dict[str, object]:
        if self._committer is None:
            return {"state": "claiming" if self._is_claiming else "none"}
        return self._committer.explain(self._around.now_ms())


def _view() -> Procedure[ClusterView | Failure]:
    try:
        view: ClusterView | Failure = yield ListNodes()
    except DeadlinePassed:
        return Failure(FailureKind.TIMED_OUT, "the repository does not list the nodes in time")
    return view
