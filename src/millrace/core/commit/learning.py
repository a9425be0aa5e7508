"""How a replica that is not whole becomes so: the destination's side of a synchronization (M7).

What it keeps, and what it asks for, is decided by `negotiation.py`.  Then each batch of blocks
comes with its runs, which are stored behind it, and the context with the last ones.  So whatever is
interrupted, the disk tells how far it came, and that the replica is not whole.

I1  The replica counts for nothing from the first step on until the context is there.
I2  Blocks are taken in order, and each with the run that says where it lies.
I3  A batch that was taken already is answered as it was; one that does not fit ends the attempt.
"""

from millrace.core.commit.negotiation import SyncDrop, SyncPlan, SyncRefused, negotiate
from millrace.core.commit.record import CommitContext, StreamCommit
from millrace.core.commit.recovery import ReplicaFacts, Valid
from millrace.core.commit.replica import EMPTY, StreamReplica, facts_of
from millrace.core.effects import (
    CommitRuns,
    NodeEffect,
    Reply,
    StoreBlock,
    Ticket,
    TrimLog,
    TruncateLog,
    Uncommit,
)
from millrace.core.log_state import LogState
from millrace.core.messages import (
    Refusal,
    Refused,
    ReplicaState,
    SyncInit,
    SyncRange,
    SyncReplicate,
    SyncTaken,
)
from millrace.types import FIRST_LSN, NO_LSN, Ack, Epoch, Lsn, NodeId, Placement

_NOWHERE = Placement(())  # Who has copies is said by the stream's replicas, when it is opened.


