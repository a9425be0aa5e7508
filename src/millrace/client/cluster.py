"""A connection to a cluster: find it by any of its nodes, then make, list and open logs."""

import asyncio
import contextlib
import secrets
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

import millrace
from millrace.client import bucket_creating, changing, creating, standings
from millrace.client.bucket import Bucket
from millrace.client.log import CLOSE_TIMEOUT_MS, Log
from millrace.client.log_standing import LogStanding, nodes_of
from millrace.client.multi_reader import MultiReader
from millrace.client.publications.facade import Publications
from millrace.client.reader import Reader
from millrace.client.standings import NodeStanding, StatusEvent
from millrace.client.status_watch import StatusWatch
from millrace.codec.blocks import junk
from millrace.codec.frames import PROTOCOL_VERSION
from millrace.config import parse_address
from millrace.core.commit.record import CommitRecord
from millrace.core.commit.streams_known import StreamsKnown
from millrace.core.documents.map import BucketRecord
from millrace.core.epochs import EpochRecord, is_metadata_log
from millrace.core.messages import (
    ClusterDescribed,
    DescribeCluster,
    DescribeNode,
    Drop,
    Hello,
    Message,
    NodeDescribed,
    Refused,
)
from millrace.core.projection import Projection
from millrace.core.publications import staging_name
from millrace.core.sequenced.append import Seats
from millrace.errors import (
    LogExists,
    MetadataUnavailable,
    MillraceError,
    NoNodeReachable,
    NotConnected,
    Unavailable,
    UnknownLog,
    UsageError,
)
from millrace.meta import keys
from millrace.meta.directory import ClusterDirectory
from millrace.meta.remote import RemoteRepository
from millrace.runtime.asks import AnswerWaiter
from millrace.runtime.closing import cluster_mark
from millrace.runtime.conditions import TransportCounters, TransportSettings
from millrace.runtime.links import Links
from millrace.runtime.procedures import Noted, ProcedureRunner
from millrace.types import Ack, LogInfo, NodeId, NodeInfo, WritePath

ASK_TIMEOUT_MS = 3_000
Addresses = str | Iterable[str]


class NodeStatus(msgspec.Struct, frozen=True):
    info: NodeInfo
    is_live: bool  # Its lease is held.
    description: NodeDescribed | None  # None: it does not answer.


class ClusterStatus(msgspec.Struct, frozen=True):
    name: str
    nodes: tuple[NodeStatus, ...]
    projections: tuple[Projection, ...]
    logs: tuple[LogInfo, ...]
    keeper: NodeId | None
    epochs: tuple[EpochRecord, ...] = ()  # Of the sequenced logs.
    statuses: dict[int, NodeStanding] = {}  # Of nodes that ever had another than the usual one.
    commits: tuple[CommitRecord, ...] = ()  # Of the commit logs.
    buckets: tuple[BucketRecord, ...] = ()


async def connect(
    addresses: Addresses,
    *,
    timeout_ms: int = 10_000,
    noted: Noted | None = None,
    counters: TransportCounters | None = None,
    settings: TransportSettings | None = None,
    location: str = "",
) -> "Client":
    """Find the cluster by the addresses of any of its nodes (`host:port`, comma-separated or a
    list).  `location` is where this process runs, for logs that are read from nodes nearby.
    Raises NoNodeReachable, or MetadataUnavailable if nodes answer that know nothing."""
    listed = _listed(addresses)
    hello = Hello(
        PROTOCOL_VERSION,
        location=location,
        session=secrets.randbits(63),
        software=f"millrace {millrace.__version__}",
    )
    links = Links(hello, settings, counters)
    try:
        described = await _find_cluster(links, listed, timeout_ms)
    except BaseException:
        await links.close()
        raise
    mark = cluster_mark(described.cluster, described.cluster_id)
    hello = msgspec.structs.replace(hello, cluster=mark)
    links.introduce(hello)
    return Client(links, described, noted, hello)


