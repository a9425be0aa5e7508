"""The lines of a follower, one to each node that it follows anything of, and its barriers.

Most follow masters; in some of its lives a follower goes to replicas, which stream what is whole.

I1  A cookie that was taken comes back once, unless its line is lost.
I2  When it comes back, all that the producer had when the cookie was sent, of the partitions that
    were streamed on this line then and still are, has been pushed.
"""

from functools import partial
from typing import TYPE_CHECKING

from millrace.core.documents.document import PartitionId, PartitionState, Seq
from millrace.core.documents.map import BucketRecord, Seat
from millrace.core.documents.message_sizes import message_bytes
from millrace.core.documents.messages import (
    Barrier,
    BarrierReached,
    BufferAck,
    Changes,
    CloseStream,
    ProducerAnswer,
    ProducerPush,
    SeqAdvanced,
    SnapshotMarker,
    StreamEnd,
)
from millrace.server.partitions.surroundings import Listener
from millrace.sim.documents.asking_line import BUFFER_BYTES, NOOP_S, OK, AskingLine, ignore
from millrace.sim.schedule import MS
from millrace.sim.violation import Violation
from millrace.types import NO_NODE, NodeId

if TYPE_CHECKING:
    from millrace.sim.documents.follower import Follower
    from millrace.sim.documents.node import DocumentsNode

REDIAL_US = 50 * MS
COOKIES_MAX = 20
OF_REPLICAS_SHARE = 0.25


class FollowerLine(AskingLine):
    def __init__(self, owner: "Follower", node: NodeId) -> None:
        self._follower = owner
        self._cookies: dict[str, dict[PartitionId, tuple[int, Seq]]] = {}
        self._cookies_sent = 0
        super().__init__(owner, node)

    def opened(self) -> None:
        rng = self._follower.rng
        controls = (
            ("connection_buffer_size", str(rng.choice(BUFFER_BYTES))),
            ("enable_noop", "true"),
            ("set_noop_interval", NOOP_S),
            ("changes_in_batches", "true" if rng.random() < 0.5 else "false"),
            ("states", "active,replica"),
        )
        self.greet(f"follower:{self._follower.name}", self._follower.world.record.name, controls)
        self._follower.later(self._barrier_us(), self._send_barrier)

    def _hand(self, listener: Listener, push: ProducerPush, opaque: int) -> None:
        size_bytes = message_bytes(push)
        match push:
            case Changes() | SnapshotMarker() | SeqAdvanced() | StreamEnd():
                followed = self._follower.followed[push.partition]
                followed.pushed(self, push, opaque, size_bytes)
                return
            case BarrierReached(cookie):
                self._reached(cookie)
        self.processed(size_bytes)

    def processed(self, size_bytes: int) -> None:
        self.tell(BufferAck(size_bytes))

    def closed(self, why: str) -> None:
        self.is_open = False
        self._follower.lines.lost(self, why)

    # -- Barriers -------------------------------------------------------------------------------

    def _barrier_us(self) -> int:
        return int((0.5 + self._follower.rng.random()) * self._follower.world.shape.barrier_ms * MS)

    def _send_barrier(self) -> None:
        if not self.is_open:
            return
        if len(self._cookies) < COOKIES_MAX:
            self._cookies_sent += 1
            cookie = f"{self._follower.name}.{self._cookies_sent}"
            self._cookies[cookie] = self._highs()
            self.put(Barrier(cookie), partial(self._barred, cookie))
        self._follower.later(self._barrier_us(), self._send_barrier)

    def _highs(self) -> dict[PartitionId, tuple[int, Seq]]:
        """Of each partition that is streamed here: which stream it is, and what its master has."""
        node = self._follower.world.node(self.node)
        found: dict[PartitionId, tuple[int, Seq]] = {}
        for followed in self._follower.followed:
            partition = node.partition(followed.number)
            is_master = partition is not None and partition.state is PartitionState.ACTIVE
            if followed.line is self and followed.is_streaming and is_master:
                assert partition is not None
                found[followed.number] = followed.streams, partition.high
        return found

    def _barred(self, cookie: str, answer: ProducerAnswer) -> None:
        assert answer == OK, f"a barrier was answered with {answer}"

    def _reached(self, cookie: str) -> None:
        highs = self._cookies.pop(cookie, None)
        if highs is None:
            raise Violation("barrier", f"{cookie} came back to {self._follower.name} twice")
        self._follower.world.count("barrier.reached")
        for number, (streams, high) in highs.items():
            followed = self._follower.followed[number]
            is_same = followed.line is self and followed.streams == streams
            if is_same and followed.is_streaming and followed.backing.seen < high:
                seen = followed.backing.seen
                detail = f"{cookie} came back at {seen} of partition {number}, {high} was there"
                raise Violation("barrier", detail)

    @property
    def cookies_open(self) -> int:
        return len(self._cookies)


class FollowerLines:
    def __init__(self, owner: "Follower") -> None:
        self._owner = owner
        self._lines: dict[NodeId, FollowerLine] = {}
        self._record: BucketRecord | None = None
        self._is_reading = False
        self._is_of_replicas = owner.rng.random() < OF_REPLICAS_SHARE

    def begin(self) -> None:
        self.reload_map()

    @property
    def cookies_open(self) -> int:
        return sum(line.cookies_open for line in self._lines.values() if line.is_open)

    def to_source(self, number: PartitionId) -> FollowerLine | None:
        """None: it is not known who that is.  A new one is not open yet."""
        sources = () if self._record is None else self._sources(self._record.seat(number))
        if not sources:
            self.reload_map()
            return None
        source = self._owner.rng.choice(sources)
        line = self._lines.get(source)
        if line is None:
            line = self._lines[source] = FollowerLine(self._owner, source)
        return line

    def _sources(self, seat: Seat) -> tuple[NodeId, ...]:
        if self._is_of_replicas and seat.replicas:
            return seat.replicas
        return (seat.active,) if seat.active != NO_NODE else ()

    def lost(self, line: FollowerLine, why: str) -> None:
        if self._lines.get(line.node) is line:
            del self._lines[line.node]
        for followed in self._owner.followed:
            if followed.line is line:
                followed.failed(why)
        self.reload_map()

    def reload_map(self) -> None:
        """From any node, as clients do: it may be the one that has not heard the news."""
        if not self._is_reading:
            self._is_reading = True
            node = self._owner.rng.choice(self._owner.world.nodes)
            if self._record is None and self._owner.prefers is not None:
                node, self._owner.prefers = self._owner.prefers, None
            self._owner.later(2 * self._owner.world.shape.delay_us, self._read, node)

    def _read(self, node: "DocumentsNode") -> None:
        self._is_reading = False
        network = self._owner.world.network
        if not node.is_up or node.is_paused or network.is_blocked(self._owner, node):
            self._owner.later(REDIAL_US, self.reload_map)
            return
        before, read = self._record, node.known
        if before is not None and read.revision <= before.revision:
            return
        self._record = read
        if before is None:
            return
        for followed, seat in zip(self._owner.followed, read.seats, strict=True):
            if followed.line is not None and followed.line.node not in self._sources(seat):
                followed.line.put(CloseStream(followed.number), ignore)
                followed.failed("the partition is elsewhere")
