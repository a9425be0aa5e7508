"""Making the members of a new chain equal."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.codec.blocks import junk
from millrace.core import messages as m
from millrace.core import procedure as p
from millrace.core.messages import Refusal, Refused, Sealed, Standing
from millrace.core.reconcile import Trouble, holes, mark_lost, merge, reconcile
from millrace.types import EntryKind, Epoch, Extent, Lsn, NodeId
from tests.core.core_samples import CHAIN, LOG, OTHER, TIMED_OUT, Run, block, extent

TWO = Epoch(2)


def sealed(contiguous_end: int, end: int = 0, trim_end: int = 1) -> Sealed:
    return Sealed(
        Epoch(1), Standing.MEMBER, Lsn(trim_end), Lsn(contiguous_end), Lsn(end or contiguous_end)
    )


def run(*members: Sealed, is_lossy: bool = False) -> Run:
    chain = CHAIN[: len(members)]
    by_node = dict(zip(chain, members, strict=True))
    return Run(reconcile(LOG, TWO, chain, by_node, is_lossy, junk))


def page(*extents: Extent, next_lsn: int) -> m.IndexPage:
    return m.IndexPage(extents, Lsn(next_lsn), Lsn(1), Lsn(1))


# -- merge and holes --------------------------------------------------------------------------

layouts = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=8)


def laid_out(layout: list[tuple[int, int]], low: int = 1) -> list[Extent]:
    """Extents one after the other, each behind a gap."""
    extents, at = [], low
    for gap, count in layout:
        extents.append(extent(at + gap, count))
        at += gap + count
    return extents


@given(layouts, st.data())
def test_merge_gives_every_extent_once_from_the_holder_nearest_to_the_head(
    layout: list[tuple[int, int]], data: st.DataObject
) -> None:
    truth = laid_out(layout)
    held = {
        node: [one for one in truth if data.draw(st.booleans(), label=f"{node} {one.first}")]
        for node in CHAIN
    }
    merged = merge(held, CHAIN)
    assert isinstance(merged, list)
    union = [one for one in truth if any(one in some for some in held.values())]
    assert [one for one, _ in merged] == union
    for one, holder in merged:
        assert holder == next(node for node in CHAIN if one in held[node])


@given(layouts.filter(bool), st.data())
def test_merge_finds_a_contradiction(layout: list[tuple[int, int]], data: st.DataObject) -> None:
    truth = laid_out(layout)
    victim = data.draw(st.sampled_from(truth))
    shift = data.draw(st.integers(0, victim.last - victim.first))
    rival = extent(victim.first + shift, 1, OTHER)
    assert merge({CHAIN[0]: truth, CHAIN[1]: [rival]}, CHAIN) in (rival, *truth)


@given(layouts, st.integers(1, 6), st.integers(1, 40))
def test_holes_are_what_no_extent_covers(
    layout: list[tuple[int, int]], low: int, high: int
) -> None:
    extents = [one for one in laid_out(layout) if one.last >= low and one.first < high]
    covered = {lsn for one in extents for lsn in range(one.first, one.last + 1)}
    found = holes(Lsn(low), Lsn(high), extents)
    expected = set(range(low, high)) - covered
    assert {lsn for first, end in found for lsn in range(first, end)} == expected
    assert all(first < end for first, end in found)
    assert all(before[1] < after[0] for before, after in pairwise(found))


# -- reconcile --------------------------------------------------------------------------------


def test_equal_members_need_nothing() -> None:
    running = reconcile(LOG, TWO, CHAIN, {node: sealed(9) for node in CHAIN}, False, junk)
    with pytest.raises(StopIteration) as stopped:
        next(running)
    assert stopped.value.value is None


def test_what_some_hold_is_passed_to_all_who_lack_it() -> None:
    done = run(sealed(7, 9), sealed(5), sealed(5, 8))
    assert [effect.message for effect in done.effects if isinstance(effect, p.Ask)] == [
        m.Index(LOG, TWO, Lsn(5), Lsn(9))
    ]
    done.answer(page(extent(5, 2), extent(8), next_lsn=9), page(next_lsn=9))
    done.answer(page(extent(7), next_lsn=9))
    assert done.last == p.AskAll(
        [
            p.Ask(NodeId(1), m.Read(LOG, TWO, Lsn(5))),
            p.Ask(NodeId(3), m.Read(LOG, TWO, Lsn(7))),
            p.Ask(NodeId(1), m.Read(LOG, TWO, Lsn(8))),
        ]
    )
    done.answer([m.Found(block(5, 2)), m.Found(block(7)), m.Found(block(8))])
    assert isinstance(done.last, p.AskAll)
    writes = [
        (ask.node, ask.message.block.first)
        for ask in done.last.asks
        if isinstance(ask.message, m.Write)
    ]
    assert writes == [(2, 5), (3, 5), (1, 7), (2, 7), (2, 8), (3, 8)]
    done.answer([m.Written()] * 5 + [Refused(Refusal.WRITTEN, TWO)])
    assert (done.is_done, done.result, done.notes) == (True, None, ["chain.reconciled"])


def test_an_index_is_read_page_by_page() -> None:
    done = run(sealed(1, 9), sealed(1))
    done.answer(page(extent(1), next_lsn=2))
    assert done.last == p.Ask(NodeId(1), m.Index(LOG, TWO, Lsn(2), Lsn(9)))


def test_a_block_across_the_trim_point_is_read_above_it() -> None:
    done = run(sealed(8, trim_end=5), sealed(5, trim_end=5))
    done.answer(page(extent(3, 5), next_lsn=8), page(next_lsn=8))
    assert done.last == p.AskAll([p.Ask(NodeId(1), m.Read(LOG, TWO, Lsn(5)))])


def test_holes_are_left_to_their_writers_unless_something_may_be_lost() -> None:
    pages = (page(extent(5), extent(8), next_lsn=9), page(extent(5), extent(8), next_lsn=9))
    careful = run(sealed(5, 9), sealed(5, 9)).answer(*pages)
    assert careful.is_done
    assert careful.result is None
    lossy = run(sealed(5, 9), sealed(5, 9), is_lossy=True).answer(*pages)
    assert isinstance(lossy.last, p.AskAll)
    fills = [(ask.node, ask.message.block) for ask in lossy.last.asks]  # type: ignore[attr-defined]
    assert [(node, one.first, one.last, one.kind) for node, one in fills] == [
        (1, 6, 7, EntryKind.LOSS),
        (2, 6, 7, EntryKind.LOSS),
    ]
    assert lossy.answer([m.Filled(), m.Filled()]).result is None
    assert lossy.notes == ["chain.lost"]


def test_the_highest_trim_point_becomes_everybodys() -> None:
    done = run(sealed(9, trim_end=4), sealed(9, trim_end=7), sealed(9, trim_end=7))
    assert done.last == p.AskAll([p.Ask(NodeId(1), m.Trim(LOG, TWO, Lsn(7)))])
    assert done.answer([m.Trimmed(Lsn(7))]).result is None


def test_a_member_that_lost_what_the_others_trimmed_is_brought_up_to_the_trim_point() -> None:
    done = run(sealed(9, trim_end=9), sealed(5), is_lossy=True)
    assert isinstance(done.last, p.AskAll)
    (ask,) = done.last.asks
    assert isinstance(ask.message, m.Fill)
    assert (ask.node, ask.message.block.first, ask.message.block.last) == (2, 8, 8)
    done.answer([m.Filled()])
    assert done.last == p.AskAll([p.Ask(NodeId(2), m.Trim(LOG, TWO, Lsn(9)))])


def test_divergence_is_told_and_nothing_is_written() -> None:
    done = run(sealed(5, 6), sealed(5, 6))
    done.answer(page(extent(5), next_lsn=6), page(extent(5, token=OTHER), next_lsn=6))
    assert isinstance(done.result, Trouble)
    assert done.notes == ["chain.diverged"]


def trouble_of(*answers: Any) -> Trouble:
    done = run(sealed(6), sealed(5)).answer(*answers)
    assert isinstance(done.result, Trouble)
    return done.result


def test_troubles_say_who_and_carry_the_higher_epoch() -> None:
    pages = (page(extent(5), next_lsn=6), page(next_lsn=6))
    fenced = Refused(Refusal.EPOCH, Epoch(7))
    assert trouble_of(TIMED_OUT).epoch == 2
    assert trouble_of(fenced).epoch == 7
    assert trouble_of(*pages, [fenced]).epoch == 7
    assert trouble_of(*pages, [m.Found(block(5))], [fenced]).epoch == 7
    assert "node 2" in trouble_of(*pages, [m.Found(block(5))], [TIMED_OUT]).detail
    assert "node 1 answered Written" in trouble_of(m.Written()).detail


def test_marking_what_was_lost_stops_at_the_first_trouble() -> None:
    done = Run(mark_lost(LOG, TWO, CHAIN[:1], [(Lsn(1), Lsn(3)), (Lsn(5), Lsn(6))], junk))
    done.answer([Refused(Refusal.EPOCH, Epoch(7))])
    assert isinstance(done.result, Trouble)
    assert done.asked() == [(1, "Fill")]
