"""Planted bugs in what sequenced logs run on."""

from typing import Any

import msgspec

from millrace.core import epochs, replication
from millrace.core.messages import AppendBlock, Message
from millrace.core.procedure import AppendNodesetChange, ReplaceEpochs
from millrace.core.reading import gaps
from millrace.core.reading.buffer import Added, BlockBuffer
from millrace.core.reading.delivery import Delivery
from millrace.core.reading.hearing import Hearing
from millrace.core.reading.lists import Lists
from millrace.core.reading.senders import GapState, Sender
from millrace.core.reading.stream import SequencedReadStream
from millrace.core.replication import Authority
from millrace.core.sequenced import (
    append,
    digest,
    giving,
    rebuilding,
    recovery,
    whereabouts,
)
from millrace.core.sequenced.copysets import CopysetChooser
from millrace.core.sequenced.epoch_start import EpochStart
from millrace.core.sequenced.replacing import Ward
from millrace.core.sequenced.sequencer import LogSequencer
from millrace.core.sequenced.settings import SequencerSettings
from millrace.core.sequenced.storage import SequencedStorage
from millrace.core.sequenced.window import AppendWindow
from millrace.core.statuses import StatusBoard
from millrace.lsn import offset_of
from millrace.sim.driver import Driver
from millrace.sim.planting import Nursery, Patch
from millrace.sim.sequenced import office, part
from millrace.sim.store import SimulatedStore
from millrace.types import NO_LSN, Ack, AuthoritativeStatus, Epoch, Lsn

CANARIES = Nursery()
canary = CANARIES.plant


# -- Storage nodes ------------------------------------------------------------------------------


@canary
def stores_below_its_seal(patch: Patch) -> None:
    """A node takes blocks of sequencers that were replaced."""
    patch(SequencedStorage, "_refuse", lambda self, epoch: None)


@canary
def seal_lives_in_memory(patch: Patch) -> None:
    """A node that was sealed has forgotten it when it is started again."""

    def set_fence(self: SimulatedStore, log: Any, fence: Any) -> None:
        self._open(log).fence = fence

    patch(SimulatedStore, "set_fence", set_fence)


@canary
def stored_before_durable(patch: Patch) -> None:
    """A node acknowledges a block before it is on its disk."""
    settle = SequencedStorage._settle

    def hasty(self: SequencedStorage, ack: Ack, ticket: Any, answer: Message) -> Any:
        return settle(self, Ack.MEMORY, ticket, answer)

    patch(SequencedStorage, "_settle", hasty)
    barrier = SimulatedStore.barrier

    def soon(self: SimulatedStore, ack: Ack, done: Any) -> None:
        if ack is Ack.MEMORY:
            self._after(1, done, None)
        else:
            barrier(self, ack, done)

    patch(SimulatedStore, "barrier", soon)


@canary
def ships_what_is_not_released(patch: Patch) -> None:
    """Readers are sent all that a node holds."""
    patch(SequencedStorage, "readable_end", property(lambda self: self.end))


@canary
def wiped_node_votes(patch: Patch) -> None:
    """A node that lost its disk says that what it does not have was never there."""
    patch(StatusBoard, "is_incomplete", property(lambda self: False))
    patch(replication, "_WITH_VOTE", frozenset(AuthoritativeStatus))


# -- Sequencers ---------------------------------------------------------------------------------


@canary
def released_before_recovery(patch: Patch) -> None:
    """A sequencer lets readers see its epoch before those before it are closed."""
    tell = LogSequencer._tell_release

    def hasty(self: LogSequencer) -> Any:
        self._is_recovered = True
        return tell(self)

    patch(LogSequencer, "_tell_release", hasty)


@canary
def released_before_its_sync_leaders(patch: Patch) -> None:
    """Nobody waits for the nodes that readers ask first."""
    of_appender = SequencerSettings.of_appender

    def hasty(self: SequencerSettings, copies: int) -> Any:
        return msgspec.structs.replace(of_appender(self, copies), sync_leaders=0)

    patch(SequencerSettings, "of_appender", hasty)


@canary
def good_jumps_over_holes(patch: Patch) -> None:
    """The newest block that was stored counts, whatever lies before it."""

    def careless(self: AppendWindow) -> None:
        for block in [one for one in self._unreaped if one.appender.is_retired]:
            self._unreaped.remove(block)
            block.is_reaped = True
            self.good = max(self.good, block.block.last)
            self.forget(block)

    patch(AppendWindow, "reap", careless)


@canary
def acknowledged_one_copy_short(patch: Patch) -> None:
    """The client is answered when one copy is still missing."""

    def replicates(self: EpochStart) -> Any:
        return lambda nodes: len(nodes) >= max(1, self.replication.copies - 1)

    patch(EpochStart, "replicates", replicates)


