"""Copysets: who is avoided, what is chosen, how evenly, and for how long."""

from collections import Counter
from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.replication import Locations, Replication, can_replicate
from millrace.core.sequenced.copysets import (
    Availability,
    AvoidCause,
    AvoidTimes,
    CopysetChooser,
    StickyCopysets,
)
from millrace.core.sequenced.settings import SequencerSettings
from millrace.limits import COPYSET_SIZE_MAX
from millrace.types import NO_NODE, NodeId
from tests.core.placement_samples import REPLICATIONS, Said, first, in_racks, located_nodes, nodes

NOBODY: frozenset[NodeId] = frozenset()


def chooser_of(
    said: Said,
    nodeset: tuple[NodeId, ...],
    locations: Locations | None = None,
    seed: int = 1,
) -> CopysetChooser:
    return CopysetChooser(Replication.of(said), nodeset, locations or {}, Random(seed).randrange)


# Who is avoided.


@pytest.mark.parametrize(
    ("cause", "time_ms"),
    [
        (AvoidCause.NO_SPACE, 60_000),
        (AvoidCause.OVERLOADED, 1_000),
        (AvoidCause.DISABLED, 30_000),
        (AvoidCause.UNREACHABLE, 60_000),
        (AvoidCause.SLOW, 600_000),
    ],
    ids=lambda value: value.value if isinstance(value, AvoidCause) else "",
)
def test_a_node_is_avoided_for_a_time(cause: AvoidCause, time_ms: int) -> None:
    availability = Availability(first(5), copies=3)
    availability.avoid(NodeId(2), cause, now_ms=100)
    assert availability.avoided(100 + time_ms - 1) == {2}
    assert availability.avoided(100 + time_ms) == NOBODY


def test_the_times_are_settings() -> None:
    availability = Availability(first(5), copies=3, times=AvoidTimes(no_space_ms=7))
    availability.avoid(NodeId(2), AvoidCause.NO_SPACE, now_ms=0)
    assert availability.avoided(6) == {2}
    assert availability.avoided(7) == NOBODY


def test_the_same_trouble_again_counts_from_then() -> None:
    availability = Availability(first(5), copies=3)
    availability.avoid(NodeId(2), AvoidCause.OVERLOADED, now_ms=0)
    availability.avoid(NodeId(2), AvoidCause.OVERLOADED, now_ms=900)
    assert availability.avoided(1_899) == {2}


def test_of_two_troubles_the_longer_counts() -> None:
    availability = Availability(first(5), copies=3)
    availability.avoid(NodeId(2), AvoidCause.NO_SPACE, now_ms=0)
    availability.avoid(NodeId(2), AvoidCause.OVERLOADED, now_ms=0)
    assert availability.avoided(59_999) == {2}


@pytest.mark.parametrize(
    "cause", [cause for cause in AvoidCause if cause is not AvoidCause.UNREACHABLE]
)
def test_a_success_shows_that_a_node_can_be_reached_and_nothing_else(cause: AvoidCause) -> None:
    availability = Availability(first(5), copies=3)
    availability.avoid(NodeId(1), AvoidCause.UNREACHABLE, now_ms=0)
    availability.avoid(NodeId(2), cause, now_ms=0)
    availability.cleared(NodeId(1))
    availability.cleared(NodeId(2))
    assert availability.avoided(0) == {2}


@pytest.mark.parametrize(
    ("nodeset", "copies", "avoided"),
    [
        pytest.param(3, 3, 0, id="nobody can be spared"),
        pytest.param(2, 3, 0, id="too few anyway"),
        pytest.param(4, 4, 0, id="a quarter, but nobody can be spared"),
        pytest.param(3, 2, 1, id="one, if one can be spared"),
        pytest.param(4, 3, 1, id="a quarter of 4"),
        pytest.param(7, 3, 1, id="a quarter of 7, rounded down"),
        pytest.param(8, 3, 2, id="a quarter of 8"),
    ],
)
def test_at_most_a_quarter_is_avoided_for_being_slow(
    nodeset: int, copies: int, avoided: int
) -> None:
    availability = Availability(first(nodeset), copies)
    for node in first(nodeset):
        availability.avoid(node, AvoidCause.SLOW, now_ms=0)
    assert availability.avoided(0) == set(first(avoided))