async def _find_cluster(links: Links, addresses: list[str], timeout_ms: int) -> ClusterDescribed:
    """The first answer wins; the others are given up."""
    asks = {
        asyncio.create_task(links.ask(address, DescribeCluster(), timeout_ms)): address
        for address in addresses
    }
    problems: list[str] = []
    pending = set(asks)
    try:
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                answer = _answer_of(task)
                if isinstance(answer, ClusterDescribed):
                    return answer
                address, problem = asks[task], str(answer)
                problems.append(problem if address in problem else f"{address}: {problem}")
    finally:
        for task in pending:
            task.cancel()
    refusals = [str(_answer_of(task)) for task in asks if task.exception() is None]
    if refusals:
        # They all say the same: that of one is enough.
        raise MetadataUnavailable(
            f"nodes answer, but {min(refusals, key=len)}. Start the node that hosts it, or etcd; "
            "`millrace dev up` does that in a local cluster"
        )
    raise NoNodeReachable(
        f"no node of the cluster answers: {'; '.join(sorted(problems))}. "
        "Is it running? `millrace dev up` starts a local one"
    )


def _answer_of(task: "asyncio.Task[Message]") -> Message | str:
    error = task.exception()
    if error is None:
        answer = task.result()
        return answer.detail if isinstance(answer, Refused) else answer
    if isinstance(error, MillraceError):
        return str(error)
    raise error


def _listed(addresses: Addresses) -> list[str]:
    parts = addresses.split(",") if isinstance(addresses, str) else list(addresses)
    listed = [part.strip() for part in parts if part.strip()]
    if not listed:
        raise UsageError("give the address of at least one node, for example 127.0.0.1:7701")
    for address in listed:
        parse_address(address)  # What is none is a mistake, and not a node that does not answer.
    return listed


