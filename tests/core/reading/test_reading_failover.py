"""Nodes fail, and reading goes on: the known down list, all-send-all, losses (seed 000)."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.messages import Ended, Refusal
from millrace.core.reading.lists import Mode
from millrace.core.reading.slow_nodes import SlowNodeMode, SlowNodeSettings
from millrace.limits import MIB
from millrace.types import AuthoritativeStatus, Epoch, NodeId
from tests.core.reading.read_cluster import STREAM, Cluster, at, block
from tests.core.reading.reading_samples import (
    append,
    copyset_of,
    even_cluster,
    records,
    with_settings,
)

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)


def told_down(cluster: Cluster) -> list[tuple[int, ...]]:
    """The lists of all STARTs, each once, in order."""
    found: list[tuple[int, ...]] = []
    for _, start in cluster.started:
        assert start.shipping is not None
        if not found or found[-1] != start.shipping.known_down:
            found.append(start.shipping.known_down)
    return found


# -- The known down list -------------------------------------------------------------------------


@given(
    down=st.sets(st.integers(1, 5), min_size=1, max_size=2),
    when_ms=st.integers(0, 30),
)
def test_with_fewer_nodes_down_than_copies_reading_goes_on(down: set[int], when_ms: int) -> None:
    cluster = even_cluster(blocks=200)
    cluster.open()
    cluster.run(when_ms)
    cluster.kill(*down)
    cluster.run(20_000)
    assert cluster.is_finished
    assert cluster.shown() == records(1, 200)
    assert cluster.stream.rewinds.total <= 2, "not one for each window"


def test_one_failure_is_one_rewind() -> None:
    cluster = even_cluster(blocks=500, is_endless=True)
    cluster.open()
    cluster.run(10)
    cluster.kill(2)
    cluster.run(3_600_000)
    assert cluster.rewinds == {"sender_lost": 1}
    assert told_down(cluster) == [(), (2,)]


def test_a_node_that_dies_at_the_tail_is_listed_before_it_is_needed() -> None:
    cluster = even_cluster(blocks=10, is_endless=True)
    cluster.open()
    cluster.run(1_000)
    cluster.kill(2)
    cluster.run(100)
    append(cluster, 11, 20)
    cluster.run(100)
    assert cluster.shown() == records(1, 20)
    assert cluster.rewinds == {"sender_lost": 1}


def refuse(cluster: Cluster) -> None:
    cluster.nodes[TWO].refusal = Refusal.BUSY


def hang(cluster: Cluster) -> None:
    cluster.hang(2)


def kill(cluster: Cluster) -> None:
    cluster.kill(2)


def damage(cluster: Cluster) -> None:
    cluster.nodes[TWO].damaged.add(at(7))


@pytest.mark.parametrize(
    ("happens", "reason"),
    [(refuse, "refused"), (hang, "started_timeout"), (kill, "sender_lost"), (damage, "damaged")],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_node_that_cannot_send_is_listed(happens: Callable[[Cluster], None], reason: str) -> None:
    cluster = even_cluster()
    happens(cluster)
    cluster.open()
    cluster.run(5_000)
    assert cluster.shown() == records(1, 60)
    assert cluster.rewinds[reason] == 1
    assert (2,) in told_down(cluster)
    assert all(down in ((), (2,)) for down in told_down(cluster))


def test_a_node_that_ends_the_stream_is_listed() -> None:
    cluster = even_cluster(is_endless=True)
    cluster.open()
    cluster.run(1_000)
    cluster.nodes[TWO].stop()
    ended = Ended(STREAM, 1, Refusal.UNAVAILABLE, Epoch(0), at(61))
    cluster.perform(cluster.stream.arrived(TWO, ended, cluster.now_ms))
    cluster.run(5)
    assert cluster.rewinds == {"ended": 1}


@pytest.mark.parametrize(
    "status", [each for each in AuthoritativeStatus if each.name != "FULLY_AUTHORITATIVE"]
)
def test_who_is_not_authoritative_is_listed_from_the_start(status: AuthoritativeStatus) -> None:
    cluster = even_cluster(statuses={TWO: status})
    cluster.kill(2)
    cluster.open()
    cluster.run(1_000)
    assert cluster.shown() == records(1, 60)
    assert (told_down(cluster), cluster.rewinds) == ([(2,)], {})


def test_a_node_that_serves_is_believed_more_than_its_status() -> None:
    cluster = even_cluster(blocks=100, is_endless=True)
    cluster.open()
    cluster.run(10)
    cluster.set_statuses({TWO: AuthoritativeStatus.UNDERREPLICATION})
    cluster.run(1_000)
    assert (told_down(cluster), cluster.rewinds) == ([()], {})


def test_a_node_that_sends_again_leaves_the_list_when_the_window_slides() -> None:
    cluster = even_cluster(blocks=20, is_endless=True)
    cluster.open()
    cluster.kill(2)
    cluster.run(1_000)
    cluster.revive(2)
    cluster.run(60_000)
    assert told_down(cluster)[-1] == (2,), "it has nothing to send yet"
    append(cluster, 21, 60)
    cluster.run(1_000)
    assert cluster.shown() == records(1, 60)
    assert told_down(cluster) == [(), (2,), ()]
    assert cluster.rewinds == {"sender_lost": 1, "returned": 1}


def test_a_node_is_not_taken_back_before_a_block_that_it_cannot_read() -> None:
    cluster = even_cluster(settings=with_settings(window_lsns=40, window_bytes=500))
    damage(cluster)
    cluster.nodes[TWO].damaged.add(at(32))
    cluster.open()
    cluster.run(2_000)
    assert cluster.shown() == records(1, 60)
    assert cluster.stream.rewinds.total <= 4


def test_a_node_that_lost_blocks_is_listed_when_one_is_missing_and_stays() -> None:
    cluster = even_cluster(blocks=500)
    cluster.nodes[TWO].copies.clear()
    cluster.nodes[TWO].is_incomplete = True
    cluster.open()
    cluster.run(5_000)
    assert cluster.shown() == records(1, 500)
    assert cluster.rewinds == {"incomplete": 1}


def test_one_down_and_one_that_lost_blocks_count_both() -> None:
    """LogDevice was once stuck here for ever."""
    cluster = even_cluster(blocks=100)
    cluster.nodes[TWO].copies.clear()
    cluster.nodes[TWO].is_incomplete = True
    cluster.kill(3)
    cluster.open()
    cluster.run(5_000)
    assert cluster.shown() == records(1, 100)


def test_a_node_that_hangs_in_the_middle_is_listed_after_the_timeout() -> None:
    cluster = even_cluster(blocks=40, is_endless=True)
    cluster.open()
    cluster.run(1_000)
    cluster.hang(2)
    append(cluster, 41, 60)
    cluster.run(299_000)
    assert cluster.next_lsn == at(42), "42 is N2's"
    cluster.run(2_000)
    assert cluster.shown() == records(1, 60)
    assert cluster.rewinds == {"no_progress": 1}


def test_all_nodes_hang_and_wake() -> None:
    cluster = even_cluster(blocks=40)
    cluster.open()
    for node in range(1, 6):
        cluster.hang(node)
    cluster.run(10_000)
    for node in range(1, 6):
        cluster.wake(node)
    cluster.run(40_000)
    assert cluster.shown() == records(1, 40)


def test_all_nodes_die_and_return() -> None:
    cluster = even_cluster(blocks=100)
    cluster.open()
    cluster.run(6)
    cluster.kill(1, 2, 3, 4, 5)
    cluster.run(100_000)
    assert not cluster.is_finished
    assert cluster.stream.rewinds.total <= 3
    cluster.revive(1, 2, 3, 4, 5)
    cluster.run(100_000)
    assert cluster.shown() == records(1, 100)


def large_blocks(mode: SlowNodeMode, blocks: int = 2_000) -> Cluster:
    """Speed is measured by the mebibyte."""
    slow_nodes = SlowNodeSettings(mode=mode, outlier_ms_min=20_000)
    settings = with_settings(
        slow_nodes=slow_nodes, window_lsns=50, window_bytes=16 * MIB, sender_bytes_min=4 * MIB
    )
    return even_cluster(blocks=blocks, is_endless=True, settings=settings, block_bytes=MIB // 2)


def test_slow_nodes_are_listed_and_come_back_after_their_probation() -> None:
    cluster = large_blocks(SlowNodeMode.ON)
    cluster.open()
    cluster.run(100)
    cluster.nodes[TWO].latency_ms = 400
    cluster.run(10_000)
    assert cluster.rewinds == {"slow": 1}
    assert cluster.next_lsn == at(2_001), "a slow node does not hold up the others"
    cluster.run(60_000)
    assert cluster.rewinds == {"slow": 2}
    assert told_down(cluster) == [(), (2,), ()]


def speed_after(trouble: Callable[[Cluster], None]) -> tuple[int, Cluster]:
    """Blocks in a second, when the reader has got over it."""
    cluster = large_blocks(SlowNodeMode.ON, blocks=6_000)
    for node in cluster.nodes.values():
        node.latency_ms = 10
    cluster.open()
    cluster.run(500)
    trouble(cluster)
    cluster.run(1_000)
    begun = cluster.next_lsn
    cluster.run(1_000)
    assert cluster.next_lsn < at(6_000), "it did not come to the end"
    return cluster.next_lsn - begun, cluster


def test_a_slow_node_leaves_the_reader_the_speed_of_the_others() -> None:
    def turn_slow(cluster: Cluster) -> None:
        cluster.nodes[TWO].latency_ms *= 20

    others, _ = speed_after(lambda cluster: cluster.kill(TWO))
    left, cluster = speed_after(turn_slow)
    assert cluster.rewinds == {"slow": 1}
    assert left >= 0.8 * others


def test_slow_nodes_that_are_only_observed_are_not_listed() -> None:
    cluster = large_blocks(SlowNodeMode.OBSERVE)
    cluster.open()
    cluster.run(100)
    cluster.nodes[TWO].latency_ms = 400
    cluster.run(10_000)
    assert cluster.next_lsn < at(2_001)
    assert cluster.rewinds == {}
    assert cluster.stream.slow_nodes.explain()["slow"]


# -- All send all --------------------------------------------------------------------------------


def misplaced(offset: int, blocks: int = 60, **settings: object) -> Cluster:
    """The first two of the block's copyset do not hold it, and do not know."""
    cluster = even_cluster(blocks=blocks, settings=with_settings(**settings))
    for node in copyset_of(offset, 5, 3)[:2]:
        del cluster.nodes[NodeId(node)].copies[at(offset)]
    return cluster


