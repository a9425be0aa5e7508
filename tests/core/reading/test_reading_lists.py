"""Who is told to be down, in which mode, and when a change is a rewind."""

from millrace.core.reading.lists import Lists, Mode
from millrace.core.reading.rewinds import RewindReason, RewindSchedule
from millrace.core.reading.settings import SequencedReadSettings
from tests.core.reading.read_cluster import nodes

ONE, TWO, THREE = MEMBERS = nodes(1, 2, 3)
LOST, STATUS = RewindReason.SENDER_LOST, RewindReason.STATUS


def test_nobody_is_told_before_the_rewind() -> None:
    lists = Lists(is_single_copy=True)
    assert lists.add_down(ONE, LOST, MEMBERS)
    assert lists.set_slow(frozenset({TWO}))
    assert (lists.listed, lists.has_changes) == (frozenset(), True)
    lists.apply()
    assert (lists.down, lists.slow, lists.has_changes) == ({ONE}, {TWO}, False)
    assert lists.listed == {ONE, TWO}


def test_a_change_that_is_taken_back_is_none() -> None:
    lists = Lists(is_single_copy=True)
    lists.add_down(ONE, LOST, MEMBERS)
    assert not lists.add_down(ONE, STATUS, MEMBERS)
    assert lists.remove_down(ONE)
    assert not lists.remove_down(ONE)
    assert not lists.has_changes


def test_down_wins_over_slow() -> None:
    lists = Lists(is_single_copy=True)
    lists.set_slow(frozenset({ONE}))
    lists.add_down(ONE, LOST, MEMBERS)
    lists.apply()
    assert (lists.down, lists.slow) == ({ONE}, frozenset())


def test_when_all_are_down_all_send_all() -> None:
    lists = Lists(is_single_copy=True)
    for node in MEMBERS:
        lists.add_down(node, LOST, MEMBERS)
    lists.apply()
    assert (lists.mode, lists.listed) == (Mode.ALL_SEND_ALL, frozenset())
    assert not lists.add_down(ONE, LOST, MEMBERS), "then nobody is listed"
    assert not lists.set_slow(frozenset({ONE}))


def test_back_to_single_copy_delivery_with_those_that_are_down() -> None:
    lists = Lists(is_single_copy=True)
    lists.want_all_send_all()
    lists.apply()
    assert not lists.want_single_copy(dict.fromkeys(MEMBERS, LOST), MEMBERS), "all are down"
    assert lists.want_single_copy({ONE: LOST}, MEMBERS)
    lists.apply()
    assert (lists.mode, lists.down) == (Mode.SINGLE_COPY, {ONE})


def test_a_user_who_wants_no_single_copy_delivery_never_gets_it() -> None:
    lists = Lists(is_single_copy=False)
    assert lists.mode is Mode.ALL_SEND_ALL
    assert not lists.want_single_copy({}, MEMBERS)


def test_who_left_the_nodeset_needs_no_rewind() -> None:
    lists = Lists(is_single_copy=True)
    lists.add_down(ONE, LOST, MEMBERS)
    lists.apply()
    lists.add_down(TWO, LOST, MEMBERS)
    lists.keep({THREE})
    assert (lists.listed, lists.has_changes) == (frozenset(), False)


# -- When it is told -----------------------------------------------------------------------------


def test_reasons_that_come_together_make_one_rewind() -> None:
    schedule = RewindSchedule(SequencedReadSettings())
    schedule.schedule(LOST, 1_000)
    schedule.schedule(STATUS, 1_000)
    assert (schedule.due_ms, schedule.reasons) == (1_001, (LOST, STATUS))
    assert schedule.take(has_changes=True, now_ms=1_001)
    assert (schedule.total, schedule.counts) == (1, {LOST: 1, STATUS: 1})
    assert not schedule.is_pending


def test_a_rewind_whose_cause_went_away_is_not_done() -> None:
    schedule = RewindSchedule(SequencedReadSettings())
    schedule.schedule(STATUS, 0)
    assert not schedule.take(has_changes=False, now_ms=1)
    assert (schedule.total, schedule.is_pending) == (0, False)


def test_a_second_chance_needs_no_change() -> None:
    schedule = RewindSchedule(SequencedReadSettings())
    schedule.schedule(RewindReason.SECOND_CHANCE, 0)
    assert schedule.take(has_changes=False, now_ms=1)


def pause_of(schedule: RewindSchedule, now_ms: int) -> int:
    schedule.schedule(LOST, now_ms)
    assert schedule.due_ms is not None
    pause_ms = schedule.due_ms - now_ms
    schedule.take(has_changes=True, now_ms=schedule.due_ms)
    return pause_ms


def test_rewinds_that_follow_each_other_get_slower_up_to_a_bound() -> None:
    schedule = RewindSchedule(SequencedReadSettings(rewind_ms_max=20, rewind_decrease_ms_per_s=0))
    now_ms, pauses = 0, []
    for _ in range(7):
        pauses.append(pause_of(schedule, now_ms))
        now_ms += pauses[-1]
    assert pauses == [1, 2, 4, 8, 16, 20, 20]


def test_the_pause_falls_with_time() -> None:
    schedule = RewindSchedule(SequencedReadSettings())
    for _ in range(10):
        pause_of(schedule, 0)
    pause_ms = pause_of(schedule, 0)
    assert pause_of(schedule, pause_ms + 1_000) <= 2 * pause_ms - 100
    assert pause_of(schedule, 60_000) == 1
