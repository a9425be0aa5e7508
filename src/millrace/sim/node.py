"""A simulated node process: the real shell and cores on a simulated disk and network.

It holds its lease in the repository, runs learning when told to, hosts sequencers, and takes its
turn as keeper.
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from millrace.codec.blocks import junk, move
from millrace.core import keeper
from millrace.core.commit.record import stream_log_of
from millrace.core.effects import RunLearn, RunPurge
from millrace.core.learn import learn
from millrace.core.messages import (
    AppendBlock,
    AppendStream,
    AskTail,
    BlockAppended,
    Bootstrap,
    Bootstrapped,
    EpochsSealed,
    Fill,
    Filled,
    Issued,
    Learned,
    Message,
    MetaEntry,
    MetaGet,
    MetaGrant,
    MetaKeepAlive,
    MetaLease,
    MetaList,
    MetaListing,
    MetaSet,
    Next,
    Refusal,
    Refused,
    Seal,
    Sealed,
    SealEpochs,
    SealStream,
    Store,
    Stored,
    StreamAppended,
    StreamBlock,
    StreamSealed,
    StreamStored,
    Tail,
    Write,
    Written,
)
from millrace.core.messages import Release as Announced
from millrace.core.procedure import Answer, ClusterView, Failure, ListNodes
from millrace.core.projection import Projection, ReconfigureReason
from millrace.core.reconfigure import Change
from millrace.core.sequenced.purging import purge
from millrace.core.sequenced.releases import LOOK_MS, ReleaseLookout, find_release
from millrace.core.statuses import StatusBoard
from millrace.meta.keys import KEEPER, LIVE, PROJECTIONS, STATUSES, Keeper, LiveNode
from millrace.server.committing import Committing
from millrace.server.hosted_committer import CommitterRequest
from millrace.server.sequencing import SequencerRequest, Sequencing
from millrace.server.shell import NodeShell, Release
from millrace.server.streams import StreamOrders
from millrace.sim.disk import Disk
from millrace.sim.driver import Driver, _entry
from millrace.sim.metadata import METADATA_NUMBER
from millrace.sim.network import Connection
from millrace.sim.process import Answered, Process
from millrace.sim.schedule import MS, SECOND
from millrace.sim.sequenced.donor import Donor
from millrace.sim.sequenced.standing import Standing
from millrace.sim.sequenced.surroundings import SimulatedSurroundings, entries_of
from millrace.sim.store import SimulatedStore
from millrace.types import Block, Epoch, LogId, Lsn, NodeId

if TYPE_CHECKING:
    from millrace.sim.world import World

RELEASE_US = 5 * SECOND
MYSELF = 0  # The session of what a node says to itself.
_CHECKED = frozenset(
    {
        *(Write, Fill, Next, Seal, Bootstrap),
        *(Store, SealEpochs, AppendBlock, AskTail),
        *(AppendStream, StreamBlock, SealStream),
    }
)  # The answers to these are held against the ledgers.


class Node(Process):
    world: "World"

    def __init__(self, world: "World", node: NodeId) -> None:
        super().__init__(world, node, f"n{node}")
        self.node = node
        self.disk = Disk(world.disk_bytes)
        self.disk.on_durable = lambda block: world.ledger_of(block.log).durable(node, block)
        self.disk_rng = Random(f"{world.seed}/disk/{node}")
        self.slow_us = 0
        self.store: SimulatedStore
        self.shell: NodeShell
        self.board: StatusBoard
        self._lookout: ReleaseLookout
        self.sequencing: Sequencing
        self.committing: Committing
        self.driver: Driver
        self.is_keeper = False
        self._sessions: dict[int, Connection] = {}
        self._said: dict[int, Answered] = {}
        self._checked: dict[tuple[int, int], Message] = {}
        self._lease = 0
        self._keeping = 0

    # -- Life -----------------------------------------------------------------------------------

    def on_start(self) -> None:
        shape = self.world.shape
        self.store = SimulatedStore(self.disk, self.later, self.disk_rng, shape.disk_us)
        self.store.commit_us += self.slow_us
        self.store.on_put = self._noted_put
        self.board = StatusBoard(self.node)
        self.shell = NodeShell(
            self.store,
            self,
            self._run_learn,
            me=self.node,
            locations=self.world.locations,
            run_purge=self._run_purge,
            board=self.board,
        )
        self.store.on_remove = self._noted_removal
        self.store.on_dirty = self._dirtied
        self.driver = Driver(self)
        around = SimulatedSurroundings(self)
        self.sequencing = Sequencing(self.node, around, move, junk)
        self.committing = Committing(self.node, around)
        self.is_keeper = False
        self._sessions = {}
        self._said = {}
        self._checked = {}
        self._lease = 0
        self._keeping = 0
        self._hold_lease()
        if self.world.sequenced.has_logs:
            # Its own status is the first thing that a node finds out: nobody is served before.
            self.board.update(self.world.sequenced.status_entries())
            self._follow_statuses()
            self._lookout = ReleaseLookout()
            self._look_out()
            if self.world.sequenced.shape.is_arranged or self.world.sequenced.shape.is_rebuilt:
                Donor(self).begin()
            if self.world.sequenced.shape.is_rebuilt:
                Standing(self).begin()
        if self.world.commits.has_logs:
            self.world.commits.ledger.restarted(self)
            StreamOrders(self.shell, around)
        self.later(int(self.rng.random() * shape.keeper_ms * MS), self._keep)

    def _noted_put(self, block: Block) -> None:
        self.world.ledger_of(block.log).held(self.node, block)

    def _noted_removal(self, block: Block) -> None:
        self.world.ledger_of(block.log).removed(self.node, block)

    def _dirtied(self, log: LogId) -> None:
        self.world.count("store.dirtied")
        for part in self.world.parts:
            part.dirtied(self, log)
        self.shell.dirtied(log)

    def on_crash(self) -> None:
        kept = self.store.crash(self.disk_rng)
        if kept:
            self.world.count("disk.unsynced_kept")
        for part in self.world.parts:
            part.ledger.loses_memory(self)

    def stop(self) -> None:
        """End in order: who waits is answered, everything durable, nothing DIRTY."""
        self.sequencing.close()
        self.committing.close()
        self.store.close()
        self.crash()

    @property
    def is_disk_full(self) -> bool:
        return self.disk.capacity_bytes != self.world.disk_bytes

    def wipe(self) -> None:
        assert not self.is_up
        self.trace("lost its disk")
        for part in self.world.parts:
            part.loses_disk(self)
        self.disk.wipe()
        self.world.ledger.wiped(self.node)

    # -- Being asked ----------------------------------------------------------------------------

    def asked(self, connection: Connection, request: int, message: Message) -> None:
        self._sessions[connection.number] = connection
        self._handle(connection.number, request, message)

    def _handle(self, session: int, request: int, message: Message) -> None:
        if type(message) in _CHECKED:
            self._checked[session, request] = message
        self.world.commits.nemesis.saw(self, message)
        if isinstance(message, SequencerRequest):
            self.sequencing.handle((session, request), message)
            return
        if isinstance(message, CommitterRequest):
            self.committing.handle((session, request), message)
            return
        self.shell.handle(session, request, message)
        self.world.ledger_of(getattr(message, "log", None)).agrees(self, message)

    def on_closed(self, connection: Connection) -> None:
        if self._sessions.pop(connection.number, None) is not None:
            self.shell.session_closed(connection.number)

    def writable(self, connection: Connection) -> None:
        self.shell.writable(connection.number)

    # -- Outbox ---------------------------------------------------------------------------------

    def answer(
        self, session: int, request: int, message: Message, release: Release | None = None
    ) -> None:
        self._check_answer(session, request, message)
        if session == MYSELF:
            said = self._said.pop(request, None)
            if said is not None:
                self.later(1, said, message)
        else:
            connection = self._sessions.get(session)
            if connection is not None:
                self.world.network.send(connection, self, message, request, True)
        if release is not None:
            release()

    def push(self, session: int, message: Message, release: Release | None = None) -> None:
        connection = self._sessions.get(session)
        if connection is not None:
            self.world.network.send(connection, self, message, 0, False)
        if release is not None:
            release()

    def is_writable(self, session: int) -> bool:
        connection = self._sessions.get(session)
        return connection is None or self.world.network.is_writable(connection, self)

    def after_others(self, call: Callable[[], None]) -> None:
        self.later(1, call)

    def _check_answer(self, session: int, request: int, message: Message) -> None:
        asked = self._checked.pop((session, request), None)
        match asked:
            case None:
                pass
            case Write() | Fill() | Next() | Seal() | Bootstrap():
                self._check_chain(asked.log, asked.epoch, message)
            case Store() | SealEpochs() | AppendBlock() | AskTail():
                self._check_sequenced(asked, message)
            case _:
                self._check_stream(asked, message)

    def _check_chain(self, log: LogId, epoch: Epoch, message: Message) -> None:
        ledger = self.world.ledger
        match message:
            case Written() | Filled():
                ledger.accepted(self.node, log, epoch)
            case Sealed():
                ledger.sealed(self.node, log, epoch)
            case Issued(first, count):
                ledger.issued(self.node, log, epoch, first, count)
            case Bootstrapped(next_lsn):
                ledger.bootstrapped(log, next_lsn)

    def _check_sequenced(self, asked: Message, message: Message) -> None:
        ledger = self.world.sequenced.ledger
        match asked, message:
            case Store(log, epoch), Stored():
                ledger.accepted(self.node, log, epoch)
            case Store(), Refused(Refusal.EPOCH):
                self.world.count("store.preempted")
            case SealEpochs(log, epoch), EpochsSealed():
                ledger.sealed(self.node, log, epoch)
            case AppendBlock(), BlockAppended():
                ledger.acknowledged(self.node, asked, message)
            case AskTail(log), Tail():
                ledger.told_tail(self.node, log, message)

    def _check_stream(self, asked: Message, message: Message) -> None:
        ledger = self.world.commits.ledger
        match asked, message:
            case StreamBlock(log, stream, generation), StreamStored():
                ledger.accepted(self.node, stream_log_of(log, stream), generation)
            case SealStream(log, stream, generation), StreamSealed():
                ledger.sealed(self.node, stream_log_of(log, stream), generation)
            case AppendStream(log), StreamAppended():
                ledger.acknowledged(log, asked.block.token, message)

    # -- Asking ---------------------------------------------------------------------------------

    def ask(self, node: NodeId | int, message: Message, timeout_ms: int, done: Answered) -> None:
        if node != self.node:
            super().ask(node, message, timeout_ms, done)
            return
        self._requests += 1
        self._said[self._requests] = done
        self.later(1, self._handle, MYSELF, self._requests, message)

    def tell_myself(self, message: Message) -> None:
        self.later(1, self._handle, MYSELF, 0, message)

    def _follow_statuses(self) -> None:
        def followed(answer: Answer) -> None:
            if isinstance(answer, MetaListing):
                self.board.update(entries_of(answer.entries))

        self.later(self.world.sequenced.shape.statuses_ms * MS, self._follow_statuses)
        self.ask(METADATA_NUMBER, MetaList(STATUSES.prefix), 0, followed)

    def _look_out(self) -> None:
        """For what sequencers did not tell, while readers wait for it."""

        def found(release: Announced | None) -> None:
            if release is not None:
                self.tell_myself(release)

        self.later(LOOK_MS * MS, self._look_out)
        now_ms = self.world.schedule.now_us // MS
        for log in self._lookout.due(self.shell.core.waiting(), now_ms):
            self.world.count("node.asks_for_release")
            self.driver.start(find_release(log), found, RELEASE_US)

    def _run_learn(self, order: RunLearn) -> None:
        self.world.count("learn.begun")
        procedure = learn(order.log, order.epoch, order.source, self.node, order.others)
        self.driver.start(procedure, lambda message: self.answer(*order.ticket, message))

    def _run_purge(self, order: RunPurge) -> None:
        def purged(firsts: tuple[Lsn, ...]) -> None:
            self.world.count("purge.dropped" if firsts else "purge.clean")
            self.shell.purged(order, firsts)

        procedure = purge(order.log, self.node, order.closed, order.until, order.good)
        self.driver.start(procedure, purged)

    # -- Lease and keeper -----------------------------------------------------------------------

    def _hold_lease(self) -> None:
        ttl_ms = self.world.shape.lease_ms
        again_us = ttl_ms * MS // 3
        if self._lease:
            self.ask(METADATA_NUMBER, MetaKeepAlive(self._lease), again_us // MS, self._kept)
        else:
            self.ask(METADATA_NUMBER, MetaGrant(ttl_ms), again_us // MS, self._granted)
        self.later(again_us, self._hold_lease)

    def _kept(self, answer: Answer) -> None:
        if isinstance(answer, Refused):
            self.world.count("lease.expired")
            self._lease = 0
            self.is_keeper = False
        else:
            self.ask(METADATA_NUMBER, MetaGet(LIVE.key(self.node)), 0, self._saw_myself)

    def _saw_myself(self, answer: Answer) -> None:
        """An announcement that was given up for lost may arrive after a later one, and take the
        key with it when its own lease ends."""
        if isinstance(answer, MetaEntry) and answer.lease != self._lease:
            self._lease = 0

    def _granted(self, answer: Answer) -> None:
        if isinstance(answer, MetaLease):
            lease = answer.lease
            value = LIVE.encode(LiveNode(self.node, str(self.life)))
            alive = MetaSet(LIVE.key(self.node), value, -1, lease)
            self.ask(METADATA_NUMBER, alive, 0, lambda answer: self._announced(lease, answer))

    def _announced(self, lease: int, answer: Answer) -> None:
        """A lease counts only when the key stands under it; otherwise another is asked for."""
        if isinstance(answer, MetaEntry):
            self._lease = lease

    def _keep(self) -> None:
        """One round as keeper, or an attempt to become it."""
        self.later(self.world.shape.keeper_ms * MS, self._keep)
        if not self._keeping and self._lease:
            self.ask(METADATA_NUMBER, MetaGet(KEEPER.key), 0, self._look_who)

    def _look_who(self, answer: Answer) -> None:
        self.is_keeper = False
        if not isinstance(answer, MetaEntry) or self._keeping:
            return
        keeper = KEEPER.find(_entry(answer))
        if keeper is None and self._lease:
            take = MetaSet(KEEPER.key, KEEPER.encode(Keeper(self.node)), 0, self._lease)
            self.ask(METADATA_NUMBER, take, 0, self._took_office)
        elif keeper is not None and keeper.node == self.node and answer.lease == self._lease:
            self.is_keeper = True
            self._keeping = 1
            self.driver.perform(ListNodes(), self._viewed)

    def _took_office(self, answer: Answer) -> None:
        if isinstance(answer, MetaEntry):
            self.trace("is keeper")
            self.world.count("keeper.elected")

    def _viewed(self, view: ClusterView | Failure) -> None:
        if isinstance(view, Failure):
            self._keeping = 0
            return
        self.ask(
            METADATA_NUMBER,
            MetaList(PROJECTIONS.prefix),
            0,
            lambda listing: self._plan(view, listing),
        )

    def _plan(self, view: ClusterView, listing: Answer) -> None:
        self._keeping = 0
        if not isinstance(listing, MetaListing):
            return
        projections = [PROJECTIONS.decode(_entry(entry)) for entry in listing.entries]
        full = [node.node for node in self.world.nodes if node.disk.room_bytes <= 0]
        steps = {step.log: step for step in keeper.plan(projections, view, full)}
        for projection in projections:
            self._keeping += 1
            step = steps.get(projection.log)
            if step is not None:
                self._take_step(step, projection)
            else:
                self._look_for_losses(projection)

    def _look_for_losses(self, projection: Projection) -> None:
        def found(step: keeper.Step | None) -> None:
            if step is None:
                self._keeping -= 1
            else:
                self._take_step(step, projection)

        self.driver.start(keeper.find_incomplete(projection), found)

    def _take_step(self, step: keeper.Step, projection: Projection) -> None:
        self.world.count(f"keeper.{step.kind.value}")
        self._say(f"{step.kind.value} log {step.log} {step.nodes}")
        match step.kind:
            case keeper.StepKind.GROW:
                (learner,) = step.nodes
                self.driver.start(
                    keeper.close_holes(projection, junk),
                    lambda _: self._teach(step, projection, learner),
                )
            case keeper.StepKind.SHRINK:
                dead = frozenset(step.nodes)
                change = Change(step.log, step.reason, dead, only_from=step.epoch)
                self.driver.change(change, self._stepped)
            case keeper.StepKind.REPLACE_SEQUENCER:
                suspects = frozenset(step.nodes)
                change = Change(step.log, step.reason, suspects, only_from=step.epoch)
                self.driver.change(change, self._stepped)

    def _teach(self, step: keeper.Step, projection: Projection, learner: NodeId) -> None:
        self.driver.start(
            keeper.teach(projection, learner), lambda taught: self._taught(step, taught)
        )

    def _taught(self, step: keeper.Step, taught: Answer) -> None:
        if isinstance(taught, Learned):
            change = Change(step.log, step.reason, only_from=step.epoch, add=step.nodes)
            self.driver.change(change, self._stepped)
            return
        self._say(f"{step.nodes} could not learn: {taught}")
        self.world.count("keeper.not_taught")
        if isinstance(taught, Refused) and taught.reason is Refusal.EPOCH:
            # Fenced above the chain by an attempt that did not finish: lift the chain over it.
            change = Change(step.log, ReconfigureReason.FENCED, only_from=step.epoch)
            self.driver.change(change, self._stepped)
        else:
            self._keeping -= 1

    def _stepped(self, result: Projection | Failure) -> None:
        self._keeping -= 1
        if isinstance(result, Failure):
            self._say(f"the chain was not changed: {result.detail}")
            self.world.count("keeper.failed")

    def _say(self, what: str) -> None:
        self.world.keeper_said = f"keeper {self.name}: {what}"
        self.trace(f"keeper: {what}")
