"""How a new or returning node becomes a copy of a log."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core import messages as m
from millrace.core import procedure as p
from millrace.core.learn import differences, learn
from millrace.core.messages import Refusal, Refused
from millrace.scenario.memory_store import MemoryStore
from millrace.server.shell import NodeShell
from millrace.types import LSN_MAX, Block, Epoch, Extent, Lsn, NodeId, Token
from tests.core.core_samples import CHAIN, LOG, OTHER, TIMED_OUT, Run, block, extent, hole

SOURCE, ME = NodeId(3), NodeId(1)
TWO = Epoch(2)

extents = st.lists(
    st.builds(extent, st.integers(1, 6), st.just(1), st.sampled_from([Token(1, 1), Token(2, 2)])),
    unique=True,
    max_size=6,
)


@given(extents, extents)
def test_differences_turn_mine_into_theirs(mine: list[Extent], theirs: list[Extent]) -> None:
    surplus, missing = differences(mine, theirs)
    assert (set(mine) - set(surplus)) | set(missing) == set(theirs)
    assert set(surplus) <= set(mine)
    assert not set(missing) & set(mine)
    assert missing == [one for one in theirs if one in missing]


class Pair:
    """A source and a learner: real nodes on stores in memory, pages of two extents."""

    def __init__(self, theirs: list[Block], mine: list[Block]) -> None:
        self.source = self._node(theirs, Epoch(2))
        self.learner = self._node(mine, Epoch(1))

    def _node(self, held: list[Block], epoch: Epoch) -> NodeShell:
        store = MemoryStore()
        shell = NodeShell(store, self, lambda order: None)
        self.answered: Any = None
        for request in (m.Seal(LOG, epoch, OTHER), m.Admit(LOG, epoch)):
            self.ask(shell, request)
        for one in held:
            self.ask(shell, m.Write(LOG, epoch, one, CHAIN))
        return shell

    def ask(self, shell: NodeShell, message: m.Message) -> Any:
        self.answered = None
        shell.handle(1, 1, message)
        shell.store.run()  # type: ignore[attr-defined]
        return self.answered

    def answer(self, session: int, request: int, message: m.Message, release: Any = None) -> None:
        self.answered = message

    def push(self, session: int, message: m.Message, release: Any = None) -> None:
        raise AssertionError("nobody reads here")

    def is_writable(self, session: int) -> bool:
        return True

    def after_others(self, call: Any) -> None:
        raise AssertionError("nobody reads here")

    def learn(self) -> Any:
        run = Run(learn(LOG, TWO, SOURCE, ME))
        while not run.is_done:
            effect = run.last
            assert isinstance(effect, p.Ask)
            node = self.source if effect.node == SOURCE else self.learner
            run.answer(self.ask(node, effect.message))
        return run.result

    def held(self, shell: NodeShell) -> list[Extent]:
        return shell.store.index(LOG, Lsn(1), LSN_MAX, 1_000)


layouts = st.lists(st.tuples(st.integers(1, 3), st.booleans()), max_size=7)


def laid_out(layout: list[tuple[int, bool]]) -> list[Block]:
    blocks, at = [], 1
    for count, is_mine in layout:
        blocks.append(block(at, count, token=Token(1 + is_mine, at)))
        at += count
    return blocks


@given(layouts, layouts, st.integers(1, 8), st.integers(1, 8))
def test_a_learner_ends_up_with_exactly_the_committed_prefix(
    theirs: list[tuple[int, bool]], mine: list[tuple[int, bool]], their_trim: int, my_trim: int
) -> None:
    pair = Pair(laid_out(theirs), laid_out(mine))
    pair.ask(pair.source, m.Trim(LOG, TWO, Lsn(their_trim)))
    pair.ask(pair.learner, m.Trim(LOG, Epoch(1), Lsn(my_trim)))
    result = pair.learn()
    assert isinstance(result, m.Learned), result
    state, source = pair.learner.store.state(LOG), pair.source.store.state(LOG)
    assert state is not None
    assert source is not None
    trim_end = state.trim_end
    assert trim_end >= source.trim_end
    assert pair.held(pair.learner) == [
        one for one in pair.held(pair.source) if one.last >= trim_end
    ]
    assert state.sparse == []
    chain = pair.learner.core.chain(LOG)
    assert (chain.taken.contiguous_end, chain.taken.end) == (state.contiguous_end, state.end)
    assert result.contiguous_end == state.contiguous_end >= source.contiguous_end
    again = pair.learn()
    assert isinstance(again, m.Learned)
    assert again.blocks_removed == 0
    assert again.contiguous_end == result.contiguous_end


def test_only_what_the_source_may_show_is_learned() -> None:
    """A block above a hole is not committed."""
    pair = Pair([block(1), block(3)], [block(1), hole(2), block(3), block(7)])
    result = pair.learn()
    assert result == m.Learned(Lsn(2), 0, 3)
    assert pair.held(pair.learner) == [extent(1)]


def test_a_learner_is_no_member_until_it_is_admitted() -> None:
    pair = Pair([block(1)], [])
    pair.learn()
    assert pair.learner.core.chain(LOG).fence.standing is m.Standing.BLANK


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ((Refused(Refusal.EPOCH, Epoch(5)),), Refusal.EPOCH),
        ((m.Revised(Lsn(1)), TIMED_OUT), Refusal.UNAVAILABLE),
        ((m.Revised(Lsn(1)), m.Written()), Refusal.BAD_REQUEST),
        (
            (
                m.Revised(Lsn(1)),
                m.IndexPage((extent(1),), LSN_MAX, Lsn(1), Lsn(2)),
                Refused(Refusal.EPOCH, Epoch(5)),
            ),
            Refusal.EPOCH,
        ),
        (
            (
                m.Revised(Lsn(1)),
                m.IndexPage((extent(1),), LSN_MAX, Lsn(1), Lsn(2)),
                m.IndexPage((), Lsn(2), Lsn(1), Lsn(1)),
                Refused(Refusal.BUSY, TWO),
            ),
            Refusal.BUSY,
        ),
    ],
    ids=["fenced", "source silent", "nonsense", "fenced while learning", "two learners"],
)
def test_what_stops_a_learner_is_told(told: tuple[Any, ...], reason: Refusal) -> None:
    result = Run(learn(LOG, TWO, SOURCE, ME)).answer(*told).result
    assert isinstance(result, Refused)
    assert result.reason is reason
