"""What an application does with publications: `client.publications`."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from millrace.client.many import draft_table
from millrace.client.path import TIMEOUT_MS, deadline_after
from millrace.client.publications.lookups import Lookups
from millrace.client.publications.publishing import Published, Publisher
from millrace.client.publications.staging import (
    TIME_TO_LIVE_MS,
    Staged,
    stage_drafts,
    staging_log,
)
from millrace.core import publications as rules
from millrace.errors import NoAnswer, Unavailable, UsageError
from millrace.types import Ack

if TYPE_CHECKING:
    from millrace.client.cluster import Client

FORGET_TIMEOUT_S: Final = 5.0


class Publications:
    def __init__(self, client: "Client", time_to_live_ms: int = TIME_TO_LIVE_MS) -> None:
        """`time_to_live_ms` is for staging logs that are made here: how long after they were staged
        rows can be published."""
        self.time_to_live_ms = time_to_live_ms
        self.lookups = Lookups(client.directory)
        self._client = client

    async def stage(
        self,
        log: str,
        table: pa.Table | pa.RecordBatch,
        *,
        ack: Ack | str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Staged:
        """Write rows where nobody sees them, to be published in the log.  Columns as for
        `Log.append_table`.  Raises as that: rows that were not acknowledged are never seen."""
        deadline_s = deadline_after(timeout_ms)
        opened = await self._client.log(log)
        drafts = draft_table(table, opened.info.attributes.compression)
        staging = await staging_log(self._client, opened, self.time_to_live_ms)
        return await stage_drafts(opened, staging, drafts, ack, deadline_s)

    async def publish(
        self,
        app: str,
        version: int,
        staged: Sequence[Staged],
        *,
        is_once: bool = False,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Published:
        """All of these rows appear at once in each log, in this order; or none.  An application's
        versions only go up: one that was published, or a lower one, changes nothing.  If it fails
        or is interrupted, the same call publishes what the first one began, once: from the rows of
        the first one, and of this one in logs where those are gone.

        `is_once`: the application has this version alone, and nothing of it is remembered
        afterwards; its name must never be used again.  Raises StagedTooOld and other UsageErrors if
        no row that was staged for this call is published, PublicationTakenOver if another publisher
        goes on with it."""
        _check(app, version)
        publisher = Publisher(
            self._client, app, version, staged, deadline_after(timeout_ms), is_once
        )
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                published = await publisher.publish()
        except TimeoutError:
            raise NoAnswer(
                f"version {version} of application {app!r} may not be published everywhere yet "
                f"after {timeout_ms} ms: publish it again, which goes on where this call stopped"
            ) from None
        if is_once:
            await self._forget(app)
        return published

    async def last(self, app: str) -> int | None:
        """The last version that was published; None if none was, or if it was a lone one."""
        record, _ = await self._client.directory.read_publication(app)
        if record is None:
            return None
        return record.version if record.is_published else record.before

    async def _forget(self, app: str) -> None:
        """It is published, whatever comes of this; what stays is a small record that nobody asks
        for."""
        directory = self._client.directory
        with contextlib.suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(FORGET_TIMEOUT_S):
                record, at = await directory.read_publication(app)
                if record is not None and rules.is_removable(record):
                    await directory.remove_publication(app, at)


def _check(app: str, version: int) -> None:
    if not isinstance(app, str) or not 1 <= len(app) <= rules.APP_CHARS_MAX:
        raise UsageError(
            f"app={app!r}: name the application, in 1 to {rules.APP_CHARS_MAX} letters"
        )
    if not isinstance(version, int) or not 0 <= version < 2**63:
        raise UsageError(f"version={version!r}: versions are numbers from 0 on")
