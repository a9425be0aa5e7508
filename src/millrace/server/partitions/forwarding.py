"""Passing commands on to the masters of their partitions, in the order of the calls.

While all goes well commands are sent at once, many at a time: a link and a master keep their order.
Two things could let a later command overtake.  A master that has not settled yet refuses one and
takes the next.  Or the node has to be looked up, or dialled, before the first can be sent.  So what
is refused holds up what comes behind it, and a node that has not answered yet, or not since
something failed, or that has to be looked for, gets the commands of a partition one at a time.

I1  What was refused is sent again only if no later command of its partition was carried out, or may
    be.  Otherwise it is a temporary failure.
I2  While commands of a partition wait, new ones wait behind them: WAITING_MAX at most.
I3  A command is sent twice at most.
I4  No node is tried with a write that waits for durability, for others wait behind it: a question
    that is answered at once goes first.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from millrace.core.documents.document import PartitionId
from millrace.core.documents.operations import (
    AMBIGUOUS,
    NOT_MY_PARTITION,
    TEMPORARY_FAILURE,
    Command,
    Outcome,
    Verb,
)

WAITING_MAX: Final = 4_096  # Of one partition.
LATER_S: Final = 1.0  # What is refused at all is refused as fast.
QUESTION: Final = Command(Verb.GET, b"")  # Nothing has this key; its answer tells who answers.

Send = Callable[[PartitionId, Command], Awaitable[Outcome]]  # NOT_MY_PARTITION: refused.
Reload = Callable[[], Awaitable[None]]  # Reads the map anew.


class _Call:
    __slots__ = ("command", "is_announced", "order", "outcome", "was_refused")

    def __init__(self, command: Command, *, was_refused: bool = False) -> None:
        self.command = command
        self.order = 0  # Of the first sending, within the partition.
        self.was_refused = was_refused
        self.is_announced = False  # A question goes before it, or went.
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def settle(self, outcome: Outcome | BaseException) -> None:
        if self.outcome.done():
            return  # Nobody wants to know.
        if isinstance(outcome, BaseException):
            self.outcome.set_exception(outcome)
        else:
            self.outcome.set_result(outcome)


class _Lane:
    """The commands of one partition that are under way."""

    def __init__(self) -> None:
        self.refused: list[_Call] = []
        self.waiting: deque[_Call] = deque()
        self.runner: asyncio.Task[None] | None = None
        self._unanswered: dict[int, None] = {}  # Orders, rising.
        self._newest = 0
        self._newest_carried_out = 0
        self._answered = asyncio.Event()

    def sent(self) -> int:
        self._newest += 1
        self._unanswered[self._newest] = None
        return self._newest

    def answered(self, order: int, outcome: Outcome) -> None:
        del self._unanswered[order]
        if outcome not in (NOT_MY_PARTITION, TEMPORARY_FAILURE):
            self._newest_carried_out = max(order, self._newest_carried_out)
        self._answered.set()

    async def all_answered(self, after: int) -> None:
        """Those that were sent after that one; or they have been taken, and wait for something."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LATER_S):
                while next(reversed(self._unanswered), 0) > after:
                    self._answered.clear()
                    await self._answered.wait()

    def take_refused(self) -> None:
        """They are the next.  Keeps I1."""
        refused, self.refused = sorted(self.refused, key=lambda call: call.order), []
        newest = max(self._newest_carried_out, next(reversed(self._unanswered), 0))
        again = [call for call in refused if call.order > newest]
        for call in refused[: len(refused) - len(again)]:
            call.settle(TEMPORARY_FAILURE)
        self.waiting.extendleft(reversed(again))

    def give_up(self, outcome: Outcome | BaseException) -> None:
        """All that are not under way."""
        for call in (*self.refused, *self.waiting):
            call.settle(outcome)
        self.refused.clear()
        self.waiting.clear()


