"""One reader of one log: many answers in, one ordered sequence of blocks and gaps out.

The shape is LogDevice's client read stream (seed 003): START, RECORD, GAP, WINDOW, STOP, with a
version that fences off answers to an earlier start.  On a chain log one node at a time is asked,
the tail, which holds only committed blocks.

  I1  Every position of [first, end) is handed over once, in order, in a block or inside a gap (G2).
  I2  Nothing is handed over that the tail of a current chain, or a copy known to be committed,
      did not send (G6).
  I3  What was sent and not yet taken by the application is bounded by the window (G13).
  I4  Whatever the stream waits for has a name and a timer; `explain` tells it (G9).
  I5  What cannot come any more is not waited for: the stream fails and says why.
"""

from enum import Enum

import msgspec

from millrace.core.messages import (
    Blocks,
    CaughtUp,
    Ended,
    GapFound,
    Message,
    Refusal,
    Refused,
    Start,
    Started,
    Stop,
    Window,
)
from millrace.core.procedure import Failure, FailureKind
from millrace.core.projection import Projection, ReconfigureReason
from millrace.core.read_buffer import ReadBuffer
from millrace.core.read_effects import (
    Deliver,
    DeliverGap,
    Fail,
    FailReason,
    Finish,
    NeedCopy,
    NeedProjection,
    NeedRepair,
    ReadEffect,
    RewindReason,
    SetTimer,
    StartSender,
    TellSender,
)
from millrace.core.repair import ChainTrouble, RepairResult
from millrace.core.selections import credit_bytes
from millrace.limits import READ_WINDOW_BYTES
from millrace.types import (
    Block,
    EntryKind,
    Epoch,
    Gap,
    GapKind,
    LogId,
    Lsn,
    NodeId,
    Selection,
)

__all__ = [
    "NO_EPOCH",
    "QUIET_CHECKS_PER_LOOKUP",
    "Deliver",
    "DeliverGap",
    "Fail",
    "FailReason",
    "Finish",
    "NeedCopy",
    "NeedProjection",
    "NeedRepair",
    "ReadEffect",
    "ReadPhase",
    "ReadSettings",
    "ReadStream",
    "RewindReason",
    "SetTimer",
    "StartSender",
    "TellSender",
]


class ReadPhase(Enum):
    """What the stream waits for."""

    PROJECTION = "projection"  # Who serves the log?
    STARTED = "started"  # The node's answer to START.
    RECORDS = "records"
    TAIL = "tail"  # Caught up: an append, or the time to look for a hole.
    REPAIR = "repair"  # A hole is being completed or filled.
    ELSEWHERE = "elsewhere"  # The block is damaged at the tail; another copy is fetched.
    FINISHED = "finished"


NO_EPOCH = Epoch(0)
QUIET_CHECKS_PER_LOOKUP = 4  # A reader that has nothing to read looks up the chain so rarely.
_GAP_KINDS = {EntryKind.HOLE: GapKind.HOLE, EntryKind.LOSS: GapKind.DATALOSS}


class ReadSettings(msgspec.Struct, frozen=True):
    window_bytes: int = READ_WINDOW_BYTES
    hole_check_ms: int = 1_000  # Caught up for so long: ask whether something was issued.
    start_timeout_ms: int = 3_000
    retry_ms: int = 100  # After a projection could not be had.
    copy_rounds_max: int = 50  # A damaged block is looked for elsewhere so often.


