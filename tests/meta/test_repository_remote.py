"""A repository over the wire keeps the contract, and never claims what it cannot know."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from millrace import errors, limits
from millrace.core.messages import (
    Message,
    MetaChanged,
    MetaDelete,
    MetaEntry,
    MetaSet,
    MetaWatch,
    MetaWatching,
    Ping,
    Refusal,
    Refused,
    Stop,
)
from millrace.meta.contract import ANY_VERSION, Change, Conflict, Entry, Repository
from millrace.meta.memory import MemoryRepository
from millrace.meta.remote import RemoteRepository
from millrace.meta.service import MetadataService
from millrace.meta.wire import Pushes
from tests.conformance.repository_suite import RepositorySuite
from tests.support.direct_wire import DirectWire
from tests.support.watching import Watcher

ADDRESSES = ("one:1", "two:2")


class Far:
    """A memory repository, two services in front of it, and the wire to them."""

    def __init__(self, timeout_ms: int = 5_000) -> None:
        self.near = MemoryRepository()
        self.wire = DirectWire({address: MetadataService(self.near) for address in ADDRESSES})
        self.repository = RemoteRepository(self.wire, ADDRESSES, timeout_ms)


@asynccontextmanager
async def far_away(timeout_ms: int = 5_000) -> AsyncIterator[Far]:
    far = Far(timeout_ms)
    yield far
    await far.repository.close()
    await far.wire.close()
    await far.near.close()


class TestRemoteRepository(RepositorySuite):
    @asynccontextmanager
    async def open(self) -> AsyncIterator[Repository]:
        async with far_away() as far:
            yield far.repository

    @asynccontextmanager
    async def open_unavailable(self) -> AsyncIterator[Repository]:
        async with far_away(self.unavailable_timeout_ms) as far:
            far.wire.away.add(ADDRESSES[0])
            far.wire.silent.add(ADDRESSES[1])
            yield far.repository


def test_another_address_takes_over() -> None:
    async def run() -> None:
        async with far_away() as far:
            first = await far.repository.set("a", b"1", 0)
            async with Watcher(far.repository, "", first.version) as watcher:
                second = await far.repository.set("b", b"", 0)
                await watcher.entries(1)
                far.wire.away.add("one:1")
                await far.wire.cut("one:1")
                third = await far.repository.set("a", b"2", first.version)
                assert await watcher.entries(2) == [second, third]
                far.wire.away = {"two:2"}
                await far.wire.cut("two:2")
                fourth = await far.repository.set("c", b"", 0)
                assert await watcher.entries(3) == [second, third, fourth]

    asyncio.run(run())


def loses_one_answer(far: Far, kind: type[Message]) -> None:
    left = 1

    def loses(message: Message) -> bool:
        nonlocal left
        left -= isinstance(message, kind)
        return isinstance(message, kind) and left >= 0

    far.wire.loses_answer = loses


def test_a_lost_answer_is_never_a_conflict_with_itself() -> None:
    async def run() -> None:
        async with far_away() as far:
            first = await far.repository.set("a", b"1", 0)
            loses_one_answer(far, MetaSet)
            with pytest.raises(errors.MetadataOutcomeUnknown) as caught:
                await far.repository.set("a", b"2", first.version)
            assert not caught.value.is_definite
            there = await far.repository.get("a")
            assert there.value == b"2"
            with pytest.raises(Conflict):
                await far.repository.set("a", b"3", first.version)

    asyncio.run(run())


@pytest.mark.parametrize("expected", [0, ANY_VERSION], ids=["create", "any version"])
def test_what_could_happen_twice_is_not_sent_again(expected: int) -> None:
    async def run() -> None:
        async with far_away() as far:
            loses_one_answer(far, MetaSet)
            with pytest.raises(errors.MetadataOutcomeUnknown):
                await far.repository.set("a", b"1", expected)
            assert sum(isinstance(message, MetaSet) for _, message in far.wire.asked) == 1

    asyncio.run(run())


def test_a_lost_answer_to_delete_is_unknown() -> None:
    async def run() -> None:
        async with far_away() as far:
            entry = await far.repository.set("a", b"1", 0)
            loses_one_answer(far, MetaDelete)
            with pytest.raises(errors.MetadataOutcomeUnknown):
                await far.repository.delete("a", entry.version)
            assert (await far.repository.get("a")).version == 0

    asyncio.run(run())


def test_a_listing_that_is_no_longer_kept_begins_again() -> None:
    async def run() -> None:
        async with far_away() as far:
            for number in range(6):
                await far.repository.set(f"k/{number}", b"x" * limits.VALUE_BYTES_MAX, 0)
            # The second page is asked of a service that does not have the listing.
            asked = 0

            def moves(message: Message) -> bool:
                nonlocal asked
                asked += 1
                if asked == 1:
                    far.wire.away.add("one:1")
                return False

            far.wire.loses_answer = moves
            entries, _ = await far.repository.list("k/")
            assert [entry.key for entry in entries] == [f"k/{number}" for number in range(6)]

    asyncio.run(run())


# -- The service ------------------------------------------------------------------------------


async def drop(message: MetaChanged) -> None:
    return


def test_the_service_refuses_what_it_does_not_know() -> None:
    async def run() -> None:
        near = MemoryRepository()
        session = MetadataService(near).connect(drop)
        answer = await session.answer(Ping())
        assert isinstance(answer, Refused) and answer.reason is Refusal.BAD_REQUEST
        await session.answer(MetaWatch(1, "", 0))
        answer = await session.answer(MetaWatch(1, "", 0))
        assert isinstance(answer, Refused) and answer.reason is Refusal.BAD_REQUEST
        await session.close()
        await near.close()
        answer = await session.answer(MetaSet("a", b"", 0))
        assert isinstance(answer, Refused) and answer.reason is Refusal.UNAVAILABLE

    asyncio.run(run())


def test_watches_of_a_connection_are_bounded() -> None:
    async def run() -> None:
        near = MemoryRepository()
        session = MetadataService(near).connect(drop)
        for stream in range(limits.STREAMS_PER_SESSION_MAX):
            assert isinstance(await session.answer(MetaWatch(stream, "", 0)), MetaWatching)
        answer = await session.answer(MetaWatch(-1, "", 0))
        assert isinstance(answer, Refused) and answer.reason is Refusal.BUSY
        session.stop(Stop(5))
        assert isinstance(await session.answer(MetaWatch(-1, "", 0)), MetaWatching)
        await session.close()
        await near.close()

    asyncio.run(run())


def test_parts_are_put_together_and_overflow_is_lost() -> None:
    def pushed(revision: int, *keys: str) -> MetaChanged:
        return MetaChanged(1, tuple(MetaEntry(key, b"", 0) for key in keys), revision)

    async def run() -> None:
        pushes = Pushes(entries_max=3)
        for message in (pushed(7, "a"), pushed(7, "b"), pushed(9, "c"), None):
            pushes.add(message)
        whole = Change(tuple(Entry(key, b"", 0) for key in "abc"), 9)
        assert [change async for change in pushes.changes(7)] == [whole]
        pushes = Pushes(entries_max=3)
        for revision in range(8, 12):
            pushes.add(pushed(revision, "a"))
        assert [change async for change in pushes.changes(7)] == [Change((), 7, lost=True)]

    asyncio.run(run())


def test_a_large_change_arrives_whole() -> None:
    """More than a frame holds, in one revision: a watcher must not resume in its middle."""

    async def run() -> None:
        async with far_away() as far:
            lease = await far.near.grant(60_000)
            for number in range(1_500):
                await far.near.set(f"{number:04}".ljust(470, "x"), b"", 0, lease)
            _, revision = await far.repository.list("")
            pushed: list[MetaChanged] = []
            is_whole = asyncio.Event()

            async def push(message: MetaChanged) -> None:
                pushed.append(message)
                if message.revision > revision:
                    is_whole.set()

            session = MetadataService(far.near).connect(push)
            await session.answer(MetaWatch(1, "", revision))
            async with Watcher(far.repository, "", revision) as watcher:
                await far.near.revoke(lease)
                await watcher.entries(1)
                assert [len(change.entries) for change in watcher.changes] == [1_500]
            await asyncio.wait_for(is_whole.wait(), 20)
            assert len(pushed) > 1 and pushed[-1].revision == revision + 1
            assert all(message.revision == revision for message in pushed[:-1])
            await session.close()

    asyncio.run(run())
