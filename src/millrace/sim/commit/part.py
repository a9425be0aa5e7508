"""The commit logs of a world, with all who use them; in a world without them there are none."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from millrace.core.commit.record import CommitRecord, StreamRecord, is_stream_log, stream_log_of
from millrace.sim.commit.faults import CommitNemesis
from millrace.sim.commit.ledger import CommitLedger
from millrace.sim.commit.office import CommitRegistrar, CommitTrimmer
from millrace.sim.commit.reader import CommitReader
from millrace.sim.commit.shape import CommitShape, draw
from millrace.sim.commit.writer import CommitWriter
from millrace.sim.part import Part
from millrace.sim.seeds import LogKind
from millrace.types import LogId, Lsn, NodeId

if TYPE_CHECKING:
    from millrace.sim.node import Node
    from millrace.sim.world import World

LOGS_FROM = 31
NUMBERS_FROM = 160


class CommitPart(Part[CommitWriter, CommitReader]):
    def __init__(self, world: "World", kind: LogKind, shape: CommitShape | None = None) -> None:
        self._world = world
        self.shape = shape or draw(world.seed)
        super().__init__(self.shape, kind.has_commits, LOGS_FROM)
        self.ledger = CommitLedger(world)
        self.registrar: CommitRegistrar = CommitRegistrar(world, NUMBERS_FROM)
        self.trimmer = CommitTrimmer(world, NUMBERS_FROM + 1)
        self.nemesis: CommitNemesis = CommitNemesis(
            world, self.shape.troubles if self.has_logs else ()
        )

    def make_clients(self) -> tuple[list[CommitWriter], list[CommitReader]]:
        world, shape = self._world, self.shape
        writers = [
            CommitWriter(world, NUMBERS_FROM + 10 + at, f"cw{at + 1}")
            for at in range(shape.writers)
        ]
        readers = [
            CommitReader(world, NUMBERS_FROM + 20 + at, f"cr{at + 1}")
            for at in range(shape.readers)
        ]
        return writers, readers

    def end_of(self, log: LogId) -> Lsn:
        return Lsn(self.ledger.truth(log).high_watermark + 1)

    def records(self) -> list[CommitRecord]:
        found = (self.ledger.truth(log).record for log in self.log_ids)
        return [record for record in found if record is not None]

    # -- What may be destroyed ------------------------------------------------------------------

    def loses_disk(self, node: "Node") -> None:
        self.ledger.loses_disk(node.node)

    def dirtied(self, node: "Node", log: LogId) -> None:
        """The store lost blocks that it had acknowledged from memory."""
        if is_stream_log(log):
            self.ledger.dirtied(node, log)

    def may_lose_disk(self, node: "Node") -> bool:
        """Each stream of the node keeps another replica that has everything."""
        return all(
            self._can_do_without(record.log, stream, {node.number}, node)
            for record in self.records()
            for stream in record.streams
        )

    def owns(self, log: LogId) -> bool:
        return is_stream_log(log)

    def rots(self, node: "Node", log: LogId, first: Lsn) -> None:
        """The ledger looks at the disks."""

    def stored_logs(self) -> list[LogId]:
        """Logs in the stores of nodes whose blocks may rot."""
        return [
            stream_log_of(record.log, each.stream)
            for record in self.records()
            for each in record.streams
        ]

    def may_lose_memory(self, node: "Node") -> bool:
        return all(
            self._can_do_without(record.log, stream, {node.number}, node)
            for record in self.records()
            for stream in record.streams
            if _is_volatile(node, stream_log_of(record.log, stream.stream))
        )

    def may_rot(self, node: "Node", stream_log: LogId) -> bool:
        """Another replica has all that it holds, and no damage."""
        others = {one.number for one in self._world.nodes if one.disk.rotten.get(stream_log)}
        return all(
            self._can_do_without(record.log, stream, {node.number, *others}, node)
            for record in self.records()
            for stream in record.streams
            if stream_log_of(record.log, stream.stream) == stream_log
        )

    def may_stay_away(self, node: "Node", gone: Collection[int]) -> bool:
        """Every stream can go on when the nodes that are gone never come back."""
        return all(
            self._can_do_without(record.log, stream, {*gone, node.number}, node)
            for record in self.records()
            for stream in record.streams
        )

    def is_anything_reformed(self) -> bool:
        return any(
            self._is_being_reformed(stream, stream_log_of(record.log, stream.stream))
            for record in self.records()
            for stream in record.streams
        )

    def note_losses(self) -> None:
        """Of which streams no replica has everything any more."""
        for record in self.records():
            for stream in record.streams:
                if not any(self._is_whole(node, record.log, stream) for node in stream.replicas):
                    self.ledger.may_lose(stream_log_of(record.log, stream.stream))

    def _can_do_without(
        self, log: LogId, stream: StreamRecord, gone: Collection[int], node: "Node"
    ) -> bool:
        stream_log = stream_log_of(log, stream.stream)
        if self._is_being_reformed(stream, stream_log):
            return False  # Who will be its replicas is not decided.
        if node.number not in stream.replicas:
            return True
        left = [each for each in stream.replicas if each not in gone]
        return any(self._is_whole(each, log, stream) for each in left)

    def _is_being_reformed(self, stream: StreamRecord, stream_log: LogId) -> bool:
        """Somebody was sealed for a generation that has no record yet."""
        return any(self._fence(node, stream_log) > stream.generation for node in stream.replicas)

    def _fence(self, number: NodeId, stream_log: LogId) -> int:
        node = self._world.node(number)
        stored = node.disk.logs.get(stream_log)
        opened = node.store.opened(stream_log) if node.is_up else None
        fences = [one.fence.epoch for one in (stored, opened) if one is not None]
        return max(fences, default=0)

    def _is_whole(self, number: NodeId, log: LogId, stream: StreamRecord) -> bool:
        """It has all that is committed of the stream, on its disk or safe in its memory, and knows
        where it lies."""
        node, stream_log = self._world.node(number), stream_log_of(log, stream.stream)
        if node.is_disk_full and _is_volatile(node, stream_log):
            return False
        held = node.store.opened(stream_log) if node.is_up else node.disk.logs.get(stream_log)
        context = None if held is None else held.context
        if (1 if context is None else context.local_end) < stream.taken_end:
            return False
        return all(
            self.ledger.has_copy(number, place.entry)
            for place in self.ledger.truth(log).kept_places()
            if place.entry.stream_log == stream_log
        )


def _is_volatile(node: "Node", stream_log: LogId) -> bool:
    stored = node.disk.logs.get(stream_log)
    opened = node.store.opened(stream_log) if node.is_up else None
    return (stored is not None and stored.is_volatile) or (opened is not None and opened.is_marked)
