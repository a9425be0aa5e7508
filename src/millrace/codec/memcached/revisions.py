"""The bodies of WRITE_REVISIONS and READ_REVISIONS: versions of documents with their CAS.

One row for each document, as in `multi.py`.  WRITE_REVISIONS is answered as MULTI_SET is;
KEY_EXISTS says of a row that what is there is as new, or newer.  READ_REVISIONS asks as MULTI_GET
does.  Expiries are times, never seconds from now.

A body has a column of datatypes only if a row has one: peers that do not know it yet read all
others, and refuse what they would lose.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from millrace.codec.memcached.columns import (
    Body,
    Layout,
    LayoutId,
    checked_keys,
    encode_body,
    layout_of,
    read_body,
)
from millrace.codec.memcached.opcodes import Status
from millrace.core.documents.document import NO_CAS, NO_SEQ, ChangeKind, Document
from millrace.core.documents.revisions import Revision
from millrace.errors import ProtocolError

_REVISIONS: Final = Layout(LayoutId.REVISIONS, ("H", "Q", "I", "I", "B"), 2)
_REVISIONS_ANSWER: Final = Layout(LayoutId.REVISIONS_ANSWER, ("H", "Q", "I", "I", "B"), 1)
_TYPED_REVISIONS: Final = Layout(LayoutId.TYPED_REVISIONS, (*_REVISIONS.numbers, "B"), 2)
_TYPED_REVISIONS_ANSWER: Final = Layout(
    LayoutId.TYPED_REVISIONS_ANSWER, (*_REVISIONS_ANSWER.numbers, "B"), 1
)
_DATATYPES: Final = 5  # The column.
_NOTHING: Final = Document(b"", b"", NO_SEQ, NO_CAS)
_MUTATION: Final = int(ChangeKind.MUTATION)
_DELETION: Final = int(ChangeKind.DELETION)


class PlacedRevisions(NamedTuple):
    partitions: Sequence[int]
    revisions: Sequence[Revision]


class RevisionsRead(NamedTuple):
    """A row whose status is not SUCCESS has no revision; NOT_FOUND: nothing is known of the key."""

    statuses: Sequence[int]
    revisions: Sequence[Revision | None]


def encode_revisions(placed: PlacedRevisions) -> bytes:
    revisions = placed.revisions
    numbers = [placed.partitions, *_numbers(revisions)]
    binaries = ([each.key for each in revisions], [each.value or b"" for each in revisions])
    datatypes = [0 if each.value is None else each.datatype for each in revisions]
    if not any(datatypes):
        return encode_body(_REVISIONS, len(revisions), numbers, binaries)
    return encode_body(_TYPED_REVISIONS, len(revisions), [*numbers, datatypes], binaries)


def decode_revisions(data: bytes) -> PlacedRevisions:
    """Raises ProtocolError."""
    body = read_body(layout_of(data, _REVISIONS, _TYPED_REVISIONS), data)
    keys, values = checked_keys(body.binary(0)), body.binary(1)
    return PlacedRevisions(body.numbers(0), _revisions(body, keys, values))


def encode_revisions_read(statuses: Sequence[int], documents: Sequence[Document | None]) -> bytes:
    """Documents come with their values; None stands where the status is not SUCCESS."""
    rows = [_NOTHING if each is None else each for each in documents]
    numbers = [
        statuses,
        [row.cas for row in rows],
        [0 if row.is_deleted else row.flags for row in rows],
        [0 if row.is_deleted else row.expiry_s for row in rows],
        [_DELETION if row.is_deleted else _MUTATION for row in rows],
    ]
    values = [b"" if row.is_deleted else row.value or b"" for row in rows]
    datatypes = [0 if row.is_deleted else row.datatype for row in rows]
    if not any(datatypes):
        return encode_body(_REVISIONS_ANSWER, len(rows), numbers, (values,))
    return encode_body(_TYPED_REVISIONS_ANSWER, len(rows), [*numbers, datatypes], (values,))


def decode_revisions_read(data: bytes, keys: Sequence[bytes]) -> RevisionsRead:
    """`keys` are those that were asked for; raises ProtocolError."""
    body = read_body(layout_of(data, _REVISIONS_ANSWER, _TYPED_REVISIONS_ANSWER), data)
    if body.rows != len(keys):
        raise ProtocolError(f"{body.rows} answers to {len(keys)} keys")
    statuses = body.numbers(0)
    revisions = _revisions(body, keys, body.binary(0))
    found = [
        revision if status == Status.SUCCESS else None
        for status, revision in zip(statuses, revisions, strict=True)
    ]
    return RevisionsRead(statuses, found)


def _numbers(revisions: Sequence[Revision]) -> tuple[list[int], ...]:
    return (
        [each.cas for each in revisions],
        [each.flags for each in revisions],
        [each.expiry_s for each in revisions],
        [_DELETION if each.value is None else _MUTATION for each in revisions],
    )


def _revisions(body: Body, keys: Sequence[bytes], values: Sequence[bytes]) -> list[Revision]:
    cas, flags, expiries, kinds = (body.numbers(column) for column in range(1, _DATATYPES))
    is_typed = len(body.layout.numbers) > _DATATYPES
    datatypes = body.numbers(_DATATYPES) if is_typed else [0] * body.rows
    if kinds and max(kinds) > _DELETION:
        raise ProtocolError(f"a revision is a mutation or a deletion, not of kind {max(kinds)}")
    make: Any = Revision  # Its fields are NewTypes of what the columns hold.
    bodies = (None if kind else value for kind, value in zip(kinds, values, strict=True))
    return list(map(make, keys, bodies, cas, flags, expiries, datatypes))
