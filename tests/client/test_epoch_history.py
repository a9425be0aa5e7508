"""What a client knows of a log's epochs, while a node may be emptied between any two questions."""

import asyncio
from typing import Any, cast

import pytest

from millrace.client.cluster import Client
from millrace.client.epoch_history import EpochHistory
from millrace.core.epochs import EpochRecord, NodesetChange
from millrace.core.procedure import ClusterView
from millrace.core.replication import Replication
from millrace.types import AuthoritativeStatus, Epoch, LogAttributes, LogId, LogInfo, NodeId

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
LOG = LogInfo(LogId(11), "events", LogAttributes())
ONE_COPY = Replication.of(1)
EMPTY = AuthoritativeStatus.AUTHORITATIVE_EMPTY
QUESTIONS = 4


def record(epoch: int) -> EpochRecord:
    return EpochRecord(LOG.id, Epoch(epoch), TWO, (TWO,), ONE_COPY, since=Epoch(epoch))


class Repository:
    """Epoch 1 lies on node 1, until its copies are made on node 3.  It is the client, its directory
    and its runner in one."""

    def __init__(self, answers_before: int) -> None:
        """The node is emptied when so many questions are answered."""
        self.directory = self.runner = self
        self._answers_before = answers_before
        self._changes = [NodesetChange(Epoch(1), (ONE,), ONE_COPY)]
        self._record = record(2)
        self._statuses: dict[NodeId, AuthoritativeStatus] = {}

    def _answer(self) -> None:
        self._answers_before -= 1
        if self._answers_before == -1:
            self._changes.append(NodesetChange(Epoch(2), (TWO,), ONE_COPY))
            self._changes.append(NodesetChange(Epoch(1), (ONE, THREE), ONE_COPY, Epoch(3)))
            self._record = record(3)
            self._statuses = {ONE: EMPTY}

    async def read_epochs(self, log: LogId) -> tuple[EpochRecord, int]:
        self._answer()
        return self._record, 1

    async def run(self, procedure: Any, timeout_ms: int) -> tuple[NodesetChange, ...]:
        self._answer()
        return tuple(self._changes)

    async def view(self) -> ClusterView:
        self._answer()
        return ClusterView((), frozenset())

    async def statuses(self) -> dict[NodeId, AuthoritativeStatus]:
        self._answer()
        return dict(self._statuses)


@pytest.mark.parametrize("answers_before", range(QUESTIONS))
def test_who_is_empty_has_given_its_copies_to_nodes_that_are_known(answers_before: int) -> None:
    client = cast(Client, Repository(answers_before))
    known = asyncio.run(EpochHistory(client, LOG, record(1)).known(Epoch(1)))
    is_empty = known.statuses.get(ONE) is EMPTY
    assert THREE in known.ranges[0].nodeset or not is_empty
