"""What a node says of its documents, and what becomes of it when their tasks cannot go on."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from millrace.config import Configuration, NodeSettings, StoreSettings
from millrace.core.messages import Refusal
from millrace.errors import Corruption
from millrace.limits import MIB
from millrace.server.node import Node
from millrace.server.partitions.upkeep import Upkeep
from millrace.store.contract import StoreFailed
from millrace.types import Role

ROLES = (Role.STORAGE, Role.SEQUENCER, Role.DOCUMENTS, Role.METADATA)
FULL = StoreFailed(Refusal.DISK_FULL, "there is no room for documents")
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
                assert node.describe().is_full
            with failing(documents.store._writer, BROKEN):
                health = node._health()
                assert (health["status"], health["detail"]) == ("store_failed", BROKEN.detail)

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
