"""What a node asks of its store.

Mutations are queued in call order and can be read back at once; `barrier` tells when they are
safe.  One commit is all or nothing.  The invariants, which `tests/conformance/store_suite.py`
checks of every store:

  I1  After a crash the store holds a prefix of the commits, and at least every commit whose
      barrier (ack DISK) was answered with None.
  I2  A block is served only if its checksums match; a damaged one raises CorruptBlock.
  I3  Fences, trims, removals, drops and commits are kept even when the disk is too full for
      blocks.
  I4  A log whose standing was MEMBER and that had memory-acknowledged blocks when the process
      died opens with standing DIRTY; one that was closed in order does not.  The standing also
      falls to DIRTY when the disk is too full for blocks that were acknowledged from memory.
  I5  Of a scattered log no two blocks overlap, and the one with the highest precedence stays,
      in whatever order they came.
  I6  Runs and context of a stream are those of one and the same commit, whatever a crash leaves.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from millrace.core.commit.record import CommitContext, StreamCommit
from millrace.core.log_state import Fence, LogState, Marks
from millrace.core.messages import Refusal
from millrace.types import Ack, Block, Copy, Extent, LogId, Lsn, Placement, Run, Weight


class Usage(msgspec.Struct, frozen=True):
    bytes_used: int
    bytes_total: int
    is_full: bool  # No more blocks are taken; there is still room for fences and trims.


class StoreFailed(msgspec.Struct, frozen=True):
    """The blocks queued before the barrier were not stored and are no longer readable."""

    reason: Refusal
    detail: str


class Scan(Protocol):
    """Blocks read together.  Their data may lie in the store's memory map: it is valid until
    `release`, which must be called once."""

    @property
    def blocks(self) -> Sequence[Block]: ...

    def release(self) -> None: ...


Done = Callable[[StoreFailed | None], None]


class Shipment(Protocol):
    """A scan of the blocks that were chosen; whatever lies below `next_lsn` was looked at."""

    @property
    def blocks(self) -> Sequence[Block]: ...

    @property
    def next_lsn(self) -> Lsn: ...

    def release(self) -> None: ...


class Store(Protocol):
    def put(self, block: Block, placement: Placement, ack: Ack) -> None:
        """Take a block that is not cut.  Nothing may overlap it: that is decided above; but in a
        scattered log it takes the place of all that overlaps it with a lower precedence or the
        same, and is passed over if anything that overlaps it has a higher one (I5) or if it lies
        below the trim point.  A block that is held already is not stored again: it is amended.  A
        barrier behind a block that was passed over or amended speaks for what is there instead.
        What a block takes the place of is gone even if there is no room for the block."""

    def scatter(self, log: LogId) -> None:
        """The log, of which there is no block here yet, is a scattered one."""

    def amend(self, log: LogId, amendments: Sequence[tuple[Lsn, Placement]]) -> list[Lsn]:
        """Give blocks of a scattered log, by their first positions, another placement, unless
        theirs has a higher precedence; the positions where there is no block."""

    def set_marks(self, log: LogId, marks: Marks) -> None:
        """Kept with the next commit; by itself no reason for one."""

    def set_fence(self, log: LogId, fence: Fence) -> None: ...

    def trim(self, log: LogId, end: Lsn) -> None:
        """Remove blocks that lie wholly below `end`, and the runs of a stream that do; the trim
        point only moves up."""

    def remove(self, log: LogId, firsts: Sequence[Lsn]) -> None:
        """Remove exactly the blocks that begin at `firsts`."""

    def drop(self, log: LogId) -> None: ...

    def commit(
        self, log: LogId, context: CommitContext | None, runs: Sequence[StreamCommit]
    ) -> None:
        """Entries of a stream have their place in its commit log.  The runs lie above those known,
        in both numbers, and begin and end with blocks; they and the context, which takes the place
        of the last one, are one transaction.  Runs that continue one another are one.  None: the
        replica is being brought up to date, and nobody may take it for whole.  With no runs the
        context is kept with the next commit; by itself it is no reason for one.  A barrier with
        ack MEMORY does not wait for the commits of a log whose loss would be noticed (I4)."""

    def uncommit(self, log: LogId) -> None:
        """Forget context and runs of a stream; its blocks stay."""

    def barrier(self, ack: Ack, done: Done) -> None:
        """Call `done` when all that was queued so far is durable; with ack MEMORY, when it is held
        in memory, will be durable within a bounded time, and the log is marked so that a crash
        before then is noticed (I4): often at once, from inside this call.  A failure of blocks is
        told to the first barrier behind them; what an earlier barrier speaks for is not waited for
        with ack MEMORY."""

    def logs(self) -> list[LogId]: ...

    def state(self, log: LogId) -> LogState | None: ...

    def block_at(self, log: LogId, lsn: Lsn) -> Block | None:
        """The block that holds `lsn`, as a copy that needs no release."""

    def bridge_over(self, log: LogId, lsn: Lsn) -> Block | None:
        """The BRIDGE that begins below `lsn` in its epoch and is about all that follows there, as a
        copy that needs no release, even if it is damaged; None if something else comes last
        below."""

    def scan(self, log: LogId, first: Lsn, end: Lsn, bytes_max: int) -> Scan:
        """Blocks that intersect [first, end) in order; at least one if there is any, at most
        SCAN_BLOCKS_MAX.  Stops before a damaged block; raises CorruptBlock when that is the
        first."""

    def index(self, log: LogId, first: Lsn, end: Lsn, limit: int) -> list[Extent]: ...

    def copies(self, log: LogId, first: Lsn, end: Lsn, limit: int) -> list[Copy]:
        """As `index`, with the placements."""

    def ship(
        self, log: LogId, first: Lsn, end: Lsn, bytes_max: int, ships: Callable[[Copy], bool]
    ) -> Shipment:
        """Of the blocks that intersect [first, end) those that `ships` chooses by their index
        entries alone, in order, up to about `bytes_max` (at least one if any is chosen) and at most
        SCAN_BLOCKS_MAX, after looking at no more than SHIP_ENTRIES_MAX entries.  No other block is
        read.  Stops before a damaged block; raises CorruptBlock when that is the first chosen,
        and then no more is asked of `ships`.  `next_lsn` is `end` when all was looked at."""

    def commit_runs(self, log: LogId, first: Lsn, end: Lsn, limit: int) -> list[StreamCommit]:
        """Of a stream: the runs that intersect [first, end) of its commit log, in order."""

    def locate(self, log: LogId, local: Lsn) -> Lsn | None:
        """Where the entry at this position of a stream lies in its commit log; None if it is not
        committed, or trimmed."""

    def ship_committed(
        self, streams: Sequence[LogId], first: Lsn, end: Lsn, bytes_max: int
    ) -> Shipment:
        """Committed blocks of these streams, all of one commit log, that intersect [first, end) of
        it, in its order.  Each is a block of the commit log, by its positions there, with the data
        as stored, whose header names the stream and the positions in it.  Bounded as `ship` is, and
        so are damaged blocks."""

    def index_committed(
        self, streams: Sequence[LogId], first: Lsn, end: Lsn, limit: int
    ) -> list[Extent]:
        """As `index`, of what `ship_committed` ships."""

    def find_time(self, log: LogId, timestamp_us: int) -> Lsn:
        """First position of the first block whose newest timestamp is at or above this one;
        the end of the log if there is none."""

    def find_size(self, log: LogId, bytes_kept: int) -> Lsn: ...

    def weigh(self, log: LogId, first: Lsn, end: Lsn, pieces: int) -> list[Weight]:
        """About how many bytes lie where in [first, end), which is tiled by at most `pieces`
        equal ranges; by looking at no more than WEIGH_ENTRIES_MAX blocks of each.  Ranges of a
        scattered log are equal without what lies between the last block of an epoch and the first
        of the next."""

    def runs(self, log: LogId, first: Lsn, end: Lsn, limit: int) -> list[Run]:
        """Of a scattered log: between which positions the blocks of [first, end) lie in each epoch
        that has any, of `limit` epochs at most.  A bridge ends a run and is no part of it."""

    def usage(self) -> Usage: ...

    def close(self) -> None:
        """Make everything durable and leave no log DIRTY that was not."""
