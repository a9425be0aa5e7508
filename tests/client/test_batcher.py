"""Gathering appends into blocks: who shares one, who waits, and for how long."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from millrace.client.batcher import Batcher
from millrace.client.many import all_settled, check_record, draft_values
from millrace.client.outcomes import BlockAppend, UnknownAppend
from millrace.codec.drafts import Draft, HeaderPairs
from millrace.core.append import Append, Appended
from millrace.errors import LogSealed, MillraceError, RecordTooLarge, TimedOut, UsageError
from millrace.limits import BATCH_BYTES_WAITING_MAX, BLOCK_BYTES_TARGET, RECORD_BYTES_MAX
from millrace.runtime.hot_run import Waiter
from millrace.types import Ack, LogId, Lsn, Token

LONG_MS = 30_000


class Sent:
    """Takes blocks and answers when the test says so."""

    def __init__(self) -> None:
        self.blocks: list[tuple[Draft, Ack, int, Waiter[Appended]]] = []
        self.count = 0

    def __call__(self, draft: Draft, ack: Ack, left_ms: int, waiter: Waiter[Appended]) -> None:
        self.blocks.append((draft, ack, left_ms, waiter))

    def answer(self) -> None:
        draft, _, _, waiter = self.blocks.pop(0)
        first = Lsn(self.count + 1)
        self.count += draft.count
        waiter.set_result(Appended(first, Lsn(self.count)))


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await work

    asyncio.run(bounded())


def add(
    batcher: Batcher, value: bytes = b"x", timeout_ms: int = LONG_MS, headers: HeaderPairs = ()
) -> "asyncio.Task[Appended]":
    return asyncio.create_task(batcher.add(value, None, 0, headers, Ack.DISK, timeout_ms))


async def turns(count: int = 4) -> None:
    """Let everything that is due happen."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("key", "timestamp_us", "headers", "error"),
    [
        (None, 1.5, (), UsageError),
        (None, 2**63, (), UsageError),
        (None, -(2**63) - 1, (), UsageError),
        ("text", None, (), UsageError),
        (None, None, (("name", "text"),), UsageError),
        (None, None, ((7, b"x"),), UsageError),
        (None, None, (("\ud800", b"x"),), UsageError),
        (None, None, (("name", bytes(RECORD_BYTES_MAX)),), RecordTooLarge),
    ],
)
def test_a_record_that_would_spoil_its_block_is_refused(
    key: Any, timestamp_us: Any, headers: Any, error: type[MillraceError]
) -> None:
    with pytest.raises(error):
        check_record(b"value", key, timestamp_us, headers)


def test_keys_and_headers_count_when_many_are_cut_into_blocks() -> None:
    half = bytes(BLOCK_BYTES_TARGET // 2)
    assert len(draft_values([b"x"] * 8, [half] * 8, 0, None, False)) >= 4
    assert len(draft_values([b"x"] * 8, None, 0, [(("name", half),)] * 8, False)) >= 4


@pytest.mark.parametrize(
    ("values", "keys", "stamps"),
    [
        ([b"x", 7], None, 0),
        ([b"x", b"y"], None, 1.5),
        ([b"x", None], None, 0),
        ([b"x", b"y"], [b"k"], 0),
        ([b"x", b"y"], None, [1]),
        ([b"x", b"y"], None, [1, 2.5]),
    ],
)
def test_a_bad_record_among_many_is_the_callers_mistake(
    values: Any, keys: Any, stamps: Any
) -> None:
    with pytest.raises(UsageError):
        draft_values(values, keys, stamps, None, False)


def unknown() -> UnknownAppend:
    append = Append(LogId(1), 1, Token(1, 1), Ack.DISK, lambda first, epoch: pytest.fail("placed"))
    return UnknownAppend("nobody knows", BlockAppend(append, 1), 0, 1)


def test_an_unknown_outcome_among_many_is_not_hidden_by_a_definite_one() -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        good, sealed, unsure = (loop.create_future() for _ in range(3))
        good.set_result(Appended(Lsn(1), Lsn(4)))
        sealed.set_exception(LogSealed("sealed"))
        unsure.set_exception(unknown())
        late = TimedOut("no room")
        with pytest.raises(UnknownAppend, match="3 of 4 blocks") as raised:
            await all_settled([good, sealed, unsure, late])
        assert raised.value.appended == [Appended(Lsn(1), Lsn(4))]
        kinds = [type(each) for each in raised.value.failures]
        assert kinds == [LogSealed, UnknownAppend, TimedOut]
        assert len(raised.value.outcomes) == 4

    run(body())


def test_definite_failures_among_many_say_what_was_appended() -> None:
    async def body() -> None:
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        future.set_result(Appended(Lsn(1), Lsn(4)))
        with pytest.raises(LogSealed, match="1 of 2 blocks") as raised:
            await all_settled([future, LogSealed("sealed")])
        assert raised.value.appended == [Appended(Lsn(1), Lsn(4))]

    run(body())


def test_room_is_not_given_twice() -> None:
    async def body() -> None:
        sent = Sent()
        batcher = Batcher(sent, compress=False, in_flight_max=1)
        value = bytes(BLOCK_BYTES_TARGET)
        filling = [add(batcher, value) for _ in range(BATCH_BYTES_WAITING_MAX // len(value) + 1)]
        await turns()
        waiting = [add(batcher, value) for _ in range(3)]
        await turns()
        sent.answer()
        await turns()
        assert batcher._waiting_bytes < BATCH_BYTES_WAITING_MAX + 2 * len(value)
        while sent.blocks:
            sent.answer()
            await turns()
        positions = [(await task).first for task in (*filling, *waiting)]
        assert positions == list(range(1, len(positions) + 1))

    run(body())


def test_headers_count_into_a_block() -> None:
    async def body() -> None:
        sent = Sent()
        batcher = Batcher(sent, compress=False, in_flight_max=8)
        headers = (("trace", bytes(BLOCK_BYTES_TARGET // 2)),)
        tasks = [add(batcher, headers=headers) for _ in range(4)]
        await turns()
        assert [block[0].count for block in sent.blocks] == [2, 2]
        while sent.blocks:
            sent.answer()
        await asyncio.gather(*tasks)

    run(body())
