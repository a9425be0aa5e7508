"""Where epochs lie is found out in several questions, and a node may be emptied between any two."""

import pytest

from millrace.core.epochs import EpochRecord, NodesetChange
from millrace.core.messages import TokenFound
from millrace.core.procedure import (
    AskAll,
    ClusterView,
    Effect,
    Failure,
    FailureKind,
    ListNodes,
    Procedure,
    ReadEpochs,
    ReadNodesetChanges,
    ReadStatuses,
)
from millrace.core.replication import Replication
from millrace.core.sequenced.settling import find_append
from millrace.core.sequenced.whereabouts import Whereabouts, look_up
from millrace.lsn import lsn_of
from millrace.types import (
    AuthoritativeStatus,
    Copy,
    EntryKind,
    Epoch,
    Extent,
    LogId,
    NodeId,
    Placement,
    Token,
)
from tests.core.reading.read_cluster import nodes

LOG = LogId(11)
ONE_COPY = Replication.of(1)
EMPTY = AuthoritativeStatus.AUTHORITATIVE_EMPTY
QUESTIONS = 4  # While nobody is empty.
TOKEN = Token(1, 1)
FIRST = lsn_of(Epoch(1), 1)
COPY = Copy(Extent(FIRST, FIRST, EntryKind.DATA, TOKEN, 1, 100), Placement(nodes(3)))
TOLD, SILENT = TokenFound(COPY), Failure(FailureKind.CONNECT, "it is off")


class Repository:
    """Epoch 1 lies on node 1, until its copies are made on node 3."""

    def __init__(self, answers_before: int) -> None:
        """The node is emptied when so many questions are answered."""
        self._answers_before = answers_before
        self._changes = [NodesetChange(Epoch(1), nodes(1), ONE_COPY)]
        self._record = record(2)
        self._statuses: dict[NodeId, AuthoritativeStatus] = {}

    def answer(self, effect: Effect) -> object:
        self._answers_before -= 1
        if self._answers_before == -1:
            self._changes.append(NodesetChange(Epoch(2), nodes(2), ONE_COPY))
            self._changes.append(NodesetChange(Epoch(1), nodes(1, 3), ONE_COPY, Epoch(3)))
            self._record = record(3)
            self._statuses = {NodeId(1): EMPTY}
        match effect:
            case ReadEpochs():
                return self._record, 1
            case ReadNodesetChanges():
                return tuple(self._changes)
            case ListNodes():
                return ClusterView((), frozenset())
            case ReadStatuses():
                return dict(self._statuses)
            case AskAll(asks):
                return [TOLD if ask.node == 3 else SILENT for ask in asks]
        raise AssertionError(effect)


def record(epoch: int) -> EpochRecord:
    newest = Epoch(epoch)
    return EpochRecord(LOG, newest, NodeId(2), nodes(2), ONE_COPY, since=newest, clean=Epoch(1))


def found_in(repository: Repository, search: Procedure[object]) -> object:
    answer = None
    while True:
        try:
            effect = search.send(answer)
        except StopIteration as stop:
            return stop.value
        answer = repository.answer(effect)


@pytest.mark.parametrize("answers_before", range(QUESTIONS))
def test_who_is_empty_has_given_its_copies_to_nodes_that_are_known(answers_before: int) -> None:
    found = found_in(Repository(answers_before), look_up(LOG, Epoch(1)))
    assert isinstance(found, Whereabouts)
    is_empty = found.statuses.get(NodeId(1)) is EMPTY
    assert NodeId(3) in found.ranges[0].nodeset or not is_empty


def test_an_append_is_found_on_nodes_that_its_epoch_has_gained() -> None:
    """Nobody is left of those that the older record names: they would be taken to have nothing."""
    found = found_in(Repository(0), find_append(record(2), Epoch(1), TOKEN))
    assert found == COPY.extent
