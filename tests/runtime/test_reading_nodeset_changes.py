"""A metadata log that nobody tells of holds up nobody for long."""

import asyncio

import pytest

from loopback import run
from millrace.core.epochs import EpochRecord, metadata_log_of
from millrace.core.messages import Message
from millrace.core.procedure import Failure, FailureKind, Procedure, ReadNodesetChanges
from millrace.core.replication import Replication
from millrace.errors import NoAnswer
from millrace.meta.directory import ClusterDirectory
from millrace.meta.memory import MemoryRepository
from millrace.runtime import procedures
from millrace.runtime.procedures import ProcedureRunner
from millrace.types import Epoch, LogId, NodeId

LOG = LogId(5)
AN_HOUR_MS = 3_600_000


async def nobody(node: NodeId, message: Message, timeout_ms: int) -> Message:
    raise NoAnswer(f"node {node} is silent")


def reading() -> Procedure[object]:
    return (yield ReadNodesetChanges(LOG))


def test_whoever_reads_one_that_cannot_be_read_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procedures, "READ_TIMEOUT_MS", 50)

    async def body() -> None:
        directory = ClusterDirectory(MemoryRepository())
        node, metadata = NodeId(1), metadata_log_of(LOG)
        record = EpochRecord(metadata, Epoch(1), node, (node,), Replication.of(1), Epoch(1))
        assert await directory.replace_epochs(record, 0)
        runner = ProcedureRunner(nobody, directory, make_junk=None)  # type: ignore[arg-type]
        found = await asyncio.wait_for(runner.run(reading(), AN_HOUR_MS), 5)
        assert isinstance(found, Failure)
        assert found.kind is FailureKind.TIMED_OUT
        assert "nodes [1] do not answer" in found.detail

    run(body)
