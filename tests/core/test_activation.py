"""Becoming the sequencer of a log, and which nodes are preferred for it."""

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core import procedure as p
from millrace.core.epochs import (
    EpochRecord,
    NodesetChange,
    is_metadata_log,
    metadata_log_of,
    ranges,
)
from millrace.core.replication import Replication, can_replicate
from millrace.core.sequenced.activation import (
    ATTEMPTS_MAX,
    Activated,
    ChooseNodeset,
    NotMine,
    activate,
    keep_nodeset,
)
from millrace.core.sequenced.nodesets import choose_nodeset
from millrace.core.sequenced.preferred import preferred_sequencer
from millrace.limits import NODESET_SIZE_MAX
from millrace.types import Epoch, LogId, NodeId, NodeInfo, Role
from tests.core.core_samples import DEADLINE, Run, node_info
from tests.core.sequenced_cluster import nodes

LOG = LogId(7)
ME, OTHER, THIRD = nodes(1, 2, 3)
TWICE = Replication.of(2)
VIEW = p.ClusterView(tuple(map(node_info, (1, 2, 3, 4))), frozenset(nodes(1, 2, 3, 4)))
DOWN = p.Failure(p.FailureKind.METADATA, "it does not answer")


def record(**fields: Any) -> EpochRecord:
    usual: dict[str, Any] = {"epoch": Epoch(4), "sequencer": ME, "since": Epoch(2), "changes": 9}
    usual |= {"nodeset": nodes(1, 2, 3), "replication": TWICE, "is_recorded": True, "log": LOG}
    return EpochRecord(**(usual | fields))


def grow(current: EpochRecord, view: p.ClusterView) -> tuple[tuple[NodeId, ...], Replication]:
    return nodes(1, 2, 3, 4), current.replication


def start(
    current: EpochRecord, *, suspects: tuple[NodeId, ...] = (), choose: ChooseNodeset = keep_nodeset
) -> Run:
    """An activation that has read the epoch store and knows who lives."""
    run = Run(activate(current.log, ME, suspects, choose))
    return run.answer((current, 20), VIEW)


# -- Claiming -----------------------------------------------------------------------------------


def test_an_activation_claims_the_next_epoch() -> None:
    run = start(record(sequencer=ME))
    claimed = record(epoch=Epoch(5), changes=10)
    assert run.last == p.ReplaceEpochs(claimed, 20)
    assert run.answer(True).result == Activated(claimed)
    assert run.notes == ["epoch.claimed"]


def test_what_recovery_found_is_kept() -> None:
    run = start(record(clean=Epoch(3), tail=77, is_sealed=True)).answer(True)
    kept = run.result.record
    assert (kept.clean, kept.tail, kept.is_sealed) == (3, 77, True)


@pytest.mark.parametrize(
    ("sequencer", "suspects", "is_left_alone"),
    [(OTHER, (), True), (OTHER, (OTHER,), False), (NodeId(9), (), False), (NodeId(0), (), False)],
    ids=["lives", "lives but cannot be reached", "does not live", "nobody yet"],
)
def test_whose_log_is_left_alone(
    sequencer: NodeId, suspects: tuple[NodeId, ...], is_left_alone: bool
) -> None:
    run = start(record(sequencer=sequencer), suspects=suspects)
    assert (run.result == NotMine(sequencer, Epoch(4))) == is_left_alone
    assert isinstance(run.last, p.ReplaceEpochs) != is_left_alone


def test_whoever_was_faster_is_left_alone_although_it_is_suspected() -> None:
    run = start(record(sequencer=THIRD), suspects=(OTHER, THIRD)).answer(False)
    assert isinstance(run.last, p.Pause)
    run.answer(None, (record(epoch=Epoch(5), sequencer=OTHER), 21), VIEW)
    assert run.result == NotMine(OTHER, Epoch(5))


def test_a_change_that_is_no_new_epoch_does_not_end_the_race() -> None:
    """The old sequencer marked its recovery clean just now."""
    old = record(sequencer=OTHER)
    run = start(old, suspects=(OTHER,)).answer(False)
    run.answer(None, (msgspec.structs.replace(old, clean=Epoch(3)), 21), VIEW)
    assert isinstance(run.last, p.ReplaceEpochs)
    assert (run.last.record.epoch, run.last.record.clean, run.last.expected) == (5, 3, 21)


