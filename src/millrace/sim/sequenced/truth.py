"""What is true of one sequenced log, whoever knows it: positions given out, copies, what was lost.

A block is named by its first position and its checksum.  `kept` of a copy means what an
acknowledgement rests on: the disk, or for blocks that are acknowledged from memory, memory.
"""

from collections.abc import Iterable

from millrace.core.epochs import EpochRecord
from millrace.lsn import epoch_of, last_of
from millrace.types import Ack, Block, EntryKind, Epoch, Gap, Lsn, NodeId, Placement, Token

Key = tuple[Lsn, int]


class BlockTruth:
    """A block that a sequencer gave a position to."""

    __slots__ = (
        "ack",
        "copysets",
        "durable",
        "first",
        "held",
        "is_acked",
        "key",
        "last",
        "lost",
        "lost_memory",
        "token",
    )

    def __init__(self, block: Block) -> None:
        self.first = block.first
        self.last = block.last
        self.key: Key = (block.first, block.checksum)
        self.token = block.token
        self.ack = Ack.DISK
        self.copysets: list[tuple[NodeId, ...]] = []  # Of its waves.
        self.held: set[NodeId] = set()  # Who ever had it in memory ...
        self.durable: set[NodeId] = set()  # ... and on disk.
        self.lost: set[NodeId] = set()  # Who lost it by a fault of its disk ...
        self.lost_memory: set[NodeId] = set()  # ... or before it was there.
        self.is_acked = False  # By a sequencer, or to a client.

    @property
    def kept(self) -> set[NodeId]:
        return self.durable if self.ack is Ack.DISK else self.held | self.durable

    def sent(self, placement: Placement, ack: Ack) -> None:
        self.ack = ack
        if placement.copyset not in self.copysets:
            self.copysets.append(placement.copyset)


class LogTruth:
    def __init__(self) -> None:
        self.records: list[EpochRecord] = []  # What the epoch store held, newest last.
        self.sequencers: dict[Epoch, NodeId] = {}
        self.blocks: dict[Lsn, BlockTruth] = {}  # By first position.
        self.values: dict[Lsn, int] = {}  # Acknowledged to a client, or delivered to somebody.
        self.gaps: list[Gap] = []  # Told to some reader: nothing lies there for ever.
        self.junk: set[tuple[Lsn, Lsn, EntryKind]] = set()  # Holes and bridges on some node.
        self.good: dict[Epoch, Lsn] = {}  # As sequencers told it.
        self.released = Lsn(0)
        self.acked_last = Lsn(0)
        self.trim_end = Lsn(1)  # The highest that anybody asked for.
        self.places: dict[Token, Lsn] = {}
        self.lossy: set[NodeId] = set()  # Nodes that lost something of the log.
        self.short: set[Lsn] = set()  # Stored by a recovery with too few copies.

    @property
    def record(self) -> EpochRecord:
        return self.records[-1]

    def span_of(self, epoch: Epoch) -> EpochRecord | None:
        """Where the epoch's blocks may lie; None if nobody ever claimed it."""
        return next((one for one in reversed(self.records) if one.epoch == epoch), None)

    def matters(self, block: BlockTruth) -> bool:
        is_known = block.is_acked or block.first in self.values
        return is_known and block.last >= self.trim_end

    def overlapping(self, first: Lsn, last: Lsn) -> Iterable[BlockTruth]:
        return (
            block for block in self.blocks.values() if block.first <= last and block.last >= first
        )

    def acked_within(self, first: Lsn, last: Lsn) -> BlockTruth | None:
        """An acknowledged block that intersects the positions."""
        return next((one for one in self.overlapping(first, last) if one.is_acked), None)

    def overtakes(self, first: Lsn, sequencer: NodeId) -> bool:
        """A block before this one, of its epoch, is with its sequencer at most."""
        return any(
            one.first < first
            and epoch_of(one.first) == epoch_of(first)
            and not one.is_acked
            and one.held <= {sequencer}
            for one in self.blocks.values()
        )


def reach_of(block: Block) -> tuple[Lsn, Lsn]:
    """The positions that a block speaks about: a bridge is about all that follow."""
    is_bridge = block.kind is EntryKind.BRIDGE
    return block.first, last_of(epoch_of(block.first)) if is_bridge else block.last
