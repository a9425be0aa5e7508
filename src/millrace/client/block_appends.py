"""The appends of one log, a block each: their tokens, and how they are begun and resumed.

What an append does is its write path's business; that it has one outcome, told once and shared by
all whose records are in the block, is the same for all.
"""

import itertools
import secrets
from collections.abc import Callable

from millrace.client.outcomes import BlockAppend, TellOutcome, Whereabouts, settle
from millrace.core.append import Appended, AppendOutcome
from millrace.core.procedure import Procedure
from millrace.runtime.hot_run import Waiter
from millrace.runtime.procedures import ProcedureRunner
from millrace.types import Token


class BlockAppends:
    def __init__(self, runner: ProcedureRunner, log: str, whereabouts: Whereabouts) -> None:
        """`whereabouts` tells people where an append may be whose outcome is unknown."""
        self._runner = runner
        self._log = log
        self._whereabouts = whereabouts
        self._client = secrets.randbits(63)
        self._requests = itertools.count(1)

    def next_token(self) -> Token:
        return Token(self._client, next(self._requests))

    def begin(
        self,
        run: Callable[[], Procedure[AppendOutcome]],
        count: int,
        timeout_ms: int,
        waiter: Waiter[Appended],
    ) -> BlockAppend:
        """`run` appends a block of `count` records, or goes on with it; the waiter is told."""
        block = BlockAppend(run, count)
        told = TellOutcome(block, self._log, self._whereabouts, waiter)
        self._runner.begin(block.run(), timeout_ms, told)
        return block

    async def resume(self, block: BlockAppend, timeout_ms: int) -> Appended:
        """Go on with an append whose outcome is unknown."""
        if block.settled is not None:
            return settle(block.settled, block, self._log, self._whereabouts)
        outcome = await self._runner.run(block.run(), timeout_ms)
        return settle(outcome, block, self._log, self._whereabouts)
