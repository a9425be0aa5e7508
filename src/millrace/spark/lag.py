"""Rate and lag of streaming queries from Spark's progress documents: pure, told the time.

A source is known to be ours by the shape of its offsets.  Of each log it says where the query has
read to (`endOffset`), where the log ended when the batch was planned (`latestOffset`), and how many
records lie between: lag in records.  The positions alone tell it only of logs whose positions are
consecutive.  Lag in seconds is how long ago the log ended where the query is now: the ends seen are
kept with their times, back to the first that the query has not reached.

I1  What is kept is bounded, for each log and for all queries; a longer history gets coarser.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from millrace.errors import UsageError
from millrace.spark import offsets

ENDS_MAX: Final = 256
RUNS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class LogStatus:
    name: str
    rows_per_s: float
    lag_records: int
    lag_s: float
    is_lag_s_exact: bool  # If not, the query was behind when first seen: the lag is at least this.


@dataclass(frozen=True, slots=True)
class QueryStatus:
    name: str  # The query's name, or the start of its id.
    batch: int
    batch_s: float
    logs: tuple[LogStatus, ...]

    @property
    def rows_per_s(self) -> float:
        return sum(log.rows_per_s for log in self.logs)

    @property
    def lag_records(self) -> int:
        return sum(log.lag_records for log in self.logs)

    @property
    def lag_s(self) -> float:
        return max((log.lag_s for log in self.logs), default=0.0)


class LagTracker:
    """Fed with progress documents, in order; tells the status of every query that was seen."""

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}

    def take(self, progress: Mapping[str, Any]) -> None:
        """A batch was done.  Queries that read no log of ours are passed over."""
        sources = list(_sources(progress))
        if not sources:
            return
        run = self._runs.setdefault(str(progress["runId"]), _Run())
        run.take(progress, sources)
        while len(self._runs) > RUNS_MAX:  # Keeps I1: the one that started first goes.
            del self._runs[next(iter(self._runs))]

    def idle(self, run_id: str) -> None:
        """The query found nothing new, so it has caught up."""
        if run_id in self._runs:
            for log in self._runs[run_id].logs.values():
                log.catch_up()

    def ended(self, run_id: str, now_s: float) -> QueryStatus | None:
        """Forget a query; where it stood."""
        run = self._runs.pop(run_id, None)
        return run.status(now_s) if run else None

    def status(self, now_s: float) -> tuple[QueryStatus, ...]:
        """`now_s` on the clock of the documents' timestamps: seconds since 1970."""
        return tuple(run.status(now_s) for run in self._runs.values())


@dataclass(slots=True)
class _Source:
    index: int
    rows_per_s: float
    start: Mapping[str, offsets.LogOffset]
    end: Mapping[str, offsets.LogOffset]
    latest: Mapping[str, offsets.LogOffset]

    def shares(self) -> dict[str, float]:
        """How much of the source's rows each log brought, by the records passed."""
        passed = {name: self._passed(name) for name in self.end}
        total = sum(passed.values())
        return {name: count / total if total else 0.0 for name, count in passed.items()}

    def _passed(self, name: str) -> int:
        latest = self.latest.get(name)
        if latest is not None and latest.taken is not None:
            return latest.taken
        return self.end[name].next - (self.start[name].next if name in self.start else 0)


@dataclass(slots=True)
class _Run:
    name: str = ""
    batch: int = 0
    batch_s: float = 0.0
    logs: dict[tuple[int, str], "_Log"] = field(default_factory=dict)

    def take(self, progress: Mapping[str, Any], sources: list[_Source]) -> None:
        self.name = progress.get("name") or str(progress["id"])[:8]
        self.batch = progress["batchId"]
        self.batch_s = progress.get("batchDuration", 0) / 1_000
        planned_s = datetime.fromisoformat(progress["timestamp"]).timestamp()
        before, self.logs = self.logs, {}  # Logs that are read no more are forgotten.
        for source in sources:
            shares = source.shares()
            for name, end in source.end.items():
                key = (source.index, name)
                log = before.get(key)
                if log is None or log.id != end.id:
                    log = _Log(end.id)
                latest = source.latest.get(name, end)
                log.take(planned_s, end.next, latest, source.rows_per_s * shares[name])
                self.logs[key] = log

    def status(self, now_s: float) -> QueryStatus:
        logs = tuple(log.status(name, now_s) for (_, name), log in sorted(self.logs.items()))
        return QueryStatus(self.name, self.batch, self.batch_s, logs)


class _Log:
    def __init__(self, log_id: int) -> None:
        self.id = log_id
        self._latest = -1
        self._lag_records = 0
        self._rows_per_s = 0.0
        self._is_exact = False
        self._ends: deque[tuple[float, int]] = deque()  # Not yet reached: when first seen, where.
        self._spacing_s = 0.0  # Ends closer together than this are not all kept.

    def take(
        self, planned_s: float, end: int, latest: offsets.LogOffset, rows_per_s: float
    ) -> None:
        self._rows_per_s = rows_per_s
        if latest.next > self._latest:
            self._latest = latest.next
            self._keep(planned_s, latest.next)
        waiting = latest.waiting
        self._lag_records = max(0, self._latest - end) if waiting is None else waiting
        while self._ends and self._ends[0][1] <= end:
            self._ends.popleft()
            self._is_exact = True
        if not self._ends:
            self._spacing_s = 0.0

    def catch_up(self) -> None:
        self._rows_per_s = 0.0
        self._lag_records = 0
        self._ends.clear()
        self._spacing_s = 0.0
        self._is_exact = True

    def status(self, name: str, now_s: float) -> LogStatus:
        lag_s = max(0.0, now_s - self._ends[0][0]) if self._ends else 0.0
        return LogStatus(name, self._rows_per_s, self._lag_records, lag_s, self._is_exact)

    def _keep(self, seen_s: float, end: int) -> None:
        """Keeps I1, with the first and the last end and others at about equal distances."""
        ends = self._ends
        if len(ends) > 1 and ends[-1][0] - ends[-2][0] < self._spacing_s:
            ends.pop()
        ends.append((seen_s, end))
        if len(ends) > ENDS_MAX:
            self._spacing_s = 2 * (ends[-1][0] - ends[0][0]) / len(ends)
            self._ends = deque([*list(ends)[:-1:2], ends[-1]])


def _sources(progress: Mapping[str, Any]) -> Iterator[_Source]:
    for index, source in enumerate(progress.get("sources", ())):
        end = _logs(source.get("endOffset"))
        if end is not None:
            yield _Source(
                index,
                # The first batch has no trigger before it, so Spark has no rate of arrival for it.
                source.get("inputRowsPerSecond") or source.get("processedRowsPerSecond") or 0.0,
                _logs(source.get("startOffset")) or {},
                end,
                _logs(source.get("latestOffset")) or end,
            )


def _logs(document: object) -> Mapping[str, offsets.LogOffset] | None:
    """The logs of an offset document; None if it is not one of ours."""
    if not isinstance(document, Mapping):
        return None
    try:
        return offsets.parse(document).logs
    except UsageError:
        return None
