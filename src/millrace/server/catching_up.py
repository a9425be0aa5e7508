"""What a node does when its core finds that it was away: learn logs anew, purge what was replaced.

The core orders, the procedures run here, and the core is told the result.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Final

from millrace.core.effects import RunLearn, RunPurge
from millrace.core.learn import learn
from millrace.core.messages import Refusal, Refused
from millrace.core.procedure import DeadlinePassed
from millrace.core.sequenced.purging import purge
from millrace.runtime.procedures import ProcedureRunner
from millrace.server.service import NodeService
from millrace.server.shell import NodeShell
from millrace.types import NodeId

LEARN_TIMEOUT_MS: Final = 600_000
PURGE_TIMEOUT_MS: Final = 600_000

Begin = Callable[[Coroutine[Any, Any, None]], None]
Note = Callable[[str, dict[str, object]], None]


class CatchingUp:
    def __init__(self, node: NodeId, runner: ProcedureRunner, begin: Begin, note: Note) -> None:
        self._node = node
        self._runner = runner
        self._begin = begin
        self._note = note

    def attach(self, shell: NodeShell, service: NodeService) -> None:
        """The shell orders from here, so it is made after this."""
        self._shell = shell
        self._service = service

    def learn(self, order: RunLearn) -> None:
        self._begin(self._learn(order))

    def purge(self, order: RunPurge) -> None:
        self._begin(self._purge(order))

    async def _purge(self, order: RunPurge) -> None:
        procedure = purge(order.log, self._node, order.closed, order.until, order.good)
        try:
            firsts = await self._runner.run(procedure, PURGE_TIMEOUT_MS)
        except DeadlinePassed:
            self._shell.purged(order, None)
            return
        if firsts:
            self._note("log.purged", {"log": order.log, "blocks": len(firsts)})
        self._shell.purged(order, firsts)

    async def _learn(self, order: RunLearn) -> None:
        procedure = learn(order.log, order.epoch, order.source, self._node, order.others)
        try:
            answer = await self._runner.run(procedure, LEARN_TIMEOUT_MS)
        except DeadlinePassed:
            answer = Refused(Refusal.UNAVAILABLE, order.epoch, "learning took too long")
        self._service.answer(*order.ticket, answer)
