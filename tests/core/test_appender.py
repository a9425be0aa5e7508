"""One block on its way to its copyset: the stages of seed 000, waves, and what is dropped."""

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.replication import Replication, can_replicate
from millrace.core.sequenced.appender import Appender, Stage
from millrace.core.sequenced.effects import (
    AppenderEffect,
    Complete,
    DropCopies,
    GiveUp,
    NeedCopyset,
    Reply,
    Retire,
    SendWave,
    StartTimer,
)
from millrace.core.sequenced.settings import AppenderSettings, SequencerSettings
from millrace.types import NodeId

COPIES = 3


def nodes(*numbers: int) -> tuple[NodeId, ...]:
    return tuple(map(NodeId, numbers))


SEED = nodes(3, 2, 1, 0, 4)  # The seed's example: R = 3, X = 2.
OTHER = nodes(5, 6, 7)
LEADER_MS = 500


def appender(sync_leaders: int = 1, leaders: int = COPIES, **settings: int) -> Appender:
    return Appender(
        AppenderSettings(sync_leaders, leaders, LEADER_MS, **settings),
        lambda chosen: len(chosen) >= COPIES,
    )


def begun(copyset: tuple[NodeId, ...] = SEED, **settings: int) -> Appender:
    one = appender(**settings)
    assert one.begin(copyset) == [SendWave(1, copyset)]
    return one


def acks(one: Appender, *numbers: int) -> list[AppenderEffect]:
    return [effect for node in nodes(*numbers) for effect in one.stored(node, one.wave)]


def misses(one: Appender, *numbers: int, may_be_stored: bool = True) -> list[AppenderEffect]:
    return [
        effect for node in nodes(*numbers) for effect in one.missed(node, one.wave, may_be_stored)
    ]


def timer_of(effects: list[AppenderEffect]) -> int:
    (timer,) = [effect for effect in effects if isinstance(effect, StartTimer)]
    return timer.number


# -- Stages ---------------------------------------------------------------------------------------


def test_the_example_of_the_seed() -> None:
    one = begun()
    assert acks(one, 2, 0) == []
    assert one.stage is Stage.REPLICATION
    assert acks(one, 4) == [Reply(), StartTimer(2, LEADER_MS)]
    assert one.stage is Stage.SYNC_LEADERS
    assert acks(one, 3) == [DropCopies(nodes(4), 1), Retire(), StartTimer(3, LEADER_MS)]
    assert one.stage is Stage.LEADERS
    assert acks(one, 1) == [DropCopies(nodes(0), 1), Complete(is_short=False)]


def test_without_extras_all_stages_end_together() -> None:
    one = begun(nodes(3, 2, 1))
    assert acks(one, 1, 3) == []
    assert acks(one, 2) == [Reply(), Retire(), Complete(is_short=False)]


def test_extras_that_did_not_answer_are_dropped_at_the_end() -> None:
    one = begun()
    assert acks(one, 3, 2, 1) == [
        Reply(),
        Retire(),
        DropCopies(nodes(0, 4), 1),
        Complete(is_short=False),
    ]


def test_an_extra_that_certainly_has_no_copy_is_not_told_to_drop_it() -> None:
    one = begun()
    misses(one, 0, may_be_stored=False)
    assert acks(one, 3, 2, 1)[-2:] == [DropCopies(nodes(4), 1), Complete(is_short=False)]


@pytest.mark.parametrize(
    ("sync_leaders", "leaders", "order", "retires_at", "completes_at"),
    [
        pytest.param(0, 0, (4, 0, 1), 3, 3, id="no leaders: any three will do"),
        pytest.param(0, 3, (4, 0, 1, 2, 3), 3, 5, id="released at once, complete in the end"),
        pytest.param(1, 1, (2, 0, 4, 3), 4, 4, id="one leader"),
        pytest.param(2, 2, (3, 0, 4, 2), 4, 4, id="two sync leaders"),
        pytest.param(3, 3, (4, 0, 1, 2, 3), 5, 5, id="all leaders before the release"),
    ],
)
def test_how_many_leaders_are_waited_for(
    sync_leaders: int, leaders: int, order: tuple[int, ...], retires_at: int, completes_at: int
) -> None:
    one = begun(sync_leaders=sync_leaders, leaders=leaders)
    happened = [acks(one, node) for node in order]
    kinds = [[type(effect) for effect in effects] for effects in happened]
    assert Reply in kinds[COPIES - 1]
    assert Retire in kinds[retires_at - 1]
    assert Complete in kinds[completes_at - 1]


