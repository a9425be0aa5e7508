"""The three outcomes of an append (L6), as an application meets them.

Acknowledged is a value (`Appended`).  The other two are exceptions: one says that the records are
definitely not in the log, the other that nobody knows yet, and carries what is needed to find out.
"""

import asyncio
from collections.abc import Callable

from millrace.core.append import (
    Appended,
    AppendOutcome,
    AppendUnknown,
    NotAppended,
    NotAppendedReason,
)
from millrace.core.procedure import Procedure
from millrace.errors import (
    AppendFailed,
    DiskFull,
    LogSealed,
    MillraceError,
    OutcomeUnknown,
    TailMoved,
    TimedOut,
    UnknownLog,
)
from millrace.runtime.hot_run import Waiter
from millrace.types import Lsn


class BlockAppend:
    """The append of one block, shared by all whose records are in it.

    Each of them may resume it, also while it is still under way for others.  It runs once at a
    time, and once the outcome is certain it stands for all: a block that was given up for one of
    them must not be appended for another.  It is made when its first run begins."""

    def __init__(self, run: Callable[[], Procedure[AppendOutcome]], count: int) -> None:
        """`run` begins the append, or goes on with it: never a second copy."""
        self.run = run
        self.count = count
        self.settled: Appended | NotAppended | None = None
        self._is_running = True
        self._rested: asyncio.Event | None = None  # Made for the first who waits: few ever do.

    async def begin_turn(self) -> None:
        """Wait until it does not run; then it runs for the caller."""
        while self._is_running:
            if self._rested is None:
                self._rested = asyncio.Event()
            await self._rested.wait()
        self._is_running = True
        if self._rested is not None:
            self._rested.clear()

    def end_turn(self) -> None:
        self._is_running = False
        if self._rested is not None:
            self._rested.set()


class UnknownAppend(OutcomeUnknown):
    """`Log.resume` takes this error: it completes the append at the same position, or learns that
    it never happened and does it at another; either way there is one copy."""

    def __init__(self, detail: str, block: BlockAppend, offset: int, count: int) -> None:
        super().__init__(detail)
        self.block = block
        self.offset = offset
        self.count = count

    def saying(self, detail: str) -> "UnknownAppend":
        return UnknownAppend(detail, self.block, self.offset, self.count)

    def of_share(self, offset: int, count: int) -> "UnknownAppend":
        return UnknownAppend(str(self), self.block, offset, count)

    def share_of(self, block: Appended) -> Appended:
        first = Lsn(block.first + self.offset)
        return Appended(first, Lsn(first + self.count - 1))


Whereabouts = Callable[[AppendUnknown], str]
"""What a write path knows of where such an append may be: " at 47", or nothing."""


def settle(
    outcome: AppendOutcome, block: BlockAppend, log: str, whereabouts: Whereabouts
) -> Appended:
    """The value, or the exception that stands for the outcome; the block remembers one that is
    certain."""
    if isinstance(outcome, Appended):
        block.settled = outcome
        return outcome
    if isinstance(outcome, NotAppended):
        block.settled = outcome
        raise _not_appended(outcome, log)
    raise UnknownAppend(
        f"log {log!r}: the append{whereabouts(outcome)} may or may not have happened "
        f"({outcome.detail}); log.resume(error) finds out without making a second copy",
        block,
        0,
        block.count,
    )


def under_way(block: BlockAppend, log: str) -> UnknownAppend:
    """For whoever's time is up before its block's."""
    return UnknownAppend(
        f"log {log!r}: the time for the append is up and its block is still under way; "
        "log.resume(error) waits for it without making a second copy",
        block,
        0,
        block.count,
    )


def not_sent(log: str) -> TimedOut:
    return TimedOut(
        f"log {log!r}: not appended: the time for the append was up before it was sent, because "
        "those before it take long; append less at once, or give it more time"
    )


class TellOutcome:
    """Is told the outcome of a block's first run, and tells its waiter the value or the error."""

    __slots__ = ("_block", "_log", "_waiter", "_whereabouts")

    def __init__(
        self, block: BlockAppend, log: str, whereabouts: Whereabouts, waiter: Waiter[Appended]
    ) -> None:
        self._block = block
        self._log = log
        self._whereabouts = whereabouts
        self._waiter = waiter

    def set_result(self, outcome: AppendOutcome) -> None:
        self._block.end_turn()
        try:
            appended = settle(outcome, self._block, self._log, self._whereabouts)
        except MillraceError as error:
            self._waiter.set_exception(error)
        else:
            self._waiter.set_result(appended)

    def set_exception(self, error: Exception) -> None:
        self._block.end_turn()
        self._waiter.set_exception(error)


def _not_appended(outcome: NotAppended, log: str) -> MillraceError:
    match outcome.reason:
        case NotAppendedReason.SEALED:
            return LogSealed(f"log {log!r} was sealed for good: append to another log")
        case NotAppendedReason.UNKNOWN_LOG:
            return UnknownLog(f"log {log!r} was deleted")
        case NotAppendedReason.DISK_FULL:
            return DiskFull(
                f"log {log!r}: {outcome.detail}; trim logs (`millrace log trim`) or add a node"
            )
        case NotAppendedReason.CONFLICT:
            return TailMoved(f"log {log!r}: not appended: {outcome.detail}")
        case NotAppendedReason.DEADLINE:
            return TimedOut(f"log {log!r}: not appended: {outcome.detail}")
        case _:
            return AppendFailed(f"log {log!r}: not appended: {outcome.detail}")
