"""A connection to a cluster: find it by any of its nodes, then make, list and open logs."""

import asyncio
import contextlib
import re
import secrets
import time
import weakref
from collections.abc import Iterable
from typing import Any

import msgspec

import millrace
from millrace.client.log import Log
from millrace.client.questions import TIMEOUT_MS
from millrace.client.reader import Reader
from millrace.codec.blocks import junk
from millrace.codec.frames import PROTOCOL_VERSION
from millrace.config import NAME_PATTERN, parse_address
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
from millrace.core.procedure import DeadlinePassed, Failure
from millrace.core.projection import Projection, choose_chain
from millrace.core.reconfigure import create
from millrace.errors import (
    LogExists,
    MetadataUnavailable,
    MillraceError,
    NoNodeReachable,
    NotConnected,
    TimedOut,
    TooFewNodes,
    Unavailable,
    UnknownLog,
    UsageError,
)
from millrace.limits import LOG_NAME_CHARS_MAX
from millrace.meta import keys
from millrace.meta.directory import ClusterDirectory
from millrace.meta.remote import RemoteRepository
from millrace.runtime.asks import AnswerWaiter
from millrace.runtime.closing import cluster_mark
from millrace.runtime.conditions import TransportCounters, TransportSettings
from millrace.runtime.links import Links
from millrace.runtime.procedures import Noted, ProcedureRunner
from millrace.types import Ack, LogAttributes, LogInfo, NodeId, NodeInfo, WritePath

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


async def connect(
    addresses: Addresses,
    *,
    timeout_ms: int = 10_000,
    noted: Noted | None = None,
    counters: TransportCounters | None = None,
    settings: TransportSettings | None = None,
) -> "Client":
    """Find the cluster by the addresses of any of its nodes (`host:port`, comma-separated or a
    list).  Raises NoNodeReachable, or MetadataUnavailable if nodes answer that know nothing."""
    listed = _listed(addresses)
    hello = Hello(
        PROTOCOL_VERSION,
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
    links.introduce(msgspec.structs.replace(hello, cluster=mark))
    return Client(links, described, noted)


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

    def __init__(self, links: Links, described: ClusterDescribed, noted: Noted | None) -> None:
        self.name = described.cluster
        self.id = described.cluster_id
        self.links = links
        self.directory = ClusterDirectory(RemoteRepository(links, described.metadata))
        self.directory.addresses = {node.id: node.address for node in described.nodes}
        self.runner = ProcedureRunner(
            self.ask_node, self.directory, junk, noted, ask_now=self.ask_node_now
        )
        self.readers: weakref.WeakSet[Reader] = weakref.WeakSet()  # Told when the client closes.
        self.is_closed = False
        self._logs: dict[str, Log] = {}

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish the appends that are under way, then disconnect.  Open readers raise UsageError
        when what they have received is taken."""
        self.is_closed = True
        for reader in list(self.readers):
            reader.fail(_closed())
        for log in list(self._logs.values()):
            await log.close()
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
        replication: int = 3,
        write_path: WritePath | str = WritePath.CHAIN,
        ack: Ack | str = Ack.DISK,
        compression: bool = True,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
    ) -> Log:
        self.check_open()
        attributes = _attributes(
            name, replication, write_path, ack, compression, retention_ms, retention_bytes
        )
        if (await self.directory.repository.get(keys.LOG_NAMES.key(name))).version:
            raise LogExists(f"there is a log {name!r} already; `millrace log info {name}` shows it")
        view = await self.directory.view()
        log = await self.directory.next_log_id()
        chain = choose_chain(log, replication, view.nodes, view.live)
        if len(chain) < replication:
            raise TooFewNodes(
                f"replication {replication} needs as many live storage nodes; "
                f"there are {len(chain)}: start more nodes or choose a smaller factor"
            )
        procedure = create(log, chain, replication, self.runner.next_token())
        try:
            projection = await self.runner.run(procedure, TIMEOUT_MS)
        except DeadlinePassed:
            raise TimedOut(f"log {name!r} could not be created in time") from None
        if isinstance(projection, Failure):
            raise Unavailable(f"log {name!r} could not be created: {projection.detail}")
        info = LogInfo(log, name, attributes, int(time.time() * 1000))
        try:
            await self.directory.add_log(info)
        except LogExists:
            # Should the repository be away, the keeper forgets what has no name.
            with contextlib.suppress(MetadataUnavailable):
                await self.directory.remove_projection(log)
            await self._discard(info, projection)
            raise
        return self.opened(info, projection)

    async def log(self, name: str) -> Log:
        """Open a log; raises UnknownLog."""
        self.check_open()
        if name in self._logs:
            return self._logs[name]
        info = await self.directory.find_log(name)
        projection, _ = await self.directory.read_projection(info.id)
        if projection is None:
            raise UnknownLog(f"log {name!r} is being deleted")
        return self.opened(info, projection)

    def opened(self, info: LogInfo, projection: Projection) -> Log:
        """The log that somebody else has found, without asking the metadata repository.  A
        projection that is out of date costs a look-up when a node says so."""
        known = self._logs.get(info.name)
        if known is not None and known.info.id == info.id:
            return known
        log = self._logs[info.name] = Log(self, info, projection)
        return log

    def forget(self, log: Log) -> None:
        """The log turned out not to exist; another may have its name by now."""
        if self._logs.get(log.name) is log:
            del self._logs[log.name]

    async def logs(self) -> list[LogInfo]:
        return await self.directory.logs()

    async def delete_log(self, name: str) -> None:
        """Forget a log and free its space.  Nodes that are away do it when they return."""
        info = await self.directory.find_log(name)
        projection, _ = await self.directory.read_projection(info.id)
        await self.directory.remove_log(info)
        self._logs.pop(name, None)
        if projection is not None:
            await self._discard(info, projection)

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
        )

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

    async def _discard(self, info: LogInfo, projection: Projection) -> None:
        """Best effort: a node that does not hear it finds out by itself."""
        asks = [self.ask_node(node, Drop(info.id), ASK_TIMEOUT_MS) for node in projection.chain]
        await asyncio.gather(*asks, return_exceptions=True)


def _closed() -> UsageError:
    return UsageError("the client is closed")


def _attributes(
    name: str,
    replication: int,
    write_path: WritePath | str,
    ack: Ack | str,
    compression: bool,
    retention_ms: int | None,
    retention_bytes: int | None,
) -> LogAttributes:
    if not re.fullmatch(NAME_PATTERN, name) or len(name) > LOG_NAME_CHARS_MAX:
        raise UsageError(
            f"{name!r} is not a log name: letters, digits, '.', '_', '-', beginning with a letter "
            f"or digit, at most {LOG_NAME_CHARS_MAX} characters"
        )
    if not 1 <= replication <= 16:
        raise UsageError(f"replication {replication} does not lie between 1 and 16")
    path = _choice(WritePath, write_path, "write_path")
    if path is not WritePath.CHAIN:
        raise UsageError(f"write_path={path.value!r} is planned; today logs are 'chain' logs")
    for setting, value in (("retention_ms", retention_ms), ("retention_bytes", retention_bytes)):
        if value is not None and value <= 0:
            raise UsageError(f"{setting}={value}: give a number above 0, or None to keep all")
    return LogAttributes(
        path,
        replication,
        _choice(Ack, ack, "ack"),
        compression,
        retention_ms,
        retention_bytes,
    )


def _choice(kind: Any, value: Any, setting: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(repr(member.value) for member in kind)
        raise UsageError(f"{setting}={value!r}: use one of {known}") from None
