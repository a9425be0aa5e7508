"""What a donor has to give: a block, why, to whom, and what became of it (`rebuilding.py`)."""

from collections.abc import Container, Iterable, Iterator
from typing import Final

import msgspec

from millrace.core.epochs import EpochRange, EpochRecord, NodesetChange, range_of, ranges
from millrace.core.messages import FetchCopies, Fetched, Refusal, Refused
from millrace.core.procedure import (
    Answer,
    ClusterView,
    Failure,
    ListNodes,
    Procedure,
    ReadEpochs,
    ReadNodesetChanges,
)
from millrace.core.replication import Locations, can_replicate
from millrace.core.sequenced.replacing import Copyset, Ward
from millrace.limits import MIB
from millrace.lsn import show
from millrace.types import Block, Copy, Epoch, Extent, LogId, Lsn, NodeId, Placement

BATCH_BYTES: Final = 16 * MIB
BATCH_BLOCKS: Final = 64


class Tally(msgspec.Struct):
    """What a walk did, and what it left, by the nodes that are to be rebuilt."""

    blocks_done: int = 0
    bytes_done: int = 0
    blocks_left: dict[NodeId, int] = {}
    bytes_left: dict[NodeId, int] = {}
    waits_for: str = ""  # Why the last of the blocks that are left is.
    unsettled: int = 0  # Blocks that are left because they are not released.

    def leave(self, copy: Copy, lost: Iterable[NodeId], why: str) -> None:
        for node in lost:
            self.blocks_left[node] = self.blocks_left.get(node, 0) + 1
            self.bytes_left[node] = self.bytes_left.get(node, 0) + copy.extent.size
        self.waits_for = f"{show(copy.extent.first)}: {why}"


class Site(msgspec.Struct, frozen=True):
    """Where copies of the log may lie."""

    spans: tuple[EpochRange, ...]
    locations: Locations

    def lacking(self, ward: Ward, epoch: Epoch, copyset: Copyset) -> frozenset[NodeId]:
        """The lost nodes in whose place a block needs others: those that it names, and if it is
        short, those that it might have."""
        named = ward.lost_of(copyset)
        span = range_of(self.spans, epoch)
        if span is None or can_replicate(span.replication, copyset, self.locations):
            return named
        return named | (ward.lost_of(span.nodeset) - ward.leaving)


class Job:
    """A block to give: `lost` is why, `gone` do not hold it, `placement` is the new one."""

    def __init__(self, copy: Copy, lost: frozenset[NodeId]) -> None:
        self.copy = copy
        self.lost = lost
        self.gone = set(lost)
        self.placement: Placement = copy.placement
        self.targets: Copyset = ()
        self.stored: set[NodeId] = set()  # Those of the targets that have it.
        self.block: Block | None = None
        self.in_vain: set[NodeId] = set()  # Who said that it has no whole copy.

    @property
    def first(self) -> Lsn:
        return self.copy.extent.first

    @property
    def members(self) -> Copyset:
        return self.copy.placement.copyset

    def holders(self) -> list[NodeId]:
        return [node for node in self.members if node not in self.gone]

    def take(self, node: NodeId, answer: Answer) -> None:
        """What a node says when it is asked for the block."""
        blocks = answer.blocks if isinstance(answer, Fetched) else ()
        self.block = next((b for b in blocks if b.extent() == self.copy.extent), None)
        is_damaged = isinstance(answer, Refused) and answer.reason is Refusal.CORRUPT
        if self.block is None and (is_damaged or isinstance(answer, Fetched)):
            self.in_vain.add(node)

    def without(self, node: NodeId, held: Container[Extent]) -> "Job | None":
        """What is left to do if that node has these blocks."""
        lost = self.lost - {node} if self.copy.extent in held else self.lost
        if lost == self.lost:
            return self
        return Job(self.copy, lost) if lost else None

    def place(self, copyset: Copyset, targets: Copyset) -> None:
        self.placement = msgspec.structs.replace(self.copy.placement, copyset=copyset)
        self.targets = targets
        self.stored = set()

    def fetch(self, log: LogId) -> FetchCopies:
        extent = self.copy.extent
        return FetchCopies(log, extent.first, Lsn(extent.last + 1), extent.size)


def batches(jobs: Iterable[Job]) -> Iterator[list[Job]]:
    """None of more than BATCH_BLOCKS or BATCH_BYTES, unless one block has more."""
    batch: list[Job] = []
    size_bytes = 0
    for job in jobs:
        size_bytes += job.copy.extent.size
        if batch and (len(batch) == BATCH_BLOCKS or size_bytes > BATCH_BYTES):
            yield batch
            batch, size_bytes = [], job.copy.extent.size
        batch.append(job)
    if batch:
        yield batch


def look_up(log: LogId) -> Procedure[Site | Failure | None]:
    """None: there is no such log any more, and housekeeping drops what is left of it."""
    read: tuple[EpochRecord | None, int] | Failure = yield ReadEpochs(log)
    if isinstance(read, Failure):
        return read
    record = read[0]
    if record is None:
        return None
    changes: tuple[NodesetChange, ...] | Failure = ()
    if record.since > 1:
        changes = yield ReadNodesetChanges(log)
    if isinstance(changes, Failure):
        return changes
    view: ClusterView | Failure = yield ListNodes()
    if isinstance(view, Failure):
        return view
    return Site(ranges(changes, record), {node.id: node.location for node in view.nodes})
