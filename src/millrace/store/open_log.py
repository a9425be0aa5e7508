"""A log as the store's owner knows it: the picture, the tail, the fence and the counts.

Used by the thread that owns the store alone; a mutation carries a reference to it through the
committer and back.

Invariants:

  I1  What is read through it is what all queued mutations together give.
  I2  Counts are those of the last commit plus those of what is queued, so they cannot drift.
"""

from millrace.core.log_state import Fence, LogState, Marks
from millrace.store.commit_tail import CommitTail
from millrace.store.layout import IndexEntry, LogRow
from millrace.store.picture import Outline, Picture
from millrace.store.tail import LogTail
from millrace.types import LogId, Lsn


class OpenLog:
    __slots__ = (
        "amended",
        "blocks_queued",
        "blocks_stored",
        "bytes_queued",
        "bytes_stored",
        "commits",
        "fence",
        "is_marked",
        "log",
        "marks",
        "picture",
        "removed",
        "slot",
        "tail",
        "trims_queued",
    )

    def __init__(self, row: LogRow, picture: Picture | Outline) -> None:
        self.log: LogId = row.log
        self.slot = row.slot
        self.fence: Fence = row.fence
        self.marks: Marks = row.marks
        self.commits = CommitTail(row.context, row.runs_slot)
        self.picture = picture
        self.tail = LogTail(self.picture.end)
        self.removed: dict[Lsn, int] = {}  # Still on disk, by the number of the removal.
        self.amended: dict[Lsn, IndexEntry] = {}  # Other than on disk, until that is committed.
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
    def is_scattered(self) -> bool:
        return type(self.picture) is Outline

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
            self.is_scattered,
            self.marks,
            self.commits.context,
            self.commits.first,
            self.commits.runs.last,
        )