def test_a_slow_node_makes_room_for_another_when_its_time_is_over() -> None:
    availability = Availability(first(4), copies=3)
    availability.avoid(NodeId(1), AvoidCause.SLOW, now_ms=0)
    availability.avoid(NodeId(2), AvoidCause.SLOW, now_ms=600_000)
    assert availability.avoided(600_000) == {2}


def test_a_node_that_is_slow_again_takes_no_second_place() -> None:
    availability = Availability(first(4), copies=3)
    availability.avoid(NodeId(1), AvoidCause.SLOW, now_ms=0)
    availability.avoid(NodeId(1), AvoidCause.SLOW, now_ms=300_000)
    assert availability.avoided(899_999) == {1}


def test_all_may_be_avoided_for_any_other_cause() -> None:
    availability = Availability(first(4), copies=3)
    for node in first(4):
        availability.avoid(node, AvoidCause.NO_SPACE, now_ms=0)
    assert availability.avoided(0) == set(first(4))


def test_what_a_node_outside_the_nodeset_says_is_ignored() -> None:
    availability = Availability(first(4), copies=3)
    availability.avoid(NodeId(9), AvoidCause.NO_SPACE, now_ms=0)
    assert availability.avoided(0) == NOBODY


# What is chosen.


@given(
    said=REPLICATIONS,
    locations=located_nodes(9),
    avoided=st.sets(st.integers(1, 9), max_size=3),
    size_extra=st.integers(0, 3),
    seed=st.integers(0, 1_000),
)
def test_every_copyset_satisfies_the_replication(
    said: Said,
    locations: dict[NodeId, str],
    avoided: set[int],
    size_extra: int,
    seed: int,
) -> None:
    replication = Replication.of(said)
    left = set(locations) - set(nodes(*avoided))

    chooser = chooser_of(said, tuple(locations), locations, seed)
    copyset = chooser.choose(size_extra, nodes(*avoided))

    assert (copyset is not None) == can_replicate(replication, left, locations)
    if copyset is not None:
        assert set(copyset) <= left
        assert len(set(copyset)) == len(copyset)
        assert len(copyset) == min(replication.copies + size_extra, len(left))
        assert can_replicate(replication, copyset[: replication.copies], locations)


@pytest.mark.parametrize(
    ("nodeset", "size_extra", "size"),
    [
        pytest.param(9, 0, 3, id="none asked for"),
        pytest.param(9, 2, 5, id="two"),
        pytest.param(4, 2, 4, id="as far as there are nodes"),
        pytest.param(3, 2, 3, id="none left"),
        pytest.param(40, 40, COPYSET_SIZE_MAX, id="as far as a copyset goes"),
    ],
)
def test_extras(nodeset: int, size_extra: int, size: int) -> None:
    copyset = chooser_of(3, first(nodeset)).choose(size_extra, NOBODY)
    assert copyset is not None
    assert len(copyset) == size


@pytest.mark.parametrize(
    ("said", "locations", "avoided"),
    [
        pytest.param(3, in_racks(4), nodes(1, 2), id="too few nodes"),
        pytest.param({"rack": 2, "node": 3}, in_racks(3, 2), nodes(4, 5), id="a rack is gone"),
        pytest.param({"rack": 2, "node": 3}, in_racks(1, 1), (), id="enough racks, too few nodes"),
    ],
)
def test_no_copyset_is_possible(
    said: Said, locations: dict[NodeId, str], avoided: tuple[NodeId, ...]
) -> None:
    assert chooser_of(said, tuple(locations), locations).choose(2, avoided) is None


