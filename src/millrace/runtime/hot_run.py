"""Runs a procedure without a task, for as long as all it does is ask nodes that are connected.

An append is four round trips one behind the other.  A task would add a future, a wake-up and a
turn of the loop to each of them; here the callback that brings an answer sends it into the
procedure, and the next request out.  Whatever else the procedure wants (a node that must be
dialled, a pause, another chain) is rare and slow: then it is handed over to a task for good.

  I1  The waiter is told once: from here, or by whoever the procedure was handed over to.
  I2  Only an answer drives the procedure from inside a connection's callback.  A failure does it
      in a turn of its own: the connection that failed may not be in order yet.
"""

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from millrace.core.messages import Message
from millrace.core.procedure import Answer, Ask, Effect, Failure, FailureKind, Procedure
from millrace.errors import MessageTooLarge, MillraceError, TooManyRequests
from millrace.runtime.asks import AnswerWaiter
from millrace.types import NodeId

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Waiter(Protocol[T_contra]):
    """Whoever is told how a procedure ended; a Future is one."""

    def set_result(self, result: T_contra, /) -> None: ...

    def set_exception(self, error: Exception, /) -> None: ...


AskNow = Callable[[NodeId, Message, int, AnswerWaiter], bool]
HandOver = Callable[[Procedure[T], Effect, float, Waiter[T]], None]


class HotRun(Generic[T]):
    """Made by `ProcedureRunner.begin`; waits for each of its answers itself."""

    __slots__ = (
        "_ask_now",
        "_ask_timeout_ms",
        "_deadline_s",
        "_hand_over",
        "_loop",
        "_procedure",
        "_waiter",
    )

    def __init__(
        self,
        procedure: Procedure[T],
        deadline_s: float,
        waiter: Waiter[T],
        ask_now: AskNow,
        ask_timeout_ms: int,
        hand_over: HandOver[T],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`ask_now` says whether it could ask at once; if not, the waiter given to it hears
        nothing."""
        self._procedure = procedure
        self._deadline_s = deadline_s
        self._waiter = waiter
        self._ask_now = ask_now
        self._ask_timeout_ms = ask_timeout_ms
        self._hand_over = hand_over
        self._loop = loop

    def step(self, answer: Answer | None) -> None:
        """Send the answer in (None: begin) and the next request out."""
        try:
            effect = self._procedure.send(answer)
        except StopIteration as stop:
            self._waiter.set_result(stop.value)
            return
        except Exception as error:  # Whatever it is belongs to the one who waits.
            self._waiter.set_exception(error)
            return
        left_ms = int((self._deadline_s - self._loop.time()) * 1000)
        if type(effect) is not Ask or left_ms <= 0:
            self._hand_over(self._procedure, effect, self._deadline_s, self._waiter)
            return
        timeout_ms = min(effect.timeout_ms or self._ask_timeout_ms, left_ms)
        try:
            is_asked = self._ask_now(effect.node, effect.message, timeout_ms, self)
        except MessageTooLarge as error:  # The caller's fault, and the same at every node.
            self._procedure.close()
            self._waiter.set_exception(error)
            return
        except MillraceError as error:
            self.set_exception(error)
            return
        except Exception as error:  # Whatever it is belongs to the one who waits.
            self._procedure.close()
            self._waiter.set_exception(error)
            return
        if not is_asked:
            self._hand_over(self._procedure, effect, self._deadline_s, self._waiter)

    # -- AnswerWaiter -------------------------------------------------------------------------

    def done(self) -> bool:
        return False  # Nobody gives up on a hot run: its asks time out.

    def set_result(self, message: Message) -> None:
        self.step(message)

    def set_exception(self, error: Exception) -> None:
        assert isinstance(error, MillraceError)
        self._loop.call_soon(self.step, failure_of(error))  # Keeps I2.


def failure_of(error: MillraceError) -> Failure:
    if isinstance(error, TooManyRequests):
        return Failure(FailureKind.CROWDED, str(error))
    if error.is_definite:
        return Failure(FailureKind.CONNECT, str(error))
    kind = FailureKind.TIMED_OUT if error.code == "no_answer" else FailureKind.LOST
    return Failure(kind, str(error))
