"""What the keeper forgets of staged rows, and what it does not take for deleted."""

import asyncio
from collections.abc import Awaitable, Callable

from millrace.core.projection import Projection
from millrace.core.publications import PublicationRecord, Target, staging_name
from millrace.meta import keys
from millrace.meta.contract import ANY_VERSION, Entry
from millrace.meta.directory import ClusterDirectory
from millrace.meta.memory import MemoryRepository
from millrace.server.staged_keeping import StagedKeeping
from millrace.types import Ack, Epoch, LogAttributes, LogId, LogInfo, Lsn, NodeId, WritePath

LOG, STAGING = LogId(1), LogId(2)
APP = "job"
ATTRIBUTES = LogAttributes(WritePath.CHAIN, 1, Ack.DISK, True, None, None)
OPEN = PublicationRecord(APP, 1, (Target(LOG, "events", 10, 77, Lsn(1)),), None)


class Hiding(MemoryRepository):
    """Leaves names out of its listings."""

    hidden: str = ""

    async def list(self, prefix: str) -> tuple[tuple[Entry, ...], int]:
        entries, revision = await super().list(prefix)
        hidden = keys.LOG_NAMES.key(self.hidden) if self.hidden else ""
        return tuple(entry for entry in entries if entry.key != hidden), revision


class Rig:
    def __init__(self) -> None:
        self.repository = Hiding()
        self.directory = ClusterDirectory(self.repository)
        self.keeping = StagedKeeping(self.directory)

    async def add(self, log: LogId, name: str) -> None:
        projection = Projection(log, Epoch(1), (NodeId(1),), NodeId(1), 1)
        assert await self.directory.replace_projection(projection, 0)
        await self.directory.add_log(LogInfo(log, name, ATTRIBUTES))

    async def names(self) -> list[str]:
        self.repository.hidden = ""
        return [info.name for info in await self.directory.logs()]

    async def is_given_up(self) -> bool:
        record, _ = await self.directory.read_publication(APP)
        return record is not None and not record.open_targets


def run(body: Callable[[Rig], Awaitable[None]]) -> None:
    async def prepared() -> None:
        rig = Rig()
        await rig.add(LOG, "events")
        await rig.add(STAGING, staging_name(LOG))
        assert await rig.directory.replace_publication(OPEN, 0)
        await body(rig)

    asyncio.run(prepared())


def test_what_was_staged_for_a_deleted_log_is_forgotten() -> None:
    async def body(rig: Rig) -> None:
        await rig.directory.remove_log(LogInfo(LOG, "events", ATTRIBUTES))
        await rig.keeping.look()
        assert await rig.names() == []
        assert await rig.is_given_up()

    run(body)


def test_a_listing_without_a_log_is_no_proof_that_it_is_deleted() -> None:
    async def body(rig: Rig) -> None:
        rig.repository.hidden = "events"
        await rig.keeping.look()
        assert sorted(await rig.names()) == sorted([staging_name(LOG), "events"])
        assert not await rig.is_given_up()

    run(body)


def test_nor_one_without_its_staging_log() -> None:
    async def body(rig: Rig) -> None:
        rig.repository.hidden = staging_name(LOG)
        await rig.keeping.look()
        assert not await rig.is_given_up()
        await rig.repository.delete(keys.LOG_NAMES.key(staging_name(LOG)), ANY_VERSION)
        await rig.keeping.look()
        assert await rig.is_given_up()

    run(body)
