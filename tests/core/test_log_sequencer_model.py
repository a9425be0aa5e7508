"""A sequencer among nodes that answer late, refuse, lose requests and lose answers.

Each node takes its messages in order, as over one connection, and keeps of each block the copy of
the latest wave.  Whatever happens on the way:

- an append is answered once;
- an acknowledged block is on R nodes at least, from then on;
- only blocks that are acknowledged, with all before them, are released, and never less than before;
- when everything has been answered each block is on exactly R nodes.
"""

import random
from collections import deque
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from millrace.codec import blocks
from millrace.core.messages import (
    AppendBlock,
    AppendUnsettled,
    BlockAppended,
    Delete,
    Message,
    Refusal,
    Refused,
    Store,
    Stored,
)
from millrace.core.procedure import Failure, FailureKind
from millrace.core.replication import Replication
from millrace.core.sequenced import effects as e
from millrace.core.sequenced.copysets import Availability, CopysetChooser, StickyCopysets
from millrace.core.sequenced.epoch_start import EpochStart
from millrace.core.sequenced.sequencer import LogSequencer, SequencerState
from millrace.core.sequenced.settings import SequencerSettings
from millrace.lsn import first_of
from millrace.types import Epoch, Lsn, NodeId, Token
from tests.core.core_samples import LOG, block

EPOCH = Epoch(7)
COPIES = 2
NODES = tuple(map(NodeId, range(1, 6)))
REFUSALS = (Refusal.BUSY, Refusal.DISK_FULL, Refusal.UNAVAILABLE)
SETTLING_STEPS_MAX = 10_000

T = TypeVar("T")
anything = st.integers(0, 10_000)  # Picks one of what there is.


def pick(items: list[T], which: int) -> T | None:
    return items[which % len(items)] if items else None


