"""Being alive in a cluster, and noticing that somebody else is."""

import asyncio

import pytest

from millrace.errors import BadConfiguration
from millrace.meta import keys
from millrace.meta.memory import MemoryRepository
from millrace.server.membership import Membership, Settle
from millrace.types import NodeId, NodeInfo, Role
from tests.support.clusters import eventually, run

NODE = NodeId(1)
TTL_MS = 600


async def nothing() -> None:
    pass


def member(repository: MemoryRepository, instance: str, settle: Settle = nothing) -> Membership:
    info = NodeInfo(NODE, "host:1", "", (Role.STORAGE,), "", instance)
    return Membership(repository, info, TTL_MS, settle)


async def alive(repository: MemoryRepository) -> str | None:
    found = keys.LIVE.find(await repository.get(keys.LIVE.key(NODE)))
    return None if found is None else found.instance


def test_a_node_whose_lease_ran_out_appears_again() -> None:
    async def body() -> None:
        repository = MemoryRepository()
        node = member(repository, "first")
        await node.register()
        former = node.lease
        await repository.revoke(former)
        assert await alive(repository) is None
        keeping = asyncio.create_task(node.keep())
        await eventually(lambda: alive(repository), what="the node's return")
        keeping.cancel()
        assert await alive(repository) == "first"
        assert node.lease != former
        await repository.close()

    run(body(), 20)


def test_a_paused_node_does_not_take_the_place_of_its_replacement() -> None:
    async def body() -> None:
        repository = MemoryRepository()
        paused, replacement = member(repository, "first"), member(repository, "second")
        await paused.register()
        await repository.revoke(paused.lease)
        await replacement.register()
        keeping = asyncio.create_task(replacement.keep())
        with pytest.raises(BadConfiguration, match="second"):
            await paused.keep()
        await paused.set_full(True)
        assert await alive(repository) == "second"
        keeping.cancel()
        await repository.close()

    run(body(), 20)


def test_what_a_node_must_say_of_itself_is_said_before_it_appears() -> None:
    async def body() -> None:
        repository = MemoryRepository()
        seen: list[tuple[str | None, str | None]] = []

        async def settle() -> None:
            former = keys.NODES.find(await repository.get(keys.NODES.key(NODE)))
            seen.append((await alive(repository), None if former is None else former.instance))

        for instance in ("first", "second"):
            node = member(repository, instance, settle)
            await node.register()
            await node.leave()
        assert seen == [(None, None), (None, "first")]
        await repository.close()

    run(body(), 20)


def test_a_node_that_was_away_says_it_again() -> None:
    async def body() -> None:
        repository = MemoryRepository()
        settled: list[str | None] = []

        async def settle() -> None:
            settled.append(await alive(repository))

        node = member(repository, "first", settle)
        await node.register()
        await repository.revoke(node.lease)
        keeping = asyncio.create_task(node.keep())
        await eventually(lambda: alive(repository), what="the node's return")
        keeping.cancel()
        assert settled == [None, None]
        await repository.close()

    run(body(), 20)
