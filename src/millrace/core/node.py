"""A node's core: routes requests to the logs, sequencers and streams it hosts.

The shell (a process, or the simulator) performs the effects in order and reports back through
`settled`, `store_failed`, `sent`, `broke` and `session_closed`.  A log's state is opened on first
use.

I1  State is kept only of logs that the store holds, that were changed here, or whose sequencer
    was bootstrapped here: asking about log numbers costs no memory.
I2  Of a log that the store held and cannot show any more, or not all of, the node says that it is
    incomplete.
"""

from collections.abc import Callable, Iterable, Mapping

from millrace.core.chain_node import ChainNode
from millrace.core.commit.logs import CommitLogs
from millrace.core.commit.primary import Place
from millrace.core.commit.record import is_stream_log
from millrace.core.commit.replica import StreamReplica
from millrace.core.effects import (
    AnswerInspection,
    AskCommitter,
    AskReplicate,
    DropLog,
    NodeEffect,
    Reply,
    RunLearn,
    RunPurge,
    SendBlocks,
    SetStreamTimer,
    Settle,
    ShipBlocks,
    ShipCommitted,
    Ticket,
)
from millrace.core.log_state import LogState
from millrace.core.messages import (
    Admit,
    Amend,
    AppendStream,
    BeginLearn,
    Bootstrap,
    CloseEpochs,
    Commit,
    Copies,
    Delete,
    Describe,
    DescribeSequenced,
    Drop,
    Dropped,
    Fetch,
    FetchCopies,
    FetchStream,
    Fill,
    FindRuns,
    FindSize,
    FindStreamToken,
    FindTime,
    FindToken,
    Index,
    Inspect,
    Learn,
    Message,
    Next,
    OpenStream,
    Peek,
    Read,
    Rebuild,
    Refusal,
    Refused,
    Release,
    RetireStream,
    Revise,
    Seal,
    SealEpochs,
    SealStream,
    Start,
    Stop,
    Store,
    Stored,
    StreamBlock,
    SyncInit,
    SyncReplicate,
    SyncStream,
    Trim,
    TrimSequenced,
    Weigh,
    Window,
    Write,
)
from millrace.core.procedure import Answer
from millrace.core.selections import complaint
from millrace.core.send_streams import PartSource, SendStreams, Source
from millrace.core.sequenced.storage import SequencedRequest, SequencedStorage
from millrace.core.sequencer import Sequencer
from millrace.core.shipping import Shipper
from millrace.core.statuses import StatusBoard
from millrace.lsn import epoch_of
from millrace.types import NO_NODE, Ack, Block, Epoch, LogId, Lsn, NodeId

OpenLog = Callable[[LogId], LogState | None]
_NO_SEQUENCER = Refused(Refusal.NOT_READY, Epoch(0), "no sequencer for this log here")
NO_EPOCH = Epoch(0)  # Of a question about a sequenced log: it needs none.
_AWAITED = Stored(is_awaited=True)
_DROP_NUMBER = 0  # A drop settles nothing that a chain node tracks.


def _no_place(block: Block, epoch: Epoch, first: Lsn, log: LogId) -> Block:
    raise NotImplementedError("this node was not told how to place blocks in streams")


