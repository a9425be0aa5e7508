"""A shard: a part of a pipeline's state that takes each batch once, however often it is brought.

Spark runs the tasks of a batch again when one fails, runs two of one when one is slow, and runs
the whole batch again after a crash.  The same input need not come again: a stream that is
read later leaves out what was changed since.  So what was answered is kept with what was changed.

  I1  State, batch number and answer change in one transaction.
  I2  A batch that a shard has taken is answered with what it answered then; its input is not
      looked at.
  I3  A batch before the last changes nothing: whoever brings it is late, and nobody waits for him.
  I4  At most one writes at a time: LMDB's lock, which holds on one machine (`check_host`).
"""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import lmdb

from millrace.errors import BatchOvertaken, UsageError

if TYPE_CHECKING:  # LMDB's classes are generic in its stubs alone.
    Transaction = lmdb.Transaction[bytes]
    Cursor = lmdb.Cursor[bytes]
else:
    Transaction = lmdb.Transaction
    Cursor = lmdb.Cursor

NO_BATCH: Final = -1
SHARD_BYTES_MAX: Final = 1 << 36  # Address space, not disk: a file grows with what is in it.
TABLES_MAX: Final = 4
_TAKEN: Final = b"taken"
_LAST: Final = b"batch"
_ANSWER: Final = b"answer"

_open: dict[Path, tuple[int, "Shard"]] = {}
os.register_at_fork(after_in_child=_open.clear)  # LMDB's files must not be used across a fork.


class Shard:
    """Opened with `open_shard`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.env = lmdb.open(
            str(folder), map_size=SHARD_BYTES_MAX, max_dbs=TABLES_MAX, meminit=False
        )
        self.env.reader_check()  # Frees the places of readers that were killed.
        self._taken = self.env.open_db(_TAKEN)

    def table(self, name: str) -> "lmdb._Database":
        return self.env.open_db(name.encode())

    def last_batch(self, txn: Transaction) -> int:
        found = txn.get(_LAST, db=self._taken)
        return NO_BATCH if found is None else int(found)

    def answered(self, batch: int) -> bytes | None:
        """What the shard answered to the batch, if that is its last."""
        with self.env.begin() as txn:
            if self.last_batch(txn) != batch:
                return None
            return txn.get(_ANSWER, db=self._taken)

    def take(self, batch: int, work: Callable[[Transaction], bytes]) -> bytes:
        """`work` changes the state and gives the answer.  Raises BatchOvertaken."""
        with self.env.begin(write=True) as txn:
            last = self.last_batch(txn)
            if batch < last:
                raise BatchOvertaken(
                    f"batch {batch} came to {self.folder.name} after batch {last}: this task was "
                    "given up long ago, and its result is not needed"
                )
            if batch == last:  # Keeps I2.
                kept = txn.get(_ANSWER, db=self._taken)
                assert kept is not None
                return kept
            answer = work(txn)
            txn.put(_ANSWER, answer, db=self._taken)
            txn.put(_LAST, b"%d" % batch, db=self._taken)
            return answer


def open_shard(folder: Path) -> Shard:
    """This process's, which it keeps: LMDB may be opened once in a process.  A folder that was
    deleted and made again is another."""
    number = _file_number(folder)
    known = _open.get(folder)
    if known is not None and known[0] == number:
        return known[1]
    if known is not None:
        known[1].env.close()
    shard = Shard(folder)
    _open[folder] = (_file_number(folder), shard)
    return shard


def close_shards(below: Path) -> None:
    """Those that this process has open below a folder."""
    for folder in [each for each in _open if each.is_relative_to(below)]:
        _open.pop(folder)[1].env.close()


def check_host(driver_host: str) -> None:
    """Keeps I4.  Raises UsageError."""
    here = socket.gethostname()
    if here != driver_host:
        raise UsageError(
            f"this worker runs on {here} and the driver on {driver_host}: the state of a pipeline "
            "is a folder of one machine, so use workers of that machine, or master local[*]"
        )


def _file_number(folder: Path) -> int:
    try:
        return (folder / "data.mdb").stat().st_ino
    except FileNotFoundError:
        return 0
