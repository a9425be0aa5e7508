"""The second half of a view: what each view key's values come to.

A shard holds the groups whose view keys fall into it: their totals and results, and their rows if
the reduce looks at them.  A batch brings what came and went (`documents.py`); the answer is the
results that are other than before, None for a group that is empty now.

Rows are kept under view key and value, which sort as the values do.  A value too long for a key of
the store is cut, told apart by its digest and kept beside.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from millrace.errors import CorruptStore
from millrace.spark.pipelines.bucket_state.shard import Cursor, Shard, Transaction, open_shard
from millrace.spark.pipelines.view.order import END, decode
from millrace.spark.pipelines.view.reduces import SORTED_BYTES_MAX, Reduce, Totals, unpack_totals

VIEW_KEY_BYTES_MAX: Final = 250  # As documents' keys: results may be kept as documents.
_TIMES: Final = struct.Struct(">q")
_DIGEST_BYTES: Final = 16
_CUT_BYTES: Final = SORTED_BYTES_MAX - _DIGEST_BYTES


def group_folder(state: Path, number: int) -> Path:
    return state / f"groups-{number:03d}"


class Result(msgspec.Struct, frozen=True, array_like=True):
    """As JSON.  `value` None: there is none any more."""

    key: bytes
    value: bytes | None


class GroupAnswer(msgspec.Struct, frozen=True, array_like=True):
    results: list[Result]
    groups: int  # How many there are now.


class GroupShard:
    def __init__(self, shard: Shard, reduce: Reduce) -> None:
        self.shard = shard
        self._reduce = reduce
        self._totals = shard.table("totals")
        self._rows = shard.table("rows")

    @staticmethod
    def open(state: Path, number: int, reduce: Reduce) -> "GroupShard":
        return GroupShard(open_shard(group_folder(state, number)), reduce)

    def answered(self, batch: int) -> GroupAnswer | None:
        kept = self.shard.answered(batch)
        return None if kept is None else msgspec.msgpack.decode(kept, type=GroupAnswer)

    def take(self, batch: int, changes: Iterable[tuple[bytes, bytes, int]]) -> GroupAnswer:
        """(view key, value, times); those of one row may come in parts."""

        def work(txn: Transaction) -> bytes:
            results = self._apply(txn, _by_key(changes))
            groups = int(txn.stat(self._totals)["entries"])
            return msgspec.msgpack.encode(GroupAnswer(results, groups))

        return msgspec.msgpack.decode(self.shard.take(batch, work), type=GroupAnswer)

    def results(
        self, first: bytes = b"", end: bytes = END, limit: int | None = None
    ) -> tuple[int, list[tuple[bytes, bytes]]]:
        """The last batch, and what it left: key and value as JSON, in the order of the keys, of
        those whose encodings lie in [first, end)."""
        found: list[tuple[bytes, bytes]] = []
        with self.shard.env.begin() as txn, txn.cursor(db=self._totals) as cursor:
            is_there = cursor.set_range(first) if first else cursor.first()
            while is_there and cursor.key() < end and (limit is None or len(found) < limit):
                totals = unpack_totals(cursor.value())
                found.append((msgspec.json.encode(decode(cursor.key())), totals.shown))
                is_there = cursor.next()
            return self.shard.last_batch(txn), found

    def _apply(self, txn: Transaction, changes: dict[bytes, dict[bytes, int]]) -> list[Result]:
        keys = sorted(changes)
        with txn.cursor(db=self._totals) as cursor:
            before = dict(cursor.getmulti(keys))
        if self._reduce.has_rows:
            self._change_rows(txn, keys, changes)
        results: list[Result] = []
        kept: list[tuple[bytes, bytes]] = []
        for key in keys:
            totals = unpack_totals(before[key]) if key in before else Totals()
            for value, times in changes[key].items():
                self._reduce.add(totals, value, times)
            if totals.count < 0:
                raise _damaged(self.shard)
            shown = self._show(txn, key, totals) if totals.count else None
            if shown != (totals.shown or None):
                results.append(Result(msgspec.json.encode(decode(key)), shown))
            if shown is None:
                txn.delete(key, db=self._totals)
            else:
                totals.shown = shown
                kept.append((key, totals.pack()))
        with txn.cursor(db=self._totals) as cursor:
            cursor.putmulti(kept)
        return results

    def _show(self, txn: Transaction, key: bytes, totals: Totals) -> bytes:
        with txn.cursor(db=self._rows) as cursor:
            return msgspec.json.encode(self._reduce.show(key, totals, _Rows(cursor, key)))

    def _change_rows(
        self, txn: Transaction, keys: list[bytes], changes: dict[bytes, dict[bytes, int]]
    ) -> None:
        wanted = {
            key + _shortened(value): (value, times)
            for key in keys
            for value, times in changes[key].items()
        }
        rows = sorted(wanted)
        with txn.cursor(db=self._rows) as cursor:
            before = dict(cursor.getmulti(rows))
            kept = []
            for row in rows:
                value, times = wanted[row]
                left = times + (_TIMES.unpack_from(before[row])[0] if row in before else 0)
                if left < 0:
                    raise _damaged(self.shard)
                beside = value if len(value) > SORTED_BYTES_MAX else b""
                if left:
                    kept.append((row, _TIMES.pack(left) + beside))
                elif row in before:
                    txn.delete(row, db=self._rows)
            cursor.putmulti(kept)


class _Rows:
    """The rows of one group, where they lie."""

    def __init__(self, cursor: Cursor, key: bytes) -> None:
        self._cursor = cursor
        self._key = key

    def first(self) -> bytes:
        self._cursor.set_range(self._key)
        return self._value()

    def last(self) -> bytes:
        # If nothing lies behind the group, its last row is the last of all.
        if self._cursor.set_range(self._key + END):
            self._cursor.prev()
        else:
            self._cursor.last()
        return self._value()

    def all(self) -> Iterator[tuple[bytes, int]]:
        is_there = self._cursor.set_range(self._key)
        while is_there and self._cursor.key().startswith(self._key):
            yield self._value(), _TIMES.unpack_from(self._cursor.value())[0]
            is_there = self._cursor.next()

    def _value(self) -> bytes:
        row = self._cursor.key()
        assert row.startswith(self._key), "a group that is not empty has rows"
        return self._cursor.value()[_TIMES.size :] or row[len(self._key) :]


def _by_key(changes: Iterable[tuple[bytes, bytes, int]]) -> dict[bytes, dict[bytes, int]]:
    groups: dict[bytes, dict[bytes, int]] = {}
    for key, value, times in changes:
        group = groups.get(key)
        if group is None:
            groups[key] = {value: times}
        else:
            group[value] = group.get(value, 0) + times
    return groups


def _shortened(value: bytes) -> bytes:
    if len(value) <= SORTED_BYTES_MAX:
        return value
    return value[:_CUT_BYTES] + hashlib.blake2b(value, digest_size=_DIGEST_BYTES).digest()


def _damaged(shard: Shard) -> CorruptStore:
    return CorruptStore(
        f"{shard.folder} is to take back a row that it never had: the view's folder is damaged or "
        "mixed of two; delete it and run the view again, which builds it anew"
    )