@pytest.mark.parametrize(
    ("copies", "sync_leaders", "leaders", "expected"),
    [
        pytest.param(3, 1, None, (1, 3), id="by default as many leaders as copies"),
        pytest.param(2, 5, None, (2, 2), id="no more sync leaders than copies"),
        pytest.param(3, 1, 9, (1, 3), id="no more leaders than copies"),
        pytest.param(3, 2, 1, (2, 2), id="sync leaders are leaders"),
    ],
)
def test_leaders_fit_the_copies(
    copies: int, sync_leaders: int, leaders: int | None, expected: tuple[int, int]
) -> None:
    settings = SequencerSettings(sync_leaders=sync_leaders, leaders=leaders).of_appender(copies)
    assert (settings.sync_leaders, settings.leaders) == expected


def test_copies_are_kept_in_as_many_racks_as_they_must_be() -> None:
    """Three copies in two racks; all but the first node of the copyset are in one."""
    locations = dict(zip(SEED, ("r.d.c.w.a", *["r.d.c.w.b"] * 4), strict=True))
    replication = Replication.of({"rack": 2, "node": 3})

    def replicates(chosen: Collection[NodeId]) -> bool:
        return can_replicate(replication, chosen, locations)

    one = Appender(AppenderSettings(1, 3), replicates)
    one.begin(SEED)
    assert acks(one, 2, 1, 0, 4) == []  # Four copies in one rack are not enough.
    assert acks(one, 3) == [
        Reply(),
        DropCopies(nodes(4, 0), 1),
        Retire(),
        Complete(is_short=False),
    ]


# -- Leaders that do not answer -------------------------------------------------------------------


def test_a_silent_sync_leader_makes_another_wave_and_the_client_is_not_answered_again() -> None:
    one = begun()
    timer = timer_of(acks(one, 2, 0, 4))
    assert one.timer_fired(timer) == [NeedCopyset(SEED)]
    assert one.begin(OTHER) == [SendWave(2, OTHER)]
    assert acks(one, 5, 6) == []
    assert acks(one, 7) == [Retire(), DropCopies(SEED, 2), Complete(is_short=False)]


def test_a_sync_leader_that_refuses_makes_another_wave_when_the_client_is_answered() -> None:
    one = begun()
    assert misses(one, 3) == []  # The others can still make up for it: the client comes first.
    assert acks(one, 2, 0, 4) == [Reply(), NeedCopyset(SEED)]


def test_a_silent_leader_is_gone_without_and_counted() -> None:
    one = begun()
    timer = timer_of(acks(one, 3, 2, 0))
    assert one.timer_fired(timer) == [DropCopies(nodes(1, 4), 1), Complete(is_short=True)]


def test_a_leader_that_refuses_is_not_waited_for() -> None:
    one = begun()
    acks(one, 3, 2, 0)
    assert misses(one, 1, may_be_stored=False) == [
        DropCopies(nodes(4), 1),
        Complete(is_short=True),
    ]


def test_the_timer_of_a_stage_that_is_over_does_nothing() -> None:
    one = begun()
    timer = timer_of(acks(one, 2, 0, 4))
    acks(one, 3)
    assert one.timer_fired(timer) == []
    assert one.stage is Stage.LEADERS


# -- Waves ----------------------------------------------------------------------------------------


def test_a_wave_is_void_when_too_few_can_still_acknowledge() -> None:
    one = begun()
    assert misses(one, 3, 2) == []
    assert misses(one, 1) == [NeedCopyset(SEED)]


def test_acknowledgements_of_a_void_wave_do_not_count() -> None:
    one = begun(nodes(3, 2, 1))
    acks(one, 3, 2)
    misses(one, 1)
    assert one.stored(NodeId(1), 1) == []
    one.begin(nodes(3, 2, 4))
    assert one.stored(NodeId(3), 1) == one.stored(NodeId(2), 1) == []
    assert acks(one, 4, 3) == []
    assert acks(one, 2)[0] == Reply()


