"""What the keeper does about nodes that are gone: declare them so, and say when all is rebuilt.

I1  A node is UNAVAILABLE only after this keeper itself has missed it for the whole time: who looks
    for the first time, or again after a pause, begins to count.
I2  Only the entry that was looked at is replaced: one that changed meanwhile is looked at again.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from functools import partial
from typing import Final

from millrace.config import KeeperSettings
from millrace.core.commit.holding import resting_on
from millrace.core.epochs import EpochRange, NodesetChange, ranges
from millrace.core.procedure import (
    ClusterView,
    DeadlinePassed,
    Failure,
    Procedure,
    ReadNodesetChanges,
)
from millrace.core.sequenced.rebuilt import may_hold_alone, suspects, unfinished
from millrace.core.statuses import Entries, NodeStatusEntry, gone, lost_nodes, rebuilt
from millrace.meta import keys
from millrace.meta.directory import ClusterDirectory
from millrace.runtime.procedures import ProcedureRunner
from millrace.types import AuthoritativeStatus, LogId, NodeId, Role

READ_TIMEOUT_MS: Final = 10_000
PAUSE_S_MAX: Final = 10.0  # After a longer one the keeper may have missed signs of life (I1).

logger = logging.getLogger("millrace")
Reports = Mapping[keys.RebuildId, keys.RebuildReport]


class StatusKeeping:
    def __init__(
        self, directory: ClusterDirectory, runner: ProcedureRunner, settings: KeeperSettings
    ) -> None:
        self._directory = directory
        self._runner = runner
        self._settings = settings
        self._missed_since_s: dict[NodeId, float] = {}
        self._looked_s = 0.0

    async def look(self, view: ClusterView) -> None:
        await self._declare_gone(view)
        entries = await self._directory.status_entries()
        for node, entry in entries.items():
            if entry.rebuild and not entry.is_refillable:  # That one finishes for itself.
                await self._finish(node, entry, entries, view)

    async def _declare_gone(self, view: ClusterView) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._looked_s > PAUSE_S_MAX:  # Keeps I1.
            self._missed_since_s.clear()
        self._looked_s = now_s
        missed = {node.id: node for node in view.nodes if node.id not in view.live}
        since_s = self._missed_since_s
        self._missed_since_s = {node: since_s.get(node, now_s) for node in missed}
        for node, first_missed_s in self._missed_since_s.items():
            is_long = now_s - first_missed_s >= self._settings.rebuild_after_ms / 1000
            if is_long and Role.STORAGE in missed[node].roles:
                change = partial(self._gone, missed[node].instance)
                await self._directory.change_status(node, change)

    def _gone(self, instance: str, entry: NodeStatusEntry | None) -> NodeStatusEntry | None:
        """A status that is new is a sign of life: the node is about to appear."""
        now = now_ms()
        is_new = entry is not None and now - entry.since_ms < self._settings.rebuild_after_ms
        return None if is_new else gone(entry, instance, now)

    async def _finish(
        self, node: NodeId, entry: NodeStatusEntry, entries: Entries, view: ClusterView
    ) -> None:
        reports = await self._directory.rebuild_reports()
        if await waits_for(self._directory, self._runner, node, entries, reports, view):
            return

        def change(current: NodeStatusEntry | None) -> NodeStatusEntry | None:
            return rebuilt(entry, now_ms()) if current == entry else None  # Keeps I2.

        changed = await self._directory.change_status(node, change)
        if changed is not None and changed.status is AuthoritativeStatus.AUTHORITATIVE_EMPTY:
            fields = {"node": node, "version": entry.rebuild}
            logger.info("node.rebuilt", extra={"fields": fields})


def now_ms() -> int:
    return int(time.time() * 1000)


def finished_for(node: NodeId, version: int, reports: Reports) -> frozenset[NodeId]:
    """The donors that have."""
    return frozenset(
        id.donor
        for id, report in reports.items()
        if id.node == node and report.version == version and report.is_finished
    )


async def waits_for(
    directory: ClusterDirectory,
    runner: ProcedureRunner,
    node: NodeId,
    entries: Entries,
    reports: Reports,
    view: ClusterView,
) -> Collection[NodeId]:
    """Who must have finished, or come back, before the node is rebuilt; none: it is.  A node that
    has replicas of commit logs is waited for itself: their committers move them."""
    doubtful = await _donors(directory, runner, node, entries, reports, view)
    if doubtful:
        return doubtful
    return (node,) if resting_on(node, await directory.commits(), lost_nodes(entries)) else ()


async def _donors(
    directory: ClusterDirectory,
    runner: ProcedureRunner,
    node: NodeId,
    entries: Entries,
    reports: Reports,
    view: ClusterView,
) -> Collection[NodeId]:
    """Whose copies of sequenced logs may still name the node."""
    storage = [each.id for each in view.nodes if Role.STORAGE in each.roles]
    finished = finished_for(node, entries[node].rebuild, reports)
    missing = unfinished(entries, storage, finished)
    if missing:
        return missing
    doubtful = suspects(node, entries, storage, finished)
    if not doubtful:
        return ()
    spans = await _spans(directory, runner)
    locations = {each.id: each.location for each in view.nodes}
    if spans is None or may_hold_alone(doubtful, spans, locations):
        return doubtful
    return ()


async def _spans(directory: ClusterDirectory, runner: ProcedureRunner) -> list[EpochRange] | None:
    """Where the blocks of all logs may lie; None if that cannot be told now."""
    spans: list[EpochRange] = []
    for record in await directory.epochs():
        changes: tuple[NodesetChange, ...] | Failure = ()
        if record.since > 1:
            try:
                changes = await runner.run(_changes(record.log), READ_TIMEOUT_MS)
            except DeadlinePassed:
                return None
        if isinstance(changes, Failure):
            return None
        spans += ranges(changes, record)
    return spans


def _changes(log: LogId) -> Procedure[tuple[NodesetChange, ...] | Failure]:
    changes: tuple[NodesetChange, ...] | Failure = yield ReadNodesetChanges(log)
    return changes
