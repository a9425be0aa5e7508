"""Planted bugs in what commit logs run on."""

from typing import Any

import msgspec

from millrace.core.commit import arithmetic, reform
from millrace.core.commit.append import CommitAppend
from millrace.core.commit.entries import Entries
from millrace.core.commit.learning import Learning
from millrace.core.commit.pending import PendingAppends
from millrace.core.commit.primary import Primary
from millrace.core.commit.reading import LossCheck
from millrace.core.commit.record import CommitRecord, StreamRecord
from millrace.core.commit.replica import StreamReplica
from millrace.core.effects import Reply, StoreBlock
from millrace.core.messages import (
    OpenStream,
    SealStream,
    StreamAppended,
    StreamBlock,
    StreamSealed,
    StreamSynced,
)
from millrace.core.procedure import ReplaceCommits
from millrace.server import hosted_committer, streams
from millrace.sim.driver import NESTED_US, Driver
from millrace.sim.planting import Nursery, Patch
from millrace.sim.store import SimulatedStore
from millrace.types import Ack, LogId, Lsn

CANARIES = Nursery()
canary = CANARIES.plant


# -- The committer ------------------------------------------------------------------------------


@canary
def commits_without_comparing(patch: Patch) -> None:
    """A committer that was replaced writes its record over that of the next one."""
    perform = Driver.perform

    def careless(self: Driver, effect: Any, resume: Any, left_us: int = NESTED_US) -> None:
        if isinstance(effect, ReplaceCommits):
            effect = msgspec.structs.replace(effect, expected=-1)
        perform(self, effect, resume, left_us)

    patch(Driver, "perform", careless)


