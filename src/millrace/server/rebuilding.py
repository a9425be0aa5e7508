"""A node's work as a donor: walk the logs it holds for as long as some node is to be rebuilt.

I1  A report speaks of statuses that this node went by before it began to walk: from then on it
    takes no copy that names a node whose copies are being made elsewhere.
I2  One log at a time, a batch of blocks at a time: appends and readers come first.
I3  A walk in which nothing could be done is repeated after a pause that grows, or as soon as the
    statuses or other donors have changed.
"""

import asyncio
import logging
from typing import Final

from millrace.codec.blocks import junk
from millrace.core.epochs import is_metadata_log, log_of
from millrace.core.messages import Release
from millrace.core.procedure import DeadlinePassed
from millrace.core.sequenced.append import Seats
from millrace.core.sequenced.giving import Tally
from millrace.core.sequenced.rebuilding import LogWalk
from millrace.core.sequenced.replacing import Ward
from millrace.core.sequenced.tail import find_tail
from millrace.core.statuses import Entries, StatusBoard
from millrace.errors import MillraceError
from millrace.meta import keys
from millrace.meta.directory import ClusterDirectory
from millrace.runtime.procedures import ProcedureRunner
from millrace.server.local import LOCAL_SESSION
from millrace.server.shell import NodeShell
from millrace.server.status_keeping import finished_for
from millrace.types import AuthoritativeStatus, LogId, NodeId

ROUND_S: Final = 0.5
PAUSE_S_MAX: Final = 30.0
REPORT_S: Final = 1.0  # At most so often while a walk goes on.
WALK_TIMEOUT_MS: Final = 3_600_000
TAIL_TIMEOUT_MS: Final = 5_000
GIVES: Final = (AuthoritativeStatus.FULLY_AUTHORITATIVE, AuthoritativeStatus.UNAVAILABLE)

logger = logging.getLogger("millrace")


