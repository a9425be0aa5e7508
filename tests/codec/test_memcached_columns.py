"""Columnar bodies: documents, keys and many gets and sets, there and back, and as Arrow."""

import struct

import google_crc32c
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memcached_samples import DOCUMENTS

from millrace.codec.memcached import columns, multi, revisions
from millrace.codec.memcached.columns import (
    decode_documents,
    decode_keys,
    encode_documents,
    encode_keys,
    to_arrow,
)
from millrace.codec.memcached.opcodes import Status
from millrace.core.documents.document import Cas, ChangeKind, Document, Seq
from millrace.core.documents.revisions import Revision, revision_of
from millrace.errors import ProtocolError
from millrace.limits import DOCUMENT_BATCH_MAX

EXAMPLES = settings(max_examples=200, deadline=None)
U16, U32, U64 = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
KEYS = st.binary(min_size=1, max_size=250)
U8 = st.integers(0, 255)
REVISION = st.builds(Revision, KEYS, st.none(), U64.map(Cas), U32, U32) | st.builds(
    Revision, KEYS, st.binary(max_size=40), U64.map(Cas), U32, U32, U8
)
DOCUMENT = st.builds(
    Document,
    key=KEYS,
    value=st.binary(max_size=40),
    seq=st.integers(0, 2**63 - 1).map(Seq),
    cas=U64.map(Cas),
    flags=U32,
    expiry_s=U32,
    kind=st.sampled_from(ChangeKind),
    datatype=st.integers(0, 255),
)

# One document, by hand: key "k", value "vw", seq 5, cas 6, flags 7, expiry 8, a deletion, JSON.
GOLDEN = (
    struct.pack("<4I", 1, 1, 1, 2)
    + struct.pack("<qQI4xI4xB7xB7x", 5, 6, 7, 8, 1, 1)
    + struct.pack("<2i", 0, 1)
    + b"k\0\0\0\0\0\0\0"
    + struct.pack("<2i", 0, 2)
    + b"vw\0\0\0\0\0\0"
    + bytes(4)
)


def sealed(body: bytes) -> bytes:
    """With a right checksum, as a hostile peer would send it."""
    return body + struct.pack("<I", google_crc32c.value(body))


def test_the_layout_is_as_the_page_draws_it() -> None:
    document = Document(b"k", b"vw", Seq(5), Cas(6), 7, 8, ChangeKind.DELETION, 1)
    assert encode_documents([document]) == sealed(GOLDEN)
    assert decode_documents(sealed(GOLDEN)) == [document]


@EXAMPLES
@given(st.lists(DOCUMENT, max_size=20))
def test_documents_arrive_as_they_were(documents: list[Document]) -> None:
    assert decode_documents(encode_documents(documents)) == documents


def test_kinds_are_those_of_the_enum() -> None:
    """A number that is equal to a member would pass for it in a comparison, but not in `is`."""
    kinds = [document.kind for document in decode_documents(encode_documents(DOCUMENTS))]
    assert all(type(kind) is ChangeKind for kind in kinds)


@EXAMPLES
@given(st.lists(KEYS, max_size=20))
def test_keys_arrive_as_they_were(keys: list[bytes]) -> None:
    assert decode_keys(encode_keys(keys)) == keys


@EXAMPLES
@given(st.lists(DOCUMENT, max_size=20))
def test_arrow_has_the_same_documents(documents: list[Document]) -> None:
    batch = to_arrow(encode_documents(documents))
    assert batch.schema == columns.arrow_schema()
    assert batch.to_pylist() == [
        {
            "key": document.key,
            "value": document.value,
            "seq": document.seq,
            "cas": document.cas,
            "flags": document.flags,
            "expiry": document.expiry_s,
            "kind": int(document.kind),
            "datatype": document.datatype,
        }
        for document in documents
    ]


def test_arrow_columns_point_into_the_body() -> None:
    body = encode_documents(DOCUMENTS)
    whole = pa.py_buffer(body)
    for column in to_arrow(body).columns:
        for buffer in column.buffers():
            if buffer is not None:
                assert whole.address <= buffer.address
                assert buffer.address + buffer.size <= whole.address + whole.size


@EXAMPLES
@given(st.lists(st.tuples(U16, KEYS, st.binary(max_size=40), U32, U32), max_size=20))
def test_many_sets_arrive_as_they_were(rows: list[tuple[int, bytes, bytes, int, int]]) -> None:
    lists = [list(column) for column in zip(*rows, strict=True)] or [[]] * 5
    request = multi.MultiSet(*lists)
    assert multi.decode_multi_set(multi.encode_multi_set(request)) == request
    gets = multi.MultiGet(lists[0], lists[1])
    assert multi.decode_multi_get(multi.encode_multi_get(gets)) == gets


@EXAMPLES
@given(st.lists(st.tuples(U16, U64, U32, st.binary(max_size=40)), max_size=20))
def test_answers_to_many_arrive_as_they_were(rows: list[tuple[int, int, int, bytes]]) -> None:
    lists = [list(column) for column in zip(*rows, strict=True)] or [[]] * 4
    got = multi.MultiGot(*lists)
    assert multi.decode_multi_got(multi.encode_multi_got(got)) == got
    stored = multi.MultiStored(lists[0], lists[1])
    assert multi.decode_multi_stored(multi.encode_multi_stored(stored)) == stored


