"""A log's move to other nodes, as the node of its sequencer carries it out.

The sequencer goes on while the metadata log is told what old epochs need.  Then it takes no more
appends, finishes those in flight, and takes over from itself in an epoch on the other nodes.  Who
appends meanwhile waits, and is told of the new epoch: a redirect, and no failure.

I1  Appends are held for PATIENCE_MS and the time of an activation at most: blocks that are not
    stored by then may be waiting for the very nodes that are to be left.
I2  A move that cannot be begun changes nothing.
"""

from collections.abc import Callable
from typing import Final

from millrace.core.effects import Ticket
from millrace.core.messages import AppendBlock, ChangeNodeset, Message, SealLog
from millrace.core.procedure import Failure
from millrace.core.sequenced.taking_over import record_wider
from millrace.server.needs import Surroundings

RECORD_TIMEOUT_MS: Final = 10_000
PATIENCE_MS: Final = 1_000


class Move:
    def __init__(
        self,
        ticket: Ticket,
        change: ChangeNodeset,
        around: Surroundings,
        is_idle: Callable[[], bool],
        go: Callable[["Move"], None],
        give_up: Callable[["Move", Failure], None],
    ) -> None:
        self.ticket = ticket
        self.change = change
        self.is_holding = False
        self._around = around
        self._is_idle = is_idle
        self._go = go
        self._give_up = give_up
        self._has_gone = False

    def begin(self) -> None:
        self._around.run(record_wider(self.change), RECORD_TIMEOUT_MS, self._recorded)

    def _recorded(self, result: Failure | None) -> None:
        if isinstance(result, Failure):
            self._give_up(self, result)  # Keeps I2.
            return
        self.is_holding = True
        self._around.later(PATIENCE_MS, self._leave)  # Keeps I1.
        self.look()

    def holds(self, request: Message) -> bool:
        """What would change the epoch that is about to end."""
        return self.is_holding and isinstance(request, AppendBlock | SealLog)

    def look(self) -> None:
        """Something has happened: perhaps all is stored."""
        if self.is_holding and self._is_idle():
            self._leave()

    def _leave(self) -> None:
        if not self._has_gone:
            self._has_gone = True
            self._go(self)
