"""Reading documents from LMDB: each read is one transaction, and what it shows is of one moment.

The slot is looked up in the same transaction as the documents: a partition may be wiped between
two reads, and its old slot is being emptied from then on.

  I1  Nothing is handed out whose checksum was not compared (contract, I5).
      A page that LMDB cannot make sense of is a damaged document too, not an error of its own.
  I2  Documents that share a seq are handed out together: whoever goes on behind the seq of the
      last one misses none.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from millrace.core.documents.document import SEQ_MAX, Document, Seq
from millrace.store.documents.contract import CorruptDocument
from millrace.store.documents.layout import (
    DAMAGES,
    SLOT_BYTES,
    Tables,
    damaged_page,
    decode_document,
    decode_metadata,
    made_s_of,
    missing_at,
    place_of,
    place_prefix,
    seq_of,
    slot_prefix,
)
from millrace.store.layout import Transaction, ViewTransaction

UNBOUNDED: Final = 2**63


class Page(NamedTuple):
    """What is asked for: (after, last], bounded."""

    after: Seq
    last: Seq
    count_max: int
    bytes_max: int


class LmdbView:
    """See `contract.DiskView`."""

    __slots__ = ("_slot", "_tables", "_transaction")

    def __init__(self, transaction: Transaction, tables: Tables, slot: int) -> None:
        self._transaction = transaction
        self._tables = tables
        self._slot = slot

    def scan(self, after: Seq, last: Seq, count_max: int, bytes_max: int) -> list[Document]:
        page = Page(after, last, count_max, bytes_max)
        return _walk(self._transaction, self._tables, self._slot, page, decode_document)

    def close(self) -> None:
        self._transaction.abort()


def _walk(
    transaction: Transaction | ViewTransaction,
    tables: Tables,
    slot: int,
    page: Page,
    decode: Callable[[bytes, Any], Document],
) -> list[Document]:
    """Up to what is damaged, and never a part of those that share a seq.  Keeps I1, I2."""
    documents: list[Document] = []
    after, last, count_max, bytes_max = page
    end, size_bytes = place_prefix(slot, last + 1), 0
    seq = after  # Of the one that is looked at.
    try:
        with transaction.cursor(db=tables.seqs) as cursor:
            if not cursor.set_range(place_prefix(slot, after + 1)):
                return documents
            for key, record in cursor.iternext():
                place = bytes(key)
                if place >= end:
                    break
                size_bytes += len(record)
                seq = seq_of(place)
                is_enough = size_bytes > bytes_max or len(documents) >= count_max
                if is_enough and documents and seq != documents[-1].seq:
                    break
                documents.append(decode(place, record))
    except (CorruptDocument, *DAMAGES) as error:
        # What a page has that cannot be read may share the seq of the last one.
        before = [one for one in documents if one.seq != seq]
        if before:
            return before
        raise error if isinstance(error, CorruptDocument) else damaged_page(error) from error
    return documents


def load(
    transaction: Transaction, tables: Tables, slot: int, after: Seq, count_max: int
) -> list[Document]:
    return _load(transaction, tables, slot, after, count_max, decode_document)


def load_metadata(
    transaction: ViewTransaction, tables: Tables, slot: int, after: Seq, count_max: int
) -> list[Document]:
    """A view transaction touches no page of a value that is not looked at."""
    return _load(transaction, tables, slot, after, count_max, decode_metadata)


def _load(
    transaction: Transaction | ViewTransaction,
    tables: Tables,
    slot: int,
    after: Seq,
    count_max: int,
    decode: Callable[[bytes, Any], Document],
) -> list[Document]:
    """An empty page would mean that there are no more: so pages of tombstones are passed over."""
    page = Page(after, SEQ_MAX, count_max, UNBOUNDED)
    while found := _walk(transaction, tables, slot, page, decode):
        documents = [one for one in found if not one.kind]
        if documents:
            return documents
        page = page._replace(after=found[-1].seq)
    return []


def find_many(
    transaction: Transaction, tables: Tables, slot: int, keys: Sequence[bytes]
) -> list[Document]:
    prefix = slot_prefix(slot)
    with transaction.cursor(db=tables.keys) as cursor:
        found: list[tuple[bytes, bytes]] = cursor.getmulti([prefix + key for key in keys])
    return _read_all(transaction, tables, [place_of(*one) for one in found])


def find_tombstones(
    transaction: Transaction, tables: Tables, slot: int, before_s: int, count_max: int
) -> list[Document]:
    prefix = slot_prefix(slot)
    places: list[bytes] = []
    with transaction.cursor(db=tables.tombstones) as cursor:
        if cursor.set_range(prefix):
            for place, made in cursor.iternext():
                is_other = place[:SLOT_BYTES] != prefix or made_s_of(made) >= before_s
                if is_other or len(places) >= count_max:
                    break
                places.append(place)
    return _read_all(transaction, tables, places)


def _read_all(transaction: Transaction, tables: Tables, places: list[bytes]) -> list[Document]:
    """Each is there, or something is damaged."""
    with transaction.cursor(db=tables.seqs) as cursor:
        records: list[tuple[bytes, bytes]] = cursor.getmulti(places)
    if len(records) < len(places):
        raise missing_at(next(iter(set(places) - {place for place, _ in records})))
    return [decode_document(place, record) for place, record in records]