@given(
    said=REPLICATIONS,
    locations=located_nodes(9),
    avoided=st.sets(st.integers(1, 9), max_size=3),
    near=st.integers(1, 10).map(NodeId),
    seed=st.integers(0, 1_000),
)
def test_a_near_node_has_a_copy_whenever_one_can_be_made(
    said: Said, locations: dict[NodeId, str], avoided: set[int], near: NodeId, seed: int
) -> None:
    replication = Replication.of(said)
    left = set(locations) - set(nodes(*avoided))

    chooser = chooser_of(said, tuple(locations), locations, seed)
    copyset = chooser.choose(1, nodes(*avoided), near)

    assert (copyset is not None) == can_replicate(replication, left, locations)
    if copyset is not None:
        assert len(set(copyset)) == len(copyset)
        assert can_replicate(replication, copyset[: replication.copies], locations)
        assert (near in copyset[: replication.copies]) == (near in left)


# How evenly: counts of a fixed seed, within five standard deviations of what is fair.

DRAWS = 6_000


def assert_fair(counts: Mapping[NodeId, int], shares: Mapping[NodeId, float]) -> None:
    for node, share in shares.items():
        deviation = (DRAWS * share * (1 - share)) ** 0.5
        assert abs(counts[node] - DRAWS * share) <= 5 * deviation, (node, counts[node], share)


def even(locations: Mapping[NodeId, str], copies: int) -> dict[NodeId, float]:
    return dict.fromkeys(locations, copies / len(locations))


@pytest.mark.parametrize(
    ("said", "locations"),
    [
        pytest.param(3, in_racks(7), id="nodes"),
        pytest.param(1, in_racks(5), id="one copy"),
        pytest.param({"rack": 2, "node": 3}, in_racks(3, 3, 3), id="equal racks"),
        pytest.param({"rack": 2, "node": 3}, in_racks(3, 2, 2), id="nearly equal racks"),
        pytest.param({"rack": 2, "node": 3}, in_racks(3, 2, 1), id="racks of 3, 2 and 1"),
        pytest.param({"rack": 3, "node": 3}, in_racks(3, 3, 2, 2, 2), id="a rack for each copy"),
        pytest.param(
            {"region": 2, "rack": 3, "node": 4},
            {NodeId(1 + at): f"region{at % 2}.d.c.w.rack{at % 4}" for at in range(8)},
            id="three scopes",
        ),
    ],
)
@pytest.mark.parametrize("size_extra", [0, 1])
def test_every_node_gets_its_share(
    said: Said, locations: dict[NodeId, str], size_extra: int
) -> None:
    copies = Replication.of(said).copies
    chooser = chooser_of(said, tuple(locations), locations, seed=2)
    members: Counter[NodeId] = Counter()
    leaders: Counter[NodeId] = Counter()
    for _ in range(DRAWS):
        copyset = chooser.choose(size_extra, NOBODY)
        assert copyset is not None
        members.update(copyset)
        leaders[copyset[0]] += 1
    assert_fair(members, even(locations, copies + size_extra))
    assert_fair(leaders, even(locations, 1))


def test_beside_a_near_node_the_others_get_equal_shares_and_each_is_first_as_often() -> None:
    chooser = chooser_of(3, first(5))
    members: Counter[NodeId] = Counter()
    leaders: Counter[NodeId] = Counter()
    for _ in range(DRAWS):
        copyset = chooser.choose(0, NOBODY, NodeId(4))
        assert copyset is not None
        members.update(copyset)
        leaders[copyset[0]] += 1
    assert members.pop(NodeId(4)) == DRAWS
    assert_fair(members, dict.fromkeys(nodes(1, 2, 3, 5), 2 / 4))
    assert_fair(leaders, {NodeId(4): 1 / 3} | dict.fromkeys(nodes(1, 2, 3, 5), 2 / 3 / 4))


def test_a_node_that_every_copyset_needs_is_first_as_often_as_the_others_of_its_copysets() -> None:
    locations = in_racks(4, 1)
    chooser = chooser_of({"rack": 2, "node": 3}, tuple(locations), locations)
    firsts = Counter(copyset[0] for _ in range(DRAWS) if (copyset := chooser.choose(0, NOBODY)))
    assert_fair(firsts, {NodeId(5): 1 / 3} | dict.fromkeys(first(4), 1 / 6))


