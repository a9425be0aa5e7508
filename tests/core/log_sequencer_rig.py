"""The sequencer of one log in one epoch, with copysets as a test says, and all that it ordered."""

from collections.abc import Collection
from typing import Any

from millrace.codec import blocks
from millrace.core.messages import (
    AppendBlock,
    Message,
    Refusal,
    Refused,
    Stored,
)
from millrace.core.procedure import Failure, FailureKind
from millrace.core.replication import Replication
from millrace.core.sequenced import effects as e
from millrace.core.sequenced.copysets import Availability, Copyset
from millrace.core.sequenced.epoch_start import EpochStart
from millrace.core.sequenced.sequencer import LogSequencer
from millrace.core.sequenced.settings import SequencerSettings
from millrace.lsn import lsn_of
from millrace.types import NO_LSN, NO_TOKEN, Block, Epoch, LogId, Lsn, NodeId, Token
from tests.core.core_samples import LOG, block

EPOCH = Epoch(7)
NODES = tuple(map(NodeId, range(1, 7)))
ABC, DEF = NODES[:3], NODES[3:]
NOW = 1_000
OTHER_LOG = LogId(99)


class ScriptedCopysets:
    """Gives one copyset until it is told to use another, as the sticky ones do."""

    def __init__(self, *script: Copyset | None) -> None:
        self.script = list(script) or [ABC]
        self.avoided: list[frozenset[NodeId]] = []
        self.lone: list[bool] = []
        self.voids = 0

    def next(
        self, size_bytes: int, now_ms: int, avoided: Collection[NodeId], is_lone: bool
    ) -> Copyset | None:
        self.lone.append(is_lone)
        return self._give(avoided)

    def another(self, than: Copyset, now_ms: int, avoided: Collection[NodeId]) -> Copyset | None:
        if len(self.script) > 1:
            self.script.pop(0)
        return self._give(avoided)

    def void(self) -> None:
        self.voids += 1

    def _give(self, avoided: Collection[NodeId]) -> Copyset | None:
        self.avoided.append(frozenset(avoided))
        return self.script[0]


class Rig:
    """A sequencer, and everything it ordered so far."""

    def __init__(
        self,
        *script: Copyset | None,
        copysets: ScriptedCopysets | None = None,
        released: Lsn = NO_LSN,
        tail: Lsn = NO_LSN,
        **settings: Any,
    ) -> None:
        self.copysets = copysets or ScriptedCopysets(*script)
        self.availability = Availability(NODES, 3)
        start = EpochStart(LOG, EPOCH, Replication.of(3), released=released, tail=tail)
        self.sequencer = LogSequencer(
            start, self.copysets, self.availability, blocks.move, SequencerSettings(**settings)
        )
        self.effects: list[e.SequencerEffect] = []
        self.tickets = 0

    def append(
        self, count: int = 1, token: Token = NO_TOKEN, only_in: int = 0, **fields: Any
    ) -> list[e.SequencerEffect]:
        return self.send(block(1, count, token), only_in, **fields)

    def send(self, sent: Block, only_in: int = 0, **fields: Any) -> list[e.SequencerEffect]:
        self.tickets += 1
        request = AppendBlock(LOG, Epoch(only_in), sent, **fields)
        return self._note(self.sequencer.append((1, self.tickets), request, NOW))

    def answer(
        self, node: int, offset: int, answer: Message | Failure, wave: int = 1
    ) -> list[e.SequencerEffect]:
        tag = at(offset), wave
        return self._note(self.sequencer.answered(NodeId(node), tag, answer, NOW))

    def store(self, offset: int, copyset: Copyset = ABC, wave: int = 1) -> list[e.SequencerEffect]:
        """All nodes of the copyset acknowledge the block."""
        return [effect for node in copyset for effect in self.answer(node, offset, Stored(), wave)]

    def fire(self, timer: e.SetTimer) -> list[e.SequencerEffect]:
        return self._note(self.sequencer.timer_fired(timer.tag, NOW))

    def recovered(self, tail: Lsn = NO_LSN) -> list[e.SequencerEffect]:
        return self._note(self.sequencer.recovered(tail))

    def answers(self) -> dict[int, Message]:
        """By the number of the append; each is answered at most once."""
        found = [effect for effect in self.effects if isinstance(effect, e.Answer)]
        tickets = [effect.ticket for effect in found]
        assert len(tickets) == len(set(tickets))
        return {effect.ticket[1]: effect.message for effect in found}

    def releases(self) -> list[tuple[int, int]]:
        return [
            (effect.message.good, effect.message.released)
            for effect in self.effects
            if isinstance(effect, e.TellRelease)
        ]

    def _note(self, effects: list[e.SequencerEffect]) -> list[e.SequencerEffect]:
        self.effects += effects
        return effects


def at(offset: int) -> Lsn:
    return lsn_of(EPOCH, offset)


def stores(effects: list[e.SequencerEffect]) -> list[e.AskStore]:
    return [effect for effect in effects if isinstance(effect, e.AskStore)]


def refusal(message: Message) -> tuple[Refusal, int]:
    assert isinstance(message, Refused)
    return message.reason, message.epoch


TIMED_OUT = Failure(FailureKind.TIMED_OUT)
NOT_CONNECTED = Failure(FailureKind.CONNECT)
