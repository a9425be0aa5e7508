"""Planted bugs in what chain logs run on, and in what all logs share."""

from typing import Any

import msgspec

from millrace.core import keeper, learn, reconcile, reconfigure, repair
from millrace.core.append import Append, Appended, NotAppended
from millrace.core.chain_node import ChainNode
from millrace.core.effects import NodeEffect, Reply, Settle, Ticket
from millrace.core.messages import Learned, Seal, Standing
from millrace.core.projection import Projection
from millrace.core.ranges import TakenRanges
from millrace.core.read_stream import ReadStream
from millrace.core.send_streams import SendStreams
from millrace.core.sequencer import Sequencer
from millrace.sim import disk as disks
from millrace.sim.planting import Nursery, Patch
from millrace.sim.store import SimulatedStore
from millrace.types import Ack, Lsn, Selection

CANARIES = Nursery()
canary = CANARIES.plant

# -- Storage nodes ------------------------------------------------------------------------------


@canary
def fence_not_persisted(patch: Patch) -> None:
    """A seal lives in memory only."""

    def set_fence(self: SimulatedStore, log: Any, fence: Any) -> None:
        self._open(log).fence = fence

    patch(SimulatedStore, "set_fence", set_fence)


@canary
def seal_answered_before_durable(patch: Patch) -> None:
    """A node says that it is sealed before the seal is on its disk."""
    seal = ChainNode._seal

    def hasty(self: ChainNode, ticket: Ticket, request: Seal) -> list[NodeEffect]:
        effects: list[NodeEffect] = []
        for effect in seal(self, ticket, request):
            is_settle = isinstance(effect, Settle)
            effects.append(Reply(ticket, effect.message) if is_settle else effect)  # type: ignore[union-attr]
        return effects

    patch(ChainNode, "_seal", hasty)


@canary
def seal_by_two_proposers(patch: Patch) -> None:
    """An epoch that somebody holds is given to a second proposer as well."""
    seal = ChainNode._seal

    def generous(self: ChainNode, ticket: Ticket, request: Seal) -> list[NodeEffect]:
        if request.epoch == self.fence.epoch:
            request = msgspec.structs.replace(request, proposer=self.fence.proposer)
        return seal(self, ticket, request)

    patch(ChainNode, "_seal", generous)


@canary
def written_before_durable(patch: Patch) -> None:
    """A node acknowledges a block before it is on its disk."""
    settle = ChainNode._settle

    def hasty(self: ChainNode, ticket: Ticket, ack: Ack, answer: Any) -> Settle:
        return settle(self, ticket, Ack.MEMORY, answer)

    patch(ChainNode, "_settle", hasty)
    barrier = SimulatedStore.barrier

    def soon(self: SimulatedStore, ack: Ack, done: Any) -> None:
        if ack is Ack.MEMORY:
            self._after(1, done, None)
        else:
            barrier(self, ack, done)

    patch(SimulatedStore, "barrier", soon)


@canary
def readable_before_durable(patch: Patch) -> None:
    """A node shows its readers blocks that are not on its disk yet."""
    patch(ChainNode, "readable_end", property(lambda self: self.taken.contiguous_end))


@canary
def write_once_ignores_islands(patch: Patch) -> None:
    """A block above the first hole may be overwritten."""
    patch(TakenRanges, "overlaps", lambda self, first, end: first < self.contiguous_end and end > 0)


@canary
def accepts_old_epochs(patch: Patch) -> None:
    """A sealed node still takes writes of the epoch before."""
    accept = ChainNode._accept

    def lenient(self: ChainNode, ticket: Ticket, epoch: Any, *rest: Any) -> list[NodeEffect]:
        return accept(self, ticket, self.fence.epoch if epoch else epoch, *rest)

    patch(ChainNode, "_accept", lenient)


@canary
def blank_admits_itself(patch: Patch) -> None:
    """A wiped node that is sealed says that it is a member."""
    sealed = ChainNode._sealed

    def boastful(self: ChainNode, before: Any) -> Any:
        return msgspec.structs.replace(sealed(self, before), standing=Standing.MEMBER)

    patch(ChainNode, "_sealed", boastful)