@canary
def racks_are_not_looked_at(patch: Patch) -> None:
    """All copies of a block may lie in one rack."""

    def replicates(self: EpochStart) -> Any:
        return lambda nodes: len(nodes) >= self.replication.copies

    def choose(self: CopysetChooser, size_extra: int, avoided: Any) -> Any:
        left = [node for node in self._nodeset if node not in avoided]
        return tuple(left[: self._copies]) if len(left) >= self._copies else None

    patch(EpochStart, "replicates", replicates)
    patch(CopysetChooser, "choose", choose)


@canary
def copyset_names_a_node_twice(patch: Patch) -> None:
    """A copyset is a node short, and does not look it."""
    choose = CopysetChooser.choose

    def careless(self: CopysetChooser, size_extra: int, avoided: Any) -> Any:
        copyset = choose(self, size_extra, avoided)
        return None if copyset is None else (copyset[0], *copyset[:-1])

    patch(CopysetChooser, "choose", careless)


@canary
def tokens_are_forgotten(patch: Patch) -> None:
    """A sequencer appends whatever it is sent, again and again."""

    def forgetful(self: LogSequencer, ticket: Any, request: AppendBlock) -> Any:
        return None

    patch(LogSequencer, "_repeated", forgetful)


@canary
def epochs_without_comparing(patch: Patch) -> None:
    """Whoever activates itself overwrites the epoch store."""
    perform = Driver.perform

    def blind(self: Driver, effect: Any, resume: Any, *rest: Any) -> None:
        if isinstance(effect, ReplaceEpochs):
            effect = ReplaceEpochs(effect.record, -1)
        perform(self, effect, resume, *rest)

    patch(Driver, "perform", blind)


@canary
def nodeset_is_not_recorded(patch: Patch) -> None:
    """A sequencer appends on nodes that the metadata log does not know of."""
    perform = Driver.perform

    def lazy(self: Driver, effect: Any, resume: Any, *rest: Any) -> None:
        if isinstance(effect, AppendNodesetChange):
            self.process.later(1, resume, True)
        else:
            perform(self, effect, resume, *rest)

    patch(Driver, "perform", lazy)


# -- Growing and shrinking ----------------------------------------------------------------------


@canary
def drained_before_its_copies_are_elsewhere(patch: Patch) -> None:
    """A node counts as empty while others still name it."""
    patch(office, "unfinished", lambda entries, nodes, finished: frozenset())


@canary
def donor_takes_silence_for_stored(patch: Patch) -> None:
    """A donor tells the holders of a copy that nobody has taken."""
    send = rebuilding.LogWalk._send

    def careless(self: Any, jobs: Any) -> Any:
        jobs = list(jobs)
        yield from send(self, jobs[:-1])
        for job in jobs[-1:]:
            job.stored.update(job.targets)

    patch(rebuilding.LogWalk, "_send", careless)


@canary
def short_blocks_are_left_short(patch: Patch) -> None:
    """A donor looks only for those that a block names."""

    def careless(self: Any, ward: Ward, epoch: Epoch, copyset: Any) -> Any:
        return ward.lost_of(copyset)

    patch(giving.Site, "lacking", careless)


@canary
def donors_that_have_finished_never_look_again(patch: Patch) -> None:
    """What a recovery stores with too few copies afterwards is not found."""

    def careless(self: Driver, nodes: Any, resume: Any) -> None:
        self._list_statuses(resume)

    patch(Driver, "_renew_rebuilds", careless)


@canary
def wiped_node_counts_before_its_copies_are_back(patch: Patch) -> None:
    """A node with an empty disk asks no donor whether all is done."""
    patch(part, "unfinished", lambda entries, nodes, finished: frozenset())


@canary
def old_epochs_move_as_well(patch: Patch) -> None:
    """Whoever looks for old blocks looks where the log lies now."""
    find = epochs.ranges

    def hasty(changes: Any, current: Any) -> Any:
        return tuple(
            msgspec.structs.replace(each, nodeset=current.nodeset)
            for each in find(changes, current)
        )

    for user in (whereabouts, giving):
        patch(user, "ranges", hasty)


# -- Appends ------------------------------------------------------------------------------------


@canary
def unknown_is_appended_again(patch: Patch) -> None:
    """A client without an answer begins anew, as if nothing had been sent."""
    attempt = append.SequencedAppend._attempt

    def forgetful(self: append.SequencedAppend) -> Any:
        self._open_in = None
        return (yield from attempt(self))

    patch(append.SequencedAppend, "_attempt", forgetful)


@canary
def append_in_whichever_epoch(patch: Patch) -> None:
    """An append that is late may be taken in another epoch than the one it was sent to."""

    def anywhere(log: Any, only_in: Epoch, *rest: Any) -> AppendBlock:
        return AppendBlock(log, Epoch(0), *rest)

    patch(append, "AppendBlock", anywhere)


