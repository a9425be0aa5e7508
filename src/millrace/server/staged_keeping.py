"""What the keeper does about rows that were staged: it forgets staging logs whose log is deleted,
and decides publications that nobody can finish any more.

It reads no log: it knows which logs there are, and how far their staging logs are trimmed.  What
may still be finished is left to whoever publishes, or trims its log.

  I1  A publication is given up in a log only if the log is deleted, or all of its rows are trimmed.
  I2  The record of a lone publication is removed when there is no row left that a block of it could
      show (`core.publications.is_forgettable`).
  I3  A listing without a log is no proof that it is deleted: its own records are read first.
"""

import logging
from typing import Final

import msgspec

from millrace.core.publications import (
    PublicationRecord,
    Target,
    abandon,
    is_forgettable,
    staged_for,
    staging_name,
)
from millrace.errors import UnknownLog
from millrace.meta.directory import ClusterDirectory
from millrace.types import NO_LSN, LogId, LogInfo, Lsn

CHANGES_AT_ONCE: Final = 256  # In one round.

logger = logging.getLogger("millrace")


class _Scene(msgspec.Struct):
    """What there is in one round."""

    logs: set[LogId]
    by_name: dict[str, LogId]
    trimmed: dict[LogId, Lsn] = {}  # Staging logs, as far as they were asked about.


class StagedKeeping:
    def __init__(self, directory: ClusterDirectory) -> None:
        self._directory = directory

    async def look(self) -> None:
        # In this order: a log that a publication goes to was there before it was begun.
        records = await self._directory.publications()
        infos = await self._directory.logs()
        await self._forget_logs(infos)
        scene = _Scene({info.id for info in infos}, {info.name: info.id for info in infos})
        changed = 0
        for record in records:
            if changed < CHANGES_AT_ONCE and (record.open_targets or record.is_once):
                changed += await self._settle(record, scene)

    async def _forget_logs(self, infos: list[LogInfo]) -> None:
        """What was staged for a log that was deleted, by a client that died at it."""
        named = {info.id for info in infos}
        for info in infos:
            log = staged_for(info.name)
            if log is not None and log not in named and await self._is_deleted(log):
                await self._directory.remove_log(info)
                _note("keeper.staged_forgotten", log=log)

    async def _settle(self, listed: PublicationRecord, scene: _Scene) -> bool:
        """Whether there was something to do."""
        gone = {each.log for each in listed.targets if await self._is_gone(each, scene)}
        left = abandon(listed, gone)  # Keeps I1.
        is_done = is_forgettable(left, gone)
        if left == listed and not is_done:
            return False
        record, at = await self._directory.read_publication(listed.app)
        if record != listed:
            return False  # Somebody is at it.
        if is_done:
            await self._directory.remove_publication(listed.app, at)  # Keeps I2.
            _note("keeper.publication_forgotten", app=listed.app)
        elif await self._directory.replace_publication(left, at):
            _note("keeper.publication_given_up", app=listed.app, version=listed.version)
        return True

    async def _is_gone(self, target: Target, scene: _Scene) -> bool:
        """The log, or all rows that were staged for it."""
        name = staging_name(target.log)
        staging = scene.by_name.get(name)
        if target.log not in scene.logs:
            return await self._is_deleted(target.log)
        if staging is None:
            return not await self._is_named(name)
        if staging not in scene.trimmed:
            scene.trimmed[staging] = await self._directory.trim_end(staging)
        return NO_LSN < target.rows_end <= scene.trimmed[staging]

    async def _is_deleted(self, log: LogId) -> bool:
        """Keeps I3.  What is left of a log without a name the keeper removes elsewhere."""
        directory = self._directory
        for read in (directory.read_projection, directory.read_epochs, directory.read_commits):
            record, _ = await read(log)
            if record is not None:
                return False
        return True

    async def _is_named(self, name: str) -> bool:
        try:
            await self._directory.find_log(name)
        except UnknownLog:
            return False
        return True


def _note(event: str, **fields: object) -> None:
    logger.info(event, extra={"fields": fields})