class Client:
    """Made by `connect`; close it, or use it as a context manager."""

    def __init__(
        self, links: Links, described: ClusterDescribed, noted: Noted | None, hello: Hello
    ) -> None:
        self.name = described.cluster
        self.id = described.cluster_id
        self.location = hello.location
        self.session = hello.session
        self.links = links
        self.seats = Seats()
        self.streams = StreamsKnown(secrets.randbits(31))  # Many clients append once.
        self.directory = ClusterDirectory(RemoteRepository(links, described.metadata))
        self.directory.addresses = {node.id: node.address for node in described.nodes}
        self.runner = ProcedureRunner(
            self.ask_node, self.directory, junk, noted, ask_now=self.ask_node_now
        )
        self.status_watch = StatusWatch(self.directory)
        self.publications = Publications(self)
        self.readers: weakref.WeakSet[Reader] = weakref.WeakSet()  # Told when the client closes.
        self.is_closed = False
        self._logs: dict[str, Log] = {}
        self._buckets: dict[str, Bucket] = {}

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, *, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """Finish the appends that are under way, then disconnect.  Those that are not done in time
        raise UnknownAppend.  Open readers raise UsageError when what they have received is
        taken."""
        self.is_closed = True
        for reader in list(self.readers):
            reader.fail(_closed())
        await asyncio.gather(*(log.close(timeout_ms=timeout_ms) for log in self._logs.values()))
        await asyncio.gather(*(bucket.close() for bucket in self._buckets.values()))
        await self.directory.repository.close()
        await self.links.close()

    def check_open(self) -> None:
        if self.is_closed:
            raise _closed()

    # -- Logs ---------------------------------------------------------------------------------

    async def create_log(
        self,
        name: str,
        *,
        replication: int | Mapping[str, int] = 3,
        write_path: WritePath | str = WritePath.SEQUENCED,
        ack: Ack | str = Ack.DISK,
        compression: bool = True,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
        **more: Any,
    ) -> Log:
        """A new log.  `replication` is a number of copies, or says over what they are spread:
        `{"rack": 2, "node": 3}`.  `more` is for sequenced logs: see `creating.SequencedOptions`."""
        self.check_open()
        choice = creating.choose(
            name, replication, write_path, ack, compression, retention_ms, retention_bytes, more
        )
        return await self._create(name, choice)

    async def create_internal_log(
        self, name: str, *, kept_ms_min: int | None = None, **attributes: Any
    ) -> Log:
        """A log that people do not see, with a name like `@ring/7`; what is younger than
        `kept_ms_min` is kept whatever its size.  Other attributes as for `create_log`."""
        self.check_open()
        choice = creating.choose_internal(name, attributes, kept_ms_min)
        return await self._create(name, choice)

    async def _create(self, name: str, choice: creating.Choice) -> Log:
        if (await self.directory.repository.get(keys.LOG_NAMES.key(name))).version:
            raise LogExists(f"there is a log {name!r} already; `millrace log info {name}` shows it")
        info, standing = await creating.make_log(self, name, choice)
        try:
            await self.directory.add_log(info)
        except LogExists:
            # Should the repository be away, the keeper forgets what has no name.
            with contextlib.suppress(MetadataUnavailable):
                await self.directory.remove_projection(info.id)
            await self._discard(info, standing)
            raise
        return self.opened(info, standing)

    async def change_log(
        self,
        name: str,
        *,
        replication: int | Mapping[str, int] | None = None,
        nodeset_size: changing.NodesetSize | None = None,
        timeout_ms: int = changing.TIMEOUT_MS,
    ) -> tuple[LogInfo, EpochRecord]:
        """Other copies or nodes for a sequenced log, from a new epoch on: `replication` as in
        `create_log`, but a number keeps what copies are spread over ({"node": 3} does not);
        `nodeset_size` a number or "all"; None: as before."""
        self.check_open()
        return await changing.change_log(self, name, replication, nodeset_size, timeout_ms)

    async def log(self, name: str) -> Log:
        """Open a log; raises UnknownLog."""
        self.check_open()
        if name in self._logs:
            return self._logs[name]
        info = await self.directory.find_log(name)
        standing = await self._standing(info)
        if standing is None:
            raise UnknownLog(f"log {name!r} is being deleted")
        return self.opened(info, standing)

    async def find_log(self, name: str) -> Log | None:
        """Open a log that may not exist."""
        try:
            return await self.log(name)
        except UnknownLog:
            return None

    async def _standing(self, info: LogInfo) -> LogStanding | None:
        if info.attributes.write_path is WritePath.CHAIN:
            return (await self.directory.read_projection(info.id))[0]
        if info.attributes.write_path is WritePath.COMMIT:
            return (await self.directory.read_commits(info.id))[0]
        return (await self.directory.read_epochs(info.id))[0]

    def opened(self, info: LogInfo, standing: LogStanding) -> Log:
        """The log that somebody else has found, without asking the metadata repository.  What is
        out of date costs a look-up when a node says so."""
        known = self._logs.get(info.name)
        if known is not None and known.info.id == info.id:
            return known
        log = self._logs[info.name] = Log(self, info, standing)
        return log

    def forget(self, log: Log) -> None:
        """The log turned out not to exist; another may have its name by now."""
        if self._logs.get(log.name) is log:
            del self._logs[log.name]

    def reader(self, *, skip_gaps: bool = False, no_payload: bool = False) -> MultiReader:
        """A reader of several logs.  `skip_gaps`: gaps are not handed over, but for one that ends
        where the reading of a log does.  `no_payload`: records come without their values, which
        are not sent."""
        self.check_open()
        return MultiReader(self, skip_gaps=skip_gaps, no_payload=no_payload)

    async def logs(self, *, has_internal: bool = False) -> list[LogInfo]:
        """Without internal logs, unless they are asked for: those that hold staged rows, ..."""
        listed = await self.directory.logs()
        return [each for each in listed if has_internal or not creating.is_internal(each.name)]

    async def delete_log(self, name: str) -> None:
        """Forget a log, with what was staged for it, and free its space.  Nodes that are away do it
        when they return."""
        info = await self.directory.find_log(name)
        await self._delete(info)
        self._logs.pop(staging_name(info.id), None)  # The keeper may be quicker.
        for internal in await self.logs(has_internal=True):
            if internal.name == staging_name(info.id):
                await self._delete(internal)

    async def _delete(self, info: LogInfo) -> None:
        standing = await self._standing(info)
        await self.directory.remove_log(info)
        self._logs.pop(info.name, None)
        if standing is not None:
            await self._discard(info, standing)

    # -- Buckets ------------------------------------------------------------------------------

    async def create_bucket(
        self, name: str, *, timeout_ms: int = bucket_creating.TIMEOUT_MS, **attributes: Any
    ) -> Bucket:
        """A new bucket, when its masters serve all partitions: else raises BucketNotReady.
        Attributes are `partitions`, `replicas` (besides the master), `memory_bytes` (on each node),
        `value_bytes_max`, `purge_after_s` (how long deletions are remembered)."""
        self.check_open()
        chosen = bucket_creating.choose(name, attributes)
        await bucket_creating.create(self.directory, self.ask_node, name, chosen, timeout_ms)
        return await self.bucket(name)

    async def bucket(self, name: str) -> Bucket:
        """Open a bucket; raises UnknownBucket."""
        self.check_open()
        known = self._buckets.get(name)
        read = await bucket_creating.read_map(self.directory, name)
        if known is not None and known.asker.map.record.id == read.record.id:
            return known
        if known is not None:  # Another one has its name by now.
            await known.close()
        opened = self._buckets[name] = bucket_creating.opened(self.directory, read)
        return opened

    async def buckets(self) -> list[BucketRecord]:
        return await self.directory.buckets()

    async def delete_bucket(self, name: str) -> None:
        """Forget a bucket and all its documents.  Nodes that are away do it when they return."""
        await bucket_creating.delete(self.directory, name)
        known = self._buckets.pop(name, None)
        if known is not None:
            await known.close()

    # -- Cluster ------------------------------------------------------------------------------

    async def status(self) -> ClusterStatus:
        view = await self.directory.view()
        descriptions = await asyncio.gather(*(self._describe_node(node) for node in view.nodes))
        keeper = keys.KEEPER.find(await self.directory.repository.get(keys.KEEPER.key))
        return ClusterStatus(
            self.name,
            tuple(
                NodeStatus(node, node.id in view.live, description)
                for node, description in zip(view.nodes, descriptions, strict=True)
            ),
            tuple(await self.directory.projections()),
            tuple(await self.directory.logs()),
            None if keeper is None else keeper.node,
            tuple(await self.sequenced()),
            {int(node): standing for node, standing in (await self.statuses()).items()},
            tuple(await self.directory.commits()),
            tuple(await self.directory.buckets()),
        )

    async def statuses(self) -> dict[NodeId, NodeStanding]:
        """Of the nodes that ever were anything but FULLY_AUTHORITATIVE, with their history, with
        what donors say of the rebuilding, and with the logs that keep it from being finished."""
        return await standings.statuses(self)

    async def events(self) -> list[StatusEvent]:
        """What became of nodes, newest last."""
        return await standings.events(self)

    async def drain(self, node: int, *, cancel: bool = False) -> None:
        """Have the node's copies of sequenced and commit logs elsewhere, or stop that.  It may be
        removed when it is AUTHORITATIVE_EMPTY.  Raises UsageError if the others are too few."""
        change = standings.end_drain if cancel else standings.begin_drain
        await change(self, NodeId(node))

    async def mark_unrecoverable(self, node: int) -> None:
        """Nobody shall wait for a dead node any more: readers go on, and what it alone held is told
        as DATALOSS.  Raises UsageError if it is alive, and Unavailable while its lease runs."""
        await standings.give_up(self, NodeId(node))

    async def sequenced(self) -> list[EpochRecord]:
        """Where the epochs of every sequenced log stand, but for metadata logs: those are part of
        the log that they belong to."""
        return [each for each in await self.directory.epochs() if not is_metadata_log(each.log)]

    async def ask_node(self, node: NodeId, message: Message, timeout_ms: int) -> Message:
        address = await self.directory.address(node)
        if address is None:
            raise NotConnected(f"node {node} is not registered")
        try:
            return await self.links.ask(address, message, timeout_ms, node)
        except Unavailable as error:
            self.directory.not_reached(node, address, error)
            raise

    def ask_node_now(
        self, node: NodeId, message: Message, timeout_ms: int, waiter: AnswerWaiter
    ) -> bool:
        """Ask a node that is connected; false if it is not."""
        address = self.directory.addresses.get(node)
        if address is None:
            return False
        return self.links.ask_now(address, message, timeout_ms, waiter, node)

    async def _describe_node(self, node: NodeInfo) -> NodeDescribed | None:
        try:
            answer = await self.ask_node(node.id, DescribeNode(), ASK_TIMEOUT_MS)
        except Unavailable:
            return None
        return answer if isinstance(answer, NodeDescribed) else None

    async def _discard(self, info: LogInfo, standing: LogStanding) -> None:
        """Best effort: a node that does not hear it finds out by itself."""
        nodes = nodes_of(standing)
        asks = [self.ask_node(node, Drop(info.id), ASK_TIMEOUT_MS) for node in nodes]
        await asyncio.gather(*asks, return_exceptions=True)


def _closed() -> UsageError:
    return UsageError("the client is closed")