class Learning:
    """At most one attempt at a time: a later one takes the place of an earlier one."""

    def __init__(self, replica: StreamReplica) -> None:
        self._replica = replica
        self._source = NodeId(0)
        self._next = FIRST_LSN
        self._end = FIRST_LSN
        self._context: CommitContext | None = None  # As it was offered.
        self._last = NO_LSN  # Where the last entry below `_next` lies in the log.

    # -- Negotiating --------------------------------------------------------------------------

    def begin(self, ticket: Ticket, offer: SyncInit, state: LogState | None) -> list[NodeEffect]:
        """`state` is what the store holds now."""
        replica = self._replica
        refused = self._refuse(offer.generation)
        if refused is None and replica.state is ReplicaState.OPEN:
            refused = replica.refused(Refusal.BAD_REQUEST, "an open replica does not learn")
        if refused is not None:
            return self._turn_away(ticket, refused)
        facts = ReplicaFacts() if state is None else facts_of(state)
        plan = negotiate(offer, facts)
        if isinstance(plan, SyncRefused):
            detail = f"{plan.reason.value}: {plan.detail}"
            return self._turn_away(ticket, replica.refused(Refusal.CONFLICT, detail))
        self._source, self._next, self._end = offer.source, plan.first, plan.end
        self._context, self._last = offer.context, _last_kept(plan, facts)
        answer = SyncRange(plan.first, plan.end, plan.is_complete)
        settle = replica.settle(Ack.DISK, ticket, answer)
        return [*self._drop(plan, state), *self._close(plan, offer.context), settle]

    def _drop(self, plan: SyncPlan, state: LogState | None) -> list[NodeEffect]:
        log, effects = self._replica.stream_log, list[NodeEffect]()
        match plan.drop:
            case SyncDrop.ALL:
                effects += [Uncommit(log), TruncateLog(log, FIRST_LSN)]
            case SyncDrop.UNCOMMITTED | SyncDrop.PREFIX:
                effects.append(TruncateLog(log, plan.first))
        if plan.trim_end > (FIRST_LSN if state is None else state.trim_end):
            effects.append(TrimLog(log, plan.trim_end))
        return effects

    def _close(self, plan: SyncPlan, context: CommitContext | None) -> list[NodeEffect]:
        """Keeps I1."""
        replica = self._replica
        if plan.is_complete:
            return self._finish(context, ())
        replica.learn()
        return [CommitRuns(replica.stream_log, None, ())]

    # -- Batches ------------------------------------------------------------------------------

    def take(self, ticket: Ticket, batch: SyncReplicate) -> list[NodeEffect]:
        replica = self._replica
        refused = self._refuse(batch.generation)
        if refused is None and replica.state is not ReplicaState.LEARNING:
            refused = replica.refused(Refusal.NOT_READY, f"it is {replica.state.value}")
        if refused is None and batch.source != self._source:
            refused = replica.refused(Refusal.BUSY, f"it learns from node {self._source}")
        if refused is None and batch.blocks and replica.refuse_writes is not None:
            refused = replica.refused(replica.refuse_writes, "")
        if refused is not None:
            return self._turn_away(ticket, refused)
        if batch.blocks and batch.blocks[-1].end <= self._next and batch.context is None:
            return [replica.settle(Ack.DISK, ticket, SyncTaken(self._next))]
        why = self._complain(batch)
        if why:  # Keeps I3.
            replica.quarantine(f"its synchronization failed: {why}")
            return self._turn_away(ticket, replica.refused(Refusal.BAD_REQUEST, why))
        self._next = batch.blocks[-1].end if batch.blocks else self._next
        self._last = Lsn(batch.runs[-1].end - 1) if batch.runs else self._last
        stored: list[NodeEffect] = [StoreBlock(each, _NOWHERE, Ack.DISK) for each in batch.blocks]
        taken = replica.settle(Ack.DISK, ticket, SyncTaken(self._next))
        if batch.context is not None:
            return [*stored, *self._finish(batch.context, batch.runs), taken]
        return [*stored, CommitRuns(replica.stream_log, None, batch.runs), taken]

    def _turn_away(self, ticket: Ticket, refused: Refused) -> list[NodeEffect]:
        counts = self._replica.counts.syncs
        counts[refused.reason] = counts.get(refused.reason, 0) + 1
        return [Reply(ticket, refused)]

    def _refuse(self, generation: Epoch) -> Refused | None:
        replica = self._replica
        if generation < replica.generation:
            detail = f"sealed for generation {replica.generation}"
            return replica.refused(Refusal.EPOCH, detail)
        if generation > replica.generation:
            return replica.refused(Refusal.NOT_READY, "it must be sealed for the generation first")
        return None

    def _complain(self, batch: SyncReplicate) -> str:
        """Keeps I2."""
        if not batch.blocks and batch.context is None:
            return "there is nothing in it"
        end = self._next
        for block in batch.blocks:
            # The first one may reach down across the trim point.
            is_next = block.first <= end < block.end if end == self._next else block.first == end
            if not is_next or block.log != self._replica.stream_log:
                return f"{block!r} does not follow {end - 1}"
            end = block.end
        if _uncovered(self._next, end, batch.runs):
            return f"[{self._next}, {end}) is not what {batch.runs} are about"
        if not _is_rising(self._last, batch.runs):
            return f"{batch.runs} do not lie above {self._last}, one above the other"
        if end > self._end:
            return f"it goes beyond {self._end}"
        return "" if batch.context is None else self._complain_of_context(batch, end)

    def _complain_of_context(self, batch: SyncReplicate, end: Lsn) -> str:
        context = batch.context
        last = batch.runs[-1].end - 1 if batch.runs else self._last
        if context is None or context != self._context:
            return f"{context} is not what was offered, {self._context}"
        if end != self._end:
            return f"{context} does not end at {end}"
        is_trimmed = last == NO_LSN  # Nothing is left of what the context closes.
        return "" if is_trimmed or last == context.last else f"{context} does not end at {last}"

    def _finish(
        self, context: CommitContext | None, runs: tuple[StreamCommit, ...]
    ) -> list[NodeEffect]:
        """The replica is what the source was; what it knows itself may be newer."""
        replica = self._replica
        if replica.is_valid and (context is None or replica.version >= context.version):
            replica.entries.truncate(self._end)
            return []
        replica.become(EMPTY if context is None else _valid_by(context))
        if context is None:
            return []
        replica.committed.trim_end = max(replica.trim_end, context.trim_end)
        return [CommitRuns(replica.stream_log, context, runs)]


def _valid_by(context: CommitContext) -> Valid:
    end = context.local_end
    return Valid(context.version, context.high_watermark, end, end, context.last)


def _last_kept(plan: SyncPlan, facts: ReplicaFacts) -> Lsn:
    run = facts.last_run
    is_kept = run is not None and plan.drop is not SyncDrop.ALL and run.local_end > plan.trim_end
    return Lsn(run.end - 1) if run is not None and is_kept else NO_LSN


def _is_rising(last: Lsn, runs: tuple[StreamCommit, ...]) -> bool:
    for run in runs:
        if run.first <= last:
            return False
        last = Lsn(run.end - 1)
    return True


def _uncovered(first: Lsn, end: Lsn, runs: tuple[StreamCommit, ...]) -> bool:
    at = first
    for run in runs:
        if run.local != at or run.count < 1:
            return True
        at = run.local_end
    return at != end
