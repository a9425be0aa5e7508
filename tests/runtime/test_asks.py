"""Waiting for answers: ids, deadlines, and what happens when an answer never comes."""

import asyncio

import pytest

from loopback import run
from millrace.codec.frames import REQUEST_ID_MAX
from millrace.core.messages import Message, Pong, Written
from millrace.errors import ConnectionLost, NoAnswer, NotConnected, TooManyRequests
from millrace.runtime.asks import Asks


def add(asks: Asks, request_id: int, name: str, timeout_ms: int) -> asyncio.Future[Message]:
    future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    asks.add(request_id, name, timeout_ms, future)
    return future


def test_ids_begin_again_behind_the_largest_and_skip_those_in_use() -> None:
    async def body() -> None:
        asks = Asks(asyncio.get_running_loop(), 10, "a:1")
        first = asks.next_id()
        waiting = add(asks, first, "Next", 5_000)
        assert first == 1 and not asks.was_issued(2)
        asks._last_id = REQUEST_ID_MAX - 1
        assert [asks.next_id(), asks.next_id()] == [REQUEST_ID_MAX, 2]
        assert asks.was_issued(REQUEST_ID_MAX)
        assert asks.settle(first, Pong()) and await waiting == Pong()
        assert not asks.settle(first, Pong())

    run(body)


def test_each_request_has_its_own_deadline() -> None:
    async def body() -> None:
        asks = Asks(asyncio.get_running_loop(), 10, "a:1")
        order: list[int] = []
        futures = []
        for timeout_ms in (60, 20, 5_000, 40):
            future = add(asks, asks.next_id(), "Next", timeout_ms)
            future.add_done_callback(lambda _, ms=timeout_ms: order.append(ms))
            futures.append(future)
        results = await asyncio.gather(futures[0], futures[1], futures[3], return_exceptions=True)
        assert [type(result) for result in results] == [NoAnswer] * 3
        assert order == [20, 40, 60]
        assert len(asks) == 1
        asks.fail_all("lost")
        with pytest.raises(ConnectionLost, match=r"Next to a:1.*lost"):
            await futures[2]

    run(body)


def test_an_answered_request_does_not_time_out() -> None:
    async def body() -> None:
        asks = Asks(asyncio.get_running_loop(), 1, "a:1")
        quick = asks.next_id()
        answered = add(asks, quick, "Write", 10)
        assert not asks.has_room
        asks.settle(quick, Written())
        assert asks.has_room
        with pytest.raises(NoAnswer):
            await add(asks, asks.next_id(), "Next", 30)
        assert await answered == Written()

    run(body)


def test_requests_beyond_the_limit_get_their_turn_in_order() -> None:
    async def body() -> None:
        asks = Asks(asyncio.get_running_loop(), 1, "a:1")
        add(asks, asks.next_id(), "Next", 5_000)
        waiting = {}
        for name in (b"given up", b"first", b"second"):
            request_id = asks.next_id()
            waiting[name] = add(asks, request_id, "Write", 5_000)
            asks.keep_unsent(request_id, [name])
        assert asks.next_unsent() is None and not asks.has_room
        waiting[b"given up"].cancel()
        asks.settle(1, Pong())
        assert asks.next_unsent() == [b"first"]
        assert asks.next_unsent() is None and asks.has_unsent
        asks.fail_all("lost")
        with pytest.raises(ConnectionLost):
            await waiting[b"first"]
        with pytest.raises(NotConnected):
            await waiting[b"second"]

    run(body)


def test_a_request_whose_turn_never_came_was_not_sent() -> None:
    async def body() -> None:
        expired = asyncio.Event()
        asks = Asks(asyncio.get_running_loop(), 1, "a:1", expired.set)
        add(asks, asks.next_id(), "Next", 5_000)
        late = asks.next_id()
        waiting = add(asks, late, "Write", 20)
        asks.keep_unsent(late, [b""])
        with pytest.raises(TooManyRequests):
            await waiting
        assert expired.is_set() and not asks.has_unsent and len(asks) == 1

    run(body)
