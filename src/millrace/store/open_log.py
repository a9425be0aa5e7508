"""A log as the store's owner knows it: the picture, the tail, the fence and the counts.

Used by the thread that owns the store alone; a mutation carries a reference to it through the
committer and back.

Invariants:

  I1  What is read through it is what all queued mutations together give.
  I2  Counts are those of the last commit plus those of what is queued, so they cannot drift.
"""

from millrace.core.log_state import Fence, LogState
from millrace.store.layout import LogRow
from millrace.store.picture import Picture
from millrace.store.tail import LogTail
from millrace.types import Extent, LogId, Lsn


class OpenLog:
    __slots__ = (
        "blocks_queued",
        "blocks_stored",
        "bytes_queued",
        "bytes_stored",
        "fence",
        "is_marked",
        "log",
        "picture",
        "removed",
        "slot",
        "tail",
        "trims_queued",
    )

    def __init__(self, row: LogRow, sparse: list[Extent]) -> None:
        self.log: LogId = row.log
        self.slot = row.slot
        self.fence: Fence = row.fence
        self.picture = Picture(row.trim_end, row.contiguous_end, sparse)
        self.tail = LogTail(self.picture.end)
        self.removed: dict[Lsn, int] = {}  # Still on disk, by the number of the removal.
        self.trims_queued = 0
        self.is_marked = False  # The volatile flag is durable.
        self.blocks_stored = row.blocks
        self.bytes_stored = row.bytes
        self.blocks_queued = 0
        self.bytes_queued = 0

    def queue(self, blocks: int, size: int) -> None:
        self.blocks_queued += blocks
        self.bytes_queued += size

    @property
    def blocks(self) -> int:
        return self.blocks_stored + self.blocks_queued

    @property
    def bytes(self) -> int:
        return self.bytes_stored + self.bytes_queued

    def state(self) -> LogState:
        picture = self.picture
        return LogState(
            self.fence,
            picture.trim_end,
            picture.contiguous_end,
            picture.end,
            list(picture.sparse),
            self.blocks,
            self.bytes,
        )
