"""Connections to documents ports: the frames of change streams between simulated processes.

The frames are the real ones, in pieces as they were written.  The producer's end is the node's own
`WireSession`; the consumer's end does here what `WireLine` does with sockets.

  I1  A listener hears once that its line is closed, and nothing afterwards.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from millrace.codec.memcached.binary import FrameDecoder, Request, Response, encode_response
from millrace.codec.memcached.opcodes import Opcode, Status
from millrace.codec.memcached.pushes import decode_push
from millrace.codec.memcached.streams import decode_answer, encode_message
from millrace.core.documents.document import PartitionId, Seq
from millrace.core.documents.message_sizes import message_bytes
from millrace.core.documents.messages import (
    Changes,
    ConsumerNotice,
    ConsumerRequest,
    MarkerFlag,
    Noop,
    ProducerAnswer,
    ProducerPush,
    Repaired,
    SnapshotMarker,
)
from millrace.server.partitions.surroundings import Listener
from millrace.server.partitions.wire import WireSession
from millrace.sim.network import Connection, Network
from millrace.sim.process import Process

if TYPE_CHECKING:
    from millrace.sim.documents.world import DocumentsWorld

BRIEF = 110  # Characters of a message in the trace.


class LineEnd(Protocol):
    def heard(self, data: bytes) -> None: ...

    def writable(self) -> None: ...

    def lost(self) -> None: ...


class LineProcess(Process):
    """One that has lines, whichever end of them."""

    world: "DocumentsWorld"

    def __init__(self, world: "DocumentsWorld", number: int, name: str) -> None:
        super().__init__(world, number, name)
        self.ends: dict[int, LineEnd] = {}  # By connection.

    def on_start(self) -> None:
        self.ends = {}

    def accept(self, connection: Connection) -> LineEnd:
        """Somebody has dialled the documents port."""
        raise AssertionError(f"{self.name} has no documents port")

    def heard(self, connection: Connection, data: bytes) -> None:
        end = self.ends.get(connection.number)
        if end is None:
            end = self.ends[connection.number] = self.accept(connection)
        end.heard(data)

    def writable(self, connection: Connection) -> None:
        end = self.ends.get(connection.number)
        if end is not None:
            end.writable()

    def on_closed(self, connection: Connection) -> None:
        end = self.ends.pop(connection.number, None)
        if end is not None:
            end.lost()

    def hang_up(self, connection: Connection) -> None:
        self.ends.pop(connection.number, None)
        self.world.network.close(connection, self)


class LineNetwork(Network):
    """A network whose connections carry messages, or the frames of documents ports."""

    def __init__(self, world: "DocumentsWorld", seed: int | str, delay_us: int) -> None:
        super().__init__(world, seed, delay_us)
        self._lines: set[int] = set()

    def dial_line(
        self, dialler: LineProcess, target: LineProcess, done: Callable[[Connection | None], None]
    ) -> None:
        def dialled(connection: Connection | None) -> None:
            if connection is not None:
                self._lines.add(connection.number)
            done(connection)

        self.dial(dialler, target, dialled)

    def is_line(self, connection: Connection) -> bool:
        return connection.number in self._lines

    def _deliver(self, connection: Connection, end: int, frame: bytes) -> None:
        if connection.number not in self._lines:
            super()._deliver(connection, end, frame)
        elif connection.is_open[1 - end]:
            target = connection.ends[1 - end]
            assert isinstance(target, LineProcess)
            target.heard(connection, frame)


class DialledLine:
    """A consumer's end (`surroundings.Line`)."""

    def __init__(self, owner: LineProcess, target: LineProcess, listener: Listener) -> None:
        self.target = target
        self._owner = owner
        self._listener: Listener | None = listener
        self._connection: Connection | None = None
        self._decoder = FrameDecoder(takes_answers=True)
        self._opaque = 0
        self._asked: dict[int, tuple[ConsumerRequest, int]] = {}
        self._firsts: dict[PartitionId, Seq] = {}  # Of the snapshot that came last.
        owner.world.network.dial_line(owner, target, self._dialled)

    def _dialled(self, connection: Connection | None) -> None:
        if connection is None:
            self._end(f"{self.target.name} cannot be reached")
        elif self._listener is None:
            self._owner.world.network.close(connection, self._owner)
        else:
            self._connection = connection
            self._owner.ends[connection.number] = self
            self._listener.opened()

    # -- What is said -------------------------------------------------------------------------

    def ask(self, request: ConsumerRequest, ticket: int) -> None:
        if self._connection is not None:
            self._opaque += 1
            self._asked[self._opaque] = request, ticket
            self._send(encode_message(request, self._opaque))

    def tell(self, notice: ConsumerNotice) -> None:
        if self._connection is not None:
            self._send(encode_message(notice))

    @property
    def last_opaque(self) -> int:
        """Of the last request."""
        return self._opaque

    def close(self) -> None:
        self._listener = None
        if self._connection is not None:
            self._owner.hang_up(self._connection)
            self._connection = None

    def _send(self, data: bytes) -> None:
        assert self._connection is not None
        self._owner.world.network.send_frame(self._connection, self._owner, data)

    # -- What arrives -------------------------------------------------------------------------

    def heard(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            match frame:
                case Response():
                    self._answered(frame)
                case Request():
                    self._pushed(frame)
                case _:
                    raise AssertionError(f"a producer sent {frame}")

    def _answered(self, frame: Response) -> None:
        request, ticket = self._asked.pop(frame.opaque)
        answer = decode_answer(frame, request)
        self._trace(answer)
        if isinstance(answer, Repaired) and answer.keys:
            self._owner.world.count("repair.taken", len(answer.keys))
        if self._listener is not None:
            self._listener.answered(ticket, answer)

    def _pushed(self, frame: Request) -> None:
        push = decode_push(frame)
        if isinstance(push, Noop):
            if self._connection is not None:
                self._send(encode_response(Opcode.DCP_NOOP, Status.SUCCESS, frame.opaque))
        else:
            self._trace(push)
        if isinstance(push, SnapshotMarker):
            self._count(push)
        if self._listener is not None:
            self._hand(self._listener, push, frame.opaque)

    def _count(self, marker: SnapshotMarker) -> None:
        """A marker that goes on with a snapshot of before says that its view was taken anew."""
        if marker.flags & MarkerFlag.DISK:
            self._owner.world.count("snapshot.from_disk")
        if self._firsts.get(marker.partition) == marker.first:
            self._owner.world.count("view.renewed")
        self._firsts[marker.partition] = marker.first

    def _hand(self, listener: Listener, push: ProducerPush, opaque: int) -> None:
        listener.pushed(push, message_bytes(push))

    def _trace(self, message: ProducerAnswer | ProducerPush) -> None:
        self._owner.trace(f"{self.target.name} says {brief(message)}")

    def writable(self) -> None: ...

    def lost(self) -> None:
        self._connection = None
        self._end("the connection was lost")

    def _end(self, why: str) -> None:
        """Keeps I1."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.closed(why)


class AcceptedLine:
    """A producer's end: the outlet of its session (`backend.StreamOutlet`)."""

    def __init__(
        self,
        owner: LineProcess,
        connection: Connection,
        open: Callable[["AcceptedLine"], WireSession],
    ) -> None:
        self._owner = owner
        self._connection = connection
        self._decoder = FrameDecoder(takes_answers=True)
        self._is_closed = False
        self.session = open(self)

    def heard(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            assert isinstance(frame, Request | Response), f"a consumer sent {frame}"
            if not self._is_closed:
                self.session.receive(frame)

    def writable(self) -> None:
        self.session.writable()

    def lost(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self.session.closed()

    @property
    def peer(self) -> str:
        return self._connection.peer_of(self._owner).name

    @property
    def buffered_bytes(self) -> int:
        return self._connection.bytes_waiting[self._connection.end_of(self._owner)]

    @property
    def is_congested(self) -> bool:
        return not self._owner.world.network.is_writable(self._connection, self._owner)

    def write(self, frames: bytes) -> None:
        self._owner.world.network.send_frame(self._connection, self._owner, frames)

    def close(self) -> None:
        self._owner.hang_up(self._connection)
        self._owner.later(0, partial(self.lost))


def brief(message: ProducerAnswer | ProducerPush) -> str:
    if isinstance(message, Changes):
        seqs = [document.seq for document in message.documents]
        return f"Changes of {message.partition}: {len(seqs)}, up to {seqs[-1]}"
    return repr(message)[:BRIEF]