@canary
def dirty_opens_as_member(patch: Patch) -> None:
    """A node that lost what was only in its memory comes back as if it had not."""
    patch(disks, "dirtied", lambda fence: fence)


@canary
def trim_moves_down(patch: Patch) -> None:
    """A late request moves the trim point back."""

    def trim(self: ChainNode, ticket: Ticket, end: Lsn) -> list[NodeEffect]:
        from millrace.core.effects import TrimLog
        from millrace.core.messages import Trimmed

        self.taken.trim_end = end
        return [TrimLog(self.log, end), self._settle(ticket, Ack.DISK, Trimmed(end))]

    patch(ChainNode, "_trim", trim)


@canary
def window_ignored(patch: Patch) -> None:
    """A node sends as much as it has, whatever credit it was given."""
    start = SendStreams.start

    def generous(self: SendStreams, ticket: Any, request: Any, chain: Any) -> Any:
        return start(self, ticket, msgspec.structs.replace(request, credit_bytes=2**40), chain)

    patch(SendStreams, "start", generous)


# -- Sequencer ----------------------------------------------------------------------------------


@canary
def sequencer_goes_back(patch: Patch) -> None:
    """A sequencer that is appointed again counts from an older position."""
    bootstrap = Sequencer.bootstrap

    def forgetful(self: Sequencer, epoch: Any, next_lsn: Lsn) -> Any:
        self.next_lsn = min(self.next_lsn, next_lsn)
        return bootstrap(self, epoch, next_lsn)

    patch(Sequencer, "bootstrap", forgetful)


# -- Appending ----------------------------------------------------------------------------------


@canary
def position_lost_is_appended(patch: Patch) -> None:
    """An append whose position somebody else took is acknowledged there."""

    def optimistic(self: Any, projection: Projection) -> Any:
        yield from ()
        return Appended(self._block.first, self._block.last)

    patch(Append, "_position_lost", optimistic)


@canary
def positions_outlive_their_sequencer(patch: Patch) -> None:
    """A position is written although the count it came from was lost."""

    def trusting(self: Any, projection: Projection, block: Any) -> Any:
        yield from ()

    patch(Append, "_check_position", trusting)


@canary
def unknown_is_not_appended(patch: Patch) -> None:
    """An append that may have happened is reported as one that did not."""
    patch(Append, "_give_up", lambda self, reason, detail: NotAppended(reason, detail))


@canary
def last_node_not_waited_for(patch: Patch) -> None:
    """An append is acknowledged before the tail has it."""
    write_down = Append._write_down

    def hasty(self: Any, projection: Projection, block: Any) -> Any:
        chain = projection.chain[: max(1, len(projection.chain) - 1)]
        return write_down(self, msgspec.structs.replace(projection, chain=chain), block)

    patch(Append, "_write_down", hasty)


@canary
def retry_takes_a_new_position(patch: Patch) -> None:
    """An append that was unknown begins anew: the first copy may be there too."""
    run = Append.run

    def forgetful(self: Any, projection: Projection) -> Any:
        self._let_go()
        return run(self, projection)

    patch(Append, "run", forgetful)


# -- Repair and reconfiguration -----------------------------------------------------------------


@canary
def fill_without_peek(patch: Patch) -> None:
    """A position is filled although no writer was given it."""
    from millrace.core.messages import Peeked

    ask = repair.__dict__["ask"]

    def lying(node: Any, message: Any, timeout_ms: int = 0) -> Any:
        answer = yield from ask(node, message, timeout_ms)
        return Peeked(Lsn(2**40)) if isinstance(answer, Peeked) else answer

    patch(repair, "ask", lying)


@canary
def fill_from_the_tail(patch: Patch) -> None:
    """The tail is filled although the head holds a block."""
    fix = repair.repair

    def hasty(projection: Projection, *rest: Any) -> Any:
        return fix(msgspec.structs.replace(projection, chain=projection.chain[::-1]), *rest)

    from millrace.sim import reader

    patch(reader, "repair", hasty)