class Forwarding:
    """`is_proven` tells whether the partition's master has answered, nothing failed since, and what
    is sent to it now leaves now."""

    def __init__(
        self, send: Send, is_proven: Callable[[PartitionId], bool], reload: Reload | None
    ) -> None:
        self._send = send
        self._is_proven = is_proven
        self._reload = reload
        self._lanes: dict[PartitionId, _Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def forward(self, number: PartitionId, command: Command) -> Outcome:
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = _Lane()
        call = _Call(command)
        if lane.runner is None and self._is_proven(number):
            await self._pass_on(number, lane, call)
        elif len(lane.waiting) >= WAITING_MAX:
            return TEMPORARY_FAILURE  # Keeps I2.
        else:
            lane.waiting.append(call)
            self._ensure_running(number, lane)
        return await call.outcome

    async def _pass_on(self, number: PartitionId, lane: _Lane, call: _Call) -> Outcome:
        """What was said to it this time."""
        order = lane.sent()
        call.order = call.order or order
        outcome = AMBIGUOUS  # If this is cancelled.
        try:
            outcome = await self._send(number, call.command)
        except Exception as error:  # A defect: whoever called is told.
            call.settle(error)
            return outcome
        finally:
            lane.answered(order, outcome)
        if outcome != NOT_MY_PARTITION:
            call.settle(outcome)
        elif call.was_refused or self._reload is None:
            call.settle(TEMPORARY_FAILURE)  # Keeps I3.
        else:
            call.was_refused = True
            call.is_announced = False
            lane.refused.append(call)
            self._ensure_running(number, lane)
        return outcome

    # -- When not all goes well ---------------------------------------------------------------

    def _ensure_running(self, number: PartitionId, lane: _Lane) -> None:
        if lane.runner is None:
            lane.runner = asyncio.create_task(self._run(number, lane))

    async def _run(self, number: PartitionId, lane: _Lane) -> None:
        """Until nobody waits.  Keeps I2."""
        try:
            while lane.refused or lane.waiting:
                if lane.refused:
                    await self._look_again(lane)
                elif self._is_proven(number):
                    await self._pass_on_all(number, lane)
                    continue
                else:
                    await lane.all_answered(0)
                if lane.waiting and not lane.refused:
                    await self._pass_on_one(number, lane)
        except Exception as error:  # A defect: those who called are told.
            lane.give_up(error)
        finally:
            lane.runner = None
            lane.give_up(TEMPORARY_FAILURE)  # If this is cancelled.

    async def _look_again(self, lane: _Lane) -> None:
        assert self._reload is not None, "nothing waits to be sent again without it"
        await self._reload()
        first = min(call.order for call in lane.refused)
        await lane.all_answered(first)
        lane.take_refused()

    async def _pass_on_one(self, number: PartitionId, lane: _Lane) -> None:
        """If it fails, those behind it have nowhere to go either, for now."""
        call = lane.waiting.popleft()
        if call.outcome.done():
            return  # Whoever called has given up.
        if call.command.level and not call.is_announced:  # Keeps I4.
            call.is_announced = True
            lane.waiting.appendleft(call)
            call = _Call(QUESTION, was_refused=call.was_refused)
        was_refused = call.was_refused
        outcome = await self._pass_on(number, lane, call)
        is_refused_again = was_refused and outcome == NOT_MY_PARTITION
        has_failed = outcome in (TEMPORARY_FAILURE, AMBIGUOUS) and not self._is_proven(number)
        if is_refused_again or has_failed:
            lane.give_up(TEMPORARY_FAILURE)

    async def _pass_on_all(self, number: PartitionId, lane: _Lane) -> None:
        """They have all begun when this is over, or wait again, and nobody has passed them."""
        again: list[_Call] = []
        while lane.waiting:
            call = lane.waiting.popleft()
            if not call.outcome.done():
                task = asyncio.create_task(self._pass_on_if_proven(number, lane, call, again))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        try:
            await asyncio.sleep(0)
        finally:
            lane.waiting.extendleft(reversed(again))

    async def _pass_on_if_proven(
        self, number: PartitionId, lane: _Lane, call: _Call, again: list[_Call]
    ) -> None:
        """A task begins later than it is made: the node may be gone by then."""
        if self._is_proven(number):
            await self._pass_on(number, lane, call)
        else:
            again.append(call)
