"""What a node says of its documents, and what becomes of it when their tasks cannot go on."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from millrace.config import Configuration, NodeSettings, StoreSettings
from millrace.core.documents.document import PartitionId
from millrace.core.messages import Refusal
from millrace.core.messages.cluster import DamagedPartition
from millrace.errors import Corruption
from millrace.limits import MIB
from millrace.server.node import Node
from millrace.server.partitions.flusher import PartitionsDamaged
from millrace.server.partitions.upkeep import Upkeep
from millrace.store.contract import StoreFailed
from millrace.types import Role

ROLES = (Role.STORAGE, Role.SEQUENCER, Role.DOCUMENTS, Role.METADATA)
FULL = StoreFailed(Refusal.DISK_FULL, "there is no room for documents")
DAMAGED = PartitionsDamaged(
    Refusal.UNAVAILABLE,
    "partition 3 of bucket 7 cannot be written: its row is damaged",
    (DamagedPartition(7, PartitionId(3)),),
    "its row is damaged",
)
BROKEN = StoreFailed(Refusal.UNAVAILABLE, "the store of documents failed")


@contextlib.asynccontextmanager
async def started(path: Path) -> AsyncIterator[Node]:
    settings = NodeSettings(1, str(path), "127.0.0.1:0", roles=ROLES)
    node = Node(Configuration(settings, store=StoreSettings(map_bytes=64 * MIB)))
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


@contextlib.contextmanager
def failing(owner: object, failure: StoreFailed) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, "failure", failure)
        yield


def test_health_tells_what_keeps_documents_from_the_disk(tmp_path: Path) -> None:
    async def body() -> None:
        async with started(tmp_path) as node:
            documents = node._documents
            assert documents is not None
            health = node._health()
            assert (health["status"], health["is_full"], health["detail"]) == ("ok", False, "")
            with failing(documents._flusher, FULL):
                health = node._health()
                told = (health["status"], health["is_full"], health["detail"])
                assert told == ("ok", True, FULL.detail), "a restart would lose what is in memory"
                described = node.describe()
                assert described.documents is not None and described.documents.is_full
                assert not described.is_full, "it takes blocks of logs"
            with failing(documents.store._writer, BROKEN):
                health = node._health()
                assert (health["status"], health["detail"]) == ("store_failed", BROKEN.detail)

    asyncio.run(body())


def test_the_room_of_documents_is_told_beside_that_of_logs(tmp_path: Path) -> None:
    async def body() -> None:
        async with started(tmp_path) as node:
            documents = node._documents
            assert documents is not None
            documents.store._room.used_bytes = 9 * MIB
            described = node.describe()
            assert described.documents is not None
            assert described.bytes_used == node._store.usage().bytes_used < 9 * MIB
            assert described.documents.bytes_used == 9 * MIB
            assert described.documents.bytes_total == documents.store.usage().bytes_total

    asyncio.run(body())


def test_health_tells_of_partitions_that_cannot_be_written(tmp_path: Path) -> None:
    """It said that all was well, while every change was refused."""

    async def body() -> None:
        async with started(tmp_path) as node:
            documents = node._documents
            assert documents is not None
            assert node._health()["is_damaged"] is False
            with failing(documents._flusher, DAMAGED):
                health = node._health()
                told = (health["status"], health["is_damaged"], health["detail"])
                assert told == ("ok", True, DAMAGED.detail), "all others serve"
                described = node.describe().documents
            assert described is not None and not described.is_full
            assert described.damaged == (DamagedPartition(7, PartitionId(3)),)
            assert described.damage == "its row is damaged"

    asyncio.run(body())


def test_a_node_whose_documents_cannot_go_on_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(self: Upkeep) -> None:
        raise Corruption("nobody foresaw this")

    monkeypatch.setattr(Upkeep, "look", break_down)

    async def body() -> None:
        async with started(tmp_path) as node:
            with pytest.raises(Corruption, match="nobody foresaw this"):
                await asyncio.wait_for(node.wait_failed(), 10)

    asyncio.run(body())
