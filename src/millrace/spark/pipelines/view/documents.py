"""The first half of a view: which rows each document gave, so that they can be taken back.

A shard holds the documents whose keys fall into it.  A batch brings for each changed document the
rows that it gives now; the answer is how the rows of all documents together change, as a multiset:
(view key, value, times), rows that went with times below zero, those that cancel out left away.

  I1  The sum of all answers of all shards is the multiset of the rows of all documents now.
"""

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa

from millrace.spark.pipelines.bucket_state.shard import Shard, Transaction, open_shard

NO_ROWS: Final = b""
_FIELDS: Final[dict[str, pa.DataType]] = {
    "view_key": pa.binary(),
    "value": pa.binary(),
    "times": pa.int64(),
}
CHANGES: Final = pa.schema(_FIELDS)
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[bytes]).decode


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """A document that the map could not take, and why."""

    document: bytes
    reason: str


class DocumentAnswer(msgspec.Struct, frozen=True, array_like=True):
    """`changes` is an Arrow stream of CHANGES."""

    changes: bytes
    documents: int
    failures: tuple[Failure, ...] = ()

    def table(self) -> pa.Table:
        return pa.ipc.open_stream(self.changes).read_all()


def pack_rows(rows: list[bytes]) -> bytes:
    """View key, value, view key, value ... of one document."""
    return _pack(rows) if rows else NO_ROWS


class DocumentShard:
    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self._rows = shard.table("rows")

    @staticmethod
    def open(state: Path, number: int) -> "DocumentShard":
        return DocumentShard(open_shard(state / f"documents-{number:03d}"))

    def answered(self, batch: int) -> DocumentAnswer | None:
        kept = self.shard.answered(batch)
        return None if kept is None else _decode(kept)

    def take(
        self, batch: int, documents: Mapping[bytes, bytes], failures: tuple[Failure, ...] = ()
    ) -> DocumentAnswer:
        """`documents`: their rows now, packed; NO_ROWS also if they are gone."""

        def work(txn: Transaction) -> bytes:
            changes = self._replace(txn, documents)
            answer = DocumentAnswer(_stream(changes), len(documents), failures)
            return msgspec.msgpack.encode(answer)

        return _decode(self.shard.take(batch, work))

    def _replace(
        self, txn: Transaction, documents: Mapping[bytes, bytes]
    ) -> dict[tuple[bytes, bytes], int]:
        changes: dict[tuple[bytes, bytes], int] = {}
        keys = sorted(documents)  # In the tree's order neighbours share their pages.
        with txn.cursor(db=self._rows) as cursor:
            old = dict(cursor.getmulti(keys))
            changed = [key for key in keys if documents[key] != old.get(key, NO_ROWS)]
            cursor.putmulti([(key, documents[key]) for key in changed if documents[key]])
        for key in changed:
            now, before = documents[key], old.get(key)
            if before is not None:
                _count(changes, before, -1)
            if now:
                _count(changes, now, 1)
            else:
                txn.delete(key, db=self._rows)
        return {row: times for row, times in changes.items() if times}


def _count(changes: dict[tuple[bytes, bytes], int], packed: bytes, times: int) -> None:
    flat = _unpack(packed)
    for row in zip(islice(flat, 0, None, 2), islice(flat, 1, None, 2), strict=True):
        changes[row] = changes.get(row, 0) + times


def _stream(changes: dict[tuple[bytes, bytes], int]) -> bytes:
    keys = pa.array([key for key, _ in changes], pa.binary())
    values = pa.array([value for _, value in changes], pa.binary())
    times = pa.array(changes.values(), pa.int64())
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, CHANGES) as writer:
        writer.write_batch(pa.record_batch([keys, values, times], schema=CHANGES))
    return sink.getvalue().to_pybytes()


def _decode(kept: bytes) -> DocumentAnswer:
    return msgspec.msgpack.decode(kept, type=DocumentAnswer)
