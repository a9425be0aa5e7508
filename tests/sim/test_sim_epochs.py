"""The simulator's driver serves the epoch store as the one with sockets does."""

from typing import Any

from millrace.core.epochs import EpochRecord, NodesetChange
from millrace.core.procedure import (
    AppendNodesetChange,
    Effect,
    Failure,
    FailureKind,
    Procedure,
    ReadEpochs,
    ReadNodesetChanges,
    ReadStatuses,
    ReplaceEpochs,
)
from millrace.core.replication import Replication
from millrace.sim.schedule import MS
from millrace.sim.world import World
from millrace.types import Epoch, LogId, NodeId

LOG = LogId(77)
NODES = (NodeId(1), NodeId(2), NodeId(3))
RECORD = EpochRecord(LOG, Epoch(1), NodeId(1), NODES, Replication.of(2), Epoch(1))
CHANGE = NodesetChange(Epoch(1), NODES, Replication.of(2))


def order(*effects: Effect) -> Procedure[list[Any]]:
    answers = []
    for effect in effects:
        answers.append((yield effect))
    return answers


def answers_to(*effects: Effect) -> list[Any]:
    world, done = World(1), list[Any]()
    world.metadata.start()
    world.operator.start()
    world.operator.driver.start(order(*effects), done.extend)
    world.schedule.run(1_000 * MS, lambda: not done)
    return done


def test_a_record_is_replaced_by_compare_and_set() -> None:
    replace, read = ReplaceEpochs(RECORD, 0), ReadEpochs(LOG)
    nothing, first, second, (found, version) = answers_to(read, replace, replace, read)
    assert nothing == (None, 0)
    assert (first, second) == (True, False)
    assert found == RECORD
    assert version > 0


def test_nobody_has_a_status_at_first() -> None:
    assert answers_to(ReadStatuses()) == [{}]


def test_a_log_without_a_metadata_log_has_no_history() -> None:
    assert answers_to(ReadNodesetChanges(LOG)) == [()]


def test_a_change_cannot_be_recorded_where_there_is_no_metadata_log() -> None:
    (answer,) = answers_to(AppendNodesetChange(LOG, CHANGE))
    assert isinstance(answer, Failure)
    assert answer.kind is FailureKind.METADATA
