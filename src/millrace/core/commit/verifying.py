"""Does every replica of a commit log's streams hold what was committed?  From their indexes.

The same verdict as of sequenced logs (`sequenced/verifying.py`), reached otherwise: replicas of a
stream are equal, so what one holds all must hold.  Positions in findings are those of the stream
that the finding names.

  I1  Nothing is wrong with a sound log at any time: entries above what the record says to be
      committed are not looked at, nor those that were trimmed while the indexes were read.
  I2  Memory is bounded by a page of each replica.
"""

from collections.abc import Mapping, Sequence

from millrace.core.commit.record import CommitRecord, StreamRecord, stream_log_of
from millrace.core.messages import Copies, CopiesPage, Describe, Described
from millrace.core.procedure import Ask, Procedure, ask_all
from millrace.core.sequenced.verifying import Verdict, Wrong
from millrace.types import FIRST_LSN, Extent, Lsn, NodeId

Pages = Mapping[NodeId, CopiesPage]


def verify_commits(record: CommitRecord) -> Procedure[Verdict]:
    verdict = Verdict()
    given = sum(each.local_end - FIRST_LSN + each.lost for each in record.streams)
    if given != record.high_watermark:
        detail = f"the streams have {given} committed entries, the log {record.high_watermark}"
        verdict.add(Wrong.NOT_TILED, FIRST_LSN, record.high_watermark, detail)
    for stream in record.streams:
        yield from _StreamCheck(record, stream, verdict).run()
    verdict.nodes = tuple(sorted(verdict.nodes))
    return verdict


class _StreamCheck:
    def __init__(self, record: CommitRecord, stream: StreamRecord, verdict: Verdict) -> None:
        self._log = stream_log_of(record.log, stream.stream)
        self._name = f"stream {stream.stream}"
        self._copies = record.copies
        self._replicas = stream.replicas
        self._end = stream.local_end
        self._verdict = verdict

    def run(self) -> Procedure[None]:
        nodes = list(self._replicas)
        if len(nodes) < self._copies:
            detail = f"replicas on nodes {nodes}, wanted are {self._copies}"
            self._add(Wrong.TOO_FEW_COPIES, FIRST_LSN, Lsn(self._end - 1), detail)
        at = FIRST_LSN
        while nodes and at < self._end:
            pages, trim_end = yield from self._read(nodes, at)
            self._silent([node for node in nodes if node not in pages], at)
            nodes = list(pages)
            if nodes:
                upto = min(page.next_lsn for page in pages.values())
                self._look(pages, max(at, trim_end), upto)
                at = max(upto, min(trim_end, self._end))
        known = set(self._verdict.nodes)
        self._verdict.nodes = (*self._verdict.nodes, *(n for n in nodes if n not in known))

    def _read(self, nodes: Sequence[NodeId], at: Lsn) -> Procedure[tuple[Pages, Lsn]]:
        """A page of each replica, and up to where the stream was trimmed by then (I1)."""
        answers = yield from ask_all([Ask(n, Copies(self._log, at, self._end)) for n in nodes])
        described = yield from ask_all([Ask(n, Describe(self._log)) for n in nodes])
        pages: dict[NodeId, CopiesPage] = {}
        trim_end = FIRST_LSN
        for node, page, told in zip(nodes, answers, described, strict=True):
            if isinstance(told, Described):
                trim_end = max(trim_end, told.trim_end)
                if isinstance(page, CopiesPage) and page.next_lsn > at:
                    pages[node] = page
        return pages, trim_end

    def _silent(self, nodes: Sequence[NodeId], at: Lsn) -> None:
        for node in nodes:
            detail = f"node {node} does not tell what it holds"
            self._add(Wrong.SILENT_NODE, at, Lsn(self._end - 1), detail)

    def _look(self, pages: Pages, first: Lsn, end: Lsn) -> None:
        """At what lies in [first, end) of the stream, on each of the nodes."""
        held: dict[Lsn, dict[NodeId, Extent]] = {}
        for node, page in pages.items():
            for copy in page.copies:
                if copy.extent.last >= first and copy.extent.first < end:
                    held.setdefault(copy.extent.first, {})[node] = copy.extent
        expected = first
        for begin, copies in sorted(held.items()):
            if begin > expected:
                self._add(Wrong.NOT_TILED, expected, Lsn(begin - 1), "no node holds them")
            self._compare(copies, list(pages))
            expected = max(expected, *(Lsn(each.last + 1) for each in copies.values()))
        if expected < end:
            self._add(Wrong.NOT_TILED, expected, Lsn(end - 1), "no node holds them")

    def _compare(self, copies: Mapping[NodeId, Extent], nodes: Sequence[NodeId]) -> None:
        verdict, one = self._verdict, next(iter(copies.values()))
        verdict.blocks += 1
        verdict.records += one.last - one.first + 1
        verdict.bytes += one.size
        verdict.copies += len(copies)
        lacking = [node for node in nodes if node not in copies]
        if lacking:
            detail = f"nodes {lacking} do not hold them, nodes {list(copies)} do"
            self._add(Wrong.NOT_HELD, one.first, one.last, detail)
        others = [node for node, extent in copies.items() if extent != one]
        if others:
            detail = f"nodes {others} hold another block than node {next(iter(copies))}"
            self._add(Wrong.DIFFERENT, one.first, one.last, detail)

    def _add(self, wrong: Wrong, first: Lsn, last: Lsn, detail: str) -> None:
        self._verdict.add(wrong, first, last, f"{self._name}: {detail}")
