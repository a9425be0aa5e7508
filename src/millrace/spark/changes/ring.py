"""The ring: a hidden log in which the tasks of a query leave what the next ones must know.

    part/<partition>   the seqs and keys of what was read, before it is handed out
    receipt            how far a task came with its ranges

It is a log because all tasks can write it, wherever they run, and it is named in the query's
offsets.  Nodes send a reader only the records with the keys that it asks for, so that the driver
pays for receipts alone.

I1  What is in the ring twice, because a task was repeated or an append was, says the same twice.
I2  Of the batch that was planned last nothing is trimmed, unless the query rests for KEPT_MS_MAX:
    then the query finds that the ring is gone.
"""

import asyncio
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from millrace.client.cluster import Client
from millrace.client.log import Log
from millrace.client.outcomes import UnknownAppend
from millrace.core.documents.change_query import Receipt
from millrace.core.documents.change_ring import RingPart
from millrace.core.documents.document import PartitionId, Seq
from millrace.core.documents.failover_log import FailoverLog
from millrace.core.documents.ring_buffer import RingEntry
from millrace.errors import Unavailable
from millrace.lsn import lsn_of
from millrace.types import FIRST_LSN, Epoch, Gap, Lsn, Record, Selection

COPIES_MAX: Final = 3
APPEND_PATIENCE_S: Final = 90  # As long as a task waits for a partition.
APPEND_TIMEOUT_MS: Final = 15_000
READ_TIMEOUT_MS: Final = 30_000
PAUSE_S: Final = 0.1
RECEIPT: Final = b"receipt"
KEPT_MS_MAX: Final = 30 * 24 * 3_600_000  # Nobody comes back for the ring of most stopped queries.
BEGINNING: Final = lsn_of(Epoch(1), 1)  # Where the first record of a log may be.


class KeptReceipt(msgspec.Struct, frozen=True):
    lsn: Lsn
    receipt: Receipt


class KeyColumns(msgspec.Struct, frozen=True, array_like=True):
    """`seqs` int64, `ends` int32 into `keys`, little-endian."""

    seqs: bytes = b""
    ends: bytes = b""
    keys: bytes = b""

    def entries(self) -> Iterator[RingEntry]:
        seqs, ends = np.frombuffer(self.seqs, "<i8"), np.frombuffer(self.ends, "<i4")
        start = 0
        for seq, end in zip(seqs.tolist(), ends.tolist(), strict=True):
            yield RingEntry(Seq(seq), self.keys[start:end])
            start = end


NO_KEYS: Final = KeyColumns()


class PartDocument(msgspec.Struct, frozen=True, array_like=True):
    """A part as the ring has it."""

    era: int
    log: FailoverLog
    first: Seq
    began: Seq
    after: Seq
    last: Seq
    cut: Seq | None
    columns: KeyColumns


def columns_of(seqs: Any, keys: Any) -> KeyColumns:
    """Of Arrow's int64 and binary arrays, without touching a single key."""
    _, offsets, data = keys.buffers()
    ends = np.frombuffer(offsets, "<i4", len(keys) + 1, keys.offset * 4)
    text = b"" if data is None else bytes(memoryview(data)[ends[0] : ends[-1]])
    return KeyColumns(seqs.to_numpy().tobytes(), (ends[1:] - ends[0]).tobytes(), text)


def document_of(part: RingPart, columns: KeyColumns) -> PartDocument:
    stretch = part.first, part.began, part.after, part.last
    return PartDocument(part.era, part.log, *stretch, part.cut, columns)


def part_of(document: PartDocument, is_settled: bool) -> RingPart:
    stretch = document.first, document.began, document.after, document.last
    entries = tuple(document.columns.entries())
    return RingPart(document.era, document.log, *stretch, entries, document.cut, is_settled)


def key_of(partition: PartitionId) -> bytes:
    return b"part/%d" % partition


def new_name() -> str:
    return f"@ring/{secrets.token_hex(8)}"


class Ring:
    def __init__(self, client: Client, name: str) -> None:
        self.name = name
        self._client = client

    async def make(self) -> None:
        """It must stay writable when a node is gone."""
        nodes = len(self._client.directory.addresses)
        copies = max(1, min(COPIES_MAX, nodes - 1))
        await self._client.create_internal_log(
            self.name, replication=copies, retention_ms=KEPT_MS_MAX
        )

    async def exists(self) -> bool:
        return await self._client.find_log(self.name) is not None

    async def has(self, position: Lsn) -> bool:
        """Whether all that was written from there on is in it: it was not deleted, nor made again,
        nor trimmed to a later position by its age."""
        if not await self.exists():
            return False
        start, end = await (await self._log()).bounds(timeout_ms=READ_TIMEOUT_MS)
        return start <= max(position, BEGINNING) and position <= end

    async def _log(self) -> Log:
        return await self._client.log(self.name)

    # -- Tasks ----------------------------------------------------------------------------------

    async def append(
        self, parts: Sequence[tuple[PartitionId, PartDocument]], receipts: Sequence[Receipt]
    ) -> None:
        """Parts first: a receipt says that they are there.  An append whose outcome is not known
        is repeated: I1."""
        keys = [key_of(partition) for partition, _ in parts] + [RECEIPT] * len(receipts)
        values = [*map(msgspec.msgpack.encode, (part for _, part in parts))]
        values += map(msgspec.msgpack.encode, receipts)
        deadline = time.monotonic() + APPEND_PATIENCE_S
        while True:
            try:
                log = await self._log()
                await log.append_many(values, keys=keys, timeout_ms=APPEND_TIMEOUT_MS)
                return
            except (Unavailable, UnknownAppend):
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(PAUSE_S)

    async def parts(self, partition: PartitionId, settled: Lsn) -> list[RingPart]:
        """All that are kept; those before `settled` are settled."""
        decode = msgspec.msgpack.Decoder(PartDocument).decode
        records, _ = await self._read((key_of(partition),), FIRST_LSN)
        return [part_of(decode(record.value), record.lsn < settled) for record in records]

    # -- The driver -----------------------------------------------------------------------------

    async def receipts(self, first: Lsn) -> tuple[list[KeptReceipt], Lsn]:
        """From there on, and where the ring ends now."""
        decode = msgspec.msgpack.Decoder(Receipt).decode
        records, end = await self._read((RECEIPT,), first)
        return [KeptReceipt(record.lsn, decode(record.value)) for record in records], end

    async def trim(self, before: Lsn) -> None:
        await (await self._log()).trim(before)

    async def _read(self, keys: tuple[bytes, ...], first: Lsn) -> tuple[list[Record], Lsn]:
        log = await self._log()
        start, end = await log.bounds(timeout_ms=READ_TIMEOUT_MS)
        begin = max(start, first)
        if begin >= end:
            return [], end
        select = Selection(("key", "value"), keys=keys)
        async with log.reader(begin, end, select=select) as reader:
            return await _records(reader.batches(timeout_ms=READ_TIMEOUT_MS)), end


async def _records(batches: Any) -> list[Record]:
    found: list[Record] = []
    async for batch in batches:
        if isinstance(batch, Gap):
            continue  # What was trimmed is not missed; what was lost is found to be uncovered.
        rows: Iterable[Any] = zip(
            batch.column("lsn").to_pylist(), batch.column("value").to_pylist(), strict=True
        )
        found += (Record(Lsn(lsn), value) for lsn, value in rows)
    return found
