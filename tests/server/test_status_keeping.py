"""The keeper declares nodes gone, and says when they are rebuilt; on a repository in memory."""

from collections.abc import Awaitable, Callable
from functools import partial

from millrace.codec.blocks import junk
from millrace.config import KeeperSettings
from millrace.core.epochs import EpochRecord
from millrace.core.messages import Message
from millrace.core.procedure import ClusterView
from millrace.core.replication import Replication
from millrace.core.statuses import NodeStatusEntry, came, gone, mark_unrecoverable
from millrace.errors import NotConnected
from millrace.meta import keys
from millrace.meta.directory import ClusterDirectory
from millrace.meta.memory import MemoryRepository
from millrace.runtime.procedures import ProcedureRunner
from millrace.server.status_keeping import StatusKeeping
from millrace.types import AuthoritativeStatus, Epoch, LogId, NodeId, NodeInfo, Role
from tests.support.clusters import eventually, run

NODES = tuple(
    NodeInfo(NodeId(n), f"host:{n}", "", (Role.STORAGE,), "", "disk") for n in range(1, 6)
)
ALL = frozenset(node.id for node in NODES)
WHOLE = ClusterView(NODES, ALL)
WITHOUT_3 = ClusterView(NODES, ALL - {NodeId(3)})
WITHOUT_4 = ClusterView(NODES, ALL - {NodeId(4)})
WITHOUT_3_AND_4 = ClusterView(NODES, ALL - {NodeId(3), NodeId(4)})
FULL = AuthoritativeStatus.FULLY_AUTHORITATIVE
EMPTY = AuthoritativeStatus.AUTHORITATIVE_EMPTY
AWAY = AuthoritativeStatus.UNAVAILABLE
LOST = AuthoritativeStatus.UNDERREPLICATION


class Rig:
    def __init__(self, rebuild_after_ms: int) -> None:
        self.directory = ClusterDirectory(MemoryRepository())
        self.runner = ProcedureRunner(self._ask, self.directory, junk)
        settings = KeeperSettings(rebuild_after_ms=rebuild_after_ms)
        self.keeping = StatusKeeping(self.directory, self.runner, settings)

    async def _ask(self, node: NodeId, message: Message, timeout_ms: int) -> Message:
        raise NotConnected(f"node {node} does not answer")

    async def status(self, node: int = 3) -> AuthoritativeStatus:
        entry = (await self.directory.status_entries()).get(NodeId(node))
        return FULL if entry is None else entry.status

    async def look(self, view: ClusterView) -> AuthoritativeStatus:
        await self.keeping.look(view)
        return await self.status()

    async def log(self, replication: int) -> None:
        record = EpochRecord(
            LogId(1), Epoch(1), NodeId(1), tuple(ALL), Replication.of(replication), Epoch(1)
        )
        assert await self.directory.replace_epochs(record, 0)

    async def put(self, node: int, entry: NodeStatusEntry | None) -> None:
        await self.directory.change_status(NodeId(node), lambda _: entry)

    async def finish(self, node: int, *donors: int, version: int = 1) -> None:
        for donor in donors:
            id = keys.RebuildId(NodeId(node), NodeId(donor))
            await self.directory.report_rebuild(id, keys.RebuildReport(version, True))


def on_a_rig(body: Callable[[Rig], Awaitable[None]], rebuild_after_ms: int = 60_000) -> None:
    async def work() -> None:
        await body(Rig(rebuild_after_ms))

    run(work(), 20)


def test_a_node_is_gone_when_it_was_missed_for_long() -> None:
    async def body(rig: Rig) -> None:
        assert await rig.look(WITHOUT_3) is FULL
        await eventually(
            partial(rig.look, WITHOUT_3), lambda status: status is AWAY, what="a declaration"
        )
        entry = (await rig.directory.status_entries())[NodeId(3)]
        assert (entry.rebuild, entry.instance) == (1, "disk")

    on_a_rig(body, 100)


def test_a_node_that_appears_now_and_then_is_not_gone() -> None:
    async def body(rig: Rig) -> None:
        async def look() -> AuthoritativeStatus:
            for view in (WITHOUT_3_AND_4, WITHOUT_4):
                await rig.keeping.look(view)
            return await rig.status(4)

        await eventually(look, lambda status: status is AWAY, what="node 4 is gone")
        assert await rig.status(3) is FULL

    on_a_rig(body, 100)


def test_a_node_that_has_just_settled_its_status_is_about_to_appear() -> None:
    async def body(rig: Rig) -> None:
        in_future_ms = 2**50
        await rig.put(3, came(gone(None, "disk", 1), "disk", "disk", in_future_ms))

        async def look() -> AuthoritativeStatus:
            await rig.keeping.look(WITHOUT_3_AND_4)
            return await rig.status(4)

        await eventually(look, lambda status: status is AWAY, what="node 4 is gone")
        assert await rig.status(3) is FULL

    on_a_rig(body, 100)


def test_a_node_is_rebuilt_when_all_others_have_finished() -> None:
    async def body(rig: Rig) -> None:
        await rig.log(3)
        await rig.put(3, gone(None, "disk", 1))
        await rig.finish(3, 1, 2, 4)
        assert await rig.look(WITHOUT_3) is AWAY
        await rig.finish(3, 5, version=7)  # Of another rebuilding.
        assert await rig.look(WITHOUT_3) is AWAY
        await rig.finish(3, 5)
        assert await rig.look(WITHOUT_3) is EMPTY

    on_a_rig(body)


def test_a_node_that_may_hold_the_only_copy_is_waited_for_until_it_is_given_up() -> None:
    async def body(rig: Rig) -> None:
        await rig.log(2)
        for node in (3, 4):
            await rig.put(node, gone(None, "disk", 1))
            await rig.finish(node, 1, 2, 5)
        assert await rig.look(WITHOUT_3) is AWAY
        for node in (3, 4):
            await rig.directory.change_status(
                NodeId(node), partial(mark_unrecoverable, instance="disk", now_ms=2)
            )
        assert await rig.status() is LOST
        assert await rig.look(WITHOUT_3) is EMPTY
        assert await rig.status(4) is EMPTY

    on_a_rig(body)


def test_two_nodes_that_cannot_hold_a_block_alone_are_not_waited_for() -> None:
    async def body(rig: Rig) -> None:
        await rig.log(3)
        for node in (3, 4):
            await rig.put(node, gone(None, "disk", 1))
            await rig.finish(node, 1, 2, 5)
        assert await rig.look(WITHOUT_3) is EMPTY

    on_a_rig(body)


def test_a_wiped_node_that_is_alive_finishes_for_itself() -> None:
    async def body(rig: Rig) -> None:
        await rig.log(3)
        await rig.put(3, came(None, "disk", "new disk", 1))
        await rig.finish(3, 1, 2, 4, 5)
        assert await rig.look(WHOLE) is LOST

    on_a_rig(body)
