"""Addresses of nodes are looked up again when they turn out to be wrong."""

import asyncio

from millrace.core.statuses import gone, mark_unrecoverable
from millrace.errors import ConnectionLost, NoNodeReachable, WrongPeer
from millrace.meta import keys
from millrace.meta.contract import ANY_VERSION
from millrace.meta.directory import ClusterDirectory
from millrace.meta.memory import MemoryRepository
from millrace.types import NodeId, NodeInfo

NODE = NodeId(2)


async def settle(repository: MemoryRepository, address: str) -> None:
    value = keys.NODES.encode(NodeInfo(NODE, address))
    await repository.set(keys.NODES.key(NODE), value, ANY_VERSION)


def test_an_address_that_failed_is_looked_up_again() -> None:
    async def body() -> None:
        repository = MemoryRepository()
        directory = ClusterDirectory(repository)
        await settle(repository, "old:1")
        assert await directory.address(NODE) == "old:1"
        await settle(repository, "new:1")
        assert await directory.address(NODE) == "old:1"  # Nobody complained.
        directory.not_reached(NODE, "old:1", ConnectionLost("it was reached"))
        assert await directory.address(NODE) == "old:1"
        directory.not_reached(NODE, "old:1", NoNodeReachable("gone"))
        assert await directory.address(NODE) == "new:1"
        await settle(repository, "newer:1")
        directory.not_reached(NODE, "old:1", WrongPeer("late news of an address of the past"))
        assert await directory.address(NODE) == "new:1"
        directory.not_reached(NODE, "new:1", WrongPeer("another"))
        assert await directory.address(NODE) == "newer:1"

    asyncio.run(body())


def test_a_node_that_lives_and_says_what_nobody_understands_lives() -> None:
    """For its sake no address was known any more."""

    async def body() -> None:
        repository = MemoryRepository()
        directory = ClusterDirectory(repository)
        await settle(repository, "old:1")
        bad = await repository.set(keys.LIVE.key(NODE), b'{"id": "two"}', 0)
        assert await directory.address(NODE) == "old:1"
        await settle(repository, "new:1")
        view = await directory.view()
        assert directory.addresses == {NODE: "new:1"}
        assert view.lives == {NODE: bad.version}, "others would take over what it still serves"
        assert view.live == view.full == {NODE}

    asyncio.run(body())


def test_rebuildings_of_nodes_that_lost_their_votes_are_renewed() -> None:
    async def body() -> None:
        directory = ClusterDirectory(MemoryRepository())
        lost, away, well = NodeId(1), NodeId(3), NodeId(4)
        await directory.change_status(lost, lambda entry: mark_unrecoverable(entry, "disk", 1))
        await directory.change_status(away, lambda entry: gone(entry, "disk", 1))
        before = await directory.status_entries()
        told = await directory.renew_rebuilds((lost, away, well))
        assert told == await directory.statuses()
        entries = await directory.status_entries()
        assert entries[lost].rebuild == before[lost].rebuild + 1
        assert entries[away] == before[away]
        assert well not in entries

    asyncio.run(body())


def test_without_the_repository_the_old_address_must_do() -> None:
    async def body() -> None:
        repository = MemoryRepository()
        directory = ClusterDirectory(repository)
        await settle(repository, "old:1")
        await directory.view()
        await repository.close()
        directory.not_reached(NODE, "old:1", NoNodeReachable("gone"))
        assert await directory.address(NODE) == "old:1"

    asyncio.run(body())
