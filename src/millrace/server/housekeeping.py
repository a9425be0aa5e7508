"""What every node does for itself now and then: free what nobody needs, tell when full.

A trim goes to the members of a chain.  A node that left a chain, perhaps because it was full,
trims its copy here: else it would stay full and could never return.

I1  A copy is dropped only when its log was deleted, or when its chain has all its members
    without this node and has had them for a while (C5: a node joins only by sync, so the old
    copy would at best save some copying).
I2  A listing may be old when it is acted upon: a copy that was sealed above the listed epoch
    stays, because the node may be a member by now.
I3  A stream of a commit log is dropped with the log alone: whether its replicas are needed is known
    to the committer.
"""

import asyncio
import logging
from collections.abc import Callable, Collection

from millrace.config import KeeperSettings
from millrace.core.commit.record import is_stream_log, log_of_stream
from millrace.core.epochs import log_of
from millrace.core.messages import Drop, Trim
from millrace.core.projection import Projection
from millrace.errors import MillraceError
from millrace.meta import keys
from millrace.meta.contract import LeaseExpired
from millrace.meta.directory import ClusterDirectory
from millrace.server.local import LOCAL_SESSION
from millrace.server.membership import Membership
from millrace.server.shell import NodeShell
from millrace.types import LogId, NodeId

CHECK_FULL_S = 0.5
ROUNDS_PER_CHECK = 20  # Surplus copies are looked for less often than fullness.

logger = logging.getLogger("millrace")


class Housekeeping:
    def __init__(
        self,
        node: NodeId,
        directory: ClusterDirectory,
        shell: NodeShell,
        membership: Membership,
        settings: KeeperSettings,
        on_listed: Callable[[Collection[LogId]], None] = lambda logs: None,
    ) -> None:
        """`on_listed` hears which sequenced and commit logs exist, now and then."""
        self._node = node
        self._directory = directory
        self._shell = shell
        self._membership = membership
        self._settings = settings
        self._on_listed = on_listed
        self._surplus_since_s: dict[LogId, float] = {}

    async def run(self) -> None:
        round_number = 0
        while True:
            try:
                is_full = self._shell.store.usage().is_full
                await self._membership.set_full(is_full)
                if is_full or round_number % ROUNDS_PER_CHECK == 0:
                    await self._free()
            except (MillraceError, LeaseExpired) as error:
                logger.info("housekeeping.waiting", extra={"fields": {"detail": str(error)}})
            round_number += 1
            await asyncio.sleep(CHECK_FULL_S)

    async def _free(self) -> None:
        projections = {each.log: each for each in await self._directory.projections()}
        written = {each.log for each in await self._directory.epochs()}
        written |= {each.log for each in await self._directory.commits()}
        self._on_listed(written)
        await self._trim_outside(projections)
        await self._drop_surplus(projections, written)

    async def _trim_outside(self, projections: dict[LogId, Projection]) -> None:
        for log, trimmed_end in (await self._directory.trim_ends()).items():
            projection = projections.get(log)
            is_mine = log in self._shell.store.logs()
            if not is_mine or projection is None or self._node in projection.chain:
                continue
            if trimmed_end is None:
                continue  # It cannot be read: nothing more is forgotten.
            chain = self._shell.core.chain(log)
            end = min(trimmed_end, chain.taken.end)
            if end > chain.taken.trim_end:
                self._shell.handle(LOCAL_SESSION, 0, Trim(log, chain.fence.epoch, end))

    async def _drop_surplus(
        self, projections: dict[LogId, Projection], written: set[LogId]
    ) -> None:
        """`written` are the sequenced and commit logs that exist."""
        repository = self._directory.repository
        next_id = keys.NEXT_LOG_ID.find(await repository.get(keys.NEXT_LOG_ID.key)) or 0
        now_s = asyncio.get_running_loop().time()
        for log in dict.fromkeys(map(_whole_log_of, self._shell.store.logs())):
            was_issued = log_of(log) < next_id
            if log in written or not self._is_surplus(projections.get(log), was_issued):
                self._surplus_since_s.pop(log, None)
                continue
            since_s = self._surplus_since_s.setdefault(log, now_s)
            if now_s - since_s < self._settings.surplus_after_ms / 1000:
                continue
            if await self._is_still_surplus(log, projections.get(log)):
                logger.info("copy.dropped", extra={"fields": {"log": log, "node": self._node}})
                self._shell.handle(LOCAL_SESSION, 0, Drop(log))
            self._surplus_since_s.pop(log, None)

    async def _is_still_surplus(self, log: LogId, listed: Projection | None) -> bool:
        """Keeps I2.  Nothing may be awaited between this and the drop."""
        if listed is None:
            current, _ = await self._directory.read_projection(log)
            record, _ = await self._directory.read_epochs(log)
            commits, _ = await self._directory.read_commits(log)
            return current is None and record is None and commits is None
        return self._shell.core.chain(log).fence.epoch <= listed.epoch

    def _is_surplus(self, projection: Projection | None, was_issued: bool) -> bool:
        if projection is None:
            return was_issued
        return self._node not in projection.chain and not projection.is_degraded


def _whole_log_of(log: LogId) -> LogId:
    """Keeps I3."""
    return log_of_stream(log) if is_stream_log(log) else log