# -- Recovery -----------------------------------------------------------------------------------


@canary
def recovery_trusts_one_node(patch: Patch) -> None:
    """The first node that is sealed knows everything."""

    def credulous(site: Any, span: Any, sealed: Any) -> Authority:
        return Authority.COMPLETE if sealed else Authority.NONE

    patch(recovery, "_proof", credulous)


@canary
def bridge_covers_the_last_record(patch: Patch) -> None:
    """A recovery takes an epoch to end one block too early."""
    settle = digest._settle

    def careless(*arguments: Any) -> Any:
        standing, cleared = settle(*arguments)
        return standing[:-1], cleared

    patch(digest, "_settle", careless)


@canary
def empty_epochs_are_left_open(patch: Patch) -> None:
    """A recovery writes nothing into an epoch of which nobody holds anything."""
    decide = digest.decide

    def sparing(epoch: Epoch, good: Lsn, held: Any, proof: Authority) -> Any:
        if proof is Authority.COMPLETE and not any(held.values()) and not offset_of(good):
            return digest.Verdict((), NO_LSN)
        return decide(epoch, good, held, proof)

    patch(recovery, "decide", sparing)


@canary
def recovery_keeps_found_blocks_where_they_are(patch: Patch) -> None:
    """What is found once is not stored often enough again."""
    from millrace.core.sequenced import rewrite

    def lazy(terms: Any, candidates: Any) -> Any:
        return tuple(candidates[:1]) or None

    patch(rewrite, "choose_copyset", lazy)


# -- Readers ------------------------------------------------------------------------------------


@canary
def duplicates_are_delivered(patch: Patch) -> None:
    """A reader hands over every copy of a block that it is sent."""

    def add(self: BlockBuffer, entry: Any) -> Added:
        self._insert(entry)
        return Added.NEW

    patch(BlockBuffer, "add", add)
    patch(BlockBuffer, "drop_below", lambda self, lsn: None)


@canary
def gap_believed_in_single_copy_delivery(patch: Patch) -> None:
    """That nobody sends a block is taken to mean that nobody has it."""
    give_up = SequencedReadStream._give_up

    def credulous(self: SequencedReadStream, now_ms: int) -> Any:
        patched = self.lists
        self.lists = _AllSendAll(patched)  # type: ignore[assignment]
        try:
            return give_up(self, now_ms)
        finally:
            self.lists = patched

    patch(SequencedReadStream, "_give_up", credulous)


class _AllSendAll:
    is_single_copy = False

    def __init__(self, lists: Lists) -> None:
        self._lists = lists

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lists, name)


@canary
def unavailable_nodes_are_ignored(patch: Patch) -> None:
    """A node that is away for long is not waited for, though it has its disk."""
    patch(replication, "_WITH_VOTE", frozenset({AuthoritativeStatus.FULLY_AUTHORITATIVE}))
    lost = (*gaps._NOT_COMING, AuthoritativeStatus.UNAVAILABLE)
    patch(gaps, "_NOT_COMING", lost)


@canary
def one_claim_is_a_majority(patch: Patch) -> None:
    """What one node does not have was never there."""

    def credulous(voices: Any, authority_of: Any) -> Authority:
        has_claim = any(voice.state is not GapState.NONE for voice in voices)
        return Authority.COMPLETE if has_claim else Authority.NONE

    patch(gaps, "judge", credulous)


@canary
def claims_of_old_versions_count(patch: Patch) -> None:
    """A reader that was rewound goes by what nodes said before."""
    hear = Hearing._hear_stream

    def credulous(self: Hearing, sender: Sender, message: Any, now_ms: int) -> Any:
        if message.version < sender.version:
            message = msgspec.structs.replace(message, version=sender.version)
        return hear(self, sender, message, now_ms)

    patch(Hearing, "_hear_stream", credulous)


@canary
def rewind_resets_the_position(patch: Patch) -> None:
    """A rewound reader is given again what it has."""
    rewind = SequencedReadStream._rewind_if_due

    def zealous(self: SequencedReadStream, now_ms: int) -> Any:
        before = self.rewinds.total
        effects = rewind(self, now_ms)
        if self.rewinds.total > before:
            self.delivery.next_lsn = self.delivery.first
        return effects

    patch(SequencedReadStream, "_rewind_if_due", zealous)


@canary
def trim_is_believed_too_far(patch: Patch) -> None:
    """A reader takes the position behind a trimmed range for trimmed as well."""
    take_one = Delivery._take_one

    def careless(self: Delivery) -> Any:
        if self.trim_end > self.next_lsn:
            self.trim_end = Lsn(self.trim_end + 1)
        return take_one(self)

    patch(Delivery, "_take_one", careless)
