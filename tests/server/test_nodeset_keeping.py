"""Logs are arranged again when something about them or the nodes is another, and only then."""

from collections.abc import Awaitable, Callable

import msgspec
import pytest

from millrace.codec.blocks import junk
from millrace.core.epochs import EpochRecord, metadata_log_of
from millrace.core.messages import ChangeNodeset, Message, Redirected
from millrace.core.replication import Replication
from millrace.core.sequenced import arranging
from millrace.core.statuses import drain
from millrace.meta import keys
from millrace.meta.contract import ANY_VERSION
from millrace.meta.directory import ClusterDirectory
from millrace.meta.memory import MemoryRepository
from millrace.runtime.procedures import ProcedureRunner
from millrace.server import nodeset_keeping
from millrace.server.nodeset_keeping import SETTLE_ROUNDS, NodesetKeeping
from millrace.types import Epoch, LogAttributes, LogId, LogInfo, NodeId, NodeInfo, Role
from tests.support.clusters import run

LOG = LogId(1)
METADATA = metadata_log_of(LOG)
INFO = LogInfo(LOG, "orders", LogAttributes(replication=2), 0)


class Rig:
    """Three nodes with one log on all of them; sequencers say yes, and do nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.repository = MemoryRepository()
        self.directory = ClusterDirectory(self.repository)
        self.moves: list[ChangeNodeset] = []
        self.arranged: list[LogId] = []
        self.keeping = NodesetKeeping(
            self.directory, ProcedureRunner(self._ask, self.directory, junk)
        )

        def count(record: EpochRecord, *rest: object) -> ChangeNodeset | None:
            self.arranged.append(record.log)
            return arranging.arrange(record, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(nodeset_keeping, "arrange", count)

    async def _ask(self, node: NodeId, message: Message, timeout_ms: int) -> Message:
        assert isinstance(message, ChangeNodeset)
        self.moves.append(message)
        return Redirected(node, Epoch(2))

    async def add_node(self, id: int) -> None:
        info = NodeInfo(NodeId(id), f"host:{id}", "", (Role.STORAGE, Role.SEQUENCER))
        await self.repository.set(keys.NODES.key(info.id), keys.NODES.encode(info), 0)
        await self.appear(id)

    async def appear(self, id: int) -> None:
        live = keys.LIVE.encode(keys.LiveNode(NodeId(id)))
        await self.repository.set(keys.LIVE.key(NodeId(id)), live, ANY_VERSION)

    async def add_log(self, nodeset: tuple[NodeId, ...]) -> None:
        for log in (LOG, METADATA):
            two = Replication.of({"node": 2})
            record = EpochRecord(log, Epoch(1), NodeId(1), nodeset, two, since=Epoch(1))
            assert await self.directory.replace_epochs(record, 0)
        await self.directory.add_log(INFO)

    async def rounds(self, count: int) -> list[LogId]:
        """The logs that were arranged in them."""
        self.arranged.clear()
        for _ in range(count):
            await self.keeping.look(await self.directory.view())
        return self.arranged.copy()


def on_a_rig(monkeypatch: pytest.MonkeyPatch, body: Callable[[Rig], Awaitable[None]]) -> None:
    async def work() -> None:
        rig = Rig(monkeypatch)
        for id in (1, 2, 3):
            await rig.add_node(id)
        await rig.add_log((NodeId(1), NodeId(2), NodeId(3)))
        assert sorted(await rig.rounds(5)) == sorted([LOG, METADATA])  # Once each.
        await body(rig)

    run(work(), 20)


def test_a_new_node_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(rig: Rig) -> None:
        await rig.add_node(4)
        await rig.rounds(SETTLE_ROUNDS + 1)
        assert {move.log for move in rig.moves} == {METADATA}
        assert all(4 in move.nodeset for move in rig.moves)

    on_a_rig(monkeypatch, body)


def test_a_drain_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(rig: Rig) -> None:
        await rig.directory.change_status(NodeId(3), lambda entry: drain(entry, "", 1))
        await rig.rounds(SETTLE_ROUNDS)
        assert [(move.log, move.nodeset) for move in rig.moves] == [(LOG, (1, 2))]

    on_a_rig(monkeypatch, body)


def test_other_attributes_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(rig: Rig) -> None:
        wider = msgspec.structs.replace(INFO.attributes, replication=3)
        changed = msgspec.structs.replace(INFO, attributes=wider)
        value = keys.LOG_NAMES.encode(changed)
        await rig.repository.set(keys.LOG_NAMES.key(INFO.name), value, ANY_VERSION)
        assert set(await rig.rounds(SETTLE_ROUNDS)) == {LOG}
        assert [move.replication.copies for move in rig.moves] == [3]

    on_a_rig(monkeypatch, body)


def test_a_record_that_somebody_changed_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(rig: Rig) -> None:
        record, version = await rig.directory.read_epochs(LOG)
        assert record is not None
        smaller = msgspec.structs.replace(record, epoch=Epoch(2), nodeset=(NodeId(1), NodeId(2)))
        assert await rig.directory.replace_epochs(smaller, version)
        await rig.rounds(SETTLE_ROUNDS)
        assert [(move.log, set(move.nodeset)) for move in rig.moves] == [(LOG, {1, 2, 3})]

    on_a_rig(monkeypatch, body)


def test_a_node_that_lives_anew_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(rig: Rig) -> None:
        await rig.appear(2)
        assert len(await rig.rounds(5)) == 2 and not rig.moves

    on_a_rig(monkeypatch, body)
