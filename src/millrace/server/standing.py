"""A node's own part in its status: what it says before it is alive, and what it must do first.

I1  A node that lost its disk says so before anybody can ask it anything.
I2  What was given to others is dropped before the node counts again; its seals stay, because
    others rely on them.
I3  A node that lost its seals takes those of all epochs that are clean, before it counts again: no
    sequencer of such an epoch finds one node more than its recovery left it.
"""

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from typing import Final

from millrace.core.epochs import EpochRecord
from millrace.core.messages import SealEpochs
from millrace.core.statuses import (
    NodeStatusEntry,
    StatusBoard,
    came,
    emptied,
    rebuilt,
    refilled,
)
from millrace.errors import MillraceError
from millrace.limits import INDEX_PAGE_EXTENTS, RECLAIM_BLOCKS_MAX
from millrace.meta import keys
from millrace.meta.directory import ClusterDirectory
from millrace.runtime.procedures import ProcedureRunner
from millrace.server.local import LOCAL_SESSION
from millrace.server.shell import NodeShell
from millrace.server.status_keeping import now_ms, waits_for
from millrace.store.contract import Store, StoreFailed
from millrace.types import Ack, AuthoritativeStatus, Epoch, LogId, Lsn, NodeId, NodeInfo

FOLLOW_S: Final = 1.0
_GIVEN_UP: Final = (AuthoritativeStatus.UNAVAILABLE, AuthoritativeStatus.UNDERREPLICATION)

logger = logging.getLogger("millrace")


def names(store: Store, node: NodeId) -> bool:
    """Whether others look at the node for a copy that is in its store; holes and bridges lie
    everywhere."""
    return any(_names(store, log, node) for log in store.logs())


def _names(store: Store, log: LogId, node: NodeId) -> bool:
    state = store.state(log)
    if state is None or not state.is_scattered:
        return False
    at = state.trim_end
    while found := store.copies(log, at, state.end, INDEX_PAGE_EXTENTS):
        if any(node in copy.placement.copyset for copy in found):
            return True
        at = Lsn(found[-1].extent.last + 1)
    return False


def seals_of(node: NodeId, records: Iterable[EpochRecord]) -> list[SealEpochs]:
    """Those of all epochs that are clean (I3)."""
    return [
        SealEpochs(record.log, Epoch(record.clean + 1))
        for record in records
        if node in record.nodeset and record.clean
    ]


class Standing:
    def __init__(
        self,
        info: NodeInfo,
        directory: ClusterDirectory,
        runner: ProcedureRunner,
        shell: NodeShell,
        board: StatusBoard,
    ) -> None:
        self._info = info
        self._directory = directory
        self._runner = runner
        self._shell = shell
        self._board = board

    async def settle(self) -> None:
        """Before the node is alive, and each time that it was not for a while.  Keeps I1."""
        entry = await self._directory.repository.get(keys.NODES.key(self._info.id))
        former = keys.NODES.find(entry)
        await self._come("" if former is None else former.instance)
        await self._look()

    async def follow(self) -> None:
        """Keep the statuses of all nodes at hand, and bring one's own to its end."""
        while True:
            await asyncio.sleep(FOLLOW_S)
            try:
                await self._look()
                mine = self._board.mine
                if mine is not None and mine.is_refillable:
                    await self._finish(mine)
                elif mine is not None and mine.status in _GIVEN_UP:
                    # Somebody missed it just before it came.
                    await self._come(self._info.instance)
            except MillraceError as error:
                self._log("status.waiting", detail=str(error))

    async def _come(self, former: str) -> None:
        change = partial(came, former=former, instance=self._info.instance, now_ms=now_ms())
        before = self._board.mine
        mine = await self._directory.change_status(self._info.id, change)
        if mine is not None and mine != before:
            self._log("node.status", status=mine.status.value, reason=str(mine.reason))

    async def _look(self) -> None:
        self._board.update(await self._directory.status_entries())
        mine = self._board.mine
        if mine is not None and mine.status is AuthoritativeStatus.AUTHORITATIVE_EMPTY:
            if mine.instance == self._info.instance:
                await self._drop_copies()
            if not mine.is_draining:
                await self._count_again()

    async def _drop_copies(self) -> None:
        """Keeps I2."""
        store = self._shell.store
        for log in store.logs():
            if not self._holds_copies(log):
                continue
            state = store.state(log)
            assert state is not None
            while found := store.copies(log, state.trim_end, state.end, RECLAIM_BLOCKS_MAX):
                store.remove(log, [copy.extent.first for copy in found])
                await self._made_durable()
            self._log("copies.dropped", log=log)

    def _holds_copies(self, log: LogId) -> bool:
        state = self._shell.store.state(log)
        return state is not None and state.is_scattered and state.blocks > 0

    async def _made_durable(self) -> None:
        done: asyncio.Future[StoreFailed | None] = asyncio.get_running_loop().create_future()
        self._shell.store.barrier(Ack.DISK, done.set_result)
        failed = await done
        if failed is not None:
            raise MillraceError(f"node {self._info.id}: {failed.detail}")

    async def _finish(self, mine: NodeStatusEntry) -> None:
        """This node lives with an empty disk: once all others have given away what it had, or given
        it back, it counts again."""
        reports = await self._directory.rebuild_reports()
        entries, view = self._board.entries, await self._directory.view()
        me = self._info.id
        if await waits_for(self._directory, self._runner, me, entries, reports, view):
            return
        self._board.is_closed = True  # So that what it holds does not change in between.
        try:
            is_named = names(self._shell.store, me)

            def change(current: NodeStatusEntry | None) -> NodeStatusEntry | None:
                if current != mine:
                    return None
                return (refilled if is_named else rebuilt)(mine, now_ms())

            await self._take_seals()
            await self._directory.change_status(me, change)
            await self._look()
        finally:
            self._board.is_closed = False

    async def _count_again(self) -> None:
        await self._take_seals()

        def change(current: NodeStatusEntry | None) -> NodeStatusEntry | None:
            return None if current is None else emptied(current, now_ms())

        await self._directory.change_status(self._info.id, change)
        self._board.update(await self._directory.status_entries())

    async def _take_seals(self) -> None:
        """Keeps I3."""
        for seal in seals_of(self._info.id, await self._directory.epochs()):
            self._shell.handle(LOCAL_SESSION, 0, seal)
        await self._made_durable()

    def _log(self, event: str, **fields: object) -> None:
        logger.info(event, extra={"fields": {"node": self._info.id, **fields}})