def test_copies_of_a_void_wave_are_dropped_where_no_copy_is_needed() -> None:
    one = begun(nodes(3, 2, 1))
    acks(one, 3)
    misses(one, 2)  # Silent: it may have stored the block.
    one.begin(nodes(3, 4, 5))
    assert acks(one, 3, 4, 5) == [
        Reply(),
        Retire(),
        DropCopies(nodes(2, 1), 2),
        Complete(is_short=False),
    ]


def test_a_late_refusal_of_a_void_wave_spares_a_drop() -> None:
    one = begun(nodes(3, 2, 1))
    misses(one, 2, may_be_stored=False)
    one.begin(nodes(3, 4, 5))
    one.missed(NodeId(1), 1, may_be_stored=False)
    assert acks(one, 3, 4, 5) == [Reply(), Retire(), Complete(is_short=False)]


def test_an_answer_counts_once_and_only_from_the_copyset() -> None:
    one = begun(nodes(3, 2, 1))
    assert acks(one, 3, 3, 3, 9) == []
    assert misses(one, 3, 9) == []
    assert one.stage is Stage.REPLICATION


def test_the_first_waves_follow_at_once_and_the_others_after_growing_pauses() -> None:
    one = begun(waves_at_once=2, retry_ms=10, retry_ms_max=35, waves_max=7)
    assert misses(one, *SEED) == [NeedCopyset(SEED)]
    pauses = []
    for _ in range(5):
        one.begin(SEED)
        (effect,) = misses(one, *SEED)
        assert isinstance(effect, StartTimer)
        pauses.append(effect.ms)
        assert one.timer_fired(effect.number) == [NeedCopyset(SEED)]
    assert pauses == [10, 20, 35, 35, 35]
    one.begin(SEED)
    assert misses(one, *SEED) == [GiveUp()]
    assert one.stage is Stage.GIVEN_UP


def test_without_a_copyset_it_pauses_at_once() -> None:
    one = appender(retry_ms=10)
    (effect,) = one.begin(None)
    assert effect == StartTimer(2, 10)
    assert one.wave == 0
    assert not one.may_be_stored
    assert one.timer_fired(2) == [NeedCopyset(())]
    assert one.begin(SEED) == [SendWave(1, SEED)]


def test_a_pause_can_be_cut_short_and_its_timer_then_does_nothing() -> None:
    one = begun(nodes(3, 2, 1), waves_at_once=1)
    timer = timer_of(misses(one, 3))
    assert one.retry() == [NeedCopyset(nodes(3, 2, 1))]
    one.begin(OTHER)
    assert one.timer_fired(timer) == []
    assert one.retry() == []
    assert one.stage is Stage.REPLICATION


def test_what_is_certainly_stored_nowhere() -> None:
    one = begun(nodes(3, 2, 1))
    assert one.may_be_stored  # On its way.
    misses(one, 3, may_be_stored=False)
    one.missed(NodeId(2), 1, may_be_stored=False)
    assert one.may_be_stored
    one.missed(NodeId(1), 1, may_be_stored=False)
    assert not one.may_be_stored


@pytest.mark.parametrize(
    ("acked", "missed", "expected"),
    [
        pytest.param((2,), (0,), (3, 1, 4), id="all that have not answered"),
        pytest.param((2, 0, 4), (), (3,), id="the sync leader"),
        pytest.param((3, 0, 4), (), (2, 1), id="the other leaders"),
        pytest.param((3, 2, 1), (), (), id="nobody"),
    ],
)
def test_whom_it_waits_for(
    acked: tuple[int, ...], missed: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    one = begun()
    acks(one, *acked)
    misses(one, *missed)
    assert one.waits_for == nodes(*expected)


@given(st.permutations(SEED), st.integers(0, 3), st.integers(0, 3))
def test_in_whatever_order_all_answer_the_leaders_keep_the_copies(
    order: list[NodeId], sync_leaders: int, leaders: int
) -> None:
    leaders = max(sync_leaders, leaders)
    one = begun(sync_leaders=sync_leaders, leaders=leaders)
    effects = acks(one, *order)
    kinds = [type(effect) for effect in effects if not isinstance(effect, StartTimer | DropCopies)]
    assert kinds == [Reply, Retire, Complete]
    dropped = [node for each in effects if isinstance(each, DropCopies) for node in each.nodes]
    kept = set(SEED) - set(dropped)
    assert len(dropped) == len(set(dropped)) == len(SEED) - COPIES
    assert set(SEED[:leaders]) <= kept
