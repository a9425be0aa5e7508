"""When a reader that follows a log ends."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from millrace.client.end_watch import watch_for_end
from millrace.errors import Unavailable, UnknownLog
from millrace.types import Lsn

SOON_S = 0.001


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await work

    asyncio.run(bounded())


class Follower:
    """A reader at a position, of a log that says where it ends."""

    def __init__(self, *says: Lsn | Exception | None, position: int = 5) -> None:
        self.says = list(says)
        self.asked = 0
        self.position = Lsn(position)

    async def find_end(self) -> Lsn | None:
        self.asked += 1
        said = self.says.pop(0) if len(self.says) > 1 else self.says[0]
        if isinstance(said, Exception):
            raise said
        return said

    def where(self) -> Lsn:
        return self.position

    async def watch(self) -> None:
        await watch_for_end(self.where, self.find_end, SOON_S, SOON_S)


@pytest.mark.parametrize(
    ("says", "asked"),
    [
        pytest.param([Lsn(5)], 1, id="sealed"),
        pytest.param([None, None, Lsn(5)], 3, id="sealed later"),
        pytest.param([Unavailable("away"), Lsn(5)], 2, id="nobody says"),
        pytest.param([Lsn(3)], 1, id="beyond the end"),
    ],
)
def test_it_ends_when_the_log_is_sealed_and_all_was_read(says: list[Any], asked: int) -> None:
    follower = Follower(*says)
    run(follower.watch())
    assert follower.asked == asked


def test_it_does_not_end_before_all_was_read() -> None:
    class Slow(Follower):
        def where(self) -> Lsn:
            """It has the last record after it was asked for the third time."""
            return Lsn(6) if self.asked >= 3 else Lsn(5)

    follower = Slow(Lsn(6))
    run(follower.watch())
    assert follower.asked == 3


def test_a_log_that_is_gone_is_told() -> None:
    follower = Follower(UnknownLog("deleted"))
    with pytest.raises(UnknownLog):
        run(follower.watch())


def test_while_records_come_nobody_is_asked() -> None:
    class Moving(Follower):
        def where(self) -> Lsn:
            self.position = Lsn(self.position + 1)
            return self.position

    follower = Moving(Lsn(5))

    async def body() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(20 * SOON_S):
                await follower.watch()

    run(body())
    assert follower.asked == 0