class ReadStream:
    def __init__(
        self,
        log: LogId,
        number: int,
        first: Lsn,
        end: Lsn,
        settings: ReadSettings | None = None,
        selection: Selection | None = None,
    ) -> None:
        assert 0 < first <= end
        self.log = log
        self.number = number
        self.selection = selection
        self.next_lsn = first
        self.end = end
        self.phase = ReadPhase.PROJECTION
        self.rewinds: dict[RewindReason, int] = {}
        self.blocks_received = 0
        self.bytes_received = 0
        self.bytes_delivered = 0
        self._settings = settings or ReadSettings()
        self.projection: Projection | None = None
        self._version = 0
        self._buffer = ReadBuffer()
        self._bytes_taken = 0
        self._version_bytes = 0  # Received since the last START.
        self._granted_bytes = 0
        self._started_bytes = 0  # Granted by the last START itself.
        self._last_reason = RewindReason.OPENED
        self._is_retry_set = False  # In phase PROJECTION: the timer, not an answer, is due.
        self._quiet_checks = 0  # Looks for a hole, one after another, that found none.
        self._copy_rounds = 0  # Looks for a good copy, one after another, that found none.

    @property
    def version(self) -> int:
        """Of the last START; an answer to an earlier one means nothing any more."""
        return self._version

    # -- Events -------------------------------------------------------------------------------

    def open(self) -> list[ReadEffect]:
        if self.next_lsn >= self.end:
            return self._finish()
        return self._need_projection(NeedProjection(NO_EPOCH, RewindReason.OPENED))

    def projected(self, answer: Projection | Failure) -> list[ReadEffect]:
        if self.phase not in (ReadPhase.TAIL, ReadPhase.PROJECTION):
            return []
        if isinstance(answer, Failure) and answer.kind is FailureKind.UNKNOWN_LOG:
            return self._fail(FailReason.UNKNOWN_LOG)
        if self.phase is ReadPhase.TAIL:
            return self._move_on(answer)
        if isinstance(answer, Failure):
            return self._retry_later()
        self.projection = answer
        return self._start(answer)

    def arrived(self, node: NodeId, message: Message | Failure) -> list[ReadEffect]:
        """Something from `node`, in answer to START or pushed."""
        if self.projection is None or node != self.projection.tail:
            return []
        if self.phase in (ReadPhase.PROJECTION, ReadPhase.FINISHED):
            return []  # Late: the sender was stopped, and will be started again or not at all.
        match message:
            case Blocks(_, version, blocks):
                return self._blocks(blocks) if version == self._version else []
            case CaughtUp(_, version, next_lsn, end):
                return self._caught_up(next_lsn, end) if version == self._version else []
            case GapFound(_, version, kind, first, last):
                return self._gap(kind, first, last) if version == self._version else []
            case Started(_, version, _):
                if version != self._version or self.phase is not ReadPhase.STARTED:
                    return []
                self.phase = ReadPhase.RECORDS
                return self._repeat_credit()
            case Ended(_, version, reason, epoch):
                return self._ended(node, reason, epoch) if version == self._version else []
            case Refused(reason, epoch):
                if self.phase is not ReadPhase.STARTED:
                    return []
                return self._ended(node, reason, epoch)
            case Failure():
                if self.phase is not ReadPhase.STARTED:
                    return []
                return self.lost(node)
            case _:
                return self._rewind(RewindReason.MISBEHAVED, node)

    def _repeat_credit(self) -> list[ReadEffect]:
        """Credit that was given while START was on its way may have found no connection."""
        assert self.projection is not None
        if self._granted_bytes <= self._started_bytes:
            return []
        window = Window(self.number, self._version, self._granted_bytes)
        return [TellSender(self.projection.tail, window)]

    def lost(self, node: NodeId) -> list[ReadEffect]:
        """The connection to `node` broke."""
        if self.projection is None or node != self.projection.tail:
            return []
        if self.phase in (ReadPhase.PROJECTION, ReadPhase.FINISHED):
            return []
        return self._rewind(RewindReason.SENDER_LOST, node)

    def took(self, size_bytes: int) -> list[ReadEffect]:
        """The application took so much of what was delivered (`credit_bytes` of each block)."""
        self._bytes_taken += size_bytes
        return self._widen()

    def _widen(self) -> list[ReadEffect]:
        is_serving = self.phase not in (
            ReadPhase.PROJECTION,
            ReadPhase.ELSEWHERE,
            ReadPhase.FINISHED,
        )
        allowed = self._allowed_bytes()
        has_room = allowed > self._version_bytes
        if self.projection is None or not is_serving or not has_room:
            return []
        if allowed - self._granted_bytes < self._settings.window_bytes // 4:
            return []
        self._granted_bytes = allowed
        return [TellSender(self.projection.tail, Window(self.number, self._version, allowed))]

    def timer_fired(self) -> list[ReadEffect]:
        match self.phase:
            case ReadPhase.PROJECTION:
                if not self._is_retry_set:
                    return []  # A timer of an earlier phase: the answer is on its way.
                return self._need_projection(NeedProjection(NO_EPOCH, self._last_reason))
            case ReadPhase.STARTED:
                assert self.projection is not None
                return self._rewind(RewindReason.SENDER_LOST, self.projection.tail)
            case ReadPhase.TAIL:
                return self._repair()
            case _:
                return []

    def repaired(self, lsn: Lsn, result: RepairResult | ChainTrouble) -> list[ReadEffect]:
        if self.phase is not ReadPhase.REPAIR or lsn != self.next_lsn:
            return []
        if isinstance(result, ChainTrouble):
            return self._trouble(result)
        self.phase = ReadPhase.TAIL
        self._quiet_checks += 1
        timer = SetTimer(self._settings.hole_check_ms)
        if self._quiet_checks % QUIET_CHECKS_PER_LOOKUP:
            return [timer]
        # The chain may have gone on without this tail and its sequencer, who were not sealed
        # because nobody could reach them: they would say "nothing new" for ever.
        return [timer, NeedProjection(NO_EPOCH, self._last_reason)]

    def _move_on(self, answer: Projection | Failure) -> list[ReadEffect]:
        assert self.projection is not None
        if isinstance(answer, Failure) or answer.epoch <= self.projection.epoch:
            return []
        self.rewinds[RewindReason.EPOCH] = self.rewinds.get(RewindReason.EPOCH, 0) + 1
        self._last_reason = RewindReason.EPOCH
        stop = self._stop_sender()
        self.projection = answer
        return stop + self._start(answer)

    def copied(self, lsn: Lsn, block: Block | None) -> list[ReadEffect]:
        """An answer to NeedCopy; None: no other node has it."""
        if self.phase is not ReadPhase.ELSEWHERE or lsn != self.next_lsn:
            return []
        if block is None:
            self._copy_rounds += 1
            if self._copy_rounds >= self._settings.copy_rounds_max:
                return self._fail(FailReason.CORRUPT_BLOCK)
            return self._retry_later()
        self._copy_rounds = 0
        effects = self._blocks((block,))
        if self.next_lsn >= self.end:
            return effects
        return [*effects, *self._retry_later()]

    def stop(self) -> list[ReadEffect]:
        return [] if self.phase is ReadPhase.FINISHED else self._finish()

    @property
    def bytes_not_taken(self) -> int:
        return self.bytes_delivered - self._bytes_taken

    @property
    def blocks_out_of_order(self) -> int:
        return len(self._buffer)

    def explain(self) -> dict[str, object]:
        """Why the stream is where it is (G9)."""
        projection = self.projection
        return {
            "log": self.log,
            "next_lsn": self.next_lsn,
            "end": self.end,
            "waits_for": self.phase.value,
            "node": None if projection is None else projection.tail,
            "epoch": None if projection is None else projection.epoch,
            "rewinds": {reason.value: count for reason, count in self.rewinds.items()},
            "last_rewind": self._last_reason.value,
            "bytes_not_taken": self.bytes_not_taken,
            "blocks_out_of_order": self.blocks_out_of_order,
        }

    # -- Starting -----------------------------------------------------------------------------

    def _start(self, projection: Projection) -> list[ReadEffect]:
        self._version += 1
        self._version_bytes = 0
        self._buffer.clear()
        self._granted_bytes = self._started_bytes = self._allowed_bytes()
        self.phase = ReadPhase.STARTED
        start = Start(
            self.log,
            projection.epoch,
            self.number,
            self._version,
            self.next_lsn,
            self.end,
            self._granted_bytes,
            self.selection,
        )
        timer = SetTimer(self._settings.start_timeout_ms)
        return [timer, StartSender(projection.tail, start)]

    def _allowed_bytes(self) -> int:
        """Keeps I3: what this version may send in all."""
        outstanding = self.bytes_delivered - self._bytes_taken
        return self._version_bytes + max(0, self._settings.window_bytes - outstanding)

    def _need_projection(self, need: NeedProjection) -> list[ReadEffect]:
        self.phase = ReadPhase.PROJECTION
        self._last_reason = need.reason
        self._is_retry_set = False
        return [need]

    def _retry_later(self) -> list[ReadEffect]:
        self.phase = ReadPhase.PROJECTION
        self._is_retry_set = True
        return [SetTimer(self._settings.retry_ms)]

    def _trouble(self, trouble: ChainTrouble) -> list[ReadEffect]:
        """A repair failed.  Without a reason to change the chain, and nothing newer to wait
        for, a pause keeps the stream from asking in a tight loop."""
        assert self.projection is not None
        cannot_store = trouble.cause in (ReconfigureReason.DISK_FULL, ReconfigureReason.BROKEN)
        # The last node of a chain cannot be done without: another epoch would change nothing.
        is_hopeless = cannot_store and self.projection.chain == (trouble.node,)
        has_no_cause = trouble.cause is None or is_hopeless
        if has_no_cause and trouble.epoch <= self.projection.epoch:
            self._last_reason = RewindReason.CHAIN_TROUBLE
            return [*self._stop_sender(), *self._retry_later()]
        need = NeedProjection(
            trouble.epoch, RewindReason.CHAIN_TROUBLE, trouble.cause, trouble.node
        )
        return [*self._stop_sender(), *self._need_projection(need)]

    def _rewind(
        self, reason: RewindReason, suspect: NodeId | None, epoch: Epoch = NO_EPOCH
    ) -> list[ReadEffect]:
        self.rewinds[reason] = self.rewinds.get(reason, 0) + 1
        cause = None
        if suspect is not None:
            is_incomplete = reason is RewindReason.REFUSED
            cause = ReconfigureReason.INCOMPLETE if is_incomplete else ReconfigureReason.UNREACHABLE
        need = NeedProjection(epoch, reason, cause, suspect)
        return self._stop_sender() + self._need_projection(need)

    def _stop_sender(self) -> list[ReadEffect]:
        assert self.projection is not None
        return [TellSender(self.projection.tail, Stop(self.number))]

    def _finish(self) -> list[ReadEffect]:
        return self._end_with(Finish())

    def _fail(self, reason: FailReason) -> list[ReadEffect]:
        """Keeps I5."""
        return self._end_with(Fail(reason, self.next_lsn))

    def _end_with(self, last: Finish | Fail) -> list[ReadEffect]:
        stop = [] if self.projection is None else self._stop_sender()
        self.phase = ReadPhase.FINISHED
        self._buffer.clear()
        return [*stop, last]

    # -- Receiving ----------------------------------------------------------------------------

    def _blocks(self, blocks: tuple[Block, ...]) -> list[ReadEffect]:
        effects: list[ReadEffect] = []
        for block in blocks:
            self.blocks_received += 1
            self.bytes_received += block.size
            self._version_bytes += credit_bytes(block)
            is_mine = (
                block.log == self.log
                and (self.selection is not None or not block.is_cut)
                and block.kind is not EntryKind.BRIDGE  # A chain log has no epochs to bridge.
            )
            if not is_mine or not self._buffer.add(block, self.next_lsn):
                assert self.projection is not None
                return effects + self._rewind(RewindReason.MISBEHAVED, self.projection.tail)
        if self.phase is not ReadPhase.ELSEWHERE:
            self.phase = ReadPhase.RECORDS
        effects += self._deliver_ready()
        if self.next_lsn >= self.end:
            return effects + self._finish()
        return effects + self._widen()  # Nobody takes gaps and duplicates: make up for them.

    def _deliver_ready(self) -> list[ReadEffect]:
        effects: list[ReadEffect] = []
        while self.next_lsn < self.end:
            block = self._buffer.pop(self.next_lsn)
            if block is None:
                break
            end = min(block.end, self.end)
            if block.kind is EntryKind.DATA:
                effects.append(Deliver(block, self.next_lsn, end))
                self.bytes_delivered += credit_bytes(block)
            else:
                kind = _GAP_KINDS[block.kind]
                effects.append(DeliverGap(Gap(kind, self.next_lsn, Lsn(end - 1))))
                self._bytes_taken += block.size  # Nobody takes a gap's bytes.
                self.bytes_delivered += block.size
            self.next_lsn = end
        return effects

    def _gap(self, kind: GapKind, first: Lsn, last: Lsn) -> list[ReadEffect]:
        if last < self.next_lsn:
            return []
        if first > self.next_lsn or kind is not GapKind.TRIM:
            assert self.projection is not None
            return self._rewind(RewindReason.MISBEHAVED, self.projection.tail)
        end = min(Lsn(last + 1), self.end)
        gap = DeliverGap(Gap(kind, self.next_lsn, Lsn(end - 1)))
        self.next_lsn = end
        self.phase = ReadPhase.RECORDS
        effects = [gap, *self._deliver_ready()]
        return effects + self._finish() if self.next_lsn >= self.end else effects

    def _caught_up(self, next_lsn: Lsn, end: Lsn) -> list[ReadEffect]:
        if next_lsn != self.next_lsn or self.phase is ReadPhase.REPAIR:
            return []
        if end > next_lsn:
            return self._repair()
        self.phase = ReadPhase.TAIL
        return [SetTimer(self._settings.hole_check_ms)]

    def _repair(self) -> list[ReadEffect]:
        self.phase = ReadPhase.REPAIR
        return [NeedRepair(self.next_lsn)]

    def _ended(self, node: NodeId, reason: Refusal, epoch: Epoch) -> list[ReadEffect]:
        if reason is Refusal.EPOCH:
            assert self.projection is not None
            if epoch < self.projection.epoch:
                # A tail that is behind its own projection has lost its fence: its disk is gone.
                return self._rewind(RewindReason.REFUSED, node)
            return self._rewind(RewindReason.EPOCH, None, epoch)
        if reason is Refusal.CORRUPT:
            self.rewinds[RewindReason.CORRUPT] = self.rewinds.get(RewindReason.CORRUPT, 0) + 1
            self.phase = ReadPhase.ELSEWHERE
            return [NeedCopy(self.next_lsn, node)]
        if reason is Refusal.INCOMPLETE:
            return self._rewind(RewindReason.REFUSED, node, epoch)
        # Busy, or worse: asking again at once would be a tight loop.
        self.rewinds[RewindReason.REFUSED] = self.rewinds.get(RewindReason.REFUSED, 0) + 1
        self._last_reason = RewindReason.REFUSED
        return [*self._stop_sender(), *self._retry_later()]
