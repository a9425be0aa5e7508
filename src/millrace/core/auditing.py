"""What an audit makes of all copies that nodes hold of a part of a log.

The verdict is the one of `log verify` (`sequenced/verifying.py`), with more evidence: not the
indexes alone but the blocks were read, of chains, too.  A log is judged in parts, each by itself,
so that many processes can judge at once.

  I1  A block belongs to the part that it begins in; one that began before the first part, across
      the trim point, to that one.  No block is counted twice, none is left out.
  I2  A position that is below some node's trim point by the time that it answers is not missed.
  I3  A damaged copy is told as damaged, and not as lacking, too.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

import msgspec

from millrace.core.epochs import EpochRange
from millrace.core.replication import Locations, can_replicate
from millrace.core.sequenced.verifying import BlockCheck, Held, Verdict, Wrong
from millrace.core.statuses import Statuses
from millrace.types import Copy, EntryKind, Extent, LogId, Lsn, NodeId


class CopyState(Enum):
    """The words are the values of the column `state` in the table of copies."""

    SOUND = "sound"
    DAMAGED = "damaged"
    MISFILED = "misfiled"


class SeenCopy(msgspec.Struct, frozen=True):
    copy: Copy
    state: CopyState = CopyState.SOUND
    detail: str = ""


class Evidence(msgspec.Struct, frozen=True):
    """What one node said of a part; `silence` is why it said nothing, or stopped."""

    node: NodeId
    copies: tuple[SeenCopy, ...] = ()
    trim_end: Lsn = Lsn(0)
    silence: str = ""


class Part(msgspec.Struct, frozen=True):
    """Positions [first, end) of a log, or of a stream of a commit log, under the number that stores
    know.  `spans` tells the nodesets of a sequenced log; of any other all `nodes` hold everything.
    """

    log: str
    number: LogId
    first: Lsn
    end: Lsn
    nodes: tuple[NodeId, ...]
    is_first: bool = True
    stream: int = 0
    spans: tuple[EpochRange, ...] = ()

    @property
    def where(self) -> str:
        return f"stream {self.stream}: " if self.stream else ""


def judge(
    part: Part, told: Sequence[Evidence], locations: Locations, statuses: Statuses
) -> Verdict:
    trim_end = max((each.trim_end for each in told), default=Lsn(0))
    if part.spans:
        verdict = _judge_scattered(part, told, trim_end, locations, statuses)
    else:
        verdict = _Replicas(part, told, trim_end).verdict
    for each in told:
        _look_at_states(part, each, max(part.first, trim_end), verdict)
    verdict.nodes = tuple(sorted(each.node for each in told if not each.silence))
    return verdict


def _look_at_states(part: Part, told: Evidence, lowest: Lsn, verdict: Verdict) -> None:
    """What is wrong with the copies of one node, whatever others hold."""
    before: Extent | None = None
    for seen in told.copies:
        extent = seen.copy.extent
        if extent.last < lowest or not _is_of(part, extent):
            continue
        detail = f"{part.where}node {told.node}: {seen.detail}"
        if seen.state is CopyState.DAMAGED:
            verdict.add(Wrong.DAMAGED, extent.first, extent.last, detail)
        elif seen.state is CopyState.MISFILED:
            verdict.add(Wrong.MISFILED, extent.first, extent.last, detail)
        if before is not None and extent.first <= before.last:
            detail = f"{part.where}node {told.node} holds {before.first}..{before.last}, too"
            verdict.add(Wrong.OVERLAP, extent.first, extent.last, detail)
        before = extent


def _is_of(part: Part, extent: Extent) -> bool:
    """Keeps I1."""
    return extent.first < part.end and (part.is_first or extent.first >= part.first)


# -- Sequenced logs --------------------------------------------------------------------------------


def _judge_scattered(
    part: Part,
    told: Sequence[Evidence],
    trim_end: Lsn,
    locations: Locations,
    statuses: Statuses,
) -> Verdict:
    check = _AuditCheck(Lsn(part.end - 1), part.spans, locations, statuses)
    check.begin(part.first)
    check.trimmed(trim_end)  # Keeps I2.
    check.silent(each.node for each in told if each.silence)
    lowest = max(part.first, trim_end)
    held: list[Held] = [
        (each.node, seen.copy)
        for each in told
        for seen in each.copies
        if seen.copy.extent.last >= lowest
    ]
    check.pass_over([each for each in held if _is_before(part, each[1])])
    answering = [each.node for each in told if not each.silence]
    check.window([each for each in held if _is_of(part, each[1].extent)], answering)
    check.end()
    return check.verdict


def _is_before(part: Part, copy: Copy) -> bool:
    return not part.is_first and copy.extent.first < part.first


class _AuditCheck(BlockCheck):
    def check_named(
        self,
        same: Sequence[Held],
        holders: set[NodeId],
        answering: Sequence[NodeId],
        span: EpochRange,
    ) -> None:
        """Every copy's own index entry counts: each node decides by its own who is to send the
        block.  Those of an earlier wave are on their way out."""
        if same[0][1].extent.kind is not EntryKind.DATA:
            return
        best = same[0][1].placement.precedence
        naming: dict[tuple[NodeId, ...], list[NodeId]] = {}
        for node, copy in same:
            if copy.placement.precedence == best:
                naming.setdefault(copy.placement.copyset, []).append(node)
            else:
                self.verdict.surplus += 1
        extent = same[0][1].extent
        for copyset, nodes in naming.items():
            self._look_at_copyset(extent, copyset, nodes, (holders, answering, span))

    def _look_at_copyset(
        self,
        extent: Extent,
        copyset: tuple[NodeId, ...],
        nodes: Sequence[NodeId],
        known: tuple[set[NodeId], Sequence[NodeId], EpochRange],
    ) -> None:
        """What the index entries of `nodes` say.  Extras need not be held (R10)."""
        holders, answering, span = known
        told = f"the index of nodes {list(nodes)} names {list(copyset)}"
        absent = [node for node in copyset if node in answering and node not in holders]
        if absent and len(copyset) <= span.replication.copies:
            detail = f"{told}, of which {absent} do not hold it"
            self.verdict.add(Wrong.NOT_HELD, extent.first, extent.last, detail)
        elif self._are_enough(holders, span) and not self._are_enough(set(copyset), span):
            detail = f"{told}, held by {sorted(holders)}"
            self.verdict.add(Wrong.TOO_FEW_NAMED, extent.first, extent.last, detail)
        self.verdict.surplus += sum(node not in copyset for node in nodes)

    def _are_enough(self, nodes: set[NodeId], span: EpochRange) -> bool:
        return can_replicate(span.replication, nodes, self.locations)


# -- Chains, and streams of commit logs ------------------------------------------------------------


class _Replicas:
    """All nodes hold the same blocks, one behind the other."""

    def __init__(self, part: Part, told: Sequence[Evidence], trim_end: Lsn) -> None:
        self.verdict = Verdict()
        self._part = part
        self._first = max(part.first, trim_end)
        self._answering = [each for each in told if not each.silence]
        for each in told:
            if each.silence:
                detail = f"node {each.node} does not tell what it holds: {each.silence}"
                self._add(Wrong.SILENT_NODE, part.first, Lsn(part.end - 1), detail)
        self._look_for_voids()
        self._compare()

    def _look_for_voids(self) -> None:
        """Positions that some node does not hold: if no other does, nobody can read them."""
        if not self._answering or self._first >= self._part.end:
            return
        voids = {each.node: list(self._voids(each)) for each in self._answering}
        everywhere = set.intersection(*(set(each) for each in voids.values()))
        for first, last in sorted(everywhere):
            self._add(Wrong.NOT_TILED, first, last, "no node holds them")
        for node, ranges in sorted(voids.items()):
            for first, last in ranges:
                if (first, last) not in everywhere:
                    self._add(Wrong.NOT_HELD, first, last, f"node {node} does not hold them")

    def _voids(self, told: Evidence) -> Iterable[tuple[Lsn, Lsn]]:
        expected = self._first
        for seen in told.copies:
            extent = seen.copy.extent
            if extent.first >= self._part.end:
                break
            if extent.first > expected:
                yield expected, Lsn(extent.first - 1)
            expected = max(expected, Lsn(extent.last + 1))
        if expected < self._part.end:
            yield expected, Lsn(self._part.end - 1)

    def _compare(self) -> None:
        held: dict[Lsn, dict[NodeId, Copy]] = {}
        for each in self._answering:
            for seen in each.copies:
                extent = seen.copy.extent
                if extent.last >= self._first and _is_of(self._part, extent):
                    held.setdefault(extent.first, {})[each.node] = seen.copy
        for _, copies in sorted(held.items()):
            self._compare_block(copies)

    def _compare_block(self, copies: Mapping[NodeId, Copy]) -> None:
        verdict, (one, *_) = self.verdict, copies.items()
        extent = one[1].extent
        verdict.blocks += 1
        verdict.bytes += extent.size
        verdict.copies += len(copies)
        if extent.kind is EntryKind.DATA:
            verdict.records += extent.last - max(extent.first, self._first) + 1
        others = [node for node, copy in copies.items() if copy.extent != extent]
        if others:
            detail = f"nodes {others} hold another block than node {one[0]}"
            self._add(Wrong.DIFFERENT, extent.first, extent.last, detail)
        for node, copy in copies.items():
            copyset = copy.placement.copyset
            if copyset and node not in copyset:
                detail = f"node {node} names {list(copyset)}, and not itself"
                self._add(Wrong.TOO_FEW_NAMED, extent.first, extent.last, detail)

    def _add(self, wrong: Wrong, first: Lsn, last: Lsn, detail: str) -> None:
        self.verdict.add(wrong, first, last, f"{self._part.where}{detail}")
