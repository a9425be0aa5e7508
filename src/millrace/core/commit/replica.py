"""A replica of one stream: what it holds, what of it is committed, what it tells (seed 004).

The primary's replica is one like the others; what a primary does beside it is in `primary.py`, and
how a replica that is not whole becomes so in `learning.py`.

I1  Once sealed for a generation, nothing of an earlier one is taken; the seal is durable before it
    is answered, and so is what an opening forgets (M6, G7).
I2  Blocks are taken in local order, without a hole, of the generation that is open here.
I3  What is acknowledged, and what is reported as written, is safe.
I4  A version is reported when the runs of all commits up to it are durable (`committed.py`).
I5  A replica that is not valid reports zeros, refuses commits, and keeps what it has (M4).
I6  After a restart a replica is sealed: as a primary it may have given out positions that it does
    not know of, so it goes on in a later generation alone.
"""

from collections.abc import Iterator
from itertools import count

import msgspec

from millrace.core.commit.committed import Committed
from millrace.core.commit.entries import Entries
from millrace.core.commit.record import StreamCommit, log_of_stream, stream_of
from millrace.core.commit.recovery import ReplicaFacts, Valid, recover
from millrace.core.effects import (
    CommitRuns,
    NodeEffect,
    Reply,
    SetFence,
    Settle,
    StoreBlock,
    Ticket,
    TrimCommitted,
    TruncateLog,
)
from millrace.core.log_state import Fence, LogState
from millrace.core.messages import (
    CommitVerdict,
    Message,
    OpenStream,
    Refusal,
    Refused,
    ReplicaState,
    SealStream,
    Standing,
    StreamBlock,
    StreamCommits,
    StreamOpened,
    StreamReport,
    StreamSealed,
    StreamStored,
)
from millrace.types import (
    FIRST_LSN,
    NO_LSN,
    Ack,
    Block,
    EntryKind,
    Epoch,
    LogId,
    Lsn,
    NodeId,
    Placement,
    Token,
    Version,
)

NO_TICKET: Ticket = (0, 0)  # Of a settle that nobody waits for.
ACCEPTED = (CommitVerdict.TAKEN, CommitVerdict.KNOWN)
EMPTY = Valid(Version(0), Lsn(0), FIRST_LSN, FIRST_LSN, Lsn(0))


class ReplicaCounts(msgspec.Struct):
    blocks: int = 0
    repeats: int = 0
    refused: dict[Refusal, int] = msgspec.field(default_factory=dict)  # Blocks.
    commits: dict[CommitVerdict, int] = msgspec.field(default_factory=dict)
    syncs: dict[Refusal, int] = msgspec.field(default_factory=dict)  # Offers and batches, refused.

    def refusals(self) -> dict[str, int]:
        """What was not taken, by kind and reason."""
        found = {f"block_{why.value}": count for why, count in self.refused.items()}
        found |= {f"sync_{why.value}": count for why, count in self.syncs.items()}
        refused = ((why, count) for why, count in self.commits.items() if why not in ACCEPTED)
        return found | {f"commit_{why.value}": count for why, count in refused}


