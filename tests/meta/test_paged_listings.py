"""Listings that come in pages: whoever walks one to its end has all of it, however many walk it."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from millrace import limits
from millrace.core.messages import MetaChanged, MetaList, MetaListing, Refusal, Refused
from millrace.meta import service
from millrace.meta.contract import ANY_VERSION
from millrace.meta.memory import MemoryRepository
from millrace.meta.service import LISTINGS_KEPT_MAX, MetadataService, MetadataSession

ENTRIES = 40
PREFIX = "k/"
KEYS = [f"{PREFIX}{number:03}" for number in range(ENTRIES)]


async def drop(message: MetaChanged) -> None:
    return


class Walk:
    """One client that goes through a listing, page by page."""

    def __init__(self, session: MetadataSession, prefix: str = PREFIX) -> None:
        self.keys: list[str] = []
        self.revision = 0
        self.is_ended = False
        self.is_refused = False
        self._session = session
        self._prefix = prefix

    async def step(self) -> None:
        after = self.keys[-1] if self.keys else ""
        answer = await self._session.answer(MetaList(self._prefix, self.revision, after))
        if isinstance(answer, Refused):
            assert answer.reason is Refusal.BUSY
            self.is_refused = True
            return
        assert isinstance(answer, MetaListing)
        assert self.revision in (0, answer.revision)
        self.revision = answer.revision
        self.keys += [entry.key for entry in answer.entries]
        self.is_ended = not answer.is_partial


class Rig:
    def __init__(self) -> None:
        self.repository = MemoryRepository()
        self.service = MetadataService(self.repository)

    async def fill(self, keys: list[str]) -> None:
        for key in keys:
            await self.repository.set(key, b"x" * limits.VALUE_BYTES_MAX, 0)

    def walk(self, prefix: str = PREFIX) -> Walk:
        return Walk(self.service.connect(drop), prefix)


def run(body: Callable[[Rig], Awaitable[None]]) -> None:
    async def filled() -> None:
        rig = Rig()
        await rig.fill(KEYS)
        await body(rig)
        await rig.repository.close()

    asyncio.run(filled())


@pytest.mark.parametrize("order", ["ABAAB", "ABABAB", "AABBBBAA", "AAAABAB"])
def test_whoever_ends_without_a_refusal_has_all(order: str) -> None:
    """The steps of two walks at first, in any order; then each goes on alone."""

    async def body(rig: Rig) -> None:
        walks = {"A": rig.walk(), "B": rig.walk()}
        for name in order:
            if not walks[name].is_ended:
                await walks[name].step()
        for walk in walks.values():
            while not walk.is_ended:
                await walk.step()
                assert not walk.is_refused  # There is room for this one listing.
            assert walk.keys == KEYS

    run(body)


def test_a_page_that_is_asked_for_again_is_the_same() -> None:
    async def body(rig: Rig) -> None:
        walk, again = rig.walk(), rig.walk()
        await walk.step()
        again.keys, again.revision = list(walk.keys), walk.revision
        while not walk.is_ended:
            await walk.step()
        await again.step()
        assert again.keys == walk.keys[: len(again.keys)]

    run(body)


def test_the_one_that_was_not_used_for_longest_is_forgotten() -> None:
    async def body(rig: Rig) -> None:
        old, used = rig.walk("k"), rig.walk()
        await old.step()
        await used.step()
        for number in range(LISTINGS_KEPT_MAX - 1):
            await rig.repository.set("other", b"%d" % number, ANY_VERSION)
            await rig.walk().step()  # Another revision each.
            if not used.is_ended:
                await used.step()
        await old.step()
        assert old.is_refused
        assert not used.is_refused

    run(body)


def test_one_that_nobody_used_for_long_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "LISTING_KEPT_MS", 0)

    async def body(rig: Rig) -> None:
        first, second = rig.walk("k"), rig.walk()
        await first.step()
        await second.step()
        await first.step()
        assert first.is_refused
        while not second.is_ended:
            await second.step()
        assert second.keys == KEYS

    run(body)
