"""What the keeper does for sequenced logs: a sequencer for each, retention, and forgetting.

I1  A log whose sequencer's node is gone gets another, so that its last epoch is recovered and its
    readers go on, whether anybody appends or not.
I2  At most ACTIVATIONS_PER_ROUND logs are helped at a time: after a node's death the rest of the
    cluster has other work too.
"""

import asyncio
import logging
from typing import Final, TypeVar

from millrace.core.epochs import EpochRecord, NodesetChange, is_metadata_log, ranges
from millrace.core.messages import Activate
from millrace.core.procedure import (
    Ask,
    ClusterView,
    DeadlinePassed,
    Failure,
    Procedure,
    ReadNodesetChanges,
    ask_all,
)
from millrace.core.sequenced.preferred import preferred_sequencer
from millrace.core.sequenced.retention import members, retention_point, trim_sequenced
from millrace.meta.directory import ClusterDirectory
from millrace.runtime.procedures import ProcedureRunner
from millrace.server.ages import kept_us, oldest_us
from millrace.types import FIRST_LSN, LogId, LogInfo, Lsn

ACTIVATIONS_PER_ROUND: Final = 16
ACTIVATE_TIMEOUT_MS: Final = 5_000
RETAIN_TIMEOUT_MS: Final = 10_000
NAMELESS_S_MAX: Final = 60.0  # Longer than the creation of a log takes from its epochs to its name.

logger = logging.getLogger("millrace")
T = TypeVar("T")


class SequencedKeeping:
    def __init__(self, directory: ClusterDirectory, runner: ProcedureRunner) -> None:
        self._directory = directory
        self._runner = runner
        self._nameless_since_s: dict[LogId, float] = {}

    async def appoint(self, view: ClusterView) -> None:
        """Keeps I1 and I2."""
        orphans = [
            record
            for record in await self._directory.epochs()
            if record.sequencer
            and record.sequencer not in view.live
            and not is_metadata_log(record.log)
        ]
        asks: list[Ask] = []
        for record in orphans[:ACTIVATIONS_PER_ROUND]:
            node = preferred_sequencer(record.log, view.nodes, view.live)
            if node is not None:
                request = Activate(record.log, (record.sequencer,))
                asks.append(Ask(node, request, ACTIVATE_TIMEOUT_MS))
        if asks:
            await self._run(ask_all(asks), ACTIVATE_TIMEOUT_MS)

    async def retain(self) -> None:
        """Age and size, and whatever trim point a node has missed."""
        infos = {info.id: info for info in await self._directory.logs()}
        ends = await self._directory.trim_ends()
        for record in await self._directory.epochs():
            info, end = infos.get(record.log), ends.get(record.log, FIRST_LSN)
            if info is not None and end is not None:  # Else its trim point cannot be read.
                await self._retain(info, record, end)

    async def _retain(self, info: LogInfo, record: EpochRecord, known_end: Lsn) -> None:
        log, attributes = info.id, info.attributes
        wants = oldest_us(attributes) is not None or attributes.retention_bytes is not None
        if not wants and known_end <= FIRST_LSN:
            return
        changes: tuple[NodesetChange, ...] = ()
        if record.since > 1:
            read = await self._run(_changes(log), RETAIN_TIMEOUT_MS)
            if read is None or isinstance(read, Failure):
                return
            changes = read
        known = ranges(changes, record)
        view = await self._directory.view()
        if wants:
            point = await self._run(
                retention_point(
                    log,
                    known,
                    {node.id: node.location for node in view.nodes},
                    await self._directory.statuses(),
                    oldest_us(attributes),
                    attributes.retention_bytes,
                    kept_us(attributes),
                ),
                RETAIN_TIMEOUT_MS,
            )
            if point is not None and point > known_end:
                known_end = await self._directory.raise_trim(log, point)
        nodes = [node for node in members(known) if node in view.live]
        await self._run(trim_sequenced(log, nodes, known_end), RETAIN_TIMEOUT_MS)

    async def forget_nameless(self) -> None:
        """A client that died while it made or deleted a log leaves epochs that nobody can find."""
        named = {info.id for info in await self._directory.logs()}
        nameless = [
            record.log
            for record in await self._directory.epochs()
            if not is_metadata_log(record.log) and record.log not in named
        ]
        now_s = asyncio.get_running_loop().time()
        since_s = self._nameless_since_s
        self._nameless_since_s = {log: since_s.get(log, now_s) for log in nameless}
        for log, first_seen_s in list(self._nameless_since_s.items()):
            if now_s - first_seen_s > NAMELESS_S_MAX:
                await self._directory.remove_projection(log)
                logger.info("keeper.nameless_forgotten", extra={"fields": {"log": log}})

    async def _run(self, procedure: Procedure[T], timeout_ms: int) -> T | None:
        """None if it took too long: the next round will do."""
        try:
            return await self._runner.run(procedure, timeout_ms)
        except DeadlinePassed:
            return None


def _changes(log: LogId) -> Procedure[tuple[NodesetChange, ...] | Failure]:
    changes: tuple[NodesetChange, ...] | Failure = yield ReadNodesetChanges(log)
    return changes