@canary
def reconcile_skips_completing(patch: Patch) -> None:
    """A block that only some of the chain hold is not passed on to the others."""

    def lazy(*arguments: Any) -> Any:
        yield from ()

    patch(reconcile, "_pass_on", lazy)


@canary
def members_without_a_seal(patch: Patch) -> None:
    """A node that did not answer the seal stays in the chain."""
    choose = reconfigure._choose_members

    def trusting(change: Any, current: Projection, answers: Any, broken: Any) -> Any:
        members = choose(change, current, answers, broken)
        if isinstance(members, reconfigure._TryAgain):
            return members
        sealed = dict(members.sealed)
        for node in current.chain:
            sealed.setdefault(node, sealed[members.chain[0]])
        added = tuple(node for node in members.chain if node not in current.chain)
        return msgspec.structs.replace(members, chain=(*current.chain, *added), sealed=sealed)

    patch(reconfigure, "_choose_members", trusting)


@canary
def sequencer_starts_low(patch: Patch) -> None:
    """A new sequencer begins below what the members hold."""
    appoint = reconfigure._appoint

    def low(change: Any, current: Any, epoch: Any, next_lsn: Lsn) -> Any:
        return appoint(change, current, epoch, Lsn(max(1, next_lsn - 5)))

    patch(reconfigure, "_appoint", low)


@canary
def learner_keeps_surplus(patch: Patch) -> None:
    """What the learner holds and the chain does not stays where nothing else belongs."""
    differences = learn.differences

    def greedy(mine: Any, theirs: Any) -> Any:
        _, missing = differences(mine, theirs)
        return [], missing

    patch(learn, "differences", greedy)


@canary
def grows_without_learning(patch: Patch) -> None:
    """A node joins the chain without having copied the log."""

    def lazy(projection: Projection, learner: Any) -> Any:
        yield from ()
        return Learned(Lsn(1), 0, 0)

    patch(keeper, "teach", lazy)


# -- Reading ------------------------------------------------------------------------------------


@canary
def reads_from_the_head(patch: Patch) -> None:
    """Readers ask the head, which holds what is not committed."""
    patch(Projection, "tail", property(lambda self: self.chain[0]))


@canary
def hole_is_skipped(patch: Patch) -> None:
    """A reader passes over what is missing at its position."""
    from millrace.core.messages import CaughtUp

    arrived = ReadStream.arrived

    def careless(self: ReadStream, node: Any, message: Any) -> Any:
        if isinstance(message, CaughtUp) and message.end > message.next_lsn == self.next_lsn:
            self.next_lsn = Lsn(self.next_lsn + 1)
            return self._rewind(_misbehaved(), None)
        return arrived(self, node, message)

    patch(ReadStream, "arrived", careless)


@canary
def cut_drops_a_row(patch: Patch) -> None:
    """A node takes one of the keys that are asked for to be none of them."""
    from millrace.server import shell

    cut = shell.__dict__["cut"]

    def careless(block: Any, selection: Selection) -> Any:
        keys = None if selection.keys is None else selection.keys[1:]
        return cut(block, msgspec.structs.replace(selection, keys=keys))

    patch(shell, "cut", careless)


@canary
def whole_blocks_not_selected(patch: Patch) -> None:
    """A reader believes that the node has left out what it did not ask for."""
    from millrace.sim import reader

    selected_batch = reader.__dict__["selected_batch"]

    def trusting(block: Any, selection: Selection, **part: Any) -> Any:
        if not block.is_cut:
            selection = Selection(selection.columns)
        return selected_batch(block, selection, **part)

    patch(reader, "selected_batch", trusting)


@canary
def cut_counted_by_its_size(patch: Patch) -> None:
    """A node takes bare headers to cost a reader next to nothing."""
    from millrace.server import shell

    patch(shell, "credit_bytes", lambda block: block.size)


def _misbehaved() -> Any:
    from millrace.core.read_stream import RewindReason

    return RewindReason.MISBEHAVED
