"""What the primary of a stream does: gives local positions, feeds the backups, answers clients.

It stores each block in its own replica like a backup does, and knows no more than that replica:
what is committed it hears from the committer, as all do.

I1  Positions are given out once in a generation, in order, and to blocks of this generation alone.
I2  Clients are answered when the committer has decided, whoever stored the block by then.
I3  "Not appended" only of what lies above where a later generation begins: it was forgotten on disk
    before it can be said (M6), and the record of that generation is there already.
I4  What was sent is kept until all backups have it; what waits is bounded (`pending.py`).
"""

from collections import deque
from collections.abc import Callable

from millrace.core.commit.feed import BackupFeed
from millrace.core.commit.pending import PendingAppends
from millrace.core.commit.record import StreamCommit
from millrace.core.commit.replica import StreamReplica
from millrace.core.effects import AskReplicate, NodeEffect, Reply, Ticket
from millrace.core.messages import (
    AppendStream,
    AppendUnsettled,
    Refusal,
    Refused,
    StreamBlock,
)
from millrace.core.procedure import Answer
from millrace.types import FIRST_LSN, Ack, Block, EntryKind, Epoch, LogId, Lsn, NodeId

Place = Callable[[Block, Epoch, Lsn, LogId], Block]  # Stamps a block: `codec.blocks.move`.


class Primary:
    """Beside each replica, whether it is the primary's now or not: appends wait here while their
    stream is sealed."""

    def __init__(
        self, replica: StreamReplica, place: Place, pending: PendingAppends | None = None
    ) -> None:
        self._replica = replica
        self._place = place
        is_new = replica.is_valid and replica.entries.end == FIRST_LSN
        self._pending = PendingAppends(is_new) if pending is None else pending
        self._feeds: dict[NodeId, BackupFeed] = {}
        self._sent: deque[StreamBlock] = deque()  # What some backup does not have yet, in order.
        self._over = Epoch(0)  # A backup was sealed for this generation.

    @property
    def waiting(self) -> int:
        return len(self._pending)

    # -- Appending ----------------------------------------------------------------------------

    def append(self, ticket: Ticket, request: AppendStream) -> list[NodeEffect]:
        replica, token = self._replica, request.block.token
        known = self._pending.repeated(ticket, token, replica.generation)
        if known is not None:
            return known
        refused = self._refuse(request)
        if refused is not None:
            return [Reply(ticket, refused)]
        if request.is_repeated and not self._pending.can_tell(token, request.searched):
            # It may be one that was taken before all that is known here: only the stream can tell.
            return [Reply(ticket, AppendUnsettled(replica.generation))]
        end = replica.entries.end
        block = self._place(request.block, replica.generation, end, replica.stream_log)
        self._pending.add(block, ticket)
        stored = replica.keep(block, request.ack)
        if not self._feeds:
            return stored
        sent = StreamBlock(replica.log, replica.stream, replica.generation, block, request.ack)
        self._sent.append(sent)
        # The backups first: they have the longer way.
        return [*(each for feed in self._feeds.values() for each in feed.send((sent,))), *stored]

    def _refuse(self, request: AppendStream) -> Refused | None:
        replica, block = self._replica, request.block
        refused = replica.refuse(request.generation)
        if refused is not None:
            return refused
        if not replica.is_primary:
            return replica.refused(Refusal.NOT_READY, f"node {replica.replicas[0]} is the primary")
        if replica.is_closed:
            return replica.refused(Refusal.NOT_READY, "the stream takes no appends")
        if self._over:
            return Refused(Refusal.EPOCH, self._over, "a later generation has begun")
        if block.log != replica.log or block.kind is not EntryKind.DATA or block.is_cut:
            return replica.refused(Refusal.BAD_REQUEST, f"{block!r} cannot be appended")
        if replica.refuse_writes is not None:
            return replica.refused(replica.refuse_writes, "")
        if not self._pending.has_room(block.size):
            return replica.refused(Refusal.BUSY, f"{len(self._pending)} appends wait already")
        return None

    def committed(self, commits: tuple[StreamCommit, ...]) -> list[NodeEffect]:
        """Keeps I2.  What is committed all backups have."""
        if not commits:
            return []
        for feed in self._feeds.values():
            feed.stored(commits[-1].local_end)
        self._let_go()
        return self._pending.committed(commits)

    # -- Backups ------------------------------------------------------------------------------

    def replicated(self, order: AskReplicate, answer: Answer) -> list[NodeEffect]:
        feed = self._feeds.get(order.node)
        if feed is None or order.message.generation != self._replica.generation:
            return []
        match answer:
            case Refused(Refusal.EPOCH, epoch) if epoch > self._replica.generation:
                return self._end(epoch)
        effects = feed.answered(order, answer)
        self._tell_suspects()
        self._let_go()
        return effects

    def resume(self, node: NodeId) -> list[NodeEffect]:
        """The pause before the backup is sent more is over."""
        feed = self._feeds.get(node)
        return [] if feed is None else feed.resume(self._sent)

    def _tell_suspects(self) -> None:
        troubled = (node for node, feed in self._feeds.items() if feed.trouble)
        self._replica.suspects = tuple(troubled)

    def _let_go(self) -> None:
        """Keeps I4."""
        stored_end = min((feed.stored_end for feed in self._feeds.values()), default=None)
        while self._sent and stored_end is not None and self._sent[0].block.end <= stored_end:
            self._sent.popleft()

    # -- Generations --------------------------------------------------------------------------

    def sealed(self) -> None:
        """What waits is decided by where the next generation begins."""
        self._feeds.clear()
        self._sent.clear()

    def opened(self, end: Lsn) -> list[NodeEffect]:
        """The replica is open in a new generation, which begins at `end`.  Keeps I3."""
        replica = self._replica
        self.sealed()
        self._over = Epoch(0)
        refused = replica.refused(Refusal.EPOCH, f"the stream was cut off at {end} before it")
        cut = self._pending.cut(end)
        effects: list[NodeEffect] = [replica.settle(Ack.DISK, each, refused) for each in cut]
        if not replica.is_primary:
            return effects + self._pending.abandon(replica.generation)
        self._pending.opened(end)
        backups = replica.replicas[1:]
        self._feeds = {node: BackupFeed(replica.stream_log, node, end) for node in backups}
        return effects

    def abandon(self) -> list[NodeEffect]:
        """The replica is dropped, or is not whole any more."""
        self.sealed()
        return self._pending.abandon(self._replica.generation)

    def _end(self, generation: Epoch) -> list[NodeEffect]:
        """Somebody was sealed for a later generation, without this node hearing of it."""
        self._over = generation
        self.sealed()
        return self._pending.abandon(generation)
