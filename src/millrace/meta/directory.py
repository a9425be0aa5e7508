"""Typed access to what the repository holds: projections, nodes, logs, trim points.

I1  An address under which its node was not reached is looked up again by the next one who wants
    it, soon or not at all: without the repository the old one must do.
"""

import asyncio
from typing import Final

from millrace.core.procedure import ClusterView
from millrace.core.projection import Projection
from millrace.errors import (
    LogExists,
    MetadataOutcomeUnknown,
    MillraceError,
    TooManyRequests,
    Unavailable,
    UnknownLog,
)
from millrace.meta import keys
from millrace.meta.contract import ANY_VERSION, Conflict, Repository
from millrace.types import FIRST_LSN, LogId, LogInfo, Lsn, NodeId

LOOK_AGAIN_S: Final = 0.5


class ClusterDirectory:
    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.addresses: dict[NodeId, str] = {}  # As of the last `view`.
        self._doubted: set[NodeId] = set()

    # -- Nodes --------------------------------------------------------------------------------

    async def view(self) -> ClusterView:
        (nodes, _), (live, _) = await asyncio.gather(
            self.repository.list(keys.NODES.prefix), self.repository.list(keys.LIVE.prefix)
        )
        infos = tuple(keys.NODES.decode(entry) for entry in nodes)
        self.addresses = {node.id: node.address for node in infos}
        self._doubted.clear()
        return ClusterView(infos, frozenset(keys.LIVE.decode(entry).id for entry in live))

    async def address(self, node: NodeId) -> str | None:
        if node not in self.addresses:
            await self.view()
        elif node in self._doubted:
            self._doubted.discard(node)  # One look for each failure, however many ask.
            await self._look_again()
        return self.addresses.get(node)

    def not_reached(self, node: NodeId, address: str, error: Unavailable) -> None:
        """Tell what came of an ask that failed; keeps I1."""
        is_crowded = isinstance(error, TooManyRequests)  # It is there.
        if error.is_definite and not is_crowded and self.addresses.get(node) == address:
            self._doubted.add(node)

    async def _look_again(self) -> None:
        try:
            async with asyncio.timeout(LOOK_AGAIN_S):
                await self.view()
        except (TimeoutError, MillraceError):
            pass  # Keeps I1.

    # -- Projections --------------------------------------------------------------------------

    async def read_projection(self, log: LogId) -> tuple[Projection | None, int]:
        entry = await self.repository.get(keys.PROJECTIONS.key(log))
        return keys.PROJECTIONS.find(entry), entry.version

    async def replace_projection(self, projection: Projection, expected: int) -> bool:
        key = keys.PROJECTIONS.key(projection.log)
        try:
            await self.repository.set(key, keys.PROJECTIONS.encode(projection), expected)
        except Conflict:
            return False
        except MetadataOutcomeUnknown:
            # Projections of one log all differ in their epoch or chain: look whether it is ours.
            current, _ = await self.read_projection(projection.log)
            return current == projection
        return True

    async def projections(self) -> list[Projection]:
        entries, _ = await self.repository.list(keys.PROJECTIONS.prefix)
        return [keys.PROJECTIONS.decode(entry) for entry in entries]

    # -- Logs ---------------------------------------------------------------------------------

    async def find_log(self, name: str) -> LogInfo:
        entry = await self.repository.get(keys.LOG_NAMES.key(name))
        info = keys.LOG_NAMES.find(entry)
        if info is None:
            raise UnknownLog(f"there is no log {name!r}; `millrace log ls` lists the logs")
        return info

    async def logs(self) -> list[LogInfo]:
        entries, _ = await self.repository.list(keys.LOG_NAMES.prefix)
        return [keys.LOG_NAMES.decode(entry) for entry in entries]

    async def next_log_id(self) -> LogId:
        """A number no log has or had."""
        while True:
            entry = await self.repository.get(keys.NEXT_LOG_ID.key)
            number = keys.NEXT_LOG_ID.find(entry) or keys.FIRST_LOG_ID
            following = keys.NEXT_LOG_ID.encode(number + 1)
            try:
                await self.repository.set(keys.NEXT_LOG_ID.key, following, entry.version)
            except Conflict:
                continue
            return LogId(number)

    async def add_log(self, info: LogInfo) -> None:
        key = keys.LOG_NAMES.key(info.name)
        try:
            await self.repository.set(key, keys.LOG_NAMES.encode(info), 0)
        except Conflict as conflict:
            raise LogExists(f"there is a log {info.name!r} already") from conflict

    async def remove_log(self, info: LogInfo) -> None:
        """The name first: nobody finds the log any more."""
        await self._remove(keys.LOG_NAMES.key(info.name))
        await self.remove_projection(info.id)

    async def remove_projection(self, log: LogId) -> None:
        """All that is left of a log without a name."""
        await self._remove(keys.PROJECTIONS.key(log))
        await self._remove(keys.TRIMS.key(log))

    async def _remove(self, key: str) -> None:
        entry = await self.repository.get(key)
        if entry.version:
            await self.repository.delete(key, ANY_VERSION)

    # -- Trim points --------------------------------------------------------------------------

    async def trim_end(self, log: LogId) -> Lsn:
        entry = await self.repository.get(keys.TRIMS.key(log))
        trimmed = keys.TRIMS.find(entry)
        return FIRST_LSN if trimmed is None else trimmed.end

    async def raise_trim(self, log: LogId, end: Lsn) -> Lsn:
        """Move the trim point up to `end`, never down (L7); the point that stands now."""
        while True:
            entry = await self.repository.get(keys.TRIMS.key(log))
            current = keys.TRIMS.find(entry)
            if current is not None and current.end >= end:
                return current.end
            value = keys.TRIMS.encode(keys.Trimmed(end))
            try:
                await self.repository.set(entry.key, value, entry.version)
            except Conflict:
                continue
            return end
