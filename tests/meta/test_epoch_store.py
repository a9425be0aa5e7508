"""The epoch store and the statuses of nodes, as procedures and people find them."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from millrace.codec.blocks import junk
from millrace.core.epochs import EpochRecord
from millrace.core.messages import Message
from millrace.core.replication import Replication
from millrace.core.sequenced.activation import Activated, activate
from millrace.core.statuses import NodeStatusEntry, StatusChange
from millrace.errors import MetadataOutcomeUnknown
from millrace.meta import keys
from millrace.meta.contract import Entry
from millrace.meta.directory import ClusterDirectory
from millrace.meta.memory import MemoryRepository
from millrace.runtime.procedures import ProcedureRunner
from millrace.types import AuthoritativeStatus, Epoch, LogId, NodeId

LOG = LogId(5)
NODES = (NodeId(1), NodeId(2), NodeId(3))
NEW = EpochRecord(LOG, Epoch(0), NodeId(0), NODES, Replication.of(2), Epoch(1))
ACROSS = Replication.of({"rack": 2, "node": 3})
Body = Callable[[ClusterDirectory], Awaitable[None]]


def with_directory(body: Body, repository: type[MemoryRepository] = MemoryRepository) -> None:
    async def run() -> None:
        await body(ClusterDirectory(repository()))

    asyncio.run(run())


def test_the_keys_are_spelled_so() -> None:
    record = EpochRecord(LOG, Epoch(7), NodeId(2), NODES, ACROSS, Epoch(3), is_recorded=True)
    assert keys.EPOCHS.key(LOG) == "epochs/5"
    assert keys.EPOCHS.decode(Entry("epochs/5", keys.EPOCHS.encode(record), 1)) == record
    change = StatusChange(AuthoritativeStatus.UNAVAILABLE, 1, "it is silent")
    status = NodeStatusEntry(AuthoritativeStatus.UNDERREPLICATION, 2, "disk lost", (change,))
    assert keys.STATUSES.key(NodeId(3)) == "status/3"
    assert keys.STATUSES.decode(Entry("status/3", keys.STATUSES.encode(status), 1)) == status


def test_a_record_is_replaced_by_compare_and_set() -> None:
    async def body(directory: ClusterDirectory) -> None:
        assert await directory.read_epochs(LOG) == (None, 0)
        assert await directory.replace_epochs(NEW, 0)
        assert not await directory.replace_epochs(NEW, 0)
        found, version = await directory.read_epochs(LOG)
        assert found == NEW
        assert version > 0

    with_directory(body)


@pytest.mark.parametrize("has_happened", [True, False])
def test_a_change_of_unknown_outcome_is_looked_up(has_happened: bool) -> None:
    class Vague(MemoryRepository):
        async def set(self, key: str, value: bytes, expected: int, lease: int = 0) -> Entry:
            if has_happened:
                await super().set(key, value, expected, lease)
            raise MetadataOutcomeUnknown("it went away")

    async def body(directory: ClusterDirectory) -> None:
        assert await directory.replace_epochs(NEW, 0) == has_happened

    with_directory(body, Vague)


def test_statuses_are_those_of_the_nodes_that_have_one() -> None:
    async def body(directory: ClusterDirectory) -> None:
        assert await directory.statuses() == {}
        entry = NodeStatusEntry(AuthoritativeStatus.UNAVAILABLE)
        await directory.repository.set(keys.STATUSES.key(NodeId(2)), keys.STATUSES.encode(entry), 0)
        assert await directory.statuses() == {2: AuthoritativeStatus.UNAVAILABLE}

    with_directory(body)


def test_a_log_that_is_removed_leaves_no_epochs() -> None:
    async def body(directory: ClusterDirectory) -> None:
        await directory.replace_epochs(NEW, 0)
        await directory.remove_projection(LOG)
        assert (await directory.read_epochs(LOG))[0] is None

    with_directory(body)


async def ask_nobody(*_: object) -> Message:
    raise AssertionError("this activation asks the repository alone")


def test_an_activation_runs_on_a_real_repository() -> None:
    async def body(directory: ClusterDirectory) -> None:
        runner = ProcedureRunner(ask_nobody, directory, junk)
        await directory.replace_epochs(msgspec.structs.replace(NEW, is_recorded=True), 0)
        for epoch in (1, 2):
            result = await runner.run(activate(LOG, NodeId(1)), 5_000)
            assert isinstance(result, Activated)
            assert (result.record.epoch, result.record.since) == (epoch, 1)

    with_directory(body)