def test_an_own_claim_of_unknown_outcome_is_followed_by_the_next_epoch() -> None:
    run = start(record()).answer(DOWN, None, (record(epoch=Epoch(5)), 21), VIEW)
    assert isinstance(run.last, p.ReplaceEpochs)
    assert run.last.record.epoch == 6


@pytest.mark.parametrize("answers", [(DOWN,), ((record(), 20), DOWN), ((record(), 20), VIEW, DOWN)])
def test_without_the_repository_it_gives_up_after_a_while(answers: tuple[Any, ...]) -> None:
    run = Run(activate(LOG, ME))
    for attempt in range(ATTEMPTS_MAX):
        run.answer(*(() if not attempt else (None,)), *answers)
    assert run.result == DOWN


def test_a_log_without_epochs_cannot_be_activated() -> None:
    run = Run(activate(LOG, ME)).answer((None, 0))
    assert run.result.kind is p.FailureKind.UNKNOWN_LOG


def test_a_deadline_is_a_failure() -> None:
    assert Run(activate(LOG, ME)).answer(DEADLINE).result.kind is p.FailureKind.TIMED_OUT


# -- Nodesets -----------------------------------------------------------------------------------

CHANGE = NodesetChange(Epoch(5), nodes(1, 2, 3, 4), TWICE)
GROWN = record(
    epoch=Epoch(5), since=Epoch(5), nodeset=nodes(1, 2, 3, 4), is_recorded=False, changes=10
)


def test_a_new_nodeset_is_recorded_before_the_epoch_is_used() -> None:
    run = start(record(), choose=grow)
    assert run.last == p.ReplaceEpochs(GROWN, 20)
    run.answer(True)
    assert run.last == p.AppendNodesetChange(LOG, CHANGE)
    run.answer(True, (GROWN, 21))
    recorded = msgspec.structs.replace(GROWN, is_recorded=True)
    assert run.last == p.ReplaceEpochs(recorded, 21)
    assert run.answer(True).result == Activated(recorded)


def test_what_an_earlier_activation_did_not_record_is_made_up_for() -> None:
    run = start(record(epoch=Epoch(2), since=Epoch(2), is_recorded=False)).answer(True)
    assert run.last == p.AppendNodesetChange(LOG, NodesetChange(Epoch(2), nodes(1, 2, 3), TWICE))


def test_another_replication_is_a_change_too() -> None:
    thrice = Replication.of(3)
    run = start(record(), choose=lambda current, _: (current.nodeset, thrice)).answer(True)
    assert run.last == p.AppendNodesetChange(LOG, NodesetChange(Epoch(5), nodes(1, 2, 3), thrice))


def test_an_epoch_that_was_taken_over_meanwhile_is_not_used() -> None:
    run = start(record(), choose=grow).answer(True, True)
    run.answer((record(epoch=Epoch(6), sequencer=OTHER), 22))
    assert run.result == NotMine(OTHER, Epoch(6))


def test_without_its_metadata_log_a_log_with_a_new_nodeset_is_not_activated() -> None:
    assert start(record(), choose=grow).answer(True, DOWN).result == DOWN


def test_a_metadata_log_has_none_itself() -> None:
    log = metadata_log_of(LOG)
    assert is_metadata_log(log) and not is_metadata_log(LOG)
    run = start(record(log=log, is_recorded=False)).answer(True)
    assert isinstance(run.result, Activated)


def test_an_unrecorded_epoch_belongs_to_the_nodeset_before() -> None:
    """It is empty, so it does not matter where its blocks would have been."""
    first = NodesetChange(Epoch(1), nodes(1, 2), TWICE)
    known = ranges([first], record(epoch=Epoch(6), since=Epoch(6)))
    assert [(each.first, each.last) for each in known] == [(1, 5), (6, 6)]


# -- Preferences --------------------------------------------------------------------------------


def sequencer(number: int) -> NodeInfo:
    return node_info(number, roles=(Role.SEQUENCER,))


