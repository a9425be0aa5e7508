"""A node that is starting takes nothing: it may not know yet that it lost blocks."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import uvloop

from millrace.codec.blocks import junk, lone_record, move
from millrace.codec.frames import PROTOCOL_VERSION
from millrace.core.messages import (
    AppendBlock,
    ClusterDescribed,
    Hello,
    Message,
    NodeDescribed,
    Refusal,
    Refused,
)
from millrace.meta.memory import MemoryRepository
from millrace.meta.service import MetadataService
from millrace.runtime.links import Links
from millrace.runtime.transport import listen
from millrace.scenario.memory_store import MemoryStore
from millrace.server.sequencing import Sequencing
from millrace.server.service import NodeService
from millrace.server.shell import NodeShell
from millrace.types import Ack, Epoch, LogId, NodeId, Token
from tests.support.virtual_surroundings import VirtualSurroundings

LOG, ME = LogId(7), NodeId(1)
APPEND = AppendBlock(LOG, Epoch(0), lone_record(LOG, b"value", Token(1, 1)), Ack.DISK)
STARTING = Refused(Refusal.UNAVAILABLE, detail="the node is starting")
HELLO = Hello(PROTOCOL_VERSION, "mill")
TIMEOUT_MS = 5_000


class Claiming(VirtualSurroundings):
    """Whoever wants to sequence a log is noted, and hears no more of it."""

    def __init__(self) -> None:
        super().__init__((ME,), [])
        self.is_claimed = asyncio.Event()

    def run(self, procedure: Any, timeout_ms: int, done: Callable[[Any], None]) -> None:
        procedure.close()
        self.is_claimed.set()


async def _describe_cluster() -> ClusterDescribed:
    raise AssertionError("nobody asks")


def _describe_node() -> NodeDescribed:
    raise AssertionError("nobody asks")


@asynccontextmanager
async def serving(
    service: NodeService,
) -> AsyncIterator[Callable[[], Coroutine[Any, Any, Message]]]:
    """What appends over a real connection."""
    listener = await listen("127.0.0.1", 0, HELLO, service)
    links = Links(HELLO)

    async def append() -> Message:
        return await links.ask(listener.address, APPEND, TIMEOUT_MS)

    try:
        yield append
    finally:
        await links.close()
        await listener.close()
        await service.close()


def test_an_append_is_refused_until_the_node_has_settled() -> None:
    """A wiped node would claim the epoch, and vote that it never had what it had."""

    async def body() -> None:
        around = Claiming()
        service = NodeService(
            MetadataService(MemoryRepository()), _describe_cluster, _describe_node
        )
        service.sequencing = Sequencing(ME, around, move, junk)  # type: ignore[arg-type]
        async with serving(service) as ask:
            assert await ask() == STARTING
            assert not around.is_claimed.is_set()
            service.shell = NodeShell(MemoryStore(), service, lambda order: None)
            appending = asyncio.create_task(ask())
            async with asyncio.timeout(TIMEOUT_MS / 1000):
                await around.is_claimed.wait()
            appending.cancel()

    uvloop.run(body())
