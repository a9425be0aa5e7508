"""WRITE_REVISIONS and READ_REVISIONS: versions of many documents, with the CAS they have elsewhere.

They are for those who copy documents, and who know the map: rows of partitions that are elsewhere
are NOT_MY_PARTITION for everybody.

I1  Revisions of one partition are taken in one step, in their order.
I2  A wait for durability covers what stands there for each row, be it the revision that was
    written or the one that ranks above it: an offer that ended well stays outdone for ever.
I3  The values of one answer are at most ANSWER_BYTES_MAX together; what is more is TOO_LARGE as a
    whole, and to be asked for in parts.  Once it is too much nothing more is read: whatever is
    asked for, it costs no more than an answer does.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from millrace.codec.memcached.binary import Request
from millrace.codec.memcached.multi import MultiStored, decode_multi_get, encode_multi_stored
from millrace.codec.memcached.opcodes import Status
from millrace.codec.memcached.revisions import (
    PlacedRevisions,
    decode_revisions,
    encode_revisions_read,
)
from millrace.core.documents.document import NO_CAS, Document
from millrace.core.documents.messages import MutationToken
from millrace.core.documents.operations import (
    OperationStatus,
    ValueUnavailable,
    Verb,
)
from millrace.core.documents.partition import Partition
from millrace.core.documents.revisions import Revision, is_possible
from millrace.errors import ProtocolError
from millrace.server.documents.backend import BucketHost
from millrace.server.documents.binary_answers import fail, succeed
from millrace.server.documents.carrying_out import ANSWER_BYTES_MAX
from millrace.server.documents.many_rows import StoredRows, rows_by_partition
from millrace.server.documents.visitor import Answer, Pending, Visitor

_OK: Final = OperationStatus.OK
_NOT_FOUND: Final = OperationStatus.NOT_FOUND
_TEMPORARY_FAILURE: Final = OperationStatus.TEMPORARY_FAILURE
_NOT_MY_PARTITION: Final = OperationStatus.NOT_MY_PARTITION

Rows = list[int]


def write_revisions(visitor: Visitor, request: Request) -> Answer:
    host = visitor.host()
    if host is None:
        return fail(request, Status.NO_BUCKET)
    try:
        placed = decode_revisions(request.value)
    except ProtocolError:
        return fail(request, Status.INVALID_ARGUMENTS)
    writing = _Writing(host, placed)
    writing.write()
    word = partial(_word_written, visitor, request, placed.revisions)
    if writing.rows.has_changes and request.durability is not None:
        wait = writing.rows.settled(request.durability)
        return Pending(wait, word, len(request.value), is_wait=True)
    return word(writing.rows.answer)


def _word_written(
    visitor: Visitor, request: Request, revisions: Sequence[Revision], answer: MultiStored
) -> bytes:
    for revision, status in zip(revisions, answer.statuses, strict=True):
        verb = Verb.DELETE_REVISION if revision.value is None else Verb.SET_REVISION
        counts = visitor.counts.successes if status == _OK else visitor.counts.failures
        counts[verb] += 1
    return succeed(request, encode_multi_stored(answer))


def read_revisions(visitor: Visitor, request: Request) -> Answer:
    host = visitor.host()
    if host is None:
        return fail(request, Status.NO_BUCKET)
    try:
        partitions, keys = decode_multi_get(request.value)
    except ProtocolError:
        return fail(request, Status.INVALID_ARGUMENTS)
    reading = _Reading(host, keys)
    reading.read(partitions)
    if reading.is_too_much:
        return fail(request, Status.TOO_LARGE)  # Keeps I3.
    return succeed(request, encode_revisions_read(reading.statuses, reading.found))


class _Writing:
    """One WRITE_REVISIONS."""

    def __init__(self, host: BucketHost, placed: PlacedRevisions) -> None:
        self._host = host
        self._revisions = placed.revisions
        self._partitions = placed.partitions
        self.rows = StoredRows(host, len(placed.revisions))

    def write(self) -> None:
        host = self._host
        now_us = host.now_us()
        for number, rows in rows_by_partition(self._partitions).items():
            partition = host.active(number)
            is_refused = host.is_congested or host.is_damaged(number)
            if not host.is_serving or is_refused:  # It may have ended since the one before.
                self.rows.mark(rows, _TEMPORARY_FAILURE)
            elif partition is None:
                self.rows.mark(rows, _NOT_MY_PARTITION)
            else:
                self._write(partition, self._fitting(rows, now_us), now_us)

    def _fitting(self, rows: Rows, now_us: int) -> Rows:
        fitting: Rows = []
        for row in rows:
            revision = self._revisions[row]
            if len(revision.value or b"") > self._host.operations.value_bytes_max:
                self.rows.statuses[row] = OperationStatus.TOO_LARGE
            elif not is_possible(revision.cas, now_us):
                self.rows.statuses[row] = OperationStatus.INVALID
            else:
                fitting.append(row)
        return fitting

    def _write(self, partition: Partition, rows: Rows, now_us: int) -> None:
        revisions = [self._revisions[row] for row in rows]
        try:
            taken = self._host.operations.take_revisions(partition, revisions, now_us)
        except ValueUnavailable:
            self.rows.mark(rows, _TEMPORARY_FAILURE)
            return
        for row, document in zip(rows, taken, strict=True):
            if document is None:
                self.rows.statuses[row] = OperationStatus.EXISTS
            else:
                self.rows.cas[row] = document.cas
        if rows and partition.high:  # Keeps I2: all there is.
            token = MutationToken(partition.number, partition.log.newest, partition.high, NO_CAS)
            self.rows.wait_for(token, rows)


class _Reading:
    """One READ_REVISIONS."""

    def __init__(self, host: BucketHost, keys: Sequence[bytes]) -> None:
        self._host = host
        self._keys = keys
        self._bytes = 0
        self.statuses: list[int] = [_NOT_MY_PARTITION] * len(keys)
        self.found: list[Document | None] = [None] * len(keys)

    @property
    def is_too_much(self) -> bool:
        return self._bytes > ANSWER_BYTES_MAX

    def read(self, partitions: Sequence[int]) -> None:
        for number, rows in rows_by_partition(partitions).items():
            partition = self._host.active(number)
            if partition is not None and not self.is_too_much:
                self._read(partition, rows)

    def _read(self, partition: Partition, rows: Rows) -> None:
        """All rows of a partition, or none: a value that cannot be read makes them fail."""
        try:
            is_read = self._host.is_serving and self._read_values(partition, rows)
        except ValueUnavailable:
            is_read = False
        for row in rows:
            if not is_read:
                self.found[row] = None
                self.statuses[row] = _TEMPORARY_FAILURE
            else:
                self.statuses[row] = _NOT_FOUND if self.found[row] is None else _OK

    def _read_values(self, partition: Partition, rows: Rows) -> bool:
        """Whether all were read.  Keeps I3."""
        keys = [self._keys[row] for row in rows]
        found = self._host.operations.read_revisions(partition, keys)
        for row, document in zip(rows, found, strict=True):
            self.found[row] = document
            self._bytes += 0 if document is None else document.size
            if self.is_too_much:
                return False
        return True