@canary
def commits_what_most_replicas_hold(patch: Patch) -> None:
    """The least of the replicas is not waited for."""

    def committable(stream: StreamRecord, reports: Any) -> int:
        counted = arithmetic._counted(stream, reports)
        if counted is None or not stream.is_open:
            return 0
        ends = sorted(each.end for each in counted)
        return max(0, ends[len(ends) // 2] - stream.local_end)

    patch(arithmetic, "_committable", committable)


@canary
def history_is_forgotten_early(patch: Patch) -> None:
    """A commit leaves the record although a replica has not taken it."""
    forget = arithmetic.forget_taken

    def hasty(stream: StreamRecord, reports: Any) -> StreamRecord:
        return msgspec.structs.replace(forget(stream, reports), history=stream.history[-1:])

    patch(arithmetic, "forget_taken", hasty)


@canary
def positions_overlap(patch: Patch) -> None:
    """What two streams commit in one version begins at the same position."""
    one_by_one = arithmetic.next_record

    def next_record(record: CommitRecord, reports: Any) -> CommitRecord | None:
        streams = []
        high = record.high_watermark
        for stream in record.streams:
            alone = msgspec.structs.replace(record, streams=(stream,))
            moved = one_by_one(alone, reports)
            streams.append(stream if moved is None else moved.streams[0])
            high = high if moved is None else max(high, moved.high_watermark)
        if high == record.high_watermark:
            return None
        return msgspec.structs.replace(
            record, version=record.version + 1, high_watermark=high, streams=tuple(streams)
        )

    patch(arithmetic, "next_record", next_record)


# -- Reforms ------------------------------------------------------------------------------------


@canary
def goes_on_with_whoever_answers(patch: Patch) -> None:
    """A replica that lost what is committed may go on."""

    def anybody(plan: Any, answers: Any) -> Any:
        ends = {
            node: max(answer.end, plan.stream.local_end)
            for node in plan.stream.replicas
            if isinstance(answer := answers[node], StreamSealed)
        }
        return ends or reform.CannotReform("nobody answers")

    patch(reform, "_who_goes_on", anybody)


@canary
def an_opening_cuts_nothing_off(patch: Patch) -> None:
    """What lies above the common end stays on the replicas that have it."""
    opening = StreamReplica.open

    def careless(self: StreamReplica, ticket: Any, request: OpenStream) -> Any:
        end = max(request.end, self.entries.end)
        return opening(self, ticket, msgspec.structs.replace(request, end=end))

    patch(StreamReplica, "open", careless)


@canary
def joins_without_a_sync(patch: Patch) -> None:
    """A node becomes a replica before it has what is committed."""

    def synced(log: LogId, stream: StreamRecord, destination: Any) -> Any:
        yield from ()
        return StreamSynced(stream.local_end)

    def joined(plan: Any, sealed: Any) -> Any:
        yield from ()
        replicas = (*sealed.replicas, *sealed.waiting)
        return msgspec.structs.replace(sealed, replicas=replicas, waiting=())

    patch(hosted_committer, "sync_replica", synced)
    patch(hosted_committer, "join_replicas", joined)


# -- Replicas -----------------------------------------------------------------------------------


@canary
def a_seal_fences_nobody(patch: Patch) -> None:
    """A replica that was sealed goes on to take blocks of its generation."""
    seal = StreamReplica.seal

    def sealed(self: StreamReplica, ticket: Any, request: SealStream) -> Any:
        before = self.state, self.generation
        effects = seal(self, ticket, request)
        self.state, self.generation = before
        return effects

    patch(StreamReplica, "seal", sealed)


@canary
def a_seal_lives_in_memory(patch: Patch) -> None:
    """A replica that is started again goes on in the generation it had."""

    def set_fence(self: SimulatedStore, log: Any, fence: Any) -> None:
        self._open(log).fence = fence

    patch(SimulatedStore, "set_fence", set_fence)


@canary
def reports_what_is_not_safe(patch: Patch) -> None:
    """A replica reports entries that are still on their way to its disk."""
    patch(Entries, "safe_end", property(lambda self: self.end))


@canary
def the_context_comes_before_its_entries(patch: Patch) -> None:
    """What is committed is written in another transaction than the runs."""
    commit = SimulatedStore.commit

    def early(self: SimulatedStore, log: Any, context: Any, runs: Any) -> None:
        if context is not None and runs:
            commit(self, log, context, ())
            context_only = self._notes.popitem()[1]
            self._submit(context_only)
            self.barrier(Ack.DISK, lambda _: None)
        commit(self, log, context, runs)

    patch(SimulatedStore, "commit", early)


@canary
def blocks_are_taken_in_any_order(patch: Patch) -> None:
    """A backup that missed a block takes the next one for it."""
    take = StreamReplica.take

    def careless(self: StreamReplica, ticket: Any, request: StreamBlock) -> Any:
        if request.block.first > self.entries.end:
            self.entries.restart(request.block.first)
        return take(self, ticket, request)

    patch(StreamReplica, "take", careless)


# -- Synchronization ----------------------------------------------------------------------------


@canary
def a_learner_keeps_what_it_had(patch: Patch) -> None:
    """What no run vouches for stays beneath what the source sends."""
    patch(Learning, "_drop", lambda self, plan, state: [])


@canary
def a_sync_says_it_is_done(patch: Patch) -> None:
    """The source answers before the destination has taken the last batch."""

    def sync(offer: Any, destination: Any) -> Any:
        yield from ()
        return StreamSynced(offer.end)

    patch(streams, "sync", sync)


# -- Clients ------------------------------------------------------------------------------------


@canary
def primaries_forget_tokens(patch: Patch) -> None:
    """A repetition is appended again."""
    patch(PendingAppends, "repeated", lambda self, *_: None)
    patch(PendingAppends, "can_tell", lambda self, *_: True)


@canary
def acknowledged_when_it_is_stored(patch: Patch) -> None:
    """A primary answers before the committer has decided."""
    append = Primary.append

    def hasty(self: Primary, ticket: Any, request: Any) -> Any:
        effects = append(self, ticket, request)
        replica = self._replica
        guess = Lsn(replica.high_watermark + 1)
        last = Lsn(guess + request.block.count - 1)
        has_stored = any(isinstance(one, StoreBlock) for one in effects)
        told = [Reply(ticket, StreamAppended(guess, last, replica.entries.end))]
        return [*effects, *told] if has_stored else effects

    patch(Primary, "append", hasty)


@canary
def another_stream_is_tried_at_once(patch: Patch) -> None:
    """A client that got no answer sends its block to the next stream."""
    failed = CommitAppend._failed

    def hasty(self: CommitAppend, stream: Any, answer: Any) -> Any:
        outcome = failed(self, stream, answer)
        self._open = None
        return outcome

    patch(CommitAppend, "_failed", hasty)


@canary
def readers_believe_every_loss(patch: Patch) -> None:
    """A loss is told although the streams have other replicas by now."""
    patch(LossCheck, "is_current", lambda self, record: True)
