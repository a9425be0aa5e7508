"""One reader of one log: order, gaps, rewinds, credit."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core import messages as m
from millrace.core import read_stream as r
from millrace.core.messages import Refusal, Refused
from millrace.core.procedure import Failure, FailureKind
from millrace.core.projection import ReconfigureReason
from millrace.core.read_stream import ReadPhase, ReadStream, RewindReason
from millrace.core.repair import ChainTrouble, RepairResult
from millrace.types import Block, EntryKind, Epoch, Gap, GapKind, LogId, Lsn, NodeId
from tests.core.core_samples import FAILED, LOG, block, hole, projection

TAIL = NodeId(3)


def opened(first: int = 1, end: int = 100, window: int = 10_000) -> ReadStream:
    stream = ReadStream(LOG, 7, Lsn(first), Lsn(end), r.ReadSettings(window_bytes=window))
    stream.open()
    stream.projected(projection())
    stream.arrived(TAIL, m.Started(7, 1, Lsn(first)))
    return stream


def blocks(*what: Block, version: int = 1) -> m.Blocks:
    return m.Blocks(7, version, what)


def tiles(effects: list[r.ReadEffect]) -> list[tuple[str, int, int]]:
    """What was handed over: kind, first, last."""
    found = []
    for effect in effects:
        if isinstance(effect, r.Deliver):
            found.append(("data", effect.first, effect.end - 1))
        elif isinstance(effect, r.DeliverGap):
            found.append((effect.gap.kind.value, effect.gap.first, effect.gap.last))
    return found


def need(effects: list[r.ReadEffect]) -> r.NeedProjection:
    (found,) = [effect for effect in effects if isinstance(effect, r.NeedProjection)]
    return found


def test_opening_asks_for_the_projection_then_the_tail() -> None:
    stream = ReadStream(LOG, 7, Lsn(5), Lsn(9), r.ReadSettings(window_bytes=50))
    assert stream.open() == [r.NeedProjection(Epoch(0), RewindReason.OPENED)]
    assert stream.projected(projection(4)) == [
        r.SetTimer(3_000),
        r.StartSender(TAIL, m.Start(LOG, Epoch(4), 7, 1, Lsn(5), Lsn(9), 50)),
    ]
    assert stream.phase is ReadPhase.STARTED
    assert stream.arrived(TAIL, m.Started(7, 1, Lsn(5))) == []
    assert stream.phase is ReadPhase.RECORDS


def test_an_empty_range_is_finished_at_once() -> None:
    assert ReadStream(LOG, 7, Lsn(5), Lsn(5)).open() == [r.Finish()]


CHAIN_KINDS = [kind for kind in EntryKind if kind is not EntryKind.BRIDGE]


def test_a_bridge_is_none_of_a_chain_logs_business() -> None:
    stream = opened(1, 9)
    bridge = block(1, 2)
    bridge.kind = EntryKind.BRIDGE
    effects = stream.arrived(TAIL, blocks(bridge))
    assert stream.rewinds == {r.RewindReason.MISBEHAVED: 1}
    assert not any(isinstance(effect, r.Deliver | r.DeliverGap) for effect in effects)


@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from(CHAIN_KINDS)), min_size=1, max_size=9),
    st.integers(1, 6),
    st.integers(0, 6),
    st.randoms(),
)
def test_records_and_gaps_tile_the_range_in_order_once(
    layout: list[tuple[int, EntryKind]], first: int, cut: int, chance: Any
) -> None:
    """G2, whatever the order and however often blocks arrive."""
    everything, at = [], 1
    for count, kind in layout:
        one = block(at, count)
        one.kind = kind
        everything.append(one)
        at += count
    first = min(first, at - 1)
    end = max(first + 1, at - cut)
    stream = opened(first, end)
    arriving = everything * 2
    chance.shuffle(arriving)
    effects = [effect for one in arriving for effect in stream.arrived(TAIL, blocks(one))]
    position = first
    for kind_name, low, high in tiles(effects):
        assert low == position
        owner = next(one for one in everything if one.first <= low <= one.last)
        assert high == min(owner.last, end - 1)
        expected = {EntryKind.DATA: "data", EntryKind.HOLE: "hole", EntryKind.LOSS: "dataloss"}
        assert kind_name == expected[owner.kind]
        position = high + 1
    assert position == end
    assert effects[-2:] == [r.TellSender(TAIL, m.Stop(7)), r.Finish()]
    assert sum(isinstance(effect, r.Finish) for effect in effects) == 1


@pytest.mark.parametrize(
    "message",
    [
        blocks(block(1), version=2),
        m.CaughtUp(7, 2, Lsn(1), Lsn(5)),
        m.GapFound(7, 2, GapKind.TRIM, Lsn(1), Lsn(3)),
        m.Ended(7, 2, Refusal.EPOCH, Epoch(2), Lsn(1)),
        m.Started(7, 2, Lsn(1)),
        Refused(Refusal.EPOCH, Epoch(2)),
        FAILED,
    ],
    ids=lambda message: type(message).__name__,
)
def test_answers_to_another_start_are_ignored(message: Any) -> None:
    stream = opened()
    assert stream.arrived(TAIL, message) == []
    assert (stream.phase, stream.next_lsn) == (ReadPhase.RECORDS, 1)


def test_other_nodes_are_ignored() -> None:
    stream = opened()
    assert stream.arrived(NodeId(1), blocks(block(1))) == []
    assert stream.lost(NodeId(1)) == []


@pytest.mark.parametrize(
    ("happens", "reason", "cause", "suspect", "epoch"),
    [
        (lambda s: s.lost(TAIL), RewindReason.SENDER_LOST, ReconfigureReason.UNREACHABLE, 3, 0),
        (
            lambda s: s.arrived(TAIL, m.Ended(7, 1, Refusal.EPOCH, Epoch(4), Lsn(1))),
            RewindReason.EPOCH,
            None,
            None,
            4,
        ),
        (
            lambda s: s.arrived(TAIL, m.Ended(7, 1, Refusal.INCOMPLETE, Epoch(1), Lsn(1))),
            RewindReason.REFUSED,
            ReconfigureReason.INCOMPLETE,
            3,
            1,
        ),
        (
            lambda s: s.arrived(TAIL, m.Written()),
            RewindReason.MISBEHAVED,
            ReconfigureReason.UNREACHABLE,
            3,
            0,
        ),
        (
            lambda s: s.arrived(TAIL, m.GapFound(7, 1, GapKind.TRIM, Lsn(3), Lsn(4))),
            RewindReason.MISBEHAVED,
            ReconfigureReason.UNREACHABLE,
            3,
            0,
        ),
        (
            lambda s: s.arrived(TAIL, m.GapFound(7, 1, GapKind.HOLE, Lsn(1), Lsn(4))),
            RewindReason.MISBEHAVED,
            ReconfigureReason.UNREACHABLE,
            3,
            0,
        ),
    ],
    ids=["lost", "sealed", "incomplete", "nonsense", "gap ahead", "gap that needs proof"],
)
def test_rewinds(
    happens: Any,
    reason: RewindReason,
    cause: ReconfigureReason | None,
    suspect: int | None,
    epoch: int,
) -> None:
    stream = opened()
    effects = happens(stream)
    assert effects[0] == r.TellSender(TAIL, m.Stop(7))
    assert need(effects) == r.NeedProjection(
        Epoch(epoch), reason, cause, None if suspect is None else NodeId(suspect)
    )
    assert stream.rewinds == {reason: 1}
    again = stream.projected(projection(5, (1, 2), 4))
    assert isinstance(again[1], r.StartSender)
    assert (again[1].node, again[1].start.version, again[1].start.epoch) == (2, 2, 5)


def test_a_block_of_another_log_is_misbehaviour() -> None:
    stranger = block(1)
    stranger.log = LogId(2)
    effects = opened().arrived(TAIL, blocks(stranger))
    assert need(effects).reason is RewindReason.MISBEHAVED


@pytest.mark.parametrize("reason", [Refusal.BUSY, Refusal.BAD_REQUEST, Refusal.UNAVAILABLE])
def test_a_refusal_without_a_cure_is_not_asked_again_at_once(reason: Refusal) -> None:
    stream = ReadStream(LOG, 7, Lsn(1), Lsn(9))
    stream.open()
    stream.projected(projection())
    effects = stream.arrived(TAIL, Refused(reason, Epoch(1)))
    assert effects == [r.TellSender(TAIL, m.Stop(7)), r.SetTimer(100)]
    assert need(stream.timer_fired()).reason is RewindReason.REFUSED


def test_a_start_without_answer_is_given_up() -> None:
    stream = ReadStream(LOG, 7, Lsn(1), Lsn(9))
    stream.open()
    stream.projected(projection())
    assert need(stream.timer_fired()).suspect == TAIL


def test_what_comes_late_does_not_hold_a_stream_up() -> None:
    """The sender was stopped: waiting for it would be waiting for ever."""
    stream = ReadStream(LOG, 7, Lsn(1), Lsn(9))
    stream.open()
    stream.projected(projection())
    stream.timer_fired()
    for late in (m.Started(7, 1, Lsn(1)), blocks(block(1)), m.CaughtUp(7, 1, Lsn(1), Lsn(5))):
        assert stream.arrived(TAIL, late) == []
    assert stream.phase is ReadPhase.PROJECTION
    assert stream.timer_fired() == [], "a timer of the phase before"
    assert isinstance(stream.projected(projection(2, (1, 2), 1))[1], r.StartSender)


def test_nothing_is_delivered_after_the_end() -> None:
    stream = opened()
    assert stream.stop() == [r.TellSender(TAIL, m.Stop(7)), r.Finish()]
    assert stream.arrived(TAIL, blocks(block(1))) == []
    assert stream.lost(TAIL) == []
    assert stream.timer_fired() == []
    assert stream.took(10_000) == []
    assert stream.stop() == []
    assert stream.projected(projection(2)) == []


def test_a_projection_that_cannot_be_had_is_asked_for_later() -> None:
    stream = ReadStream(LOG, 7, Lsn(1), Lsn(9))
    stream.open()
    assert stream.projected(FAILED) == [r.SetTimer(100)]
    assert isinstance(stream.timer_fired()[0], r.NeedProjection)


# -- Holes ------------------------------------------------------------------------------------


def test_caught_up_and_then_a_look_for_a_hole() -> None:
    stream = opened()
    assert stream.arrived(TAIL, m.CaughtUp(7, 1, Lsn(1), Lsn(1))) == [r.SetTimer(1_000)]
    assert stream.timer_fired() == [r.NeedRepair(Lsn(1))]
    assert stream.repaired(Lsn(1), RepairResult.NOT_ISSUED) == [r.SetTimer(1_000)]
    assert stream.phase is ReadPhase.TAIL


def test_a_hole_is_seen_to_once() -> None:
    stream = opened()
    caught_up = m.CaughtUp(7, 1, Lsn(1), Lsn(5))
    assert stream.arrived(TAIL, caught_up) == [r.NeedRepair(Lsn(1))]
    assert stream.arrived(TAIL, caught_up) == []


def test_a_block_that_comes_while_its_hole_is_repaired_is_delivered() -> None:
    stream = opened()
    stream.arrived(TAIL, m.CaughtUp(7, 1, Lsn(1), Lsn(5)))
    assert tiles(stream.arrived(TAIL, blocks(hole(1)))) == [("hole", 1, 1)]
    assert stream.repaired(Lsn(1), RepairResult.FILLED) == []
    assert stream.phase is ReadPhase.RECORDS


def test_an_old_caught_up_is_ignored() -> None:
    stream = opened()
    stream.arrived(TAIL, blocks(block(1)))
    assert stream.arrived(TAIL, m.CaughtUp(7, 1, Lsn(1), Lsn(5))) == []


@pytest.mark.parametrize(
    ("trouble", "expected"),
    [
        (
            ChainTrouble(NodeId(1), ReconfigureReason.UNREACHABLE),
            r.NeedProjection(
                Epoch(0), RewindReason.CHAIN_TROUBLE, ReconfigureReason.UNREACHABLE, NodeId(1)
            ),
        ),
        (
            ChainTrouble(NodeId(1), None, Epoch(4)),
            r.NeedProjection(Epoch(4), RewindReason.CHAIN_TROUBLE, None, NodeId(1)),
        ),
        (ChainTrouble(NodeId(1), None, Epoch(1)), r.SetTimer(100)),
    ],
    ids=["must change", "has changed", "nothing to be done"],
)
def test_trouble_with_a_repair(trouble: ChainTrouble, expected: r.ReadEffect) -> None:
    stream = opened()
    stream.arrived(TAIL, m.CaughtUp(7, 1, Lsn(1), Lsn(5)))
    assert stream.repaired(Lsn(1), trouble) == [r.TellSender(TAIL, m.Stop(7)), expected]


def quiet(stream: ReadStream) -> list[r.ReadEffect]:
    stream.timer_fired()
    return stream.repaired(stream.next_lsn, RepairResult.NOT_ISSUED)


def test_a_quiet_reader_looks_up_the_chain_now_and_then() -> None:
    """A tail that was left out of the chain unsealed would say "nothing new" for ever."""
    stream = opened()
    stream.arrived(TAIL, m.CaughtUp(7, 1, Lsn(1), Lsn(1)))
    asked = [
        any(isinstance(effect, r.NeedProjection) for effect in quiet(stream))
        for _ in range(2 * r.QUIET_CHECKS_PER_LOOKUP)
    ]
    assert asked == ([False] * (r.QUIET_CHECKS_PER_LOOKUP - 1) + [True]) * 2
    assert stream.projected(projection()) == []
    assert stream.projected(FAILED) == []
    moved = stream.projected(projection(2, (1, 2), 1))
    assert moved[0] == r.TellSender(TAIL, m.Stop(7))
    assert isinstance(moved[2], r.StartSender)
    assert moved[2].node == 2


# -- Damage -----------------------------------------------------------------------------------


def test_a_damaged_block_is_fetched_from_elsewhere() -> None:
    stream = opened()
    ended = m.Ended(7, 1, Refusal.CORRUPT, Epoch(1), Lsn(1))
    assert stream.arrived(TAIL, ended) == [r.NeedCopy(Lsn(1), TAIL)]
    effects = stream.copied(Lsn(1), block(1, 2))
    assert tiles(effects) == [("data", 1, 2)]
    assert effects[-1] == r.SetTimer(100)
    assert isinstance(stream.timer_fired()[0], r.NeedProjection)


def test_a_damaged_last_block_finishes_the_stream() -> None:
    stream = opened(1, 2)
    stream.arrived(TAIL, m.Ended(7, 1, Refusal.CORRUPT, Epoch(1), Lsn(1)))
    assert stream.copied(Lsn(1), block(1, 2))[-1] == r.Finish()


def test_a_block_without_a_good_copy_is_asked_for_again_later() -> None:
    stream = opened()
    stream.arrived(TAIL, m.Ended(7, 1, Refusal.CORRUPT, Epoch(1), Lsn(1)))
    assert stream.copied(Lsn(1), None) == [r.SetTimer(100)]
    assert stream.copied(Lsn(1), block(1)) == [], "answered already"


def damaged(stream: ReadStream) -> list[r.ReadEffect]:
    """One more round that finds the block damaged everywhere."""
    ended = m.Ended(7, stream.version, Refusal.CORRUPT, Epoch(1), Lsn(1))
    assert stream.arrived(TAIL, ended) == [r.NeedCopy(Lsn(1), TAIL)]
    return stream.copied(Lsn(1), None)


def test_a_block_that_is_damaged_everywhere_ends_the_stream() -> None:
    stream = opened()
    for _ in range(r.ReadSettings().copy_rounds_max - 1):
        assert damaged(stream) == [r.SetTimer(100)]
        stream.timer_fired()
        stream.projected(projection())
    fail = r.Fail(r.FailReason.CORRUPT_BLOCK, Lsn(1))
    assert damaged(stream) == [r.TellSender(TAIL, m.Stop(7)), fail]
    assert stream.phase is ReadPhase.FINISHED
    assert stream.timer_fired() == []
    assert stream.stop() == []


# -- A log that is gone -----------------------------------------------------------------------

GONE = Failure(FailureKind.UNKNOWN_LOG)


def test_a_deleted_log_ends_the_stream() -> None:
    fail = r.Fail(r.FailReason.UNKNOWN_LOG, Lsn(1))
    fresh = ReadStream(LOG, 7, Lsn(1), Lsn(9))
    fresh.open()
    assert fresh.projected(GONE) == [fail]
    lost = opened()
    lost.lost(TAIL)
    assert lost.projected(GONE) == [r.TellSender(TAIL, m.Stop(7)), fail]
    assert lost.projected(projection()) == []


def test_a_quiet_reader_of_a_deleted_log_finds_out() -> None:
    stream = opened()
    stream.arrived(TAIL, m.CaughtUp(7, 1, Lsn(1), Lsn(1)))
    assert stream.phase is ReadPhase.TAIL
    assert stream.projected(GONE)[-1] == r.Fail(r.FailReason.UNKNOWN_LOG, Lsn(1))


# -- Trim gaps and credit ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [(1, 4, (3, 4)), (3, 3, (3, 3)), (1, 2, None), (2, 200, (3, 99))],
    ids=["from before", "exactly", "behind us", "beyond the end"],
)
def test_trim_gaps_are_cut_to_the_range(
    first: int, last: int, expected: tuple[int, int] | None
) -> None:
    stream = opened(3)
    effects = stream.arrived(TAIL, m.GapFound(7, 1, GapKind.TRIM, Lsn(first), Lsn(last)))
    gaps = [] if expected is None else [("trim", *expected)]
    assert tiles(effects) == gaps
    assert (r.Finish() in effects) == (last >= 99)


def test_credit_is_given_back_as_the_application_takes() -> None:
    one = block(1)
    stream = opened(window=4 * one.size)
    stream.arrived(TAIL, blocks(*(block(at) for at in (1, 2, 3, 4))))
    assert stream.took(one.size - 1) == []
    assert stream.took(1) == [r.TellSender(TAIL, m.Window(7, 1, 5 * one.size))]
    assert stream.took(3 * one.size) == [r.TellSender(TAIL, m.Window(7, 1, 8 * one.size))]


def test_gaps_and_duplicates_give_their_credit_back_themselves() -> None:
    """Nobody takes them: without this a stream of holes would stop for ever."""
    stream = opened(window=100)
    effects = stream.arrived(TAIL, blocks(hole(1)))
    granted = [one.message for one in effects if isinstance(one, r.TellSender)]
    assert granted == [m.Window(7, 1, 100 + hole(1).size)]
    effects = stream.arrived(TAIL, blocks(hole(1)))
    granted = [one.message for one in effects if isinstance(one, r.TellSender)]
    assert granted == [m.Window(7, 1, 100 + 2 * hole(1).size)]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=40), st.integers(1, 600))
def test_the_sender_always_has_credit_when_everything_was_taken(
    steps: list[tuple[bool, int]], window: int
) -> None:
    """I3 and its reverse: never more than the window and a block out, never stuck at none."""
    stream = opened(1, 1_000, window)
    credit, sent, untaken, at = window, 0, 0, 1
    for is_hole, takes in steps:
        if sent < credit:
            one = hole(at) if is_hole else block(at)
            at += 1
            sent += one.size
            untaken += 0 if is_hole else one.size
            credit = latest_credit(stream.arrived(TAIL, blocks(one)), credit)
        taken = min(untaken, takes * 100)
        untaken -= taken
        credit = latest_credit(stream.took(taken), credit)
        assert credit - sent <= max(0, window - untaken)
    credit = latest_credit(stream.took(untaken), credit)
    assert credit > sent


def latest_credit(effects: list[r.ReadEffect], credit: int) -> int:
    for effect in effects:
        if isinstance(effect, r.TellSender) and isinstance(effect.message, m.Window):
            credit = effect.message.credit_bytes
    return credit


def test_a_new_start_has_credit_for_what_is_left_of_the_window() -> None:
    one = block(1)
    stream = opened(window=4 * one.size)
    stream.arrived(TAIL, blocks(one))
    stream.lost(TAIL)
    start = stream.projected(projection(2, (1, 2), 1))[1]
    assert isinstance(start, r.StartSender)
    assert (start.start.first, start.start.credit_bytes) == (2, 3 * one.size)


def test_it_can_say_what_it_waits_for() -> None:
    """G9."""
    stream = opened()
    stream.arrived(TAIL, blocks(block(1)))
    stream.lost(TAIL)
    told = stream.explain()
    assert told["waits_for"] == "projection"
    assert told["next_lsn"] == 2
    assert told["rewinds"] == {"sender_lost": 1}
    assert told["last_rewind"] == "sender_lost"
    assert (told["node"], told["epoch"]) == (3, 1)
    assert told["bytes_not_taken"] == block(1).size
    fresh = ReadStream(LOG, 7, Lsn(1), Lsn(9)).explain()
    assert (fresh["node"], fresh["epoch"]) == (None, None)


def test_gap_words() -> None:
    stream = opened()
    effects = stream.arrived(TAIL, blocks(hole(1, 3)))
    assert r.DeliverGap(Gap(GapKind.HOLE, Lsn(1), Lsn(3))) in effects
