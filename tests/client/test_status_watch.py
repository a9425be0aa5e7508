"""What a client's readers hear of the statuses of nodes."""

import asyncio
from collections.abc import Awaitable, Callable

from millrace.client.status_watch import StatusWatch
from millrace.core.statuses import NodeStatusEntry, Statuses, came, emptied, rebuilt
from millrace.meta.directory import ClusterDirectory
from millrace.meta.memory import MemoryRepository
from millrace.types import AuthoritativeStatus, NodeId
from tests.support.clusters import run

THREE = NodeId(3)
AWAY = NodeStatusEntry(AuthoritativeStatus.UNAVAILABLE)
LOST = NodeStatusEntry(AuthoritativeStatus.UNDERREPLICATION)


class Listener:
    def __init__(self) -> None:
        self._heard: asyncio.Queue[Statuses] = asyncio.Queue()

    def __call__(self, statuses: Statuses) -> None:
        self._heard.put_nowait(statuses)

    async def next(self) -> Statuses:
        return await self._heard.get()

    @property
    def is_told_nothing(self) -> bool:
        return self._heard.empty()


class Rig:
    def __init__(self) -> None:
        self.directory = ClusterDirectory(MemoryRepository())
        self.watch = StatusWatch(self.directory)

    async def put(self, entry: NodeStatusEntry) -> None:
        await self.directory.change_status(THREE, lambda _: entry)


def on_a_rig(body: Callable[[Rig], Awaitable[None]]) -> None:
    async def work() -> None:
        await body(Rig())

    run(work(), 20)


def test_whoever_comes_later_hears_what_stands_too() -> None:
    async def body(rig: Rig) -> None:
        await rig.put(AWAY)
        first, second = Listener(), Listener()
        rig.watch.listen(first)
        assert await first.next() == {THREE: AWAY.status}
        rig.watch.listen(second)
        assert await second.next() == {THREE: AWAY.status}
        await rig.put(LOST)
        assert await first.next() == await second.next() == {THREE: LOST.status}
        assert first.is_told_nothing

    on_a_rig(body)


def test_whoever_has_gone_again_hears_nothing() -> None:
    async def body(rig: Rig) -> None:
        first, brief = Listener(), Listener()
        rig.watch.listen(first)
        await first.next()
        rig.watch.listen(brief)
        rig.watch.forget(brief)
        await rig.put(AWAY)
        await first.next()
        assert brief.is_told_nothing

    on_a_rig(body)


def test_what_stood_when_nobody_listened_is_read_anew() -> None:
    async def body(rig: Rig) -> None:
        await rig.put(AWAY)
        first, second, third = Listener(), Listener(), Listener()
        rig.watch.listen(first)
        await first.next()
        rig.watch.forget(first)
        await rig.put(LOST)
        rig.watch.listen(second)
        rig.watch.listen(third)
        assert await second.next() == await third.next() == {THREE: LOST.status}
        await asyncio.sleep(0)
        assert third.is_told_nothing

    on_a_rig(body)


def test_statuses_that_were_passed_over_are_heard_too() -> None:
    wiped = came(None, "disk", "new disk", 1)
    assert wiped is not None
    empty = rebuilt(wiped, 2)
    assert empty is not None
    back = emptied(empty, 3)
    assert back is not None

    async def body(rig: Rig) -> None:
        await rig.put(wiped)
        listener = Listener()
        rig.watch.listen(listener)
        assert await listener.next() == {THREE: wiped.status}
        await rig.put(back)
        assert await listener.next() == {THREE: empty.status}
        assert await listener.next() == {THREE: back.status}
        assert listener.is_told_nothing

    on_a_rig(body)