class SequencerModel(RuleBasedStateMachine):
    @initialize(seed=anything, extras=st.integers(0, 2), sync_leaders=st.integers(0, 2))
    def begin(self, seed: int, extras: int, sync_leaders: int) -> None:
        replication = Replication.of(COPIES)
        chooser = CopysetChooser(replication, NODES, {}, random.Random(seed).randrange)
        settings = SequencerSettings(
            writes_in_flight=4, extras=extras, sync_leaders=sync_leaders, waves_max=10_000
        )
        self.sequencer = LogSequencer(
            EpochStart(LOG, EPOCH, replication),
            StickyCopysets(chooser, settings),
            Availability(NODES, COPIES),
            blocks.move,
            settings,
        )
        self.now_ms = 0
        self.inboxes: dict[NodeId, deque[e.AskStore | Delete]] = {node: deque() for node in NODES}
        self.given_up: set[int] = set()  # Asks that are answered already, by id.
        self.copies: dict[NodeId, dict[Lsn, int]] = {node: {} for node in NODES}
        self.timers: list[e.Tag] = []
        self.appended: dict[int, Token] = {}
        self.answers: dict[int, Message] = {}
        self.released = self.good = Lsn(0)
        self.is_recovered = False
        self.asks: list[e.AskStore] = []  # Keeps their ids from being used again.

    # -- What happens -------------------------------------------------------------------------

    @rule(count=st.integers(1, 3), token=st.integers(1, 12))
    def append(self, count: int, token: int) -> None:
        ticket = len(self.appended) + 1
        self.appended[ticket] = Token(1, token)
        request = AppendBlock(LOG, Epoch(0), block(1, count, Token(1, token)))
        self.take(self.sequencer.append((1, ticket), request, self.now_ms))

    @rule(which=anything)
    def a_node_takes_its_next_message(self, which: int) -> None:
        node = pick([node for node in NODES if self.inboxes[node]], which)
        if node is not None:
            self.process(node)

    @rule(which=anything, why=st.sampled_from(REFUSALS))
    def a_node_refuses(self, which: int, why: Refusal) -> None:
        node = pick([node for node in NODES if self.next_ask(node)], which)
        if node is not None:
            ask = self.inboxes[node].popleft()
            self.answer(ask, Refused(why, EPOCH))

    @rule(which=anything)
    def a_request_cannot_be_sent(self, which: int) -> None:
        node = pick([node for node in NODES if self.next_ask(node)], which)
        if node is not None:
            ask = self.inboxes[node].popleft()
            self.answer(ask, Failure(FailureKind.CONNECT))

    @rule(which=anything)
    def a_request_times_out_and_may_arrive_later(self, which: int) -> None:
        open_asks = [
            ask
            for node in NODES
            for ask in self.inboxes[node]
            if isinstance(ask, e.AskStore) and id(ask) not in self.given_up
        ]
        ask = pick(open_asks, which)
        if ask is not None:
            self.given_up.add(id(ask))
            failure = Failure(FailureKind.TIMED_OUT)
            self.take(self.sequencer.answered(ask.node, ask.tag, failure, self.now_ms))

    @rule(which=anything)
    def a_timer_fires(self, which: int) -> None:
        if self.timers:
            tag = self.timers.pop(which % len(self.timers))
            self.take(self.sequencer.timer_fired(tag, self.now_ms))

    @rule(ms=st.integers(1, 100_000))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    @rule()
    def earlier_epochs_are_recovered(self) -> None:
        self.is_recovered = True
        self.take(self.sequencer.recovered(Lsn(0)))

    @precondition(lambda self: len(self.answers) > 5)
    @rule(node=st.sampled_from(NODES))
    def a_later_sequencer_seals_a_node(self, node: NodeId) -> None:
        ask = self.next_ask(node)
        if ask is not None:
            self.inboxes[node].popleft()
            self.answer(ask, Refused(Refusal.EPOCH, Epoch(8)))
            if self.sequencer.state is SequencerState.PREEMPTED:
                self.timers.clear()

    # -- What must be true --------------------------------------------------------------------

    @invariant()
    def acknowledged_blocks_are_stored(self) -> None:
        for answer in getattr(self, "answers", {}).values():
            if isinstance(answer, BlockAppended):
                assert len(self.holders(answer.first)) >= COPIES

    def teardown(self) -> None:
        if not hasattr(self, "sequencer"):
            return
        self.settle()
        assert self.answers.keys() == self.appended.keys()
        outcomes: dict[Token, set[Message]] = {}
        for ticket, answer in self.answers.items():
            if not isinstance(answer, Refused):
                outcomes.setdefault(self.appended[ticket], set()).add(answer)
        for answers in outcomes.values():
            assert len(answers) == 1, "a token has one outcome"
        if self.sequencer.state is SequencerState.PREEMPTED:
            return
        assert self.sequencer.is_idle
        assert not any(isinstance(one, AppendUnsettled) for one in self.answers.values())
        for first in {first for held in self.copies.values() for first in held}:
            assert len(self.holders(first)) == COPIES
        self.earlier_epochs_are_recovered()
        assert self.released == self.sequencer.tail().issued or not self.answers

    # -- How it is carried out ----------------------------------------------------------------

    def take(self, effects: list[e.SequencerEffect]) -> None:
        assert sum(isinstance(effect, e.TellRelease) for effect in effects) <= 1
        for effect in effects:
            match effect:
                case e.AskStore(_, node, _, timeout_ms):
                    assert timeout_ms > 0
                    self.asks.append(effect)
                    self.inboxes[node].append(effect)
                case e.TellNode(node, message):
                    assert isinstance(message, Delete)
                    self.inboxes[node].append(message)
                case e.SetTimer(tag):
                    self.timers.append(tag)
                case e.Answer((_, ticket), message):
                    assert ticket not in self.answers
                    self.answers[ticket] = message
                case e.TellRelease(release):
                    self.check_release(release.good, release.released)

    def check_release(self, good: Lsn, released: Lsn) -> None:
        assert self.good <= good
        assert self.released <= released <= good
        assert self.is_recovered or released == 0
        self.good, self.released = good, released
        stored = {
            answer.first: answer.last
            for answer in self.answers.values()
            if isinstance(answer, BlockAppended)
        }
        end = Lsn(first_of(EPOCH) + 1)
        while end <= good:
            end = Lsn(stored[end] + 1)
        assert end == good + 1

    def process(self, node: NodeId) -> None:
        message = self.inboxes[node].popleft()
        held = self.copies[node]
        if isinstance(message, Delete):
            for first, wave in message.copies:
                if held.get(first, wave + 1) <= wave:
                    del held[first]
            return
        store = message.message
        assert isinstance(store, Store)
        first = store.block.first
        held[first] = max(held.get(first, 0), store.placement.wave)
        self.answer(message, Stored())

    def answer(self, ask: e.AskStore | Delete, answer: Message | Failure) -> None:
        assert isinstance(ask, e.AskStore)
        if id(ask) not in self.given_up:
            self.take(self.sequencer.answered(ask.node, ask.tag, answer, self.now_ms))

    def settle(self) -> None:
        """From now on everything goes well."""
        for _ in range(SETTLING_STEPS_MAX):
            busy = [node for node in NODES if self.inboxes[node]]
            if busy:
                self.process(busy[0])
            elif self.timers:
                self.a_timer_fires(0)
            else:
                return
        raise AssertionError(f"it never ends: {self.sequencer.explain(self.now_ms)}")

    def next_ask(self, node: NodeId) -> e.AskStore | None:
        inbox = self.inboxes[node]
        return inbox[0] if inbox and isinstance(inbox[0], e.AskStore) else None

    def holders(self, first: Lsn) -> list[NodeId]:
        return [node for node, held in self.copies.items() if first in held]


SequencerModel.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestSequencerModel = SequencerModel.TestCase
