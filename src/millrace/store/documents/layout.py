"""How documents lie on disk: the tables, their keys and their records.

One LMDB environment with six tables, so that a document, its places and its partition's row change
in one transaction:

  rows        (bucket, partition)  slot, PartitionRow, checksum
  keys        (slot, key)          seq and kind of the document's newest version
  seqs        (slot, seq, key)     the document: metadata, their checksum, value
  tombstones  (slot, seq, key)     when it was made, so that purging looks at nothing else
  doomed      slot                 empty; what is filed under it is still being deleted
  identity    name                 the format (`directory.py`)

A slot is a number given for one life of a partition: one that is dropped or wiped, and made again,
never meets the remains of the old one, which go away in the background.

Invariants:

  I1  A document is in `keys` and in `seqs`, once each; a tombstone in `tombstones` too.
  I2  The key is a part of the place in `seqs`: in the middle of a rollback two documents may have
      the same seq, one of the old history and one of the new (R-B.3), and neither may take the
      place of the other.
  I3  The checksum of metadata covers slot, seq and key, and has its own of the value in it: all is
      checked, and yet metadata can be read without the value's pages.
  I4  A slot is reused only after all that was filed under it, and its `doomed` entry, are gone.
  I5  Fields are added to PartitionRow at its end, with a default: what an older version wrote is
      read.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Any, Final, NamedTuple

import google_crc32c
import lmdb
import msgspec

from millrace.core.documents.document import Cas, ChangeKind, Document, PartitionId, Seq
from millrace.core.documents.partition_row import PartitionRow
from millrace.store.documents.contract import CorruptDocument
from millrace.store.layout import Transaction, ViewTransaction

FORMAT_VERSION: Final = 1
# What shows that a page is not what was written there.  After that nothing is read with the same
# transaction (BadTxnError); a key that LMDB does not doubt may be too short to be one of ours.
DAMAGES: Final = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.CursorFullError,
    lmdb.BadTxnError,
    struct.error,
)
NO_SLOT: Final = 0  # Nothing is ever filed under it: who looks there finds nothing.

_ROW_KEY: Final = Struct(">QI")
_SLOT: Final = Struct(">I")
_PLACE: Final = Struct(">IQ")
_VERSION: Final = Struct(">QB")
_MADE: Final = Struct(">Q")
_METADATA: Final = Struct(">QQIBBI")
_CHECKSUM: Final = Struct("<I")

_METADATA_END: Final = _METADATA.size + _CHECKSUM.size  # Here the value begins.
_WHOLE: Final = 0x48674BC7  # The CRC-32C of whatever is followed by its own, lowest byte first.
_KINDS: Final = tuple(ChangeKind)

_checksum = google_crc32c.value

row_key = _ROW_KEY.pack
split_row_key = _ROW_KEY.unpack
slot_prefix = _SLOT.pack
place_prefix = _PLACE.pack  # Slot and seq; a document's key follows.
encode_version = _VERSION.pack
encode_made = _MADE.pack

SLOT_BYTES: Final = _SLOT.size
PLACE_BYTES: Final = _PLACE.size
SEQ_BYTES: Final = PLACE_BYTES - SLOT_BYTES
KIND_AT: Final = SEQ_BYTES  # In an entry of `keys`.


class Tables(NamedTuple):
    """Handles of the tables; the type of a handle is not public in the library."""

    rows: Any
    keys: Any
    seqs: Any
    tombstones: Any
    doomed: Any
    identity: Any


def open_tables(environment: lmdb.Environment) -> Tables:
    return Tables(*(environment.open_db(name.encode()) for name in Tables._fields))


def slot_of(place: bytes) -> int:
    """Of a key of `keys`, `seqs`, `tombstones` or `doomed`, or of a row."""
    slot: int = _SLOT.unpack_from(place)[0]
    return slot


def seq_of(place: bytes) -> Seq:
    return Seq(_PLACE.unpack_from(place)[1])


def made_s_of(record: bytes) -> int:
    made_s: int = _MADE.unpack(record)[0]
    return made_s


def place_of(slot_key: bytes, version: bytes) -> bytes:
    """Where in `seqs` the document lies that `keys` tells of."""
    return slot_key[:SLOT_BYTES] + version[:SEQ_BYTES] + slot_key[SLOT_BYTES:]


# -- Documents ----------------------------------------------------------------------------------


def encode_document(place: bytes, document: Document) -> bytes:
    value = document.value
    assert value is not None, f"the value of {document.key!r} is not in memory"
    metadata = _METADATA.pack(
        document.cas,
        document.expiry_s,
        document.flags,
        document.kind,
        document.datatype,
        _checksum(value),
    )
    return metadata + _CHECKSUM.pack(_checksum(place + metadata)) + value


def decode_document(place: bytes, record: bytes) -> Document:
    if _checksum(place + record[:_METADATA_END]) != _WHOLE:
        raise _damaged(place, "metadata")
    cas, expiry_s, flags, kind, datatype, value_checksum = _METADATA.unpack_from(record)
    value = record[_METADATA_END:]
    if _checksum(value) != value_checksum:
        raise _damaged(place, "value")
    _, seq = _PLACE.unpack_from(place)
    key = place[PLACE_BYTES:]
    return Document(key, value, seq, cas, flags, expiry_s, _KINDS[kind], datatype)


def decode_metadata(place: bytes, record: memoryview) -> Document:
    """Without the value, of which no page is touched."""
    metadata = bytes(record[:_METADATA_END])
    if _checksum(place + metadata) != _WHOLE:
        raise _damaged(place, "metadata")
    cas, expiry_s, flags, kind, datatype, _ = _METADATA.unpack_from(metadata)
    key, kind = place[PLACE_BYTES:], _KINDS[kind]
    return Document(key, None, seq_of(place), Cas(cas), flags, expiry_s, kind, datatype)


def _damaged(place: bytes, what: str) -> CorruptDocument:
    return CorruptDocument(
        f"the {what} of document {place[PLACE_BYTES:]!r} at seq {seq_of(place)} "
        f"(slot {slot_of(place)}) is damaged on disk: fetch it from a replica"
    )


def damaged_page(error: Exception) -> CorruptDocument:
    return CorruptDocument(
        f"a page of the documents' file is damaged ({type(error).__name__}: {error}): what lies on "
        "it is to be made anew from its master"
    )


@contextmanager
def damage_told() -> Iterator[None]:
    try:
        yield
    except DAMAGES as error:
        raise damaged_page(error) from error


def missing_at(place: bytes) -> CorruptDocument:
    return CorruptDocument(
        f"document {place[PLACE_BYTES:]!r} is said to be at seq {seq_of(place)} "
        f"(slot {slot_of(place)}), but is not there: fetch it from a replica"
    )


# -- Rows ---------------------------------------------------------------------------------------

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(PartitionRow).decode


def encode_row(key: bytes, slot: int, row: PartitionRow) -> bytes:
    body = _SLOT.pack(slot) + _encode(row)
    return body + _CHECKSUM.pack(_checksum(key + body))


def decode_row(key: bytes, record: bytes) -> PartitionRow:
    check_row(key, record)
    return _decode(record[SLOT_BYTES : -_CHECKSUM.size])


def check_row(key: bytes, record: bytes) -> None:
    if _checksum(key + record) != _WHOLE:
        bucket, partition = split_row_key(key)
        raise CorruptDocument(
            f"the row of partition {partition} of bucket {bucket} is damaged on disk: drop the "
            "partition here, and it is made anew from its master"
        )


def find_slot(
    transaction: Transaction | ViewTransaction, tables: Tables, bucket: int, partition: PartitionId
) -> int:
    """NO_SLOT: there is no such partition."""
    key = row_key(bucket, partition)
    record = transaction.get(key, db=tables.rows)
    if record is None:
        return NO_SLOT
    record = bytes(record)
    check_row(key, record)
    return slot_of(record)