def test_what_is_avoided_is_shared_evenly_by_the_others() -> None:
    chooser = chooser_of(3, first(7))
    members: Counter[NodeId] = Counter()
    for _ in range(DRAWS):
        members.update(chooser.choose(0, nodes(1, 2)) or ())
    assert_fair(members, dict.fromkeys(nodes(3, 4, 5, 6, 7), 3 / 5))


def test_a_choice_draws_few_numbers_however_few_copysets_are_possible() -> None:
    locations = in_racks(60, 60, 1)
    asked = []

    def draw(below: int) -> int:
        asked.append(below)
        return below - 1

    said = Replication.of({"rack": 3, "node": 3})
    assert CopysetChooser(said, tuple(locations), locations, draw).choose(2, NOBODY) is not None
    assert len(asked) == 3 + 2 + 3  # A node of each rack, two extras, the order of the first three.


# For how long.


def sticky_of(
    nodeset: int = 30, size_extra: int = 0, seed: int = 1, near: NodeId = NO_NODE
) -> StickyCopysets:
    """So many nodes that two draws are hardly ever the same."""
    settings = SequencerSettings(extras=size_extra, sticky_bytes=100, sticky_ms=1_000)
    return StickyCopysets(chooser_of(3, first(nodeset), seed=seed), settings, near)


def test_blocks_keep_to_one_copyset() -> None:
    sticky = sticky_of()
    copysets = {sticky.next(10, now_ms, NOBODY) for now_ms in range(10)}
    assert len(copysets) == 1


@pytest.mark.parametrize(
    ("size_bytes", "now_ms", "is_kept"),
    [
        pytest.param(40, 999, True, id="up to its bytes and its age"),
        pytest.param(41, 0, False, id="more than its bytes"),
        pytest.param(0, 1_000, False, id="old"),
    ],
)
def test_a_copyset_ends_when_it_is_full_or_old(size_bytes: int, now_ms: int, is_kept: bool) -> None:
    sticky = sticky_of()
    before = sticky.next(60, 0, NOBODY)
    assert (sticky.next(size_bytes, now_ms, NOBODY) == before) == is_kept


def test_a_copyset_ends_when_a_store_failed() -> None:
    sticky = sticky_of()
    before = sticky.next(1, 0, NOBODY)
    sticky.void()
    assert sticky.next(1, 0, NOBODY) != before


def test_a_block_larger_than_the_bytes_of_a_copyset_gets_one_for_itself() -> None:
    sticky = sticky_of()
    before = sticky.next(500, 0, NOBODY)
    assert before is not None
    assert sticky.next(1, 0, NOBODY) != before


def test_the_bytes_and_the_age_of_a_new_copyset_count_from_its_beginning() -> None:
    sticky = sticky_of()
    sticky.next(60, 0, NOBODY)
    before = sticky.next(60, 900, NOBODY)
    assert sticky.next(40, 1_899, NOBODY) == before


def test_a_copyset_ends_when_one_of_its_nodes_is_avoided() -> None:
    sticky = sticky_of()
    before = sticky.next(1, 0, NOBODY)
    assert before is not None
    after = sticky.next(1, 0, {before[1]})
    assert after is not None
    assert before[1] not in after
    assert sticky.next(1, 0, NOBODY) == after


def test_avoiding_a_node_elsewhere_changes_nothing() -> None:
    sticky = sticky_of()
    before = sticky.next(1, 0, NOBODY)
    assert before is not None
    elsewhere = set(first(30)) - set(before)
    assert sticky.next(1, 0, elsewhere) == before


def test_with_too_few_nodes_there_is_none_until_they_are_back() -> None:
    sticky = sticky_of(nodeset=3)
    assert sticky.next(1, 0, nodes(2)) is None
    assert sticky.another(first(3), 0, nodes(2)) is None
    assert sticky.next(1, 0, NOBODY) is not None


