"""A node's part in one stream: its replica, what it does as primary, what it learns.

I1  Appends that wait here are answered when the replica cannot tell any more what becomes of them.
"""

from collections.abc import Callable, Iterator

from millrace.core.commit.learning import Learning
from millrace.core.commit.primary import Place, Primary
from millrace.core.commit.replica import NO_TICKET, StreamReplica
from millrace.core.effects import (
    AnswerPage,
    AnswerStreamToken,
    NodeEffect,
    Reply,
    RunSync,
    Settle,
    Ticket,
)
from millrace.core.log_state import LogState
from millrace.core.messages import (
    AppendStream,
    FetchStream,
    FindStreamToken,
    OpenStream,
    Refusal,
    Refused,
    ReplicaState,
    RetireStream,
    SealStream,
    StreamBlock,
    SyncInit,
    SyncReplicate,
    SyncStream,
)
from millrace.types import FIRST_LSN, LogId, NodeId

StreamRequest = (
    StreamBlock
    | AppendStream
    | SealStream
    | OpenStream
    | SyncInit
    | SyncReplicate
    | SyncStream
    | FetchStream
    | FindStreamToken
    | RetireStream
)

OpenLog = Callable[[LogId], LogState | None]


class StreamPart:
    def __init__(
        self,
        stream_log: LogId,
        open_log: OpenLog,
        me: NodeId,
        place: Place,
        numbers: Iterator[int],
    ) -> None:
        """`open_log` tells what the store holds of a log now."""
        self._open_log = open_log
        self._me = me
        self.replica = StreamReplica(stream_log, open_log(stream_log), me, numbers)
        self.primary = Primary(self.replica, place)
        self._learning = Learning(self.replica)

    def step(self, ticket: Ticket, request: StreamRequest) -> list[NodeEffect]:
        match request:
            case StreamBlock():
                return self.replica.take(ticket, request)
            case AppendStream():
                return self.primary.append(ticket, request)
            case SealStream():
                return self._seal(ticket, request)
            case OpenStream():
                return self._open(ticket, request)
            case SyncInit():
                return self._learning.begin(ticket, request, self._stored())
            case SyncReplicate():
                return self._learning.take(ticket, request)
            case SyncStream():
                return self._be_source(ticket, request)
            case FetchStream():
                return self._fetch(ticket, request)
            case FindStreamToken():
                return self._find(ticket, request)
            case RetireStream():
                return self._retire(ticket, request)

    # -- Generations --------------------------------------------------------------------------

    def _seal(self, ticket: Ticket, request: SealStream) -> list[NodeEffect]:
        before = self.replica.generation
        effects = self.replica.seal(ticket, request)
        if self.replica.generation != before:
            self.primary.sealed()
        return effects

    def _open(self, ticket: Ticket, request: OpenStream) -> list[NodeEffect]:
        before = self.replica.opened
        effects = self.replica.open(ticket, request)
        if self.replica.opened == before:
            return effects
        return [*effects, *self.primary.opened(request.end)]

    def _retire(self, ticket: Ticket, request: RetireStream) -> list[NodeEffect]:
        """Refuses, or says what to do beside dropping the replica."""
        if request.generation < self.replica.generation:
            detail = f"sealed for generation {self.replica.generation}"
            return [Reply(ticket, self.replica.refused(Refusal.EPOCH, detail))]
        return self.primary.abandon()

    # -- Reading ------------------------------------------------------------------------------

    def _fetch(self, ticket: Ticket, request: FetchStream) -> list[NodeEffect]:
        replica = self.replica
        if not replica.is_valid:
            return [Reply(ticket, replica.refused(Refusal.INCOMPLETE, replica.why))]
        high = replica.local_end
        end = min(request.end, high)
        log, bytes_max = replica.stream_log, request.bytes_max
        return [AnswerPage(ticket, log, request.first, end, bytes_max, high)]

    def _find(self, ticket: Ticket, request: FindStreamToken) -> list[NodeEffect]:
        replica = self.replica
        if request.generation > replica.generation or replica.state is not ReplicaState.OPEN:
            detail = f"generation {replica.generation} is {replica.state.value} here"
            return [Reply(ticket, replica.refused(Refusal.NOT_READY, detail))]
        end = replica.entries.end
        return [AnswerStreamToken(ticket, replica.stream_log, request.token, request.since, end)]

    def _be_source(self, ticket: Ticket, request: SyncStream) -> list[NodeEffect]:
        replica = self.replica
        if not replica.is_member:
            detail = f"it is no source: {replica.state.value} {replica.why}"
            return [Reply(ticket, replica.refused(Refusal.INCOMPLETE, detail))]
        if request.generation < replica.generation:
            detail = f"sealed for generation {replica.generation}"
            return [Reply(ticket, replica.refused(Refusal.EPOCH, detail))]
        state = self._stored()
        offer = SyncInit(
            request.log,
            request.stream,
            request.generation,
            self._me,
            FIRST_LSN if state is None else state.trim_end,
            replica.local_end,
            replica.committed.context() if replica.version else None,
        )
        return [RunSync(ticket, offer, request.destination)]

    # -- The store ----------------------------------------------------------------------------

    def settled(self, settle: Settle) -> list[NodeEffect]:
        answer = self.replica.settled(settle)
        return [] if settle.ticket == NO_TICKET else [Reply(settle.ticket, answer)]

    def store_failed(self, settle: Settle, refused: Refused) -> list[NodeEffect]:
        effects = self.replica.store_failed(settle, self._stored())
        if settle.ticket != NO_TICKET:
            effects.append(Reply(settle.ticket, refused))
        return [*effects, *self._give_up_if_not_whole()]

    def dirtied(self) -> list[NodeEffect]:
        """The store lost blocks that it had acknowledged from memory, and says so in its state; or
        it has no state of the stream any more."""
        state = self._stored()
        if state is None:
            self.replica.quarantine("the store has nothing of the stream any more")
        else:
            self.replica.load(state)
        return self._give_up_if_not_whole()

    def _stored(self) -> LogState | None:
        return self._open_log(self.replica.stream_log)

    def _give_up_if_not_whole(self) -> list[NodeEffect]:
        """Keeps I1."""
        return [] if self.replica.is_valid else self.primary.abandon()
