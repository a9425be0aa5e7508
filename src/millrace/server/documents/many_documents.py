"""MULTI_GET and MULTI_SET: many documents in one request, each with a status of its own.

Documents of one partition are stored in one step.  Rows of partitions that are elsewhere are
NOT_MY_PARTITION for a client that knows the map, and passed on for one that does not.

I1  Of two rows with the same key the later one is what stays.
I2  The values of one answer are at most ANSWER_BYTES_MAX together; what is more is TOO_LARGE as a
    whole, and to be asked for in parts.
"""

import sys
from collections.abc import Sequence
from functools import partial

from millrace.codec.memcached.binary import Durability, Request
from millrace.codec.memcached.multi import (
    MultiGot,
    MultiSet,
    MultiStored,
    decode_multi_get,
    decode_multi_set,
    encode_multi_got,
    encode_multi_stored,
)
from millrace.codec.memcached.opcodes import Status
from millrace.core.documents.document import PartitionId
from millrace.core.documents.messages import MutationToken
from millrace.core.documents.operations import (
    Command,
    OperationStatus,
    Verb,
    absolute_expiry_s,
)
from millrace.errors import ProtocolError
from millrace.server.documents.backend import BucketHost
from millrace.server.documents.binary_answers import fail, succeed
from millrace.server.documents.carrying_out import Many, ManyReads, forward_all
from millrace.server.documents.many_rows import StoredRows, level_and_timeout, rows_by_partition
from millrace.server.documents.visitor import Answer, Exclusive, Pending, Visitor

_OK = OperationStatus.OK


def get_many(visitor: Visitor, request: Request) -> Answer:
    host = visitor.host()
    if host is None:
        return fail(request, Status.NO_BUCKET)
    try:
        partitions, keys = decode_multi_get(request.value)
    except ProtocolError:
        return fail(request, Status.INVALID_ARGUMENTS)
    numbers = partitions if visitor.is_map_aware else map(host.partition_of, keys)
    commands = [Command(Verb.GET, key) for key in keys]
    reads = ManyReads(host, commands, numbers, is_forwarding=not visitor.is_map_aware)
    word = partial(_word_got, visitor, request)
    return word(reads.outcomes) if reads.is_complete else Exclusive(reads.forward, word)


def _word_got(visitor: Visitor, request: Request, outcomes: Many) -> bytes:
    if outcomes is None:
        return fail(request, Status.TOO_LARGE)  # Keeps I2.
    found = [outcome.document for outcome in outcomes]
    hits = len(found) - found.count(None)
    visitor.counts.successes[Verb.GET] += hits
    visitor.counts.failures[Verb.GET] += len(found) - hits
    got = MultiGot(
        [outcome.status for outcome in outcomes],
        [document.cas if document is not None else 0 for document in found],
        [document.flags if document is not None else 0 for document in found],
        [(document.value or b"") if document is not None else b"" for document in found],
    )
    return succeed(request, encode_multi_got(got))


def set_many(visitor: Visitor, request: Request) -> Answer:
    host = visitor.host()
    if host is None:
        return fail(request, Status.NO_BUCKET)
    try:
        documents = decode_multi_set(request.value)
    except ProtocolError:
        return fail(request, Status.INVALID_ARGUMENTS)
    storing = _Storing(host, documents, request.durability)
    storing.store(documents.partitions if visitor.is_map_aware else None)
    word = partial(_word_stored, visitor, request)
    if storing.elsewhere and not visitor.is_map_aware:
        return Exclusive(storing.forward, word)
    if storing.rows.has_changes and request.durability is not None:
        wait = storing.rows.settled(request.durability)
        return Pending(wait, word, len(request.value), is_wait=True)
    return word(storing.rows.answer)


def _word_stored(visitor: Visitor, request: Request, answer: MultiStored) -> bytes:
    failures = len(answer.statuses) - answer.statuses.count(_OK)
    visitor.counts.successes[Verb.SET] += len(answer.statuses) - failures
    visitor.counts.failures[Verb.SET] += failures
    return succeed(request, encode_multi_stored(answer))


class _Storing:
    """One MULTI_SET.  `elsewhere` are rows of partitions that this node is not the master of."""

    def __init__(
        self, host: BucketHost, documents: MultiSet, durability: Durability | None
    ) -> None:
        self._host = host
        self._documents = documents
        self._durability = durability
        self.rows = StoredRows(host, len(documents.keys))
        self.elsewhere: list[int] = []

    def store(self, partitions: Sequence[int] | None) -> None:
        """What is stored here; `partitions` None: as the keys say."""
        host, documents = self._host, self._documents
        numbers = map(host.partition_of, documents.keys) if partitions is None else partitions
        now_us = host.now_us()
        for number, rows in rows_by_partition(numbers).items():
            self._store_partition(number, rows, now_us)

    def _fitting(self, rows: list[int]) -> list[int]:
        values, largest = self._documents.values, self._host.operations.value_bytes_max
        if max(len(values[row]) for row in rows) <= largest:
            return rows
        too_large = (row for row in rows if len(values[row]) > largest)
        self.rows.mark(too_large, OperationStatus.TOO_LARGE)
        return [row for row in rows if len(values[row]) <= largest]

    def _store_partition(self, number: PartitionId, rows: list[int], now_us: int) -> None:
        host = self._host
        partition = host.active(number)
        is_refused = host.is_congested or host.is_damaged(number)
        if partition is not None and (not host.is_serving or is_refused):
            self.rows.mark(rows, OperationStatus.TEMPORARY_FAILURE)
            return
        rows = self._fitting(rows)
        if partition is None:
            self.rows.mark(rows, OperationStatus.NOT_MY_PARTITION)
            self.elsewhere += rows
            return
        _, keys, values, flags, expiries = self._documents
        items = [
            (
                keys[row],
                values[row],
                flags[row],
                expiries[row] and absolute_expiry_s(expiries[row], now_us),
            )
            for row in rows
        ]
        stored = partition.store_many(items, now_us)
        for row, document in zip(rows, stored, strict=True):
            self.rows.cas[row] = document.cas
        if stored:
            last = stored[-1]
            token = MutationToken(number, partition.log.newest, last.seq, last.cas)
            self.rows.wait_for(token, rows)

    async def forward(self) -> MultiStored:
        """Those that are elsewhere, and then whatever is to be waited for here."""
        _, keys, values, flags, expiries = self._documents
        level, timeout_ms = level_and_timeout(self._durability)
        commands = [
            Command(Verb.SET, keys[row], values[row], flags[row], expiries[row],
                    level=level, timeout_ms=timeout_ms)
            for row in self.elsewhere
        ]  # fmt: skip
        placed = [(self._host.partition_of(command.key), command) for command in commands]
        outcomes = await forward_all(self._host, placed, sys.maxsize)
        rows = self.rows
        for row, outcome in zip(self.elsewhere, outcomes, strict=True):
            rows.statuses[row] = outcome.status
            rows.cas[row] = outcome.document.cas if outcome.document is not None else 0
        is_waiting = self._durability is not None
        return await rows.settled(self._durability) if is_waiting else rows.answer