class StreamReplica:
    def __init__(
        self,
        stream_log: LogId,
        state: LogState | None,
        me: NodeId,
        numbers: Iterator[int] | None = None,
    ) -> None:
        """`numbers` are those of settles: a replica that is made anew may hear of some that were
        ordered before."""
        self.stream_log = stream_log
        self.log = log_of_stream(stream_log)
        self.stream = stream_of(stream_log)
        self.state = ReplicaState.SEALED
        self.why = ""
        self.generation = Epoch(0)
        self.opened = Epoch(0)  # The generation that it was open in last.
        self.replicas: tuple[NodeId, ...] = ()  # Of that generation; () after a restart.
        self.suspects: tuple[NodeId, ...] = ()  # Kept by the primary.
        self.is_left_out = False  # It is none of the stream's replicas any more.
        self.is_disowned = False  # It is open, and some committer says that it is none.
        self.is_closed = False  # It is open, but an operator wants no more appends.
        self.entries = Entries(FIRST_LSN)
        self.committed = Committed(EMPTY)
        self._disk_end = FIRST_LSN  # Above the newest block that is acknowledged from the disk.
        self.counts = ReplicaCounts()
        self.refuse_writes: Refusal | None = None  # Set by the host: disk full or busy.
        self._me = me
        self._numbers = count(1) if numbers is None else numbers
        self._if_nothing_lost: Valid | None = None
        if state is not None:
            self.load(state)

    # -- What it is ---------------------------------------------------------------------------

    def load(self, state: LogState) -> None:
        """Begin from what the store holds: at start, and after it lost what was acknowledged."""
        self.generation = state.fence.epoch
        self.opened = Epoch(state.fence.proposer.client)
        if state.context is not None:
            self.committed.trim_end = state.context.trim_end
        found = recover(facts_of(state))
        if isinstance(found, Valid):
            self.become(found)
        else:
            self.quarantine(f"{found.cause.value}: {found.why}", found.otherwise)

    def become(self, valid: Valid) -> None:
        """The replica is this, all of it safe, and sealed (I6)."""
        self.state = ReplicaState.SEALED
        self.why = ""
        self.committed.restart(valid)
        self.entries.restart(valid.end)
        self._disk_end = valid.end

    def learn(self) -> None:
        """It is not whole before a source says so (learning.py)."""
        self.state, self.why = ReplicaState.LEARNING, ""
        self._if_nothing_lost = None

    def quarantine(self, why: str, if_nothing_lost: Valid | None = None) -> None:
        self.state, self.why = ReplicaState.QUARANTINED, why
        self._if_nothing_lost = if_nothing_lost

    @property
    def version(self) -> Version:
        return self.committed.version

    @property
    def high_watermark(self) -> Lsn:
        return self.committed.high_watermark

    @property
    def local_end(self) -> Lsn:
        """All below is committed."""
        return self.committed.local_end

    @property
    def trim_end(self) -> Lsn:
        """Of the commit log."""
        return self.committed.trim_end

    @property
    def is_valid(self) -> bool:
        return self.state in (ReplicaState.OPEN, ReplicaState.SEALED)

    @property
    def is_member(self) -> bool:
        """It is whole, and was one of the stream's replicas: readers count on it."""
        is_former = self.is_left_out or self.is_disowned
        return self.is_valid and self.opened > 0 and not is_former

    @property
    def is_in_doubt(self) -> bool:
        """Whether it holds all that it should comes out when it is sealed: until then nobody may
        take its silence for a loss."""
        return self._if_nothing_lost is not None

    @property
    def is_primary(self) -> bool:
        return self.state is ReplicaState.OPEN and self.replicas[0] == self._me

    def report(self) -> StreamReport:
        """Keeps I3, I4 and I5."""
        if self.state is not ReplicaState.OPEN:
            return StreamReport(self.stream, self.generation, self.state, why=self.why)
        version, local = self.committed.told
        written = self.entries.safe_end - local
        return StreamReport(
            self.stream,
            self.generation,
            self.state,
            version,
            local,
            written,
            suspects=self.suspects,
        )

    # -- Blocks -------------------------------------------------------------------------------

    def take(self, ticket: Ticket, request: StreamBlock) -> list[NodeEffect]:
        """From the primary.  Keeps I2."""
        block, end = request.block, StreamStored(request.block.end)
        refused = self.refuse(request.generation) or self._complain(block)
        if refused is None and block.first < self.entries.end:
            if self.entries.has(block):
                self.counts.repeats += 1
                return [self.settle(request.ack, ticket, end)]
            detail = f"another block than {block!r} lies here, below {self.entries.end}"
            refused = self.refused(Refusal.CONFLICT, detail)
        if refused is None and block.first > self.entries.end:
            detail = f"it comes too early: the stream ends at {self.entries.end} here"
            refused = self.refused(Refusal.UNWRITTEN, detail)
        if refused is None and self.refuse_writes is not None:
            refused = self.refused(self.refuse_writes, "")
        if refused is not None:
            self.counts.refused[refused.reason] = self.counts.refused.get(refused.reason, 0) + 1
            return [Reply(ticket, refused)]
        return self.keep(block, request.ack, ticket, end)

    def keep(
        self, block: Block, ack: Ack, ticket: Ticket = NO_TICKET, answer: Message | None = None
    ) -> list[NodeEffect]:
        """Store a block that begins where the stream ends."""
        settle = self.settle(ack, ticket, answer or StreamStored(block.end))
        self.entries.take(block, settle.number)
        if ack is Ack.DISK:
            self._disk_end = block.end
        self.counts.blocks += 1
        return [StoreBlock(block, Placement(self.replicas), ack), settle]

    def refuse(self, generation: Epoch) -> Refused | None:
        """Whoever writes must be of the generation that is open here."""
        if generation < self.generation:
            return self.refused(Refusal.EPOCH, f"sealed for generation {self.generation}")
        if not self.is_valid:
            return self.refused(Refusal.INCOMPLETE, f"{self.state.value} {self.why}")
        if generation != self.generation or self.state is not ReplicaState.OPEN:
            return self.refused(Refusal.NOT_READY, f"generation {generation} is not open here yet")
        return None

    def refused(self, reason: Refusal, detail: str) -> Refused:
        return Refused(reason, self.generation, detail)

    def _complain(self, block: Block) -> Refused | None:
        is_of_stream = block.log == self.stream_log and block.epoch == self.generation
        if is_of_stream and block.kind is EntryKind.DATA and not self.is_primary:
            return None
        detail = f"{block!r} is none that the primary of generation {self.generation} sends"
        return self.refused(Refusal.BAD_REQUEST, detail)

    # -- Commits ------------------------------------------------------------------------------

    def commit(
        self,
        told: StreamCommits,
        version: Version,
        high_watermark: Lsn,
        trim_end: Lsn,
        settle: int,
        version_first: Lsn = NO_LSN,
    ) -> tuple[list[NodeEffect], tuple[StreamCommit, ...], CommitVerdict]:
        """What to do, which commits are new here, and what was made of it.  `settle` is the number
        of the one that tells when they are durable (`commits_settled`).  A sealed replica takes
        what was committed of the generation that it was open in: it is what all its replicas
        hold."""
        committed, was_trimmed = self.committed, self.committed.trim_end
        fresh = committed.news(told.commits)
        if not self.is_valid:
            verdict = CommitVerdict.NOT_VALID
        elif told.generation != self.opened:
            verdict = CommitVerdict.WRONG_GENERATION
        else:
            safe_end = self.entries.safe_end
            told_of = version, high_watermark, fresh, trim_end
            verdict = committed.judge(*told_of, safe_end, told.end)
        self.counts.commits[verdict] = self.counts.commits.get(verdict, 0) + 1
        if verdict is not CommitVerdict.TAKEN:
            return [], (), verdict
        context = committed.take(version, high_watermark, fresh, trim_end, settle, version_first)
        effects: list[NodeEffect] = [CommitRuns(self.stream_log, context, fresh)]
        if committed.trim_end > was_trimmed:
            effects.append(TrimCommitted(self.stream_log, committed.trim_end))
        return effects, fresh, verdict

    def ack_of(self, fresh: tuple[StreamCommit, ...]) -> Ack:
        """What commits rest on: no less than any of their entries, and the commits before them."""
        has_disk = self._disk_end > fresh[0].local or self.committed.is_unsafe
        return Ack.DISK if has_disk else Ack.MEMORY

    @property
    def can_wait(self) -> bool:
        """Whether its commits may become durable with something else: it holds entries that are
        not committed, so that more commits come."""
        return self.entries.end > self.local_end and self.committed.can_wait

    def commits_settled(self, settle: int) -> None:
        self.committed.settled(settle)

    # -- Generations --------------------------------------------------------------------------

    def seal(self, ticket: Ticket, request: SealStream) -> list[NodeEffect]:
        generation = request.generation
        is_again = generation == self.generation and self.opened < generation
        if generation <= self.generation and not is_again:
            detail = f"sealed for generation {self.generation}, open last in {self.opened}"
            return [Reply(ticket, self.refused(Refusal.EPOCH, detail))]
        self.generation = generation
        if self._if_nothing_lost is not None:
            # From now on it counts for nothing but what it holds, so nothing is missing (recovery).
            self.become(self._if_nothing_lost)
            self._if_nothing_lost = None
        elif self.state is ReplicaState.OPEN:
            self.state = ReplicaState.SEALED
        elif self.state is ReplicaState.LEARNING:
            self.quarantine("its synchronization was cut short")
        return [self._fence(), self.settle(Ack.DISK, ticket, self._sealed())]

    def open(self, ticket: Ticket, request: OpenStream) -> list[NodeEffect]:
        is_again = self.state is ReplicaState.OPEN and request.generation == self.generation
        if is_again and request.replicas == self.replicas:
            return [self.settle(Ack.DISK, ticket, StreamOpened(self.report()))]
        refused = self._refuse_to_open(request)
        if refused is not None:
            return [Reply(ticket, refused)]
        effects: list[NodeEffect] = []
        if request.end < self.entries.end:
            self.entries.truncate(request.end)
            effects.append(TruncateLog(self.stream_log, request.end))
        self.generation = self.opened = request.generation
        self.replicas, self.suspects = request.replicas, ()
        self.is_left_out = self.is_disowned = False
        self.is_closed = not request.is_open
        self.state, self.why = ReplicaState.OPEN, ""
        opened = self.settle(Ack.DISK, ticket, StreamOpened(self.report()))
        return [*effects, self._fence(), opened]

    def _refuse_to_open(self, request: OpenStream) -> Refused | None:
        generation, end = request.generation, request.end
        is_new = end == self.entries.end == FIRST_LSN  # It needs no seal before.
        if generation < self.generation:
            return self.refused(Refusal.EPOCH, f"sealed for generation {self.generation}")
        if not self.is_valid:
            return self.refused(Refusal.INCOMPLETE, f"{self.state.value} {self.why}")
        if generation > self.generation and not is_new:
            return self.refused(Refusal.NOT_READY, "it must be sealed for the generation first")
        if generation == self.opened:
            detail = "it was open in this generation before: a later one must begin"
            return self.refused(Refusal.NOT_READY, detail)
        if self._me not in request.replicas:
            return self.refused(Refusal.BAD_REQUEST, f"node {self._me} is none of the replicas")
        if not self.local_end <= end <= self.entries.end:
            detail = f"[{self.local_end}, {self.entries.end}) is not committed here: not at {end}"
            return self.refused(Refusal.CONFLICT, detail)
        return None

    def _fence(self) -> SetFence:
        proposer = Token(self.opened, 0)  # A stream has none: the place serves for this.
        return SetFence(self.stream_log, Fence(self.generation, proposer, Standing.MEMBER))

    def _sealed(self) -> StreamSealed:
        return StreamSealed(
            self.generation,
            self.version,
            self.local_end,
            self.entries.safe_end,
            self.is_valid,
            self.why,
            self.opened,
            self.committed.last,
        )

    # -- The store ----------------------------------------------------------------------------

    def settled(self, settle: Settle) -> Message:
        """The answer as it stands by now."""
        self.entries.settled(settle.number)
        match settle.message:
            case StreamStored(end) if end > self.entries.end:
                return self.refused(Refusal.BUSY, "the store could not keep it: send it again")
            case StreamSealed(generation=generation) if generation == self.generation:
                return self._sealed()
            case StreamOpened(report) if report.generation == self.generation:
                return StreamOpened(self.report())
            case StreamSealed() | StreamOpened():
                detail = f"sealed for generation {self.generation} meanwhile"
                return self.refused(Refusal.EPOCH, detail)
        return settle.message

    def store_failed(self, settle: Settle, state: LogState | None) -> list[NodeEffect]:
        """Blocks were not kept; those behind them cannot be kept either (I2).  Of a primary's the
        positions are given out, and others hold them: it cannot go on in this generation."""
        end = FIRST_LSN if state is None else state.contiguous_end
        self.entries.settled(settle.number)
        self.entries.truncate(end)
        if end < self.local_end:
            self.quarantine(f"the store lost committed entries from {end} on")
        elif self.is_primary:
            why = f"the store could not keep entries from {end} on"
            self.quarantine(why, self.committed.valid(end))
        return [TruncateLog(self.stream_log, end)]

    def settle(self, ack: Ack, ticket: Ticket, answer: Message) -> Settle:
        return Settle(self.stream_log, next(self._numbers), ack, ticket, answer)


def facts_of(state: LogState) -> ReplicaFacts:
    return ReplicaFacts(
        state.trim_end,
        state.contiguous_end,
        state.end,
        state.context,
        state.first_run,
        state.last_run,
        state.fence.standing is Standing.DIRTY,
    )