def test_when_nobody_is_left_to_send_all_do_until_the_window_slides() -> None:
    cluster = misplaced(20)
    cluster.open()
    cluster.run(5_000)
    assert cluster.shown() == records(1, 60)
    assert cluster.rewinds == {"nobody_left": 1, "slid": 1}
    modes = [start.shipping.is_single_copy for _, start in cluster.started if start.shipping]
    assert modes == [True] * 5 + [False] * 5 + [True] * 5


def test_a_node_that_is_down_and_has_passed_the_position_counts_once() -> None:
    """Otherwise all would send all although N3 is to send it."""
    cluster = even_cluster(blocks=10, size=3, copies=2, is_endless=True)
    cluster.open()
    cluster.run(1_000)
    cluster.nodes[ONE].refusal = Refusal.BUSY
    cluster.kill(1)
    cluster.revive(1)
    cluster.run(1_000)
    cluster.nodes[ONE].refusal = None
    cluster.run(30_000)
    cluster.store(block(at(11)), [3, 2])
    cluster.release(at(11), 1, 2)
    cluster.run(1_000)
    assert (cluster.next_lsn, cluster.stream.lists.mode) == (at(11), Mode.SINGLE_COPY)
    cluster.release(at(11), 3)
    cluster.run(100)
    assert cluster.next_lsn == at(12)


