"""What a task of a copy does: offer each change to the other bucket, with its CAS.

The other bucket's master takes a change if it ranks above what is there.  So the order of offers
does not matter, repeating them does nothing, and a change that comes back to where it was made ends
there: that is all there is to loops.

A failover may take changes back that the other bucket has already.  Then the source tells the key
again (`cause` is rollback) with what its new master has, or with no revision at all.  That cannot
win, and need not: the change was acknowledged once and is not lost as long as one cluster has it.
So the other bucket's version is offered to the source, and both are equal again.

I1  A change counts as copied when what the other bucket has for its key, the change itself or what
    ranks above it, is as durable there as was asked for: a failover there does not undo it.
I2  Nothing is written to the source but versions of keys that it took back, and those only if they
    rank above what it has.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import msgspec
import pyarrow as pa

from millrace.client.bucket import Bucket
from millrace.core.documents.document import Cas
from millrace.core.documents.revisions import Revision
from millrace.limits import MIB
from millrace.spark import workers
from millrace.spark.buckets.attempts import until_done
from millrace.spark.buckets.writers import open_bucket

COLUMNS: Final = ("key", "value", "_change_type", "cas", "cause", "flags", "expiry", "datatype")
COUNTS: Final = "offered long, written long, rolled_back long, given_back long"
PATIENCE_MS: Final = 60_000  # For masters that change; afterwards the pipeline says what is wrong.
TIMEOUT_MS: Final = 20_000  # Of one attempt: a wait for copies that are away ends with it.
PIECE_ROWS: Final = 4_096
PIECE_BYTES: Final = 4 * MIB

_DELETE: Final = "delete"
_ROLLBACK: Final = "rollback"


class Place(msgspec.Struct, frozen=True):
    cluster: str
    bucket: str

    def open(self) -> Bucket:
        """Raises UnknownBucket, Unavailable."""
        client = workers.client(self.cluster)
        return workers.run(open_bucket(client, self.bucket))


class Work(msgspec.Struct, frozen=True):
    """What the tasks of one direction are told."""

    source: Place
    target: Place
    durability: str | None
    is_giving_back: bool
    key_pattern: bytes = b""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: one row of COUNTS for each task."""
        with workers.plain_errors():
            workers.freeze()
            counts = Offering(self, self.source.open(), self.target.open()).take(batches)
            yield pa.RecordBatch.from_pylist([msgspec.structs.asdict(counts)])


class Counts(msgspec.Struct):
    offered: int = 0
    written: int = 0  # Of them, those that won.
    rolled_back: int = 0  # Keys that the source took back.
    given_back: int = 0  # Of them, those that came back to the source.


class Offering:
    """Used by one task, in one thread."""

    def __init__(self, work: Work, source: Bucket, target: Bucket) -> None:
        self._work = work
        self._source = source
        self._target = target
        self._pattern = re.compile(work.key_pattern) if work.key_pattern else None
        self._counts = Counts()

    def take(self, batches: Iterable[pa.RecordBatch]) -> Counts:
        for batch in batches:
            for piece in _pieces(self._chosen(batch)):
                self._offer(piece)
        return self._counts

    def _chosen(self, batch: pa.RecordBatch) -> Iterator["_Row"]:
        columns: Any = [batch.column(name).to_pylist() for name in COLUMNS]
        pattern = self._pattern
        for key, value, kind, cas, cause, *numbers in zip(*columns, strict=True):
            if pattern is None or pattern.search(key):
                body = None if kind == _DELETE else value
                yield _Row(Revision(key, body, Cas(cas), *numbers), cause == _ROLLBACK)

    def _offer(self, rows: Sequence["_Row"]) -> None:
        """Keeps I1 and I2."""
        work, counts = self._work, self._counts
        # A key that is nowhere at the source has no revision to offer.
        known = [row.revision for row in rows if row.revision.cas]
        written = self._write(self._target, known)
        counts.offered += len(known)
        counts.written += sum(written)
        taken_back = [row.revision.key for row in rows if row.is_rollback]
        counts.rolled_back += len(taken_back)
        if taken_back and work.is_giving_back:
            counts.given_back += sum(self._write(self._source, self._theirs(taken_back)))

    def _write(self, bucket: Bucket, revisions: Sequence[Revision]) -> list[bool]:
        durability = self._work.durability
        return until_done(
            lambda left_ms: bucket.write_revisions(
                revisions, durability=durability, timeout_ms=min(TIMEOUT_MS, left_ms)
            ),
            PATIENCE_MS,
        )

    def _theirs(self, keys: Sequence[bytes]) -> list[Revision]:
        read = until_done(
            lambda left_ms: self._target.read_revisions(keys, timeout_ms=min(TIMEOUT_MS, left_ms)),
            PATIENCE_MS,
        )
        return list(read.values())


class _Row(msgspec.Struct, frozen=True, gc=False):
    revision: Revision
    is_rollback: bool


def _pieces(rows: Iterator[_Row]) -> Iterator[list[_Row]]:
    """Of about PIECE_BYTES."""
    while piece := list(islice(rows, PIECE_ROWS)):
        size_bytes, first = 0, 0
        for at, row in enumerate(piece):
            size_bytes += len(row.revision.value or b"")
            if size_bytes >= PIECE_BYTES:
                yield piece[first : at + 1]
                size_bytes, first = 0, at + 1
        if first < len(piece):
            yield piece[first:]