@EXAMPLES
@given(st.lists(st.tuples(U16, REVISION), max_size=20))
def test_revisions_arrive_as_they_were(rows: list[tuple[int, Revision]]) -> None:
    placed = revisions.PlacedRevisions([number for number, _ in rows], [each for _, each in rows])
    assert revisions.decode_revisions(revisions.encode_revisions(placed)) == placed


@EXAMPLES
@given(st.lists(st.none() | DOCUMENT, max_size=20))
def test_documents_are_read_as_revisions(documents: list[Document | None]) -> None:
    keys = [b"" if each is None else each.key for each in documents]
    statuses = [Status.NOT_FOUND if each is None else Status.SUCCESS for each in documents]
    read = revisions.decode_revisions_read(
        revisions.encode_revisions_read(statuses, documents), keys
    )
    assert list(read.statuses) == statuses
    assert [each and each.rank for each in read.revisions] == [
        each and revision_of(each).rank for each in documents
    ]


@pytest.mark.parametrize(("datatype", "layouts"), [(0, (7, 8)), (3, (9, 10))], ids=["none", "some"])
def test_only_bodies_with_a_datatype_are_new_to_older_peers(
    datatype: int, layouts: tuple[int, int]
) -> None:
    revision = Revision(b"k", b"v", Cas(1), datatype=datatype)
    asked = revisions.encode_revisions(revisions.PlacedRevisions([1], [revision]))
    document = Document(b"k", b"v", Seq(1), Cas(1), datatype=datatype)
    answered = revisions.encode_revisions_read([Status.SUCCESS], [document])
    assert (asked[0], answered[0]) == layouts


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        pytest.param([b"a"], "2 answers to 1 keys", id="more answers than keys"),
        pytest.param([b"a", b"b", b"c"], "2 answers to 3 keys", id="fewer answers than keys"),
    ],
)
def test_an_answer_has_a_row_for_each_key(keys: list[bytes], words: str) -> None:
    body = revisions.encode_revisions_read([1, 1], [None, None])
    with pytest.raises(ProtocolError, match=words):
        revisions.decode_revisions_read(body, keys)


@pytest.mark.parametrize("key", [b"", b"k" * 251], ids=["empty", "long"])
def test_a_key_among_many_is_as_long_as_one_alone_may_be(key: bytes) -> None:
    body = multi.encode_multi_get(multi.MultiGet([1, 2], [b"good", key]))
    with pytest.raises(ProtocolError, match="a key is empty, or longer"):
        multi.decode_multi_get(body)
    with pytest.raises(ProtocolError, match="a key is empty, or longer"):
        decode_keys(encode_keys([b"good", key]))
    with pytest.raises(ProtocolError, match="a key is empty, or longer"):
        decode_documents(encode_documents([Document(key, b"v", Seq(1), Cas(1))]))


def changed(at: int, new: bytes) -> bytes:
    return sealed(GOLDEN[:at] + new + GOLDEN[at + len(new) :])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        pytest.param(b"", "too few", id="nothing"),
        pytest.param(GOLDEN + bytes(4), "checksum", id="checksum"),
        pytest.param(sealed(GOLDEN)[:-8], "columns end", id="cut"),
        pytest.param(sealed(GOLDEN + bytes(8)), "columns end", id="longer"),
        pytest.param(changed(0, b"\x02"), "layout 2", id="another-layout"),
        pytest.param(changed(4, b"\xff\xff\xff\xff"), "rows", id="too-many-rows"),
        pytest.param(changed(8, b"\xff\xff\xff\xff"), "columns end", id="size-of-keys"),
        pytest.param(changed(64, b"\xff\xff\xff\xff"), "column 0", id="first-offset"),
        pytest.param(changed(68, b"\x02"), "column 0", id="last-offset"),
        pytest.param(changed(48, b"\x03"), "kind of change 3", id="unknown-kind"),
        pytest.param(changed(23, b"\x80"), "no seq", id="negative-seq"),
    ],
)
def test_a_bad_body_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        decode_documents(data)


def test_falling_offsets_are_refused_by_both_readers() -> None:
    body = bytearray(encode_keys([b"ab", b"cd"]))
    at = body.index(struct.pack("<3i", 0, 2, 4))
    body[at + 4 : at + 8] = struct.pack("<i", 9)
    with pytest.raises(ProtocolError, match="fall"):
        decode_keys(sealed(bytes(body[:-4])))
    two = bytearray(encode_documents(DOCUMENTS[:2]))
    at = two.index(struct.pack("<3i", 0, 5, 6))
    two[at + 4 : at + 8] = struct.pack("<i", 9)
    with pytest.raises(ProtocolError, match="column 0"):
        to_arrow(sealed(bytes(two[:-4])))


def test_a_body_names_only_columns_that_it_has() -> None:
    body = bytearray(encode_keys([]))
    body[12:16] = b"\x01\0\0\0"
    with pytest.raises(ProtocolError, match="no binary column"):
        decode_keys(sealed(bytes(body[:-4])))


def test_the_largest_batch_arrives() -> None:
    keys = [b"k"] * DOCUMENT_BATCH_MAX
    assert decode_keys(encode_keys(keys)) == keys
