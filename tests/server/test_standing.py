"""A node's part in its own status, before it is alive; on a repository and a store in memory."""

import asyncio
from typing import Any

from millrace.codec.blocks import junk
from millrace.core.epochs import EpochRecord
from millrace.core.messages import Message
from millrace.core.replication import Replication
from millrace.core.statuses import StatusBoard, gone, rebuilt
from millrace.errors import NotConnected
from millrace.meta import keys
from millrace.meta.directory import ClusterDirectory
from millrace.meta.memory import MemoryRepository
from millrace.runtime.procedures import ProcedureRunner
from millrace.scenario.memory_store import MemoryStore
from millrace.server.shell import NodeShell
from millrace.server.standing import Standing
from millrace.types import AuthoritativeStatus, Epoch, LogId, NodeId, NodeInfo, Role
from tests.support.clusters import run

LOG, ME = LogId(7), NodeId(3)
OLD, NEW = "old disk", "new disk"
CLEAN = Epoch(5)


class NobodyListens:
    """To what the shell answers and sends."""

    def answer(self, *_: Any) -> None: ...

    def push(self, *_: Any) -> None: ...

    def after_others(self, *_: Any) -> None: ...

    def is_writable(self, *_: Any) -> bool:
        return True


async def _silence(node: NodeId, message: Message, timeout_ms: int) -> Message:
    raise NotConnected(f"node {node} does not answer")


def test_a_rebuilt_node_with_a_new_disk_has_its_seals_before_it_counts() -> None:
    """A sequencer that was replaced must not find one node more than its successor did."""

    async def body() -> None:
        directory = ClusterDirectory(MemoryRepository())
        nodes = tuple(map(NodeId, (1, 2, 3)))
        record = EpochRecord(LOG, Epoch(6), nodes[0], nodes, Replication.of(2), Epoch(1), CLEAN)
        assert await directory.replace_epochs(record, 0)
        former = NodeInfo(ME, "host:3", "", (Role.STORAGE,), "", OLD)
        await directory.repository.set(keys.NODES.key(ME), keys.NODES.encode(former), 0)
        away = gone(None, OLD, 0)
        assert away is not None
        await directory.change_status(ME, lambda _: rebuilt(away, 0))
        store, board = MemoryStore(), StatusBoard(ME)
        shell = NodeShell(store, NobodyListens(), lambda order: None, me=ME, board=board)
        now = NodeInfo(ME, "host:3", "", (Role.STORAGE,), "", NEW)
        runner = ProcedureRunner(_silence, directory, junk)
        settling = asyncio.create_task(Standing(now, directory, runner, shell, board).settle())
        while not settling.done():
            await asyncio.sleep(0)
            store.run()
        await settling
        assert board.entries[ME].status is AuthoritativeStatus.FULLY_AUTHORITATIVE
        state = store.state(LOG)
        assert state is not None
        assert state.fence.epoch == CLEAN + 1

    run(body(), 20)
