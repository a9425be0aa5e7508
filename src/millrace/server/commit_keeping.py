"""What the keeper does for commit logs: retention, trim points that their committers missed, and a
committer for logs of which no node has anything left that could ask for one.

A commit log is trimmed by its committer, with the next commit (`core/commit/`).  One that does not
answer is woken, and asked again in the next round.
"""

from typing import Final, TypeVar

from millrace.core.commit.append import wake_committer
from millrace.core.commit.record import CommitRecord
from millrace.core.commit.retention import retention_point
from millrace.core.commit.streams_known import StreamsKnown
from millrace.core.messages import CommitsChanged, TrimCommits
from millrace.core.procedure import DeadlinePassed, Procedure, ask
from millrace.meta.directory import ClusterDirectory
from millrace.runtime.procedures import ProcedureRunner
from millrace.server.ages import kept_us, oldest_us
from millrace.types import FIRST_LSN, LogInfo, Lsn

RETAIN_TIMEOUT_MS: Final = 10_000

T = TypeVar("T")


class CommitKeeping:
    def __init__(self, directory: ClusterDirectory, runner: ProcedureRunner) -> None:
        self._directory = directory
        self._runner = runner

    async def retain(self) -> None:
        infos = {info.id: info for info in await self._directory.logs()}
        ends = await self._directory.trim_ends()
        for record in await self._directory.commits():
            info, end = infos.get(record.log), ends.get(record.log, FIRST_LSN)
            if info is not None and end is not None:  # Else its trim point cannot be read.
                await self._retain(info, record, end)

    async def appoint(self) -> None:
        for record in await self._directory.commits():
            await self._run(wake_committer(record.log, record, StreamsKnown()))

    async def _retain(self, info: LogInfo, record: CommitRecord, end: Lsn) -> None:
        attributes, bytes_kept = info.attributes, info.attributes.retention_bytes
        if attributes.retention_ms is not None or bytes_kept is not None:
            procedure = retention_point(
                record, oldest_us(attributes), bytes_kept, kept_us(attributes)
            )
            point = await self._run(procedure)
            if point is not None and point > max(end, record.trim_end):
                end = await self._directory.raise_trim(info.id, point)
        if end > record.trim_end:
            await self._run(_trim(record, TrimCommits(info.id, end)))

    async def _run(self, procedure: Procedure[T]) -> T | None:
        """None if it took too long: the next round will do."""
        try:
            return await self._runner.run(procedure, RETAIN_TIMEOUT_MS)
        except DeadlinePassed:
            return None


def _trim(record: CommitRecord, request: TrimCommits) -> Procedure[None]:
    answer = (yield from ask(record.committer, request)) if record.committer else None
    if not isinstance(answer, CommitsChanged):
        yield from wake_committer(record.log, record, StreamsKnown())
