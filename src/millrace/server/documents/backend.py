"""What the front end asks of its node.

A node implements `DocumentBackend` and `BucketHost`; the front end knows nothing else of it.
Everything here is called on the event loop's thread, and answers at once unless it is said to be
awaited.
"""

from asyncio import Future
from collections.abc import Collection, Iterable
from typing import Protocol

from millrace.codec.memcached.binary import Request, Response
from millrace.core.documents.document import PartitionId
from millrace.core.documents.messages import MutationToken
from millrace.core.documents.operations import Command, Operations, Outcome
from millrace.core.documents.partition import Partition
from millrace.core.documents.waits import Durability, WaitOutcome
from millrace.core.messages.documents import PartitionMark

Stat = tuple[str, str]  # Name and value.


class BucketHost(Protocol):
    """One bucket, as this node has it."""

    @property
    def name(self) -> str: ...

    @property
    def operations(self) -> Operations:
        """Made with the bucket's largest value, and with what loads values from the disk here."""

    @property
    def is_serving(self) -> bool:
        """False while warming up, and when the node's lease is over: nothing is answered from
        here then, neither reads nor changes."""

    @property
    def is_congested(self) -> bool:
        """Changes are refused for now: the disk cannot keep up, or memory is full."""

    def is_damaged(self, number: PartitionId) -> bool:
        """Its changes are refused: the disk does not take them, because of what it has of it."""

    def now_us(self) -> int:
        """Microseconds since 1970."""

    def partition_of(self, key: bytes) -> PartitionId: ...

    def active(self, number: PartitionId) -> Partition | None:
        """The partition, if this node is its master now."""

    def copies(self) -> Iterable[Partition]:
        """Those that this node has, whatever it is to them, by number."""

    def copy(self, number: PartitionId) -> Partition | None: ...

    async def forward(self, number: PartitionId, command: Command) -> Outcome:
        """Have the partition's master execute it, wherever that is (there `carry_out` does).
        Commands of one partition are executed in the order of the calls.  Does not raise: what
        cannot be done is TEMPORARY_FAILURE, what may have been done is AMBIGUOUS."""

    @property
    def numbers(self) -> Collection[PartitionId]:
        """Of all partitions of the bucket, wherever they are."""

    def named_here(self) -> set[PartitionId]:
        """The partitions that the map names this node the master of."""

    async def reload_map(self) -> None:
        """Does not raise: if it cannot be read the old one stays."""

    async def flush_elsewhere(
        self, numbers: Collection[PartitionId], marks: dict[PartitionId, PartitionMark]
    ) -> set[PartitionId]:
        """The other nodes that the map names as the masters of these delete their documents (there
        `empty` does); the ones that were emptied by their masters.  Those without a mark get one.
        Does not raise."""

    def wait(
        self, number: PartitionId, token: MutationToken, condition: Durability, timeout_ms: int
    ) -> Future[WaitOutcome]:
        """Until the change is as safe as that; 0 ms: as long as is usual.  TIMED_OUT at once if too
        many wait.  The partition may be a replica's, for ARRIVED and PERSISTED.  Who
        does not want to know any more cancels the future, and the wait is forgotten."""

    def map_json(self) -> bytes:
        """The bucket's partition map, as clients that know the map read it."""

    def stats(self, group: str) -> Iterable[Stat] | None:
        """Of the group: "" for the general ones, "upr", "partitions", or the node's own; None:
        there is no such group."""


class StreamOutlet(Protocol):
    """The connection, as a change stream's producer sees it."""

    @property
    def peer(self) -> str: ...

    @property
    def buffered_bytes(self) -> int:
        """Written and not yet taken by the network."""

    @property
    def is_congested(self) -> bool:
        """Write nothing more until `StreamSession.writable` is called."""

    def write(self, frames: bytes) -> None: ...

    def close(self) -> None: ...


class StreamSession(Protocol):
    """The producer's side of a connection that follows changes.

    It is made when the first frame of a change stream arrives, and gets those alone."""

    def receive(self, frame: Request | Response) -> None:
        """A request, a notice, or the answer to a noop, in the order of arrival; what is to be
        said is written to the outlet."""

    def writable(self) -> None:
        """The network has taken enough: pushing may go on."""

    def closed(self) -> None:
        """The connection is gone.  Called once; nothing is written afterwards."""


class DocumentBackend(Protocol):
    @property
    def version(self) -> str: ...

    def bucket(self, name: str) -> BucketHost | None:
        """None: there is no such bucket, or this node has not heard of it yet."""

    def open_stream(self, bucket: str, outlet: StreamOutlet) -> StreamSession:
        """`bucket` is the one that the connection has selected; the stream's Open may name
        another."""
