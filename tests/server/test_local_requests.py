"""A node's calls to itself: each is told once, by its answer or when its time is up."""

import asyncio

import pytest

from millrace.core.messages import Stored
from millrace.core.procedure import Answer, Failure, FailureKind
from millrace.server.local import LocalRequests

SOON_MS, LATER_MS, NEVER_MS = 5, 200, 60_000


class Heard:
    """What became of calls, in order, by their names."""

    def __init__(self) -> None:
        self.local = LocalRequests()
        self.told: list[tuple[str, Answer]] = []
        self._changed = asyncio.Event()

    def call(self, name: str, timeout_ms: int) -> int:
        def done(answer: Answer) -> None:
            self.told.append((name, answer))
            self._changed.set()

        return self.local.call(timeout_ms, done)

    async def until(self, count: int) -> list[tuple[str, FailureKind | None]]:
        async with asyncio.timeout(5):
            while len(self.told) < count:
                self._changed.clear()
                await self._changed.wait()
        return [
            (name, each.kind if isinstance(each, Failure) else None) for name, each in self.told
        ]


def test_an_answer_is_told_once() -> None:
    async def body() -> None:
        heard = Heard()
        number = heard.call("one", NEVER_MS)
        heard.local.answer(number, Stored())
        heard.local.answer(number, Stored())
        assert heard.told == [("one", Stored())]

    asyncio.run(body())


@pytest.mark.parametrize(
    "order",
    [("soon", "later", "never"), ("never", "later", "soon"), ("later", "soon", "never")],
    ids="-".join,
)
def test_whose_time_is_up_hears_so_in_whatever_order_they_called(order: tuple[str, ...]) -> None:
    timeouts = {"soon": SOON_MS, "later": LATER_MS, "never": NEVER_MS}

    async def body() -> None:
        heard = Heard()
        numbers = {name: heard.call(name, timeouts[name]) for name in order}
        late = FailureKind.TIMED_OUT
        assert await heard.until(2) == [("soon", late), ("later", late)]
        heard.local.answer(numbers["soon"], Stored())
        heard.local.answer(numbers["never"], Stored())
        assert await heard.until(3) == [("soon", late), ("later", late), ("never", None)]

    asyncio.run(body())


def test_whose_time_was_up_while_the_loop_was_busy_hear_so_in_that_order() -> None:
    async def body() -> None:
        heard = Heard()
        heard.call("later", 2 * SOON_MS)
        heard.call("soon", SOON_MS)
        loop = asyncio.get_running_loop()
        busy_until_s = loop.time() + 3 * SOON_MS / 1000
        while loop.time() < busy_until_s:
            pass
        assert [name for name, _ in await heard.until(2)] == ["soon", "later"]

    asyncio.run(body())


def test_a_call_after_all_others_were_told_is_timed_as_well() -> None:
    async def body() -> None:
        heard = Heard()
        heard.call("first", SOON_MS)
        await heard.until(1)
        heard.call("second", SOON_MS)
        assert [name for name, _ in await heard.until(2)] == ["first", "second"]

    asyncio.run(body())
