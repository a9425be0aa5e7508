"""Procedures that run without a task while they only ask, and in one as soon as they must wait."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from loopback import run
from millrace.core.messages import Message, Next, Pong, Written
from millrace.core.procedure import Ask, DeadlinePassed, Failure, FailureKind, Pause, Procedure
from millrace.errors import (
    BadConfiguration,
    MessageTooLarge,
    MillraceError,
    NoAnswer,
    NotConnected,
    ProtocolError,
    TooManyRequests,
    WrongPeer,
)
from millrace.runtime.asks import AnswerWaiter
from millrace.runtime.procedures import ProcedureRunner
from millrace.types import Epoch, LogId, NodeId

NEXT = Next(LogId(1), Epoch(1), 1)
TIMEOUT_MS = 5_000


class Nodes:
    """Nodes below 10 are connected; the others must be dialled, which succeeds."""

    def __init__(self) -> None:
        self.waiting: list[AnswerWaiter] = []
        self.dialled: list[NodeId] = []
        self.runner = ProcedureRunner(
            self.ask,
            directory=None,
            make_junk=None,
            ask_now=self.ask_now,  # type: ignore[arg-type]
        )

    def ask_now(
        self, node: NodeId, message: Message, timeout_ms: int, waiter: AnswerWaiter
    ) -> bool:
        if node >= 10:
            return False
        if node == 8:
            raise MessageTooLarge("never sent")
        if node == 9:
            raise NotConnected("closed this very moment")
        self.waiting.append(waiter)
        return True

    async def ask(self, node: NodeId, message: Message, timeout_ms: int) -> Message:
        self.dialled.append(node)
        return Pong()

    def begin(self, procedure: Procedure[Any], timeout_ms: int = TIMEOUT_MS) -> asyncio.Future[Any]:
        ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.runner.begin(procedure, timeout_ms, ended)
        return ended


def asking(*nodes: int) -> Procedure[list[object]]:
    answers = []
    for node in nodes:
        answers.append((yield Ask(NodeId(node), NEXT)))
    return answers


def with_nodes(body: Callable[[Nodes], Any]) -> None:
    async def started() -> None:
        await asyncio.wait_for(body(Nodes()), 5)

    run(started)


def test_an_answer_sends_the_next_request_before_it_returns() -> None:
    async def body(nodes: Nodes) -> None:
        ended = nodes.begin(asking(1, 2))
        nodes.waiting.pop().set_result(Written())
        nodes.waiting.pop().set_result(Pong())
        assert ended.done() and await ended == [Written(), Pong()]
        assert len(asyncio.all_tasks()) <= 2  # This test, and who waits for it.

    with_nodes(body)


def test_a_node_that_must_be_dialled_is_asked_from_a_task() -> None:
    async def body(nodes: Nodes) -> None:
        ended = nodes.begin(asking(1, 11, 12))
        nodes.waiting.pop().set_result(Written())
        assert await ended == [Written(), Pong(), Pong()]
        assert nodes.dialled == [11, 12]

    with_nodes(body)


def test_a_lost_answer_is_told_in_a_turn_of_its_own() -> None:
    async def body(nodes: Nodes) -> None:
        ended = nodes.begin(asking(1))
        nodes.waiting.pop().set_exception(NoAnswer("late"))
        assert not ended.done()
        assert await ended == [Failure(FailureKind.TIMED_OUT, "late")]

    with_nodes(body)


def test_a_request_that_never_got_its_turn_says_nothing_against_the_node() -> None:
    async def body(nodes: Nodes) -> None:
        ended = nodes.begin(asking(1))
        nodes.waiting.pop().set_exception(TooManyRequests("crowded"))
        (failure,) = await ended
        assert failure.is_crowded and failure.is_definite

    with_nodes(body)


def test_a_connection_that_closes_while_it_is_asked_is_a_failure() -> None:
    async def body(nodes: Nodes) -> None:
        (failure,) = await nodes.begin(asking(9))
        assert failure.kind is FailureKind.CONNECT

    with_nodes(body)


def test_what_a_procedure_raises_reaches_the_one_who_waits() -> None:
    def failing() -> Procedure[None]:
        yield Ask(NodeId(1), NEXT)
        raise ZeroDivisionError

    async def body(nodes: Nodes) -> None:
        ended = nodes.begin(failing())
        nodes.waiting.pop().set_result(Pong())
        with pytest.raises(ZeroDivisionError):
            await ended

    with_nodes(body)


def test_a_message_that_cannot_be_sent_is_the_error_of_the_one_who_waits() -> None:
    async def body(nodes: Nodes) -> None:
        ended = nodes.begin(asking(1, 8))
        nodes.waiting.pop().set_result(Pong())
        with pytest.raises(MessageTooLarge):
            await ended

    with_nodes(body)


@pytest.mark.parametrize("error", [WrongPeer, BadConfiguration, ProtocolError])
def test_whatever_keeps_an_ask_from_a_node_is_a_failure_of_that_ask(
    error: type[MillraceError],
) -> None:
    async def body() -> None:
        def ask_now(*_: object) -> bool:
            raise error("now")

        async def ask(*_: object) -> Message:
            raise error("dialled")

        for asks_now in (ask_now, lambda *_: False):
            runner = ProcedureRunner(ask, None, None, ask_now=asks_now)  # type: ignore[arg-type]
            ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            runner.begin(asking(1), TIMEOUT_MS, ended)
            (failure,) = await ended
            assert isinstance(failure, Failure) and failure.kind is FailureKind.CONNECT
        assert await runner.run(asking(1), TIMEOUT_MS) == [Failure(FailureKind.CONNECT, "dialled")]

    run(body)


def test_a_procedure_whose_time_is_up_is_told() -> None:
    def patient() -> Procedure[str]:
        try:
            yield Pause(60_000)
        except DeadlinePassed:
            return "in time"
        return "too late"

    async def body(nodes: Nodes) -> None:
        assert await nodes.begin(patient(), timeout_ms=20) == "in time"

    with_nodes(body)
