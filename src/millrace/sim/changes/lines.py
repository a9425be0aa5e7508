"""Lines of a query's driver, or of one attempt of a task, to the masters that it knows of."""

from typing import TYPE_CHECKING, Protocol

from millrace.core.documents.document import PartitionId
from millrace.core.documents.map import BucketRecord
from millrace.core.documents.message_sizes import message_bytes
from millrace.core.documents.messages import BufferAck, ProducerPush
from millrace.server.partitions.surroundings import Listener
from millrace.sim.documents.asking_line import BUFFER_BYTES, NOOP_S, AskingLine
from millrace.sim.documents.lines import LineProcess
from millrace.sim.schedule import MS
from millrace.types import NO_NODE, NodeId

if TYPE_CHECKING:
    from millrace.sim.documents.node import DocumentsNode

REREAD_US = 50 * MS


class LineUser(Protocol):
    def push_came(self, line: "QueryLine", push: ProducerPush, opaque: int) -> None: ...

    def line_lost(self, line: "QueryLine", why: str) -> None: ...


class QueryLine(AskingLine):
    def __init__(self, owner: LineProcess, node: NodeId, user: LineUser) -> None:
        self._process = owner
        self._user = user
        super().__init__(owner, node)

    def opened(self) -> None:
        controls = (
            ("connection_buffer_size", str(self._process.rng.choice(BUFFER_BYTES))),
            ("enable_noop", "true"),
            ("set_noop_interval", NOOP_S),
            ("changes_in_batches", "true"),
            ("states", "active"),
        )
        self.greet(f"query:{self._process.name}", self._process.world.record.name, controls)

    def _hand(self, listener: Listener, push: ProducerPush, opaque: int) -> None:
        self._user.push_came(self, push, opaque)
        self.tell(BufferAck(message_bytes(push)))

    def closed(self, why: str) -> None:
        self.is_open = False
        self._user.line_lost(self, why)


class LinePool:
    """`user` is told of pushes and losses."""

    def __init__(self, owner: LineProcess, user: LineUser) -> None:
        self._owner = owner
        self._user = user
        self._lines: dict[NodeId, QueryLine] = {}
        self._record: BucketRecord = owner.world.first_record
        self._is_reading = self._is_closed = False

    def to_master(self, number: PartitionId) -> QueryLine | None:
        """None: nobody is known to be it.  A new one is not open yet."""
        master = self._record.seat(number).active
        if master == NO_NODE:
            self.reload_map()
            return None
        line = self._lines.get(master)
        if line is None:
            line = self._lines[master] = QueryLine(self._owner, master, self._user)
        return line

    def forget(self, line: QueryLine) -> None:
        if self._lines.get(line.node) is line:
            del self._lines[line.node]
        self.reload_map()

    def close(self) -> None:
        self._is_closed = True
        for line in list(self._lines.values()):
            line.close()
        self._lines.clear()

    def reload_map(self) -> None:
        """From any node, as clients do: it may be the one that has not heard the news."""
        if not self._is_reading and not self._is_closed:
            self._is_reading = True
            node = self._owner.rng.choice(self._owner.world.nodes)
            self._owner.later(2 * self._owner.world.shape.delay_us, self._read, node)

    def _read(self, node: "DocumentsNode") -> None:
        self._is_reading = False
        network = self._owner.world.network
        if not node.is_up or node.is_paused or network.is_blocked(self._owner, node):
            self._owner.later(REREAD_US, self.reload_map)
        elif node.known.revision > self._record.revision:
            self._record = node.known