class Rebuilding:
    def __init__(
        self,
        node: NodeId,
        directory: ClusterDirectory,
        runner: ProcedureRunner,
        shell: NodeShell,
        board: StatusBoard,
    ) -> None:
        self.blocks_done = 0  # Since the process began, as `bytes_done`.
        self.bytes_done = 0
        self.blocks_left: dict[NodeId, int] = {}
        self.bytes_left: dict[NodeId, int] = {}
        self._node = node
        self._directory = directory
        self._runner = runner
        self._shell = shell
        self._board = board
        self._seats = Seats()
        self._reported_s = 0.0
        self._pause_s = ROUND_S
        self._walk_after_s = 0.0
        self._seen: Ward | None = None
        self._waits_in = LogId(0)  # The log that the tally's `waits_for` is about.

    async def run(self) -> None:
        while True:
            await asyncio.sleep(ROUND_S)
            try:
                await self._round()
            except MillraceError as error:
                self._log("rebuilding.waiting", detail=str(error))

    async def _round(self) -> None:
        entries = self._board.entries  # Keeps I1.
        wanted = {node: entry.rebuild for node, entry in entries.items() if entry.rebuild}
        mine = self._board.mine
        if not wanted or (mine is not None and mine.status not in GIVES):
            self.blocks_left, self.bytes_left = {}, {}
            return
        reports = await self._directory.rebuild_reports()
        finished = {n: finished_for(n, version, reports) for n, version in wanted.items()}
        ward = ward_of(self._node, entries, finished)
        open_ones = {n: v for n, v in wanted.items() if self._node not in finished[n]}
        if not open_ones or not self._is_due(ward):
            return
        tally = await self._walk(ward, open_ones)
        self._plan_next(ward, tally)

    def _is_due(self, ward: Ward) -> bool:
        """Keeps I3."""
        return ward != self._seen or asyncio.get_running_loop().time() >= self._walk_after_s

    def _plan_next(self, ward: Ward, tally: Tally) -> None:
        is_news = ward != self._seen or bool(tally.blocks_done)
        self._pause_s = ROUND_S if is_news else min(2 * self._pause_s, PAUSE_S_MAX)
        self._walk_after_s = asyncio.get_running_loop().time() + self._pause_s
        self._seen = ward

    async def _walk(self, ward: Ward, wanted: dict[NodeId, int]) -> Tally:
        """Through all logs, and tell what came of it."""
        tally, is_whole = Tally(), True
        for log in self._shell.store.logs():
            before = (tally.blocks_done, tally.bytes_done)
            left = sum(tally.blocks_left.values())
            is_whole &= await self._walk_log(log, ward, tally)
            if sum(tally.blocks_left.values()) > left:
                self._waits_in = log
            self.blocks_done += tally.blocks_done - before[0]
            self.bytes_done += tally.bytes_done - before[1]
            if asyncio.get_running_loop().time() - self._reported_s >= REPORT_S:
                await self._report(wanted, tally, is_whole=False)
        self.blocks_left, self.bytes_left = tally.blocks_left, tally.bytes_left
        await self._report(wanted, tally, is_whole)
        return tally

    async def _walk_log(self, log: LogId, ward: Ward, tally: Tally) -> bool:
        state = self._shell.store.state(log)
        if state is None or not state.is_scattered:
            return True
        readable_end = self._shell.core.storage(log).readable_end
        unsettled = tally.unsettled
        walk = LogWalk(log, ward, state.trim_end, state.end, readable_end, tally, junk)
        try:
            trouble = await self._runner.run(walk.run(), WALK_TIMEOUT_MS)
        except DeadlinePassed:
            return False
        if tally.unsettled > unsettled:
            await self._learn_released(log)
        return trouble is None

    async def _learn_released(self, log: LogId) -> None:
        """This node may have missed what the sequencer said last, or the log has none."""
        try:
            tail = await self._runner.run(find_tail(log, self._seats), TAIL_TIMEOUT_MS)
        except DeadlinePassed:
            return
        if tail is not None:
            release = Release(log, tail.epoch, tail.released, tail.released)
            self._shell.handle(LOCAL_SESSION, 0, release)

    async def _report(self, wanted: dict[NodeId, int], tally: Tally, is_whole: bool) -> None:
        self._reported_s = asyncio.get_running_loop().time()
        waits_for = await self._waits_for(tally)
        for node, version in wanted.items():
            left = tally.blocks_left.get(node, 0)
            report = keys.RebuildReport(
                version,
                is_whole and not left,
                tally.blocks_done,
                tally.bytes_done,
                left,
                tally.bytes_left.get(node, 0),
                waits_for if left else "",
            )
            await self._directory.report_rebuild(keys.RebuildId(node, self._node), report)
            if report.is_finished:
                self._log("rebuilding.finished", of=node, version=version)

    async def _waits_for(self, tally: Tally) -> str:
        """With the log's name: operators know logs by theirs."""
        if not tally.waits_for:
            return ""
        log = log_of(self._waits_in)
        names = {info.id: repr(info.name) for info in await self._directory.logs()}
        what = f"log {names.get(log, log)}"
        if is_metadata_log(self._waits_in):
            what = f"the metadata of {what}"
        return f"{what}, {tally.waits_for}"

    def _log(self, event: str, **fields: object) -> None:
        logger.info(event, extra={"fields": {"node": self._node, **fields}})


def ward_of(me: NodeId, entries: Entries, finished: dict[NodeId, frozenset[NodeId]]) -> Ward:
    usual = AuthoritativeStatus.FULLY_AUTHORITATIVE
    return Ward(
        me,
        rebuilding=frozenset(finished),
        leaving=frozenset(node for node in finished if entries[node].status is usual),
        refillable=frozenset(node for node in finished if entries[node].is_refillable),
        forsaken=frozenset(node for node in finished if entries[node].is_forsaken),
        disabled=frozenset(node for node, entry in entries.items() if entry.is_disabled),
        finished=finished,
    )