class NodeCore:
    def __init__(
        self,
        open_log: OpenLog,
        me: NodeId = NO_NODE,
        locations: Mapping[NodeId, str] | None = None,
        board: StatusBoard | None = None,
        place: Place = _no_place,
    ) -> None:
        """`locations` and `board` of all nodes are kept up to date by whoever gives them; `place`
        stamps blocks that are appended to streams."""
        self._open_log = open_log
        self._me = me
        self._locations = {} if locations is None else locations
        self._board = board or StatusBoard(me)
        self._chains: dict[LogId, ChainNode] = {}
        self._storages: dict[LogId, SequencedStorage] = {}
        self._purging: set[LogId] = set()
        self._lost: set[LogId] = set()  # Keeps I2, also of those that nobody asked about yet.
        self._sequencers: dict[LogId, Sequencer] = {}
        self._streams = SendStreams()
        self._commits = CommitLogs(open_log, me, place, self._streams)
        self.refuse_writes: Refusal | None = None  # Kept up to date by the shell.

    def chain(self, log: LogId) -> ChainNode:
        """The log's state here; a blank one that is not kept if there is none (I1)."""
        chain = self._chains.get(log)
        if chain is None:
            state = self._open_log(log)
            chain = ChainNode(log, state)
            if state is not None:
                self._chains[log] = chain
        return chain

    def storage(self, log: LogId) -> SequencedStorage:
        """The sequenced log's state here; as `chain`."""
        storage = self._storages.get(log)
        if storage is None:
            state = self._open_log(log)
            storage = SequencedStorage(log, state, self._board)
            if state is not None:
                self._storages[log] = storage
            elif log in self._lost:
                storage.lose()
        return storage

    @property
    def logs_kept(self) -> int:
        """How many logs cost memory here (I1)."""
        logs = self._chains.keys() | self._storages.keys() | self._sequencers.keys()
        return len(logs) + len(self._commits)

    def find_streams(self, logs: Iterable[LogId]) -> list[NodeEffect]:
        """At start: `logs` are those that the store holds.  Replicas of streams tell their
        committers that they are here."""
        return self._commits.find(logs)

    def stream_refusals(self) -> Mapping[str, int]:
        """What replicas of streams did not take, by kind and reason."""
        return self._commits.refusals()

    def replicas(self, log: LogId) -> tuple[StreamReplica, ...]:
        """Of streams of a commit log, that this node has."""
        return self._commits.replicas(log)

    def waiting(self) -> dict[LogId, Lsn]:
        """The sequenced logs of readers that have all that is released, and up to where that is."""
        logs = [log for log in self._streams.shipping_logs() if not self._commits.has(log)]
        storages = [self.storage(log) for log in logs]
        return {
            storage.log: storage.marks.released
            for storage in storages
            if self._streams.is_waiting(storage.log, storage.readable_end)
        }

    def _is_sequenced(self, log: LogId) -> bool:
        if log in self._storages:
            return True
        if log in self._chains:
            return False
        state = self._open_log(log)
        return state is not None and state.is_scattered

    def handle(self, ticket: Ticket, message: Message) -> list[NodeEffect]:
        match message:
            case Store() | Release():
                return self._storage_step(ticket, message)
            case Write() | Read() | Fill() | Trim() | Index() | Fetch() | Seal() | Admit():
                return self._chain_step(ticket, message)
            case Next(log, epoch, count):
                sequencer = self._sequencers.get(log)
                issued = _NO_SEQUENCER if sequencer is None else sequencer.next(epoch, count)
                return [Reply(ticket, issued)]
            case Peek(log, epoch, around):
                sequencer = self._sequencers.get(log)
                peeked = _NO_SEQUENCER if sequencer is None else sequencer.peek(epoch, around)
                return [Reply(ticket, peeked)]
            case Window():
                return self._widen(ticket[0], message)
            case Commit():
                return self._commits.commit(ticket, message)
            case (
                StreamBlock()
                | AppendStream()
                | FetchStream()
                | FindStreamToken()
                | SealStream()
                | OpenStream()
                | SyncInit()
                | SyncReplicate()
                | SyncStream()
                | RetireStream()
            ):
                return self._commits.step(ticket, message, self.refuse_writes)
            case Start():
                return self._start(ticket, message)
            case Stop(stream):
                self._streams.stop(ticket[0], stream)
                return []
            case FindTime() | FindSize() | Describe() | Copies() if is_stream_log(message.log):
                return self._commits.look_at(ticket, message)
            case FindTime(log, epoch) | FindSize(log, epoch) | Weigh(log, epoch) if (
                epoch == NO_EPOCH or self._is_sequenced(log)
            ):
                return self._storage_step(ticket, message)
            case Describe() | FindTime() | FindSize() | Weigh() | BeginLearn() | Revise():
                return self._chain_step(ticket, message)
            case (
                Copies()
                | FetchCopies()
                | SealEpochs()
                | CloseEpochs()
                | Amend()
                | Rebuild()
                | Delete()
                | TrimSequenced()
                | FindToken()
                | FindRuns()
                | DescribeSequenced()
            ):
                return self._storage_step(ticket, message)
            case Inspect(log, first, end, bytes_max):
                return [AnswerInspection(ticket, log, first, end, bytes_max)]
            case Bootstrap(log, epoch, next_lsn):
                sequencer = self._sequencers.setdefault(log, Sequencer())
                return [Reply(ticket, sequencer.bootstrap(epoch, next_lsn))]
            case Learn(log, epoch, source, others):
                return [RunLearn(ticket, log, epoch, source, others)]
            case Drop(log):
                return self._drop(ticket, log)
        detail = f"a node does not answer {type(message).__name__}"
        return [Reply(ticket, Refused(Refusal.BAD_REQUEST, detail=detail))]

    def settled(self, settle: Settle) -> list[NodeEffect]:
        """The mutations before `settle` are safe: answer, and serve readers that waited."""
        storage = self._storages.get(settle.log)
        if storage is not None:
            answer = storage.settled(settle.message)
            if type(answer) is Stored and self._streams.has_readers(settle.log):
                answer = _AWAITED
            return [Reply(settle.ticket, answer)]
        chain = self._chains.get(settle.log)
        if chain is None and self._commits.has(settle.log):
            return self._commits.settled(settle)
        if chain is None:
            return [Reply(settle.ticket, settle.message)]
        answer = chain.settled(settle.number, settle.message)
        return [Reply(settle.ticket, answer), *self._streams.advanced(chain)]

    def store_failed(self, settle: Settle, reason: Refusal, detail: str) -> list[NodeEffect]:
        """The mutations before `settle` were not kept: refuse, and go by what the store has."""
        if self._commits.has(settle.log):
            return self._commits.store_failed(settle, Refused(reason, detail=detail))
        source = self._source(settle.log)
        if isinstance(source, ChainNode):
            source.settled(settle.number, settle.message)
        state = self._open_log(settle.log)
        if state is None:
            source.lose()  # Keeps I2.
        else:
            source.reload(state)
        return [Reply(settle.ticket, Refused(reason, source.fence.epoch, detail))]

    def dirtied(self, log: LogId) -> list[NodeEffect]:
        """The store lost blocks it had acknowledged from memory, and says so in its state; or it
        has no state of the log any more."""
        if self._commits.has(log):
            return self._commits.dirtied(log)
        state = self._open_log(log)
        source = self._storages.get(log) or self._chains.get(log)
        if state is None:
            return self._lose(log, source)
        if isinstance(source, SequencedStorage):
            return self._reload(source, state)
        if source is not None:
            source.reload(state)
        return []

    def _reload(self, storage: SequencedStorage, state: LogState) -> list[NodeEffect]:
        """Keeps I2 also on streams that were begun before: what they claim would count."""
        was_incomplete = storage.is_incomplete
        storage.reload(state)
        if was_incomplete or not storage.is_incomplete:
            return []
        detail = "the node lost what it had only in memory"
        return self._streams.fenced(storage, Refusal.INCOMPLETE, detail)

    def _lose(self, log: LogId, source: ChainNode | SequencedStorage | None) -> list[NodeEffect]:
        """Keeps I2."""
        self._lost.add(log)
        if source is None:
            return []
        source.lose()
        detail = "the node's store cannot be read any more"
        return self._streams.fenced(source, Refusal.INCOMPLETE, detail)

    def replicated(self, order: AskReplicate, answer: Answer) -> list[NodeEffect]:
        return self._commits.replicated(order, answer)

    def reported(self, order: AskCommitter, answer: Answer) -> list[NodeEffect]:
        return self._commits.reported(order, answer)

    def report_due(self, log: LogId) -> list[NodeEffect]:
        return self._commits.report_due(log)

    def stream_timer_fired(self, timer: SetStreamTimer) -> list[NodeEffect]:
        return self._commits.timer_fired(timer)

    def sent(
        self, order: SendBlocks | ShipBlocks | ShipCommitted, next_lsn: Lsn, sent_bytes: int
    ) -> list[NodeEffect]:
        stream = self._streams.find(order.session, order.stream, order.version)
        if stream is None:
            return []
        source = self._commits.source(order.log) or self._source(order.log)
        return self._streams.sent(stream, next_lsn, sent_bytes, source)

    def broke(self, order: SendBlocks, detail: str) -> list[NodeEffect]:
        """The first block of the order is damaged."""
        stream = self._streams.find(order.session, order.stream, order.version)
        return [] if stream is None else self._streams.broke(stream, self.chain(order.log), detail)

    def damaged(
        self, order: ShipBlocks | ShipCommitted, first: Lsn, next_lsn: Lsn
    ) -> list[NodeEffect]:
        """The first block that the order chose is damaged; it begins at `first`."""
        stream = self._streams.find(order.session, order.stream, order.version)
        if stream is None:
            return []
        return self._streams.skip_damaged(stream, first, next_lsn, self._part_source(order.log))

    def session_closed(self, session: int) -> None:
        self._streams.close_session(session)

    def _source(self, log: LogId) -> ChainNode | SequencedStorage:
        return self.storage(log) if self._is_sequenced(log) else self.chain(log)

    def _part_source(self, log: LogId) -> PartSource:
        """Of a log of which nodes hold a part each."""
        return self._commits.source(log) or self.storage(log)

    def _storage_step(self, ticket: Ticket, message: SequencedRequest) -> list[NodeEffect]:
        storage = self.storage(message.log)
        released, trim_end = storage.marks.released, storage.trim_end
        storage.refuse_writes = self.refuse_writes
        effects = storage.step(ticket, message)
        if storage.is_stored:
            self._storages[message.log] = storage
        if storage.must_purge:
            effects += self._purge(storage)
        if storage.marks.released != released or storage.trim_end != trim_end:
            effects += self._streams.advanced(storage)
        return effects

    def _purge(self, storage: SequencedStorage) -> list[NodeEffect]:
        if storage.log in self._purging:
            return []
        self._purging.add(storage.log)
        marks = storage.marks
        return [RunPurge(storage.log, marks.closed, epoch_of(marks.released), marks.good)]

    def purged(self, order: RunPurge, firsts: tuple[Lsn, ...] | None) -> list[NodeEffect]:
        """None: it could not be found out, and will be tried again."""
        self._purging.discard(order.log)
        storage = self._storages.get(order.log)
        if storage is None:
            return []
        effects = [] if firsts is None else storage.purged(order.until, firsts)
        if storage.must_purge:
            effects += self._purge(storage)
        return [*effects, *self._streams.advanced(storage)]

    def _chain_step(
        self,
        ticket: Ticket,
        message: Write
        | Read
        | Fill
        | Trim
        | Index
        | Fetch
        | Seal
        | Admit
        | Describe
        | FindTime
        | FindSize
        | Weigh
        | BeginLearn
        | Revise,
    ) -> list[NodeEffect]:
        chain = self.chain(message.log)
        before = chain.fence.epoch
        chain.refuse_writes = self.refuse_writes
        effects = chain.step(ticket, message)
        if message.log not in self._chains and any(type(one) is Settle for one in effects):
            self._chains[message.log] = chain  # It was sealed or changed otherwise.
        if chain.fence.epoch != before:
            effects += self._streams.fenced(chain)
        return effects

    def _start(self, ticket: Ticket, start: Start) -> list[NodeEffect]:
        source: Source
        if start.shipping is None:
            source, shipper = self.chain(start.log), None
            refusal = source.refuse(start.epoch)
            if refusal is not None:
                return [Reply(ticket, refusal)]
        else:
            source = self._part_source(start.log)
            shipper = Shipper(self._me, start.shipping, self._locations)
        if start.first < 1 or start.end <= start.first:
            refused = Refused(Refusal.BAD_REQUEST, start.epoch, "an empty range")
            return [Reply(ticket, refused)]
        if start.selection is not None and (wrong := complaint(start.selection)):
            return [Reply(ticket, Refused(Refusal.BAD_REQUEST, start.epoch, wrong))]
        return self._streams.start(ticket, start, source, shipper)

    def _widen(self, session: int, window: Window) -> list[NodeEffect]:
        stream = self._streams.find(session, window.stream, window.version)
        if stream is None:
            return []
        is_part = stream.shipper is not None
        source = self._part_source(stream.log) if is_part else self.chain(stream.log)
        return self._streams.widen(stream, window, source)

    def _drop(self, ticket: Ticket, log: LogId) -> list[NodeEffect]:
        source = self._storages.pop(log, None) or self._chains.pop(log, None)
        ended = [] if source is None else self._streams.fenced(source)
        self._sequencers.pop(log, None)
        settle = Settle(log, _DROP_NUMBER, Ack.DISK, ticket, Dropped())
        return [*ended, *self._commits.drop(log), DropLog(log), settle]
