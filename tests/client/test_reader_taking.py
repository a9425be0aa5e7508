"""What a reader hands over, whoever leaves a loop, is interrupted or closes the client."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millrace.client.loop_thread import run
from millrace.client.reader import Reader
from millrace.client.sync import SyncReader
from millrace.codec.blocks import place
from millrace.codec.drafts import draft
from millrace.core.read_effects import Deliver
from millrace.errors import UsageError
from millrace.types import Epoch, Gap, GapKind, LogId, Lsn, Record, Token

TIMEOUT_S = 20


class Given:
    """A reading that hands over what a test gives it, and never ends by itself."""

    stream: Any = None
    next_lsn = Lsn(1)
    is_served = True
    bytes_received = bytes_delivered = 0

    def __init__(self) -> None:
        self.taken_bytes = 0
        self.give: Callable[[Deliver | Gap], None]

    def explain(self) -> dict[str, object]:
        return {"waits_for": "a test"}

    def open(
        self,
        deliver: Callable[[Deliver | Gap], None],
        finish: Callable[[BaseException | None], None],
    ) -> None:
        self.give = deliver

    def took(self, size_bytes: int) -> None:
        self.taken_bytes += size_bytes

    def stop(self) -> None:
        """As one that is at something: it does not finish."""

    async def close(self) -> None:
        pass


def block(first: int, count: int) -> Deliver:
    values = [b"%d" % (first + at) for at in range(count)]
    drafted = draft(values, timestamps_us=1, compress=False)
    placed = place(drafted, LogId(1), Epoch(1), Lsn(first), Token(1, first))
    return Deliver(placed, Lsn(first), Lsn(first + count))


def position(part: Record | Gap | Deliver | None) -> int:
    assert part is not None
    return part.lsn if isinstance(part, Record) else part.first


async def made(given: Given) -> Reader:
    return Reader(given)


def test_whoever_leaves_a_loop_in_a_block_goes_on_in_it() -> None:
    async def work() -> None:
        given = Given()
        reader = await made(given)
        given.give(block(1, 3))
        given.give(block(4, 3))
        seen: list[int] = []
        for _ in range(4):
            async for record in reader:
                seen.append(position(record))
                break
        assert seen == [1, 2, 3, 4]
        rest = await reader.take()
        assert isinstance(rest, Deliver) and (rest.first, rest.end) == (5, 7)
        assert given.taken_bytes == rest.block.size, "a block in hand is not given back"
        assert reader.poll() is None
        assert given.taken_bytes == 2 * rest.block.size

    asyncio.run(work())


def test_so_does_one_without_await() -> None:
    given = Given()
    reader = SyncReader(run(made(given)))
    given.give(block(1, 3))
    given.give(block(4, 1))
    seen: list[int] = []
    for _ in range(4):
        for record in reader:
            seen.append(position(record))
            break
    assert seen == [1, 2, 3, 4]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Whoever started the tests in the background had interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_wait_takes_nothing_with_it() -> None:
    given = Given()
    reader = SyncReader(run(made(given)))
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        next(iter(reader))
    timer.join()

    async def give() -> None:
        for first in (1, 2):
            given.give(Gap(GapKind.HOLE, Lsn(first), Lsn(first)))

    run(give())
    assert [position(reader.take()) for _ in range(2)] == [1, 2]


def test_one_that_waits_hears_that_the_client_was_closed() -> None:
    async def work() -> None:
        reader = await made(Given())
        waiting = asyncio.create_task(reader.take())
        await asyncio.sleep(0)
        reader.fail(UsageError("closed"))
        with pytest.raises(UsageError, match="closed"):
            async with asyncio.timeout(TIMEOUT_S):
                await waiting

    asyncio.run(work())
