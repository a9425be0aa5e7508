"""How much room there is, and a reserve that blocks may not touch.

A full store must still take fences, trims and removals, and each of them needs a few pages.  So
the file is allocated ahead of what LMDB uses: a full disk is met here, before a transaction, and
the pages set aside stay ours.  Blocks are refused once only the reserve is left; whether a block
finds consecutive free pages is known only by trying, so a refused commit also counts as full:
until something is deleted, as much as was refused is stored after all, or the disk has so much
more room that it would not be refused again.

Invariants:

  I1  A batch of blocks is tried only if its bytes and the reserve both fit in free pages, in the
      map and on the disk.
  I2  The file never shrinks and never grows beyond the map.
  I3  Room that somebody else makes on the disk ends a refusal, without a write that tries it.
"""

import errno
import os
import time
from pathlib import Path
from typing import Final

import lmdb

from millrace.limits import MIB, STORE_RESERVE_BYTES_MAX
from millrace.store.contract import Usage
from millrace.store.layout import Tables, Transaction

RESERVE_SHARE: Final = 16  # Of a small map at most one part in this many is set aside.
AHEAD_BYTES_MAX: Final = 64 * MIB  # Allocating in large steps keeps the file in few pieces.
META_PAGES: Final = 2
LOOK_AGE_MAX_S: Final = 0.1  # Asking the file system costs a quarter of what a small write does.
GROWN_BYTES_MIN: Final = MIB  # Less room than this comes and goes by itself.
ROW_BYTES: Final = 256  # An index entry and its share of tree pages, for each block.

UNABLE_CODES: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
FULL_CODES: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Room:
    def __init__(self, path: Path, environment: lmdb.Environment, tables: Tables) -> None:
        self._environment = environment
        self._tables = tables
        self._page_bytes = environment.stat()["psize"]
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self.map_bytes = environment.info()["map_size"]
        self.reserve_bytes = min(STORE_RESERVE_BYTES_MAX, self.map_bytes // RESERVE_SHARE)
        self.allocated_bytes = os.fstat(self._file).st_size
        self.used_bytes = 0
        self.is_tight = False  # The disk would not let the file grow when last asked.
        self._total_bytes = 0  # As it was at `_looked_s`, when the file was that long.
        self._looked_beside_bytes = -1
        self._looked_s = 0.0
        self.is_refused = False  # A commit found no place, and nothing has changed since.
        self._refused_bytes = self.map_bytes  # What it needed.
        self._refused_until_bytes = self.map_bytes + 1  # The total with which it would find one.
        with environment.begin() as transaction:
            self.used_bytes = self.measure(transaction)

    def measure(self, transaction: Transaction) -> int:
        """Bytes of the pages in use as this transaction sees them, from counts LMDB keeps."""
        pages = META_PAGES
        for table in (None, *self._tables):
            stat = transaction.stat(table) if table is not None else self._environment.stat()
            pages += stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        return pages * self._page_bytes

    def need(self, block_sizes: list[int]) -> int:
        """Bytes that blocks of these sizes take, in whole pages when they are large."""
        page = self._page_bytes
        return sum(
            ROW_BYTES + (size if size < page // 2 else -(-(size + 16) // page) * page)
            for size in block_sizes
        )

    def prepare(self, need_bytes: int, is_junk: bool = False) -> bool:
        """Make room for a batch; false if only the reserve is left (I1)."""
        # Half of the reserve is for junk, so that readers get past what was refused.
        reserve_bytes = self.reserve_bytes // 2 if is_junk else self.reserve_bytes
        if self.used_bytes + need_bytes + reserve_bytes > self.map_bytes:
            return False
        target = min(self.map_bytes, self._high_water() + need_bytes + reserve_bytes)
        if target > self.allocated_bytes:
            ahead = min(AHEAD_BYTES_MAX, self.map_bytes // RESERVE_SHARE)
            self.is_tight = not (
                self._allocate(min(self.map_bytes, target + ahead)) or self._allocate(target)
            )
        return not self.is_tight or (
            self.used_bytes + need_bytes + reserve_bytes <= self.allocated_bytes
        )

    def _high_water(self) -> int:
        """LMDB has never written above this."""
        return (self._environment.info()["last_pgno"] + 1) * self._page_bytes

    def _allocate(self, end: int) -> bool:
        """Where the file system cannot do it, a full disk shows when a commit fails."""
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file, self.allocated_bytes, end - self.allocated_bytes)
        except OSError as error:
            if error.errno in FULL_CODES:
                return False
            if error.errno not in UNABLE_CODES:
                raise
        self.allocated_bytes = end
        return True

    def is_full_error(self, error: lmdb.Error) -> bool:
        """LMDB calls a write that was cut short by a full disk an I/O error."""
        return (
            isinstance(error, lmdb.MapFullError)
            or error.code in FULL_CODES
            or (self.is_tight and error.code == errno.EIO)
        )

    def refused(self, need_bytes: int) -> None:
        """A commit found no place for blocks that need this much."""
        self._refused_bytes = need_bytes
        self._refused_until_bytes = max(
            self._find_total(self.allocated_bytes) + GROWN_BYTES_MIN,
            min(self.map_bytes, self._high_water() + need_bytes + self.reserve_bytes),
        )
        self.is_refused = True

    def committed(self, used_bytes: int, blocks_deleted: int, data_bytes: int = 0) -> None:
        """`data_bytes` is what the blocks of data in it needed."""
        self.used_bytes = used_bytes
        if blocks_deleted or data_bytes >= self._refused_bytes:
            self.is_refused = False

    def usage(self, queued_bytes: int) -> Usage:
        is_full = self.is_full(queued_bytes)
        return Usage(self.used_bytes + queued_bytes, self._total_bytes, is_full)

    def is_full(self, queued_bytes: int) -> bool:
        """Asked for every write, so the file system is not asked every time: again when the file
        has grown, and after a while because others use the disk too.  A disk that fills up in
        between is met by `prepare`."""
        if (
            self.allocated_bytes != self._looked_beside_bytes
            or time.monotonic() - self._looked_s > LOOK_AGE_MAX_S
        ):
            self._look()
        used = self.used_bytes + queued_bytes
        return self.is_refused or used + self.reserve_bytes >= self._total_bytes

    def _look(self) -> None:
        allocated_bytes = self.allocated_bytes  # The committer's thread may change it.
        self._total_bytes = self._find_total(allocated_bytes)
        self._looked_beside_bytes = allocated_bytes
        self._looked_s = time.monotonic()
        if self._total_bytes >= self._refused_until_bytes:
            self.is_refused = False  # Keeps I3.

    def _find_total(self, allocated_bytes: int) -> int:
        disk = os.fstatvfs(self._file)
        return min(self.map_bytes, allocated_bytes + disk.f_bavail * disk.f_frsize)

    def close(self) -> None:
        os.close(self._file)
