"""What a node asks of its store.

Mutations are queued in call order and can be read back at once; `barrier` tells when they are
safe.  One commit is all or nothing.  The invariants, which `tests/conformance/store_suite.py`
checks of every store:

  I1  After a crash the store holds a prefix of the commits, and at least every commit whose
      barrier (ack DISK) was answered with None.
  I2  A block is served only if its checksums match; a damaged one raises CorruptBlock.
  I3  Fences, trims, removals and drops are kept even when the disk is too full for blocks.
  I4  A log whose standing was MEMBER and that had memory-acknowledged blocks when the process
      died opens with standing DIRTY; one that was closed in order does not.  The standing also
      falls to DIRTY when the disk is too full for blocks that were acknowledged from memory.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from millrace.core.log_state import Fence, LogState
from millrace.core.messages import Refusal
from millrace.types import Ack, Block, Extent, LogId, Lsn, NodeId, Weight


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


class Store(Protocol):
    def put(self, block: Block, copyset: tuple[NodeId, ...], ack: Ack) -> None:
        """Take a block that nothing overlaps and that is not cut: both are decided above."""

    def set_fence(self, log: LogId, fence: Fence) -> None: ...

    def trim(self, log: LogId, end: Lsn) -> None:
        """Remove blocks that lie wholly below `end`; the trim point only moves up."""

    def remove(self, log: LogId, firsts: Sequence[Lsn]) -> None:
        """Remove exactly the blocks that begin at `firsts`."""

    def drop(self, log: LogId) -> None: ...

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

    def scan(self, log: LogId, first: Lsn, end: Lsn, bytes_max: int) -> Scan:
        """Blocks that intersect [first, end) in order; at least one if there is any, at most
        SCAN_BLOCKS_MAX.  Stops before a damaged block; raises CorruptBlock when that is the
        first."""

    def index(self, log: LogId, first: Lsn, end: Lsn, limit: int) -> list[Extent]: ...

    def find_time(self, log: LogId, timestamp_us: int) -> Lsn:
        """First position of the first block whose newest timestamp is at or above this one;
        the end of the log if there is none."""

    def find_size(self, log: LogId, bytes_kept: int) -> Lsn: ...

    def weigh(self, log: LogId, first: Lsn, end: Lsn, pieces: int) -> list[Weight]:
        """About how many bytes lie where in [first, end), which is tiled by at most `pieces`
        equal ranges; by looking at no more than WEIGH_ENTRIES_MAX blocks of each."""

    def usage(self) -> Usage: ...

    def close(self) -> None:
        """Make everything durable and leave no log DIRTY that was not."""
