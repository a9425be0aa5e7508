"""Carries out what the replicas of streams on a node order of other nodes, and of time.

I1  Whatever is ordered, the core hears what came of it once: an answer, or why there is none.
"""

import logging
from functools import partial
from typing import Final

import msgspec

from millrace.core.commit.finding import find_committer
from millrace.core.commit.syncing import sync
from millrace.core.effects import (
    AskCommitter,
    AskReplicate,
    OutwardEffect,
    ReportSoon,
    RunSync,
    SetStreamTimer,
    StreamTroubled,
)
from millrace.core.messages import Message, Refusal, Refused
from millrace.core.procedure import Answer, Failure, FailureKind
from millrace.server.hosted import Surroundings
from millrace.server.shell import NodeShell
from millrace.types import NO_NODE, LogId, NodeId

FIND_TIMEOUT_MS: Final = 2_000
SYNC_TIMEOUT_MS: Final = 600_000

logger = logging.getLogger("millrace")


class StreamOrders:
    def __init__(self, shell: NodeShell, surroundings: Surroundings) -> None:
        self._shell = shell
        self._around = surroundings
        shell.begin_streams(self.carry_out)

    def carry_out(self, effect: OutwardEffect) -> None:
        match effect:
            case AskReplicate(_, node, _, message, timeout_ms):
                self._around.ask(node, message, timeout_ms, partial(self._replicated, effect))
            case AskCommitter(_, node) if node != NO_NODE:
                self._report(effect)
            case AskCommitter(log):
                found = partial(self._found, effect)
                self._around.run(find_committer(log), FIND_TIMEOUT_MS, found)
            case ReportSoon(log):
                self._around.later(0, partial(self._report_due, log))
            case SetStreamTimer(_, _, _, ms):
                self._around.later(ms, partial(self._timer_fired, effect))
            case RunSync(_, offer, destination):
                synced = partial(self._synced, effect)
                self._around.run(sync(offer, destination), SYNC_TIMEOUT_MS, synced)
            case StreamTroubled(log, node, why):
                fields = {"log": log, "node": node, "why": why}
                logger.warning("stream.troubled", extra={"fields": fields})

    def _replicated(self, order: AskReplicate, answer: Answer) -> None:
        self._shell.perform(self._shell.core.replicated(order, answer))

    def _report(self, order: AskCommitter) -> None:
        done = partial(self._reported, order)
        self._around.ask(order.node, order.message, order.timeout_ms, done)

    def _found(self, order: AskCommitter, found: NodeId | Failure) -> None:
        if isinstance(found, Failure):
            self._reported(order, found)
        elif found == NO_NODE:
            self._reported(order, Failure(FailureKind.UNKNOWN_NODE, "no committer was found"))
        else:
            self._report(msgspec.structs.replace(order, node=found))

    def _reported(self, order: AskCommitter, answer: Answer) -> None:
        self._shell.perform(self._shell.core.reported(order, answer))

    def _report_due(self, log: LogId) -> None:
        self._shell.perform(self._shell.core.report_due(log))

    def _timer_fired(self, timer: SetStreamTimer) -> None:
        self._shell.perform(self._shell.core.stream_timer_fired(timer))

    def _synced(self, order: RunSync, result: Message | Failure) -> None:
        if isinstance(result, Failure):
            result = Refused(Refusal.UNAVAILABLE, detail=result.detail)
        self._around.answer(order.ticket, result)
