"""Is every block of a sequenced log where it should be?  From the indexes of all nodes.

Reads no block: an index entry has the checksum that covers the block, and every node checks what it
stores and sends.  The log is walked from its first position to the last that is released, on all
nodes side by side.

  I1  Nothing is wrong with a sound log at any time: what sequencers, recoveries and donors are in
      the middle of may be seen, and counts as surplus, as long as readers cannot be hurt by it.
  I2  Findings are counted without a bound, and told up to FINDINGS_MAX.
  I3  Memory is bounded by a page of each node.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from itertools import groupby
from typing import Final

import msgspec

from millrace.core.epochs import EpochRange, range_of
from millrace.core.messages import Copies, CopiesPage
from millrace.core.procedure import Ask, Procedure, ask_all
from millrace.core.replication import Locations, can_replicate
from millrace.lsn import epoch_of, first_of, offset_of, show
from millrace.types import AuthoritativeStatus, Copy, EntryKind, Epoch, LogId, Lsn, NodeId

FINDINGS_MAX: Final = 100


class Wrong(Enum):
    """The words are stable: monitors match on them."""

    NOT_TILED = "not_tiled"  # Released positions that no node holds.
    TOO_FEW_COPIES = "too_few_copies"  # Nodes that count hold fewer than the log wants.
    NOT_HELD = "not_held"  # A copyset names a node that does not hold the block.
    DIFFERENT = "different"  # Copies of the same positions are not the same block.
    SILENT_NODE = "silent_node"  # It did not tell what it holds.
    END_UNKNOWN = "end_unknown"  # No sequencer could tell, e.g. for want of nodes to recover it.
    # Found by an audit, which reads the blocks (`core/auditing.py`).
    DAMAGED = "damaged"  # A copy does not match its checksum.
    MISFILED = "misfiled"  # The index describes another block than the one that lies there.
    TOO_FEW_NAMED = "too_few_named"  # A copyset names fewer nodes than hold the block.
    OVERLAP = "overlap"  # Two blocks of one node cover the same position.


class Finding(msgspec.Struct, frozen=True):
    wrong: Wrong
    first: Lsn
    last: Lsn
    detail: str


class Verdict(msgspec.Struct):
    """What was found.  `surplus` copies are more than was asked for: harmless."""

    blocks: int = 0
    records: int = 0
    bytes: int = 0
    copies: int = 0
    surplus: int = 0
    nodes: tuple[NodeId, ...] = ()
    counts: dict[Wrong, int] = {}
    findings: list[Finding] = []

    @property
    def is_sound(self) -> bool:
        return not self.counts

    def add(self, wrong: Wrong, first: Lsn, last: Lsn, detail: str) -> None:
        self.counts[wrong] = self.counts.get(wrong, 0) + 1
        if len(self.findings) < FINDINGS_MAX:  # Keeps I2.
            self.findings.append(Finding(wrong, first, last, detail))


Held = tuple[NodeId, Copy]


def verify(
    log: LogId,
    first: Lsn,
    released: Lsn,
    spans: Sequence[EpochRange],
    locations: Locations,
    statuses: Mapping[NodeId, AuthoritativeStatus],
) -> Procedure[Verdict]:
    """Of [first, released], whose nodesets the spans tell."""
    check = BlockCheck(released, spans, locations, statuses)
    check.begin(first)
    nodes = sorted({node for span in spans for node in span.nodeset})
    end = Lsn(released + 1)
    at = first
    while at < end and nodes:
        answers = yield from ask_all([Ask(node, Copies(log, at, end)) for node in nodes])
        pages = {
            node: answer
            for node, answer in zip(nodes, answers, strict=True)
            if isinstance(answer, CopiesPage) and answer.next_lsn > at
        }
        check.silent(node for node in nodes if node not in pages)
        nodes = list(pages)
        if not pages:
            break
        upto = min(page.next_lsn for page in pages.values())
        trim_end = max(page.trim_end for page in pages.values())
        check.trimmed(trim_end)
        # A block that begins below `at` was seen with the pages before; the first may reach across
        # the trim point.
        window = max(at, trim_end)
        held = [
            (node, copy)
            for node, page in pages.items()
            for copy in page.copies
            if copy.extent.first < upto
            and copy.extent.last >= window
            and (copy.extent.first >= at or at == first)
        ]
        check.window(held, nodes)
        at = upto
    check.end()
    check.verdict.nodes = tuple(nodes)
    return check.verdict


class BlockCheck:
    """Goes through a log, or a part of it, from the front."""

    def __init__(
        self,
        released: Lsn,
        spans: Sequence[EpochRange],
        locations: Locations,
        statuses: Mapping[NodeId, AuthoritativeStatus],
    ) -> None:
        self.verdict = Verdict()
        self._released = released
        self._spans = spans
        self.locations = locations
        self.statuses = statuses
        self._trim_end = Lsn(0)
        self._next = Lsn(0)  # Everything below is tiled, or told not to be.
        self._standing: Copy | None = None  # The last block, and its precedence.

    def begin(self, first: Lsn) -> None:
        self._next = first

    def pass_over(self, held: Sequence[Held]) -> None:
        """Blocks that began in the part before, where they are looked at, and reach into this."""
        if held:
            self._standing = min(held, key=_order)[1]
            self._next = Lsn(self._standing.extent.last + 1)

    def silent(self, nodes: Iterable[NodeId]) -> None:
        """A node that holds nothing by its status need not say so."""
        for node in nodes:
            status = self.statuses.get(node, AuthoritativeStatus.FULLY_AUTHORITATIVE)
            if status is not AuthoritativeStatus.AUTHORITATIVE_EMPTY:
                detail = f"node {node} ({status.value}) does not tell what it holds"
                self.verdict.add(Wrong.SILENT_NODE, self._next, self._released, detail)

    def trimmed(self, trim_end: Lsn) -> None:
        self._trim_end = max(self._trim_end, trim_end)
        self._next = max(self._next, trim_end)

    def window(self, held: Sequence[Held], answering: Sequence[NodeId]) -> None:
        """Blocks in order; of those that begin at one position the highest precedence first."""
        ordered = sorted(held, key=_order)
        for first, group in groupby(ordered, key=lambda each: each[1].extent.first):
            self._positions(first, list(group), answering)

    def _positions(self, first: Lsn, group: list[Held], answering: Sequence[NodeId]) -> None:
        best = group[0][1]
        extent = best.extent
        same = [each for each in group if each[1].extent == extent]
        others = [node for node, copy in group if copy.extent != extent]
        if extent.kind is EntryKind.DATA and others:
            detail = f"nodes {others} hold another block than nodes {[n for n, _ in same]}"
            self.verdict.add(Wrong.DIFFERENT, first, extent.last, detail)
        before = self._standing
        if before is not None and first <= before.extent.last:
            if extent.kind is EntryKind.DATA:
                # Under a record or junk alike: recovery decided otherwise about these positions.
                nodes = [node for node, _ in group]
                detail = f"nodes {nodes} hold a block there; {show(before.extent.first)} stands"
                self.verdict.add(Wrong.DIFFERENT, first, extent.last, detail)
            self.verdict.surplus += len(group)
            return
        self._tile(first)
        self._next = Lsn(extent.last + 1)
        self._standing = best
        self._count(same, best)
        self._copies(best, same, answering)

    def _tile(self, first: Lsn) -> None:
        """Positions are given from offset 1 on; an epoch may end anywhere."""
        expected = self._next
        if epoch_of(first) != epoch_of(expected):
            expected = first_of(epoch_of(first))
        expected = Lsn(max(expected, first_of(epoch_of(first)) + 1))
        if first > expected:
            self.verdict.add(Wrong.NOT_TILED, expected, Lsn(first - 1), "no node holds them")

    def end(self) -> None:
        """What was released was there."""
        released, at = self._released, self._next
        begin = Lsn(first_of(epoch_of(released)) + 1)
        at = max(at, begin) if epoch_of(at) <= epoch_of(released) else at
        if offset_of(released) and at <= released:
            self.verdict.add(Wrong.NOT_TILED, at, released, "no node holds them")

    def _count(self, same: Sequence[Held], best: Copy) -> None:
        verdict, extent = self.verdict, best.extent
        verdict.blocks += 1
        verdict.bytes += extent.size
        verdict.copies += len(same)
        if extent.kind is EntryKind.DATA:
            verdict.records += extent.last - max(extent.first, self._trim_end) + 1

    def _copies(self, best: Copy, same: Sequence[Held], answering: Sequence[NodeId]) -> None:
        extent = best.extent
        holders = {node for node, _ in same}
        empty = AuthoritativeStatus.AUTHORITATIVE_EMPTY
        counted = {node for node in holders if self.statuses.get(node) is not empty}
        span = range_of(self._spans, Epoch(epoch_of(extent.first)))
        assert span is not None, "nothing is released above the epochs that are known"
        if not can_replicate(span.replication, counted, self.locations):
            detail = f"held by {sorted(counted)}, wanted are {_wanted(span)}"
            self.verdict.add(Wrong.TOO_FEW_COPIES, extent.first, extent.last, detail)
        self.check_named(same, holders, answering, span)

    def check_named(
        self,
        same: Sequence[Held],
        holders: set[NodeId],
        answering: Sequence[NodeId],
        span: EpochRange,
    ) -> None:
        """Extras need not be held (R10); holes and bridges may be held by everybody."""
        best = same[0][1]
        extent, copyset = best.extent, best.placement.copyset
        absent = [node for node in copyset if node in answering and node not in holders]
        if absent and len(copyset) <= span.replication.copies:
            detail = f"copyset {list(copyset)} names {absent}"
            self.verdict.add(Wrong.NOT_HELD, extent.first, extent.last, detail)
        if extent.kind is EntryKind.DATA:
            self.verdict.surplus += len(holders.difference(copyset))


def _order(each: Held) -> tuple[Lsn, int, int, NodeId]:
    node, copy = each
    recovery, wave = copy.placement.precedence
    return copy.extent.first, -recovery, -wave, node


def _wanted(span: EpochRange) -> str:
    return ", ".join(
        f"{factor} of scope {scope.word}" for scope, factor in span.replication.factors
    )
