"""A node process put together: repository, store, core, connections, keeper, admin port.

Started in the order in which the parts need each other and stopped in reverse; a start that fails
half-way stops what it had started.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Collection, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec

import millrace
from millrace.codec.blocks import junk, move
from millrace.codec.frames import PROTOCOL_VERSION
from millrace.config import Configuration
from millrace.core.epochs import is_metadata_log
from millrace.core.messages import (
    ClusterDescribed,
    DescribeCluster,
    Hello,
    Message,
    NodeDescribed,
    Refusal,
)
from millrace.core.messages.cluster import HostedDocuments
from millrace.core.sequenced.releases import LOOK_MS, ReleaseLookout, find_release
from millrace.core.statuses import StatusBoard
from millrace.errors import (
    BadConfiguration,
    MetadataUnavailable,
    MillraceError,
    NotConnected,
    Unavailable,
    WrongPeer,
)
from millrace.meta.contract import Repository
from millrace.meta.directory import ClusterDirectory
from millrace.meta.embedded import open_embedded
from millrace.meta.etcd import EtcdRepository
from millrace.meta.remote import RemoteRepository
from millrace.meta.service import MetadataService
from millrace.runtime.closing import cluster_mark
from millrace.runtime.conditions import TransportCounters
from millrace.runtime.links import Links
from millrace.runtime.procedures import ProcedureRunner
from millrace.runtime.transport import Listener, listen, parse_address
from millrace.server.admin import AdminServer
from millrace.server.catching_up import CatchingUp
from millrace.server.committing import Committing
from millrace.server.hosted_committer import CommitterRequest
from millrace.server.housekeeping import Housekeeping
from millrace.server.keeper import KeeperLoop
from millrace.server.local import LOCAL_SESSION
from millrace.server.membership import Membership, join_cluster
from millrace.server.metrics import Reading, registry_of
from millrace.server.partitions.flusher import PartitionsDamaged
from millrace.server.partitions.node_documents import DocumentsRequest, NodeDocuments
from millrace.server.readings import (
    readings_of_documents,
    readings_of_keeper,
    readings_of_store,
    readings_of_transport,
)
from millrace.server.rebuilding import Rebuilding
from millrace.server.sequencing import SequencerRequest, Sequencing
from millrace.server.service import NodeService
from millrace.server.shell import NodeShell
from millrace.server.standing import Standing
from millrace.server.streams import StreamOrders
from millrace.server.surroundings import NodeSurroundings
from millrace.store.lmdb_store import LmdbStore, open_store
from millrace.types import LogId, NodeId, NodeInfo, Role

RELEASE_TIMEOUT_MS = 5_000
PROBE_TIMEOUT_MS = 1_000
FOLLOW_S = 1.0  # How often the list of nodes is looked at.

logger = logging.getLogger("millrace")


class Node:
    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.id = configuration.node_id
        self.address = ""
        self.admin_address = ""
        self._counters = TransportCounters()
        self._events: dict[str, int] = {}
        self._locations: dict[NodeId, str] = {}  # Of all nodes, for those who place copies.
        self._board = StatusBoard(self.id)
        self._started_s = time.monotonic()
        self._documents: NodeDocuments | None = None
        self._exit = AsyncExitStack()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None]

    # -- Life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        try:
            await self._start()
        except BaseException:
            await self._exit.aclose()
            raise

    async def stop(self) -> None:
        """Leave the cluster, finish what is under way, make everything durable."""
        await self._exit.aclose()
        logger.info("node.stopped", extra={"fields": {"node": self.id}})

    async def wait_failed(self) -> None:
        """Raises what made a part of the node fail; a healthy node never returns."""
        await self._failed

    async def _start(self) -> None:
        self._failed = asyncio.get_running_loop().create_future()
        settings = self.configuration.cluster
        # Until it knows which, any cluster of the name will do.
        hello = Hello(
            PROTOCOL_VERSION,
            settings.name,
            self.id,
            self.configuration.node.location,
            secrets.randbits(63),
            f"millrace {millrace.__version__}",
        )
        self._links = Links(hello, counters=self._counters)
        self._exit.push_async_callback(self._links.close)
        self._repository = await self._open_repository()
        self._exit.push_async_callback(self._repository.close)
        self._directory = ClusterDirectory(self._repository)
        cluster = self._cluster = await self._join()
        hello = msgspec.structs.replace(hello, cluster=cluster_mark(settings.name, cluster))
        self._links.introduce(hello)
        if self.configuration.hosts_metadata:
            # Other nodes need the repository before they can start: serve it first.
            self._open_service()
            await self._listen(hello)
        self._open_store(cluster)
        if not self.configuration.hosts_metadata:
            self._open_service()
        self._open_shell()
        if not self.configuration.hosts_metadata:
            await self._listen(hello)
        else:
            # It was opened before the store: close it before the store all the same.
            self._exit.push_async_callback(self._listener.close)
        await self._open_documents()
        await self._join_as_member()
        await self._open_admin()
        logger.info("node.started", extra={"fields": {"node": self.id, "address": self.address}})

    async def _open_repository(self) -> Repository:
        settings = self.configuration.cluster
        if settings.metadata == "etcd":
            return EtcdRepository(settings.etcd, namespace=f"millrace/{settings.name}/")
        if self.configuration.hosts_metadata:
            return await open_embedded(Path(self.configuration.node.data) / "metadata")
        return RemoteRepository(self._links, [settings.metadata_address])

    async def _join(self) -> str:
        settings = self.configuration.cluster
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + settings.start_timeout_ms / 1000
        while True:
            try:
                return (await join_cluster(self._repository, settings.name)).id
            except MetadataUnavailable as error:
                await self._check_metadata_node()
                if loop.time() >= deadline_s:
                    raise MetadataUnavailable(
                        f"node {self.id} cannot start without the metadata repository: {error}"
                    ) from error
                await asyncio.sleep(0.1)

    async def _check_metadata_node(self) -> None:
        """A node that is not up yet is waited for; one of another cluster never will be ours."""
        address = self.configuration.cluster.metadata_address
        if address and not self.configuration.hosts_metadata:
            try:
                await self._links.ask(address, DescribeCluster(), PROBE_TIMEOUT_MS)
            except WrongPeer as error:
                raise BadConfiguration(
                    f"cluster.metadata_address is {address}, where another answers: {error}"
                ) from error
            except Unavailable:
                return

    def _open_store(self, cluster: str) -> None:
        settings = self.configuration
        loop = asyncio.get_running_loop()

        def call_soon(callback: Callable[[], None]) -> None:
            loop.call_soon_threadsafe(callback)

        self._store: LmdbStore = open_store(
            Path(settings.node.data),
            cluster,
            self.id,
            call_soon,
            map_bytes=settings.store.map_bytes,
            tail_bytes=settings.store.tail_buffer_bytes,
            on_dirty=self._dirtied,
        )
        self._exit.callback(self._store.close)

    def _open_service(self) -> None:
        metadata = MetadataService(self._repository)
        self._service = NodeService(metadata, self._describe_cluster, self.describe)
        self._exit.push_async_callback(self._service.close)

    def _open_shell(self) -> None:
        self._runner = ProcedureRunner(self._ask_node, self._directory, junk, self._note)
        self._catching_up = CatchingUp(self.id, self._runner, self._begin, self._note)
        self._shell = NodeShell(
            self._store,
            self._service,
            self._catching_up.learn,
            self._refuse_writes,
            self.id,
            self._locations,
            run_purge=self._catching_up.purge,
            board=self._board,
        )
        self._catching_up.attach(self._shell, self._service)
        self._open_sequencing()

    def _open_sequencing(self) -> None:
        around = NodeSurroundings(
            self.id,
            self._links,
            self._directory,
            self._runner,
            self._service,
            self._shell,
            self._locations,
            self._board,
        )
        self._sequencing = Sequencing(self.id, around, move, junk)
        if Role.SEQUENCER in self.configuration.node.roles:
            self._service.sequencing = self._sequencing
        self._committing = Committing(self.id, around)
        if Role.SEQUENCER in self.configuration.node.roles:
            self._service.committing = self._committing
        StreamOrders(self._shell, around)
        self._exit.push_async_callback(around.close)
        self._exit.callback(self._sequencing.close)
        self._exit.callback(self._committing.close)

    async def _listen(self, hello: Hello) -> None:
        host, port = parse_address(self.configuration.node.listen)
        self._listener: Listener = await listen(
            host, port, hello, self._service, counters=self._counters
        )
        self.address = self.configuration.node.advertise or self._listener.address
        self._exit.push_async_callback(self._listener.close)

    async def _open_documents(self) -> None:
        node = self.configuration.node
        if Role.DOCUMENTS not in node.roles:
            return
        folder, map_bytes = Path(node.data) / "documents", self.configuration.store.map_bytes
        documents = NodeDocuments(
            self.id, folder, map_bytes, self._directory, self._ask_node, self._lease
        )
        await documents.start(*self.configuration.documents_at)
        self._exit.push_async_callback(documents.close)
        self._documents = self._service.documents = documents

    def _lease(self) -> int:
        """Asked with every request for a document, so by the clock itself: it is the loop's."""
        membership = self._membership
        return membership.lease if membership.held_until_s > time.monotonic() else 0

    async def _join_as_member(self) -> None:
        node = self.configuration.node
        self.info = NodeInfo(
            self.id,
            self.address,
            node.location,
            node.roles,
            node.admin,
            self._store.directory.identity.instance,
            self._documents_address(),
        )
        settings = self.configuration
        standing = Standing(self.info, self._directory, self._runner, self._shell, self._board)

        async def settle() -> None:
            await standing.settle()
            self._service.shell = self._shell  # Nobody is served before.

        self._membership = Membership(
            self._repository, self.info, settings.cluster.lease_ttl_ms, settle
        )
        await self._membership.register()
        self._exit.push_async_callback(self._membership.leave)
        self._keeper = KeeperLoop(
            self.id, self._directory, self._runner, self._membership, settings.keeper
        )
        housekeeping = Housekeeping(
            self.id,
            self._directory,
            self._shell,
            self._membership,
            settings.keeper,
            self._listed,
        )
        self._rebuilding = Rebuilding(
            self.id, self._directory, self._runner, self._shell, self._board
        )
        self._exit.push_async_callback(self._cancel_tasks)
        works = (
            self._membership.keep(),
            self._keeper.run(),
            housekeeping.run(),
            self._follow_locations(),
            self._follow_releases(),
            standing.follow(),
            self._rebuilding.run(),
        )
        for work in works:
            self._begin(work)
        if self._documents is not None:
            self._documents.run(self._begin)

    def _documents_address(self) -> str:
        """What others reach it by: the host that is advertised, with the port of documents."""
        if self._documents is None:
            return ""
        host, _, port = self._documents.address.rpartition(":")
        if self.configuration.node.advertise:
            host = self.configuration.node.advertise.rpartition(":")[0]
        return f"{host}:{port}"

    def _listed(self, logs: Collection[LogId]) -> None:
        self._sequencing.keep_only(logs)
        self._committing.keep_only(logs)

    async def _follow_releases(self) -> None:
        """Ask sequencers, while readers wait here, for what was not told."""
        lookout = ReleaseLookout()
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_MS / 1000)
            due = lookout.due(self._shell.core.waiting(), int(loop.time() * 1000))
            asked = [self._runner.run(find_release(log), RELEASE_TIMEOUT_MS) for log in due]
            for release in await asyncio.gather(*asked):
                if release is not None:
                    self._shell.handle(LOCAL_SESSION, 0, release)

    async def _follow_locations(self) -> None:
        """Keep the addresses and locations of all nodes at hand."""
        while True:
            try:
                view = await self._directory.view()
                self._locations.update({node.id: node.location for node in view.nodes})
            except MillraceError as error:
                logger.info("view.waiting", extra={"fields": {"detail": str(error)}})
            await asyncio.sleep(FOLLOW_S)

    async def _open_admin(self) -> None:
        registry = registry_of(self._readings)
        admin = AdminServer(registry, self._health)
        if self.configuration.node.admin:
            await admin.start(self.configuration.node.admin)
            self.admin_address = admin.address
            self._exit.push_async_callback(admin.close)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    async def _cancel_tasks(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None and not self._failed.done():
            self._failed.set_exception(task.exception() or RuntimeError("a task ended"))

    # -- Requests of this node's own ------------------------------------------------------------

    async def _ask_node(self, node: NodeId, message: Message, timeout_ms: int) -> Message:
        if node == self.id:
            number, future = self._service.local.open()
            if isinstance(message, SequencerRequest):
                self._sequencing.handle((LOCAL_SESSION, number), message)
            elif isinstance(message, CommitterRequest):
                self._committing.handle((LOCAL_SESSION, number), message)
            elif isinstance(message, DocumentsRequest):
                self._service.ask_documents(LOCAL_SESSION, number, message)
            else:
                self._shell.handle(LOCAL_SESSION, number, message)
            return await self._service.local.wait(number, future, timeout_ms)
        address = await self._directory.address(node)
        if address is None:
            raise NotConnected(f"node {node} is not registered")
        try:
            return await self._links.ask(address, message, timeout_ms, node)
        except Unavailable as error:
            self._directory.not_reached(node, address, error)
            raise

    def _refuse_writes(self) -> Refusal | None:
        if self._store.failure is not None:
            return Refusal.UNAVAILABLE
        if self._store.is_full:
            return Refusal.DISK_FULL
        return Refusal.BUSY if self._store.is_busy else None

    def _dirtied(self, log: LogId) -> None:
        logger.error("log.dirty", extra={"fields": {"log": log, "node": self.id}})
        self._shell.dirtied(log)

    # -- What others see ------------------------------------------------------------------------

    async def _describe_cluster(self) -> ClusterDescribed:
        view = await self._directory.view()
        if self.configuration.cluster.metadata == "etcd":
            live = [node.address for node in view.nodes if node.id in view.live]
            metadata = (self.address, *(a for a in live if a != self.address))
        elif self.configuration.hosts_metadata:
            metadata = (self.address,)
        else:
            metadata = (self.configuration.cluster.metadata_address,)
        name = self.configuration.cluster.name
        return ClusterDescribed(name, view.nodes, metadata, self._cluster)

    def describe(self) -> NodeDescribed:
        usage = self._store.usage()
        return NodeDescribed(
            self.info,
            int((time.monotonic() - self._started_s) * 1000),
            sum(not is_metadata_log(log) for log in self._store.logs()),
            usage.bytes_used,
            usage.bytes_total,
            usage.is_full,
            self._keeper.is_keeper,
            self._service.connections,
            f"millrace {millrace.__version__}",
            self._describe_documents(),
        )

    def _describe_documents(self) -> HostedDocuments | None:
        if self._documents is None:
            return None
        usage, failure = self._documents.store.usage(), self._documents.failure
        told = HostedDocuments(usage.bytes_used, usage.bytes_total, self._documents.is_full)
        if not isinstance(failure, PartitionsDamaged):
            return told
        return msgspec.structs.replace(told, damaged=failure.partitions, damage=failure.cause)

    @property
    def _is_full(self) -> bool:
        """Of logs, or of documents."""
        has_room = self._documents is None or not self._documents.is_full
        return self._store.usage().is_full or not has_room

    def _health(self) -> dict[str, object]:
        """A failure for good is the status, one for now (a full disk) or of some partitions a
        detail: nobody is to start a node anew that holds documents in memory alone."""
        documents = None if self._documents is None else self._documents.failure
        failure = self._store.failure or documents
        status = "ok" if self._store.failure is None else "store_failed"
        if self._documents is not None and self._documents.store.failure is not None:
            status = "store_failed"
        return {
            "status": status,
            "node": self.id,
            "cluster": self.configuration.cluster.name,
            "is_full": self._is_full,
            "is_damaged": isinstance(documents, PartitionsDamaged),
            "detail": "" if failure is None else failure.detail,
        }

    def _readings(self) -> dict[str, Reading]:
        return {
            **readings_of_transport(self._counters),
            **readings_of_store(self._store, self._shell),
            **readings_of_keeper(self._keeper, self._rebuilding),
            **readings_of_documents(self._documents),
            "millrace_sequencers": len(self._sequencing),
            "millrace_events": {k: float(v) for k, v in self._events.items()},
            "millrace_uptime_seconds": time.monotonic() - self._started_s,
        }

    def _note(self, event: str, fields: dict[str, object]) -> None:
        self._events[event] = self._events.get(event, 0) + 1