def lost_block(offset: int = 20, blocks: int = 60, **settings: object) -> Cluster:
    cluster = even_cluster(blocks=blocks, settings=with_settings(**settings))
    for node in cluster.nodes.values():
        node.copies.pop(at(offset), None)
    return cluster


@pytest.mark.parametrize(
    ("has_second_chance", "rewinds"),
    [
        (True, {"nobody_left": 1, "second_chance": 1, "slid": 1}),
        (False, {"nobody_left": 1, "slid": 1}),
    ],
)
def test_a_loss_is_told_after_all_were_asked_again(
    has_second_chance: bool, rewinds: dict[str, int]
) -> None:
    cluster = lost_block(has_second_chance=has_second_chance)
    cluster.open()
    cluster.run(5_000)
    assert cluster.shown() == [*records(1, 19), "dataloss 20..20", *records(21, 60)]
    assert cluster.rewinds == rewinds


def test_the_last_block_of_all_can_be_lost_too() -> None:
    cluster = lost_block(20, blocks=20)
    cluster.open()
    cluster.run(5_000)
    assert cluster.shown() == [*records(1, 19), "dataloss 20..20"]


def test_a_loss_is_told_after_three_grace_periods_when_a_node_is_silent() -> None:
    cluster = lost_block()
    cluster.kill(1)
    cluster.open()
    cluster.run(250)
    assert cluster.next_lsn == at(20)
    cluster.run(1_000)
    assert cluster.shown() == [*records(1, 19), "dataloss 20..20", *records(21, 60)]