def test_the_preferred_sequencer_is_the_same_everywhere_and_always() -> None:
    """These values are a promise: nodes of two versions must agree."""
    infos = [sequencer(number) for number in (1, 2, 3)]
    found = [preferred_sequencer(LogId(log), infos, nodes(1, 2, 3)) for log in range(1, 9)]
    assert found == [3, 2, 1, 3, 1, 2, 1, 3]


def test_only_live_sequencers_are_preferred() -> None:
    infos = [sequencer(1), sequencer(2), node_info(3)]
    assert preferred_sequencer(LOG, infos, nodes(2, 3)) == 2
    assert preferred_sequencer(LOG, infos, nodes(3)) is None


def test_a_node_that_goes_moves_only_its_own_logs() -> None:
    infos = [sequencer(number) for number in range(1, 6)]
    before = {
        log: preferred_sequencer(LogId(log), infos, nodes(1, 2, 3, 4, 5)) for log in range(500)
    }
    after = {log: preferred_sequencer(LogId(log), infos, nodes(1, 2, 3, 4)) for log in range(500)}
    assert {log for log in before if before[log] != after[log]} == {
        log for log in before if before[log] == 5
    }
    assert min(Counter(before.values()).values()) > 60


def storage(number: int, rack: str = "") -> NodeInfo:
    return node_info(number, f"r.d.c.w.{rack}" if rack else "")


def test_a_nodeset_is_all_there_is_unless_a_size_is_given() -> None:
    infos = [storage(number) for number in range(1, 8)]
    live = nodes(*range(1, 8))
    assert sorted(choose_nodeset(LOG, TWICE, infos, live)) == list(live)
    assert len(choose_nodeset(LOG, TWICE, infos, live, 4)) == 4
    many = [storage(number) for number in range(1, 200)]
    found = choose_nodeset(LOG, TWICE, many, [node.id for node in many])
    assert len(found) == NODESET_SIZE_MAX


def test_members_stay_although_they_are_down_and_others_join() -> None:
    infos = [storage(number) for number in range(1, 6)]
    found = choose_nodeset(LOG, TWICE, infos, nodes(1, 3, 4, 5), 4, current=nodes(2, 3, 9))
    assert found[:2] == nodes(2, 3)
    assert len(found) == 4


def test_a_nodeset_grows_beyond_its_size_when_it_could_not_be_written_otherwise() -> None:
    infos = [storage(number) for number in range(1, 6)]
    found = choose_nodeset(LOG, Replication.of(3), infos, nodes(3, 4, 5), 3, current=nodes(1, 2, 3))
    assert found[:3] == nodes(1, 2, 3)
    assert set(found[3:]) == set(nodes(4, 5))


def test_racks_are_taken_in_turn() -> None:
    infos = [storage(number, "abc"[number % 3]) for number in range(1, 13)]
    across = Replication.of({"rack": 2, "node": 3})
    found = choose_nodeset(LOG, across, infos, [node.id for node in infos], 6)
    assert sorted(Counter("abc"[node % 3] for node in found).values()) == [2, 2, 2]


@given(
    racks=st.lists(st.sampled_from("abc"), min_size=1, max_size=9),
    down=st.sets(st.integers(1, 9)),
    size=st.none() | st.integers(1, 9),
    current=st.sets(st.integers(1, 12)),
    replication=st.sampled_from([1, 2, 3, {"rack": 2}, {"rack": 2, "node": 3}]),
)
def test_a_nodeset_can_be_written_if_the_cluster_can(
    racks: list[str], down: set[int], size: int | None, current: set[int], replication: Any
) -> None:
    infos = [storage(number, rack) for number, rack in enumerate(racks, 1)]
    locations = {node.id: node.location for node in infos}
    live = [node.id for node in infos if node.id not in down]
    wanted = Replication.of(replication)
    members = nodes(*sorted(current))
    found = choose_nodeset(LOG, wanted, infos, live, size, members)
    assert found == choose_nodeset(LOG, wanted, infos[::-1], live[::-1], size, members)
    assert len(set(found)) == len(found)
    usable = [node for node in found if node in live]
    assert can_replicate(wanted, usable, locations) or not can_replicate(wanted, live, locations)
