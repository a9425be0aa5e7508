"""Which reports of a stream's replicas count (M5): newer ones of the generation, and no others.

Reports come as messages of their own and with the answers to commits, so one may overtake another:
that it says less than an earlier one means nothing by itself.  A replica that holds less than it
said is told from a late message by three signs, and the stream is then to be reformed:

  - it says so (QUARANTINED);
  - it knows of a later version than before and holds less: the report is not late;
  - it says less, or what cannot be, LESSER_MAX times in a row: late messages do not come in rows.

  I1  Of one generation, what is taken of a replica never has a lower version or a smaller end than
      what was taken of it before.
  I2  Nothing that a node says is fatal; each report has a verdict that can be counted.
  I3  A replica that regressed is not believed again before the next generation.
  I4  What was reported in another generation is forgotten: a reform may have cut it off.

A verdict says nothing about whether the replica needs a Commit: whoever reports a version below the
record's does, also after a restart, which forgets empty commits.
"""

from enum import Enum
from typing import Final

from millrace.core.commit.record import StreamRecord
from millrace.core.messages.commit import ReplicaState, StreamReport
from millrace.types import FIRST_LSN, NO_LSN, Epoch, Lsn, NodeId, Version

LESSER_MAX: Final = 3  # Reports in a row that say less than one before; see above.


class ReportVerdict(Enum):
    TAKEN = "taken"
    OLD = "old"  # Nothing new, or late.
    DIRTY = "dirty"  # A higher version, and a smaller end: something was lost.
    NOT_A_REPLICA = "not_a_replica"
    WRONG_GENERATION = "wrong_generation"  # An earlier one.
    FENCED = "fenced"  # A later one: a reform was begun and not finished.
    SILENT = "silent"  # It cannot tell yet; what it reported before stays.
    IMPOSSIBLE = "impossible"  # The record says otherwise.
    REGRESSED = "regressed"  # It holds less than it reported; what it reported is forgotten.


class Reports:
    """Of one stream.  `taken` are the reports that count, `heard` is the newest of each replica,
    whatever became of it: who is silent, and why."""

    def __init__(self) -> None:
        self.taken: dict[NodeId, StreamReport] = {}
        self.heard: dict[NodeId, StreamReport] = {}
        self._generation = Epoch(0)
        self._regressed: set[NodeId] = set()
        self._lesser: dict[NodeId, int] = {}  # How many in a row.
        self._impossible: dict[NodeId, int] = {}

    @property
    def has_regressed(self) -> bool:
        """Some replica cannot go on in this generation: the stream is to be reformed."""
        return bool(self._regressed) or any(
            report.state is ReplicaState.SEALED and node not in self.taken
            for node, report in self.heard.items()
        )

    def follow(self, stream: StreamRecord) -> None:
        """Keeps I4."""
        if stream.generation != self._generation:
            self._generation = stream.generation
            self.taken.clear()
            self.heard.clear()
            self._regressed.clear()
            self._lesser.clear()
            self._impossible.clear()

    def lose(self, node: NodeId) -> None:
        """The node says that it has no replica of the stream."""
        self._regressed.add(node)
        self.taken.pop(node, None)

    def take(
        self, node: NodeId, report: StreamReport, stream: StreamRecord, version: Version
    ) -> ReportVerdict:
        """`version` is the record's, which `stream` is a part of."""
        self.follow(stream)
        if node not in stream.replicas or report.stream != stream.stream:
            return ReportVerdict.NOT_A_REPLICA
        if report.generation < stream.generation:
            return ReportVerdict.WRONG_GENERATION
        self.heard[node] = report
        verdict = self._judge(node, report, stream, version)
        if verdict is ReportVerdict.TAKEN:
            self.taken[node] = report
        elif verdict in _LOST:
            self._regressed.add(node)
            self.taken.pop(node, None)
        return verdict

    def _judge(
        self, node: NodeId, report: StreamReport, stream: StreamRecord, version: Version
    ) -> ReportVerdict:
        if report.generation > stream.generation:
            return ReportVerdict.FENCED
        if node in self._regressed or report.state is ReplicaState.QUARANTINED:
            return ReportVerdict.REGRESSED  # Keeps I3.
        known = self.taken.get(node)
        if report.state is ReplicaState.SEALED and known is not None:
            return self._count_lesser(node)  # It was open in this generation.
        if report.state is not ReplicaState.OPEN or report.local == NO_LSN:
            return ReportVerdict.SILENT
        if _is_impossible(report, stream, version):
            self._impossible[node] = self._impossible.get(node, 0) + 1
            is_lasting = self._impossible[node] >= LESSER_MAX
            return ReportVerdict.REGRESSED if is_lasting else ReportVerdict.IMPOSSIBLE
        self._impossible.pop(node, None)
        if known is not None and report.version > known.version and report.end < known.end:
            return ReportVerdict.DIRTY
        if report.local < stream.taken_end or report.end < _least_end(stream, known):
            return self._count_lesser(node)
        self._lesser.pop(node, None)
        return ReportVerdict.TAKEN if _is_newer(report, known) else ReportVerdict.OLD

    def _count_lesser(self, node: NodeId) -> ReportVerdict:
        self._lesser[node] = self._lesser.get(node, 0) + 1
        is_late = self._lesser[node] < LESSER_MAX
        return ReportVerdict.OLD if is_late else ReportVerdict.REGRESSED


_LOST: Final = frozenset({ReportVerdict.DIRTY, ReportVerdict.FENCED, ReportVerdict.REGRESSED})


def _is_newer(report: StreamReport, known: StreamReport | None) -> bool:
    """Keeps I1."""
    if known is None:
        return True
    if report.version == known.version:
        return report.end > known.end
    return report.version > known.version and report.end >= known.end


def _is_impossible(report: StreamReport, stream: StreamRecord, version: Version) -> bool:
    """No replica can have come to this by the commits that were decided."""
    if not 0 <= report.version <= version or report.local < FIRST_LSN or report.count < 0:
        return True
    later = [each for each in stream.history if each.version > report.version]
    committed_end = later[0].local if later else stream.local_end
    # Below the history nobody knows any more which versions committed what.
    is_known = report.version == version or len(later) < len(stream.history)
    return report.local > committed_end or (is_known and report.local < committed_end)


def _least_end(stream: StreamRecord, known: StreamReport | None) -> Lsn:
    """Less than this was held by no replica since it last reported."""
    return stream.local_end if known is None else max(stream.local_end, known.end)