def test_who_is_silent_once_is_not_waited_for_at_every_loss() -> None:
    cluster = lost_block()
    for offset in (21, 25, 30):
        for node in cluster.nodes.values():
            node.copies.pop(at(offset), None)
    cluster.kill(1)
    cluster.open()
    cluster.run(800)
    assert cluster.is_finished


@pytest.mark.parametrize(
    ("status", "is_told"),
    [
        (AuthoritativeStatus.UNAVAILABLE, False),
        (AuthoritativeStatus.FULLY_AUTHORITATIVE, False),
        (AuthoritativeStatus.UNDERREPLICATION, True),
    ],
)
def test_whether_a_loss_is_told_depends_on_whether_nodes_come_back(
    status: AuthoritativeStatus, is_told: bool
) -> None:
    """All three that hold it are away."""
    away = copyset_of(20, 5, 3)
    cluster = even_cluster(statuses={NodeId(node): status for node in away})
    cluster.kill(*away)
    cluster.open()
    cluster.run(60_000)
    assert cluster.is_finished is is_told
    assert any("dataloss" in part for part in cluster.shown()) is is_told
    if not is_told:
        cluster.revive(*away)
        cluster.run(60_000)
        assert cluster.shown() == records(1, 60)


def test_who_is_marked_as_lost_later_is_not_waited_for_any_more() -> None:
    away = copyset_of(20, 5, 3)
    cluster = even_cluster()
    cluster.kill(*away)
    cluster.open()
    cluster.run(60_000)
    assert not cluster.is_finished
    cluster.set_statuses({NodeId(node): AuthoritativeStatus.UNDERREPLICATION for node in away})
    cluster.run(60_000)
    assert cluster.is_finished


def test_when_a_node_was_rebuilt_elsewhere_all_are_asked_again() -> None:
    """Others may hold new copies behind what they have said to have passed."""
    cluster = even_cluster(is_endless=True)
    cluster.kill(2)
    cluster.open()
    cluster.run(1_000)
    before = cluster.stream.rewinds.total
    cluster.set_statuses({TWO: AuthoritativeStatus.AUTHORITATIVE_EMPTY})
    cluster.run(100)
    assert cluster.stream.rewinds.total == before + 1
    assert cluster.rewinds["emptied"] == 1


def test_damaged_copies_everywhere_are_a_loss_and_one_good_copy_is_enough() -> None:
    cluster = even_cluster()
    for node in copyset_of(20, 5, 3):
        cluster.nodes[NodeId(node)].damaged.add(at(20))
    for node in copyset_of(30, 5, 3)[:2]:
        cluster.nodes[NodeId(node)].damaged.add(at(30))
    cluster.open()
    cluster.run(20_000)
    assert cluster.shown() == [*records(1, 19), "dataloss 20..20", *records(21, 60)]
