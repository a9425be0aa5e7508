"""The nemesis of commit logs: their committers, primaries, reforms, syncs and streams."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from millrace.core.commit.record import CommitRecord, StreamRecord
from millrace.core.messages import (
    AddStream,
    Message,
    MoveReplica,
    OpenStream,
    SealStream,
    SetStreamOpen,
    SyncReplicate,
)
from millrace.sim.commit.shape import CommitTrouble
from millrace.sim.process import Process
from millrace.sim.schedule import MS, SECOND
from millrace.sim.troubles import TroubleNemesis
from millrace.types import NO_NODE, LogId, NodeId

if TYPE_CHECKING:
    from millrace.sim.node import Node
    from millrace.sim.world import World

STREAMS_MAX = 6
OPENED_AGAIN_SHARE = 0.8
PAUSE_US = 3_500 * MS  # Longer than most leases.

_ARMED: dict[CommitTrouble, type[Message]] = {
    CommitTrouble.REFORM_KILLED: SealStream,
    CommitTrouble.OPENING_MISSED: OpenStream,
    CommitTrouble.SYNC_KILLED: SyncReplicate,
}


class CommitNemesis(TroubleNemesis[CommitTrouble]):
    def __init__(self, world: "World", troubles: tuple[CommitTrouble, ...]) -> None:
        super().__init__(world, "commit-nemesis", troubles)
        self._armed: set[CommitTrouble] = set()
        self._strikes: dict[CommitTrouble, Callable[[], bool]] = {
            CommitTrouble.COMMITTER_KILLED: lambda: self._kill(self._committer(self._any())),
            CommitTrouble.COMMITTER_PAUSED: self._pause_committer,
            CommitTrouble.COMMITTER_DESERTED: self._desert_committer,
            CommitTrouble.COMMITTER_USURPED: self._usurp,
            CommitTrouble.PRIMARY_KILLED: self._kill_primary,
            CommitTrouble.PRIMARY_CUT_OFF: self._cut_off_primary,
            CommitTrouble.REFORM_KILLED: lambda: self._arm(CommitTrouble.REFORM_KILLED),
            CommitTrouble.OPENING_MISSED: lambda: self._arm(CommitTrouble.OPENING_MISSED),
            CommitTrouble.SYNC_KILLED: lambda: self._arm(CommitTrouble.SYNC_KILLED),
            CommitTrouble.STREAM_ADDED: self._add_stream,
            CommitTrouble.STREAM_CLOSED: self._close_stream,
            CommitTrouble.REPLICA_MOVED: self._move_replica,
            CommitTrouble.SLOW_NODE: self._slow_node,
            CommitTrouble.REPLICAS_LOST: self._lose_replicas,
        }

    @property
    def strikes(self) -> Mapping[CommitTrouble, Callable[[], bool]]:
        return self._strikes

    @property
    def trouble_us(self) -> int:
        return self._world.commits.shape.trouble_us

    def _any(self) -> CommitRecord:
        return self._rng.choice(self._world.commits.records())

    def _up(self, number: NodeId) -> "Node | None":
        node = self._world.node(number) if number != NO_NODE else None
        return node if node is not None and node.is_up else None

    # -- Committers -----------------------------------------------------------------------------

    def _committer(self, record: CommitRecord) -> "Node | None":
        return self._up(record.committer)

    def _pause_committer(self) -> bool:
        node = self._committer(self._any())
        if node is None or node.is_paused:
            return False
        node.pause()
        self._lasts(MS, PAUSE_US, node.resume)
        return True

    def _desert_committer(self) -> bool:
        node = self._committer(self._any())
        others: list[Process] = [self._world.metadata, *self._world.commits.writers]
        others += [one for one in self._world.nodes if one is not node and self._rng.random() < 0.2]
        return self._desert(node, others)

    def _usurp(self) -> bool:
        """Somebody suspects the committer, and asks another node to take over."""
        record = self._any()
        nodes = [node.node for node in self._world.nodes if node.node != record.committer]
        if record.committer == NO_NODE:
            return False
        registrar = self._world.commits.registrar
        registrar.activate(record.log, self._rng.choice(nodes), (record.committer,))
        return True

    # -- Replicas -------------------------------------------------------------------------------

    def _stream(self) -> tuple[LogId, StreamRecord]:
        record = self._any()
        return record.log, self._rng.choice(record.streams)

    def _kill_primary(self) -> bool:
        """With it some of its connections, and the blocks that are under way on them."""
        _, stream = self._stream()
        node = self._up(stream.replicas[0])
        for connection in self._world.network.connections():
            if connection.ends[0] is node and self._rng.random() < 0.5:
                self._world.network.reset(connection)
        return self._kill(node)

    def _cut_off_primary(self) -> bool:
        _, stream = self._stream()
        if len(stream.replicas) < 2:
            return False
        backup = self._world.node(self._rng.choice(stream.replicas[1:]))
        return self._desert(self._up(stream.replicas[0]), [backup])

    def _arm(self, trouble: CommitTrouble) -> bool:
        """When it comes to that; a replica that is moved brings it about."""
        self._armed.add(trouble)
        self._move_replica()
        return True

    def saw(self, node: "Node", message: Message) -> None:
        """A node was told something: what waits for it strikes now."""
        for trouble in tuple(self._armed):
            if self._is_stopped or type(message) is not _ARMED[trouble]:
                continue
            victim = self._victim(trouble, node, message)
            self._armed.discard(trouble)
            self._world.count(f"trouble.{trouble.value}_struck")
            delay_us = int(self._rng.random() * 3 * MS)
            self._world.schedule.after(delay_us, self._strike_down, victim)

    def _strike_down(self, node: "Node | None") -> None:
        self._kill(node)

    def _victim(self, trouble: CommitTrouble, node: "Node", message: Message) -> "Node | None":
        log: LogId = getattr(message, "log", LogId(0))
        if trouble is CommitTrouble.REFORM_KILLED:
            record = self._world.commits.ledger.truth(log).record
            return None if record is None else self._committer(record)
        if isinstance(message, SyncReplicate) and self._rng.random() < 0.5:
            return self._up(message.source)
        return node

    def _lose_replicas(self) -> bool:
        _, stream = self._stream()
        commits = self._world.commits
        if not stream.generation or commits.is_anything_reformed():
            return False
        for number in stream.replicas:
            node = self._world.node(number)
            node.crash(is_silent=self._rng.random() < 0.5)
            node.wipe()
            self._lasts(MS, 2 * SECOND, partial(self._start, node))
        commits.note_losses()
        return True

    # -- Operators ------------------------------------------------------------------------------

    def _add_stream(self) -> bool:
        record = self._any()
        if len(record.streams) >= STREAMS_MAX:
            return False
        self._world.commits.registrar.operate(AddStream(record.log))
        return True

    def _close_stream(self) -> bool:
        log, stream = self._stream()
        registrar = self._world.commits.registrar
        registrar.operate(SetStreamOpen(log, stream.stream, False))
        if self._rng.random() < OPENED_AGAIN_SHARE:
            again = SetStreamOpen(log, stream.stream, True)
            self._lasts(MS, 2 * SECOND, lambda: registrar.operate(again))
        return True

    def _move_replica(self) -> bool:
        log, stream = self._stream()
        others = [node.node for node in self._world.nodes if node.node not in stream.replicas]
        source = self._rng.choice((*stream.replicas, NO_NODE))
        destination = self._rng.choice((*others, NO_NODE))
        if source == destination == NO_NODE:
            return False
        move = MoveReplica(log, stream.stream, source, destination)
        self._world.commits.registrar.operate(move)
        return True