@pytest.mark.parametrize("size_extra", [0, 1])
@pytest.mark.parametrize("seed", range(20))
def test_another_wave_goes_to_other_nodes_if_there_are_any(seed: int, size_extra: int) -> None:
    sticky = sticky_of(nodeset=4 + size_extra, size_extra=size_extra, seed=seed)
    before = sticky.next(1, 0, NOBODY)
    assert before is not None
    after = sticky.another(before, 0, NOBODY)
    assert after is not None
    assert set(after) != set(before)


def test_another_wave_goes_to_the_same_nodes_if_there_are_no_others() -> None:
    sticky = sticky_of(nodeset=3)
    before = sticky.next(1, 0, NOBODY)
    assert before is not None
    after = sticky.another(before, 0, NOBODY)
    assert after is not None
    assert set(after) == set(before)


def test_another_wave_leaves_extras_out_rather_than_going_to_the_same_nodes() -> None:
    sticky = sticky_of(nodeset=4, size_extra=1)
    before = sticky.next(1, 0, NOBODY)
    assert before is not None
    after = sticky.another(before, 0, NOBODY)
    assert after is not None
    assert len(after) == 3


def test_another_wave_joins_the_copyset_that_others_use_by_now() -> None:
    sticky = sticky_of()
    before = sticky.next(1, 0, NOBODY)
    assert before is not None
    sticky.void()
    current = sticky.next(1, 0, NOBODY)
    assert sticky.another(before, 0, NOBODY) == current


def test_the_blocks_that_follow_join_the_other_wave() -> None:
    sticky = sticky_of()
    before = sticky.next(1, 0, NOBODY)
    assert before is not None
    after = sticky.another(before, 0, NOBODY)
    assert sticky.next(1, 0, NOBODY) == after


def test_another_wave_avoids_who_is_avoided() -> None:
    sticky = sticky_of(nodeset=5)
    before = sticky.next(1, 0, NOBODY)
    assert before is not None
    after = sticky.another(before, 0, before[:2])
    assert after is not None
    assert set(after) == set(first(5)) - set(before[:2])


# Near copies.

NEAR = NodeId(17)


@pytest.mark.parametrize("seed", range(20))
def test_a_log_begins_with_a_near_copy(seed: int) -> None:
    copyset = sticky_of(seed=seed, near=NEAR).next(1, 0, NOBODY)
    assert copyset is not None
    assert NEAR in copyset


def test_a_near_node_that_is_avoided_gets_none() -> None:
    copyset = sticky_of(near=NEAR).next(1, 0, {NEAR})
    assert copyset is not None
    assert NEAR not in copyset


@pytest.mark.parametrize(
    ("lone", "is_near"),
    [
        pytest.param([True] * 10, True, id="one after the other"),
        pytest.param([True, False] * 5, True, id="half of them"),
        pytest.param([True, *[False] * 9], False, id="in bulk"),
    ],
)
def test_how_a_log_was_written_decides_whether_its_next_copies_are_near(
    lone: list[bool], is_near: bool
) -> None:
    """Of 30 nodes 3 are chosen: of 20 copysets some would be elsewhere."""
    found = []
    for seed in range(20):
        sticky = sticky_of(seed=seed, near=NEAR)
        for is_lone in lone:
            sticky.next(10, 0, NOBODY, is_lone)
        found.append(NEAR in (sticky.next(10, 0, NOBODY, is_lone=True) or ()))
    assert all(found) == is_near
    assert any(found) == is_near or sum(found) < 10


def test_a_bulk_that_fills_a_copyset_with_each_block_burdens_no_node() -> None:
    sticky = sticky_of(near=NEAR)
    copysets = [sticky.next(100, 0, NOBODY, is_lone=False) for _ in range(20)]
    assert sum(NEAR in (each or ()) for each in copysets[1:]) < 10


def test_only_the_copyset_before_counts() -> None:
    sticky = sticky_of(near=NEAR)
    for is_lone, blocks in ((False, 30), (True, 10)):
        for _ in range(blocks):
            sticky.next(10, 0, NOBODY, is_lone)
    assert NEAR in (sticky.next(10, 0, NOBODY, is_lone=False) or ())
