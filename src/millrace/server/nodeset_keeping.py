"""What the keeper does about nodesets: move logs when nodes were added or drained.

What each log should have is decided by `core/sequenced/arranging.py`; its sequencer does it.

I1  Changes that follow each other closely are taken together: a log is moved when the same has been
    wanted for SETTLE_ROUNDS, or for ROUNDS_MAX whatever was wanted.  One whose appends wait for a
    drained node is moved at once.
I2  At most MOVES_AT_ONCE logs are moved at a time, and one that could not be is left alone for a
    while: the others come first.
I3  A log is moved after its metadata log, which must be able to take the change.
I4  A log that lies as it should is not arranged again before its record, its attributes or anything
    about the nodes is another: what should be follows from these alone.  To choose a nodeset for
    each log in each round was a quarter of what an idle cluster with hundreds of logs cost.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from millrace.core.epochs import (
    EpochRange,
    EpochRecord,
    NodesetChange,
    is_metadata_log,
    metadata_log_of,
    ranges,
)
from millrace.core.messages import ChangeNodeset, Redirected
from millrace.core.procedure import (
    Answer,
    Ask,
    ClusterView,
    DeadlinePassed,
    Failure,
    Procedure,
    ReadNodesetChanges,
    ask_all,
)
from millrace.core.sequenced.arranging import Scene, arrange, wish_for
from millrace.core.sequenced.preferred import preferred_sequencer
from millrace.core.statuses import Entries
from millrace.meta.directory import ClusterDirectory
from millrace.runtime.procedures import ProcedureRunner
from millrace.server.backoff import Backoff
from millrace.types import Epoch, LogId, LogInfo

SETTLE_ROUNDS: Final = 10
ROUNDS_MAX: Final = 60
MOVES_AT_ONCE: Final = 4
MOVE_TIMEOUT_MS: Final = 25_000
READ_TIMEOUT_MS: Final = 10_000

logger = logging.getLogger("millrace")


class _Wanted(msgspec.Struct):
    """What a log should have, and for how many rounds that has been so, or anything has."""

    change: ChangeNodeset
    rounds_same: int = 1
    rounds: int = 1


class _Arranged:
    """The logs that lie as they should (I4).  Records that are listed again unchanged are the same
    objects (`meta/directory.py`, I2); others are looked at in vain, at worst."""

    def __init__(self) -> None:
        self._view: ClusterView | None = None
        self._entries: Entries = {}
        self._logs: dict[LogId, tuple[EpochRecord, LogInfo | None]] = {}

    def look(self, view: ClusterView, entries: Entries, logs: Collection[LogId]) -> None:
        if view is not self._view or entries != self._entries:
            self._view, self._entries, self._logs = view, entries, {}
        self._logs = {log: known for log, known in self._logs.items() if log in logs}

    def has(self, record: EpochRecord, info: LogInfo | None) -> bool:
        known = self._logs.get(record.log)
        return known is not None and known[0] is record and known[1] is info

    def add(self, record: EpochRecord, info: LogInfo | None) -> None:
        self._logs[record.log] = record, info


class NodesetKeeping:
    def __init__(self, directory: ClusterDirectory, runner: ProcedureRunner) -> None:
        self._directory = directory
        self._runner = runner
        self._wanted: dict[LogId, _Wanted] = {}
        self._backoff = Backoff()
        self._arranged = _Arranged()
        self._old: dict[LogId, tuple[Epoch, tuple[EpochRange, ...]]] = {}

    async def look(self, view: ClusterView) -> None:
        entries = await self._directory.status_entries()
        scene = Scene(view, entries)
        infos = {info.id: info for info in await self._directory.logs()}
        records = {record.log: record for record in await self._directory.epochs()}
        self._backoff.look(view.live, set(records))
        self._old = {log: known for log, known in self._old.items() if log in records}
        self._arranged.look(view, entries, records.keys())
        wanted: dict[LogId, _Wanted] = {}
        urgent: set[LogId] = set()
        for record in records.values():
            change = await self._change(record, infos, scene)
            if change is not None:
                wanted[record.log] = _since(self._wanted.get(record.log), change)
                urgent |= {record.log} if scene.is_urgent(record) else set()
        self._wanted = wanted
        await self._move([records[log] for log in self._due(urgent)], view)

    async def _change(
        self, record: EpochRecord, infos: Mapping[LogId, LogInfo], scene: Scene
    ) -> ChangeNodeset | None:
        info = infos.get(record.log)
        if info is None and not is_metadata_log(record.log):
            return None  # It is being made, or deleted.
        if self._arranged.has(record, info):  # Keeps I4.
            return None
        old: tuple[EpochRange, ...] | None = ()
        if scene.barred and record.since > 1 and not is_metadata_log(record.log):
            old = await self._old_ranges(record)
        if old is None:
            return None
        attributes = None if info is None else info.attributes
        change = arrange(record, wish_for(record, attributes), scene, old)
        if change is None:
            self._arranged.add(record, info)
        return change

    async def _old_ranges(self, record: EpochRecord) -> tuple[EpochRange, ...] | None:
        """None if they cannot be read now.  As long as `since` stays they stay as well."""
        known = self._old.get(record.log)
        if known is None or known[0] != record.since:
            try:
                changes = await self._runner.run(_changes(record.log), READ_TIMEOUT_MS)
            except DeadlinePassed:
                return None
            if isinstance(changes, Failure):
                return None
            known = self._old[record.log] = record.since, ranges(changes, record)[:-1]
        return known[1]

    def _due(self, urgent: set[LogId]) -> list[LogId]:
        """Keeps I1, I2 and I3; metadata logs first."""
        now_s = asyncio.get_running_loop().time()
        due = [
            log
            for log, wanted in self._wanted.items()
            if log in urgent or wanted.rounds_same >= SETTLE_ROUNDS or wanted.rounds >= ROUNDS_MAX
            if is_metadata_log(log) or metadata_log_of(log) not in self._wanted
            if not self._backoff.is_resting(log, now_s)
        ]
        due.sort(key=lambda log: (log not in urgent, not is_metadata_log(log)))
        return due[:MOVES_AT_ONCE]

    async def _move(self, records: list[EpochRecord], view: ClusterView) -> None:
        asks: list[Ask] = []
        for record in records:
            preferred = preferred_sequencer(record.log, view.nodes, view.live)
            node = record.sequencer if record.sequencer in view.live else preferred
            if node is not None:
                asks.append(Ask(node, self._wanted[record.log].change, MOVE_TIMEOUT_MS))
        try:
            answers = await self._runner.run(ask_all(asks), MOVE_TIMEOUT_MS)
        except DeadlinePassed:
            return
        for request, answer in zip(asks, answers, strict=True):
            self._answered(request, answer)

    def _answered(self, request: Ask, answer: Answer) -> None:
        change = request.message
        assert isinstance(change, ChangeNodeset)
        if isinstance(answer, Redirected):
            self._backoff.succeeded(change.log)
            event, detail = "keeper.log_moved", f"epoch {answer.epoch}"
        else:
            self._backoff.failed(change.log, asyncio.get_running_loop().time())
            event, detail = "keeper.log_not_moved", str(answer)
        fields = {"log": change.log, "nodeset": change.nodeset, "detail": detail}
        logger.info(event, extra={"fields": fields})


def _since(before: _Wanted | None, change: ChangeNodeset) -> _Wanted:
    if before is None:
        return _Wanted(change)
    is_same = (before.change.nodeset, before.change.wider) == (change.nodeset, change.wider)
    rounds_same = before.rounds_same + 1 if is_same else 1
    return _Wanted(change, rounds_same, before.rounds + 1)


def _changes(log: LogId) -> Procedure[tuple[NodesetChange, ...] | Failure]:
    changes: tuple[NodesetChange, ...] | Failure = yield ReadNodesetChanges(log)
    return changes
