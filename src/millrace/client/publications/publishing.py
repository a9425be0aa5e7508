"""Publishes for one application: performs what `core/publishing.py` asks for.

Each effect can be the last of a publisher that dies; whoever comes next goes on from the record.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, assert_never

import msgspec

from millrace.client.outcomes import UnknownAppend
from millrace.client.publications.looking import find_block, has_rows, open_log
from millrace.client.publications.manifests import (
    Manifest,
    ManifestEntry,
    check_ages,
    decoded,
    manifest_of,
)
from millrace.client.publications.staging import Staged
from millrace.codec.published import StagedRows, draft_published, publication_of
from millrace.core import publishing
from millrace.core.publications import ManifestPlace, PublicationRecord, Target, staging_name
from millrace.core.publishing import (
    AppendBlocks,
    Done,
    Effect,
    Held,
    Look,
    Looked,
    Prepare,
    Prepared,
    ReadRecord,
    ReplaceRecord,
    Trouble,
)
from millrace.errors import (
    MillraceError,
    PositionTrimmed,
    PublicationTakenOver,
    Unavailable,
    UnknownLog,
    UsageError,
)
from millrace.types import Gap, LogId, Lsn, Record

if TYPE_CHECKING:
    from millrace.client.cluster import Client

_log: Final = logging.getLogger("millrace.client")


class Published(msgspec.Struct, frozen=True):
    """`rows` are those of each log.  `is_repeated`: it had been begun before, by this or another
    call, and was published from what was staged then; of older versions `rows` are not known.
    `passed_over`: versions before it that had been begun and could not be finished, because their
    rows, or logs, were gone: some logs have them, or none."""

    app: str
    version: int
    rows: dict[str, int]
    is_repeated: bool = False
    passed_over: tuple[int, ...] = ()


class Publisher:
    def __init__(
        self,
        client: "Client",
        app: str,
        version: int,
        staged: Sequence[Staged],
        deadline_s: float,
        is_once: bool = False,
    ) -> None:
        """Raises UsageError."""
        self._client = client
        self._app = app
        self._version = version
        self._is_once = is_once
        self._staged = staged
        self._new = manifest_of(app, version, staged)
        self._manifests: dict[ManifestPlace, Manifest | None] = {}  # Its own, and those of others.
        self._reading = asyncio.Lock()
        self._deadline_s = deadline_s
        self._failures: list[BaseException] = []

    async def publish(self) -> Published:
        """Until it is published; raises why it is not, or not yet."""
        work = publishing.publish(
            self._app, self._version, _marks(), _now_ms(), is_once=self._is_once
        )
        answer: Any = None
        while True:
            try:
                effect = work.send(answer)
            except StopIteration as finished:
                return self._told(finished.value)
            answer = await self.perform(effect)

    def _told(self, outcome: Done | Trouble) -> Published:
        match outcome:
            case Done(record, is_repeated):
                if record.version != self._version:
                    return Published(self._app, self._version, {}, is_repeated)
                rows = {each.name: each.rows for each in record.targets}
                self._tell(record.passed_over)
                return Published(
                    self._app, self._version, rows, is_repeated, passed_over=record.passed_over
                )
            case Trouble.TAKEN_OVER:
                raise PublicationTakenOver(
                    f"version {self._version} of application {self._app!r} is being published by "
                    "somebody who took it over: leave it to that one, or publish it again"
                )
            case Trouble.NOT_APPENDED:
                raise self._failures[0]
            case Trouble.CROWDED:
                raise Unavailable(
                    f"application {self._app!r} is published by many at once: try again"
                )
            case Trouble.WORN_OUT:
                raise UsageError(
                    f"application {self._app!r} was interrupted too often while it published: go "
                    "on under another name"
                )
            case Trouble.PASSED_OVER:
                raise UsageError(
                    f"version {self._version} of application {self._app!r} was begun once and "
                    "given up, because its rows or a log of it were gone, and a higher version "
                    "was begun since: publish its rows under a version that is higher still"
                )
            case Trouble.FORGOTTEN:
                raise PublicationTakenOver(
                    f"nothing is known any more of application {self._app!r}: its version "
                    f"{self._version} was published and forgotten by another call, or given up "
                    "after its time to live: look into the logs, and use its name no more"
                )
            case _:
                assert_never(outcome)

    def _tell(self, passed_over: Sequence[int]) -> None:
        if passed_over:
            _log.warning(
                "application %r: version %s had been begun and could not be finished, its rows or "
                "logs are gone; version %d is published without it",
                self._app,
                ", ".join(map(str, passed_over)),
                self._version,
            )

    async def perform(self, effect: Effect) -> Any:
        directory = self._client.directory
        match effect:
            case ReadRecord():
                return await self._read()
            case ReplaceRecord(record, expected):
                return await directory.replace_publication(record, expected)
            case Prepare():
                check_ages(self._staged, _now_ms())
                targets, place = await asyncio.gather(
                    asyncio.gather(*map(self._target, self._new.entries)), self._write_manifest()
                )
                return Prepared(tuple(targets), place)
            case Look(record):
                return await self._look(record)
            case AppendBlocks(record):
                return await self._append(record)
            case _:
                assert_never(effect)

    async def _read(self) -> Held:
        record, at = await self._client.directory.read_publication(self._app)
        if record is not None and record.app != self._app:
            raise UsageError(f"application {self._app!r} has the key of {record.app!r}: rename it")
        return Held(record, at)

    # -- Preparing ----------------------------------------------------------------------------

    async def _target(self, entry: ManifestEntry) -> Target:
        log = await open_log(self._client, entry.name, entry.log)
        # What is readable was written: whatever is appended from now on lies behind it.
        _, since = await log.readable_bounds(timeout_ms=self._left_ms())
        rows_end = max(each.end for each in entry.rows.ranges)
        count = entry.rows.count
        return Target(entry.log, entry.name, count, _new_mark(), since, rows_end=rows_end)

    async def _write_manifest(self) -> ManifestPlace | None:
        if not self._new.entries:
            return None
        staging = await self._client.log(staging_name(self._new.entries[0].log))
        encoded = msgspec.msgpack.encode(self._new)
        lsn = await staging.append(encoded, timeout_ms=self._left_ms())
        place = ManifestPlace(staging.name, lsn)
        self._manifests[place] = self._new
        return place

    # -- Appending ----------------------------------------------------------------------------

    async def _append(self, record: PublicationRecord) -> Mapping[int, Lsn]:
        manifest = await self._manifest(record)
        assert manifest is not None, "it was looked at before, or is new"
        rows = {entry.log: entry.rows for entry in manifest.entries}
        targets = record.open_targets
        outcomes = await asyncio.gather(
            *(self._append_block(record, each, rows[each.log]) for each in targets),
            return_exceptions=True,
        )
        self._failures = [each for each in outcomes if isinstance(each, BaseException)]
        strange = [each for each in self._failures if not isinstance(each, MillraceError)]
        if strange:
            raise strange[0]
        return {
            target.mark: lsn
            for target, lsn in zip(targets, outcomes, strict=True)
            if isinstance(lsn, int)
        }

    async def _append_block(
        self, record: PublicationRecord, target: Target, rows: StagedRows
    ) -> Lsn:
        log = await open_log(self._client, target.name, target.log)
        block = draft_published(record.app, record.version, target.mark, rows)
        try:
            (appended,) = await log.append_drafts([block], log.ack(None), self._deadline_s)
        except UnknownAppend as unknown:
            appended = await log.resume(unknown, timeout_ms=self._left_ms())
        return appended.first

    # -- Finishing for somebody ---------------------------------------------------------------

    async def _look(self, record: PublicationRecord) -> Looked:
        targets = record.open_targets
        looks = await asyncio.gather(
            *(self._look_in(record, each) for each in targets), return_exceptions=True
        )
        found: dict[int, Lsn] = {}
        gone: set[LogId] = set()
        for target, outcome in zip(targets, looks, strict=True):
            if isinstance(outcome, UnknownLog):
                gone.add(target.log)
            elif isinstance(outcome, BaseException):
                raise outcome
            elif outcome is not None:
                found[target.mark] = outcome
        return Looked(found, gone)

    async def _look_in(self, record: PublicationRecord, target: Target) -> Lsn | None:
        """Where its block begins; None if it is to be appended.  Raises UnknownLog if there is no
        log any more, or not all of the rows."""
        log = await open_log(self._client, target.name, target.log)
        block = await find_block(log, target, self._left_ms)
        rows = await self._rows(record, target) if block is None else publication_of(block)
        if rows is None or not await has_rows(self._client, target.log, rows, self._left_ms()):
            raise UnknownLog(f"rows that were staged for log {target.name!r} are gone")
        return None if block is None else block.first

    async def _rows(self, record: PublicationRecord, target: Target) -> StagedRows | None:
        manifest = await self._manifest(record)
        entries = () if manifest is None else manifest.entries
        return next((each.rows for each in entries if each.log == target.log), None)

    async def _manifest(self, record: PublicationRecord) -> Manifest | None:
        """None if it is gone; the rows that it speaks of are older, and may be gone before it."""
        place = record.manifest
        if place is None:
            return Manifest(record.app, record.version, ())
        async with self._reading:
            if place not in self._manifests:
                read = await self._read_manifest(place)
                self._manifests[place] = None if read is None else decoded(read, record)
        return self._manifests[place]

    async def _read_manifest(self, place: ManifestPlace) -> Record | None:
        staging = await self._client.find_log(place.log)
        if staging is None:
            return None
        try:
            read = await staging.get(place.lsn, timeout_ms=self._left_ms())
        except (PositionTrimmed, UnknownLog):
            return None
        return None if isinstance(read, Gap) else read

    def _left_ms(self) -> int:
        return max(1, int((self._deadline_s - time.monotonic()) * 1000))


def _marks() -> Iterator[int]:
    while True:
        yield _new_mark()


def _new_mark() -> int:
    return secrets.randbits(63)


def _now_ms() -> int:
    return int(time.time() * 1000)
