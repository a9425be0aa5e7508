"""Blocks: what goes in comes out, byte for byte as the golden files say."""

import hashlib
import struct

import pytest
import zstandard
from block_samples import (
    EPOCH,
    FIRST,
    HEADERS,
    LOG,
    NOON_US,
    SAMPLES,
    TOKEN,
    golden,
    placed,
    record,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.codec import blocks, compression
from millrace.codec.header import HEADER_BYTES, Flags
from millrace.errors import CorruptBlock, RecordTooLarge, UsageError
from millrace.limits import BLOCK_BYTES_MAX, BLOCK_RECORDS_MAX, MIB, RECORD_BYTES_MAX
from millrace.types import LSN_MAX, NO_TOKEN, EntryKind, Epoch, LogId, Lsn, Record, Token

# zstd does not promise the same bytes from one version to the next, only that all can be read.
WRITTEN_BY_US_ALONE = [name for name in SAMPLES if name != "compressed"]


@pytest.mark.parametrize("name", WRITTEN_BY_US_ALONE)
def test_the_format_has_not_changed(name: str) -> None:
    assert bytes(SAMPLES[name]().data) == golden(name)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_golden_block_reads_as_what_was_written(name: str) -> None:
    stored, made = blocks.parse(golden(name)), SAMPLES[name]()
    assert blocks.records(stored) == blocks.records(made)
    assert (stored.log, stored.first, stored.count) == (made.log, made.first, made.count)
    assert (stored.epoch, stored.kind, stored.token) == (made.epoch, made.kind, made.token)


def test_records_of_the_golden_blocks() -> None:
    assert blocks.records(blocks.parse(golden("plain"))) == [
        record(41, b"one"),
        record(42, b"", timestamp=-5),
        record(43, b"three", timestamp=NOON_US + 1),
    ]
    assert blocks.records(blocks.parse(golden("keys"))) == [
        record(41, b"a", b"k1"),
        record(42, b"b"),
        record(43, b"c", b""),
    ]
    assert blocks.records(blocks.parse(golden("everything"))) == [
        Record(Lsn(41), b"a", None, NOON_US, HEADERS[0]),
        Record(Lsn(42), b"bb", b"key", NOON_US + 1, HEADERS[1]),
        Record(Lsn(43), b"ccc", b"k", NOON_US + 2, HEADERS[2]),
    ]


def test_the_header_tells_all_without_the_body() -> None:
    header = blocks.parse_header(golden("plain")[:HEADER_BYTES])
    assert (header.log, header.epoch, header.first, header.last) == (LOG, EPOCH, FIRST, 43)
    assert (header.token, header.kind, header.count) == (TOKEN, EntryKind.DATA, 3)
    assert (header.timestamp_min_us, header.timestamp_max_us) == (-5, NOON_US + 1)
    assert header.block_size == len(golden("plain"))
    assert header.end == 44


def test_the_block_checksum_is_the_last_number_of_the_header() -> None:
    for name in SAMPLES:
        block = blocks.parse(golden(name))
        (stored,) = struct.unpack_from("<I", golden(name), HEADER_BYTES - 4)
        assert block.checksum == stored == block.extent().checksum


rows = st.lists(
    st.tuples(
        st.binary(max_size=60),
        st.none() | st.binary(max_size=20),
        st.integers(-(2**63), 2**63 - 1),
        st.lists(st.tuples(st.text(max_size=8), st.binary(max_size=8)), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(rows=rows, compress=st.booleans(), has_keys=st.booleans(), has_headers=st.booleans())
def test_round_trip(
    rows: list[tuple[bytes, bytes | None, int, tuple[tuple[str, bytes], ...]]],
    compress: bool,
    has_keys: bool,
    has_headers: bool,
) -> None:
    values, keys, stamps, headers = map(list, zip(*rows, strict=True))
    draft = blocks.draft(
        values,
        keys=keys if has_keys else None,
        timestamps_us=stamps,
        headers=headers if has_headers else None,
        compress=compress,
    )
    block = placed(draft)
    assert draft.size == block.size
    stored = blocks.parse(bytes(block.data))
    blocks.verify(stored)
    assert stored.extent() == block.extent()
    expected = [
        Record(
            Lsn(FIRST + row),
            value,
            key if has_keys else None,
            stamp,
            pairs if has_headers else (),
        )
        for row, (value, key, stamp, pairs) in enumerate(rows)
    ]
    assert blocks.records(stored) == expected
    header = blocks.parse_header(stored.data)
    assert (header.timestamp_min_us, header.timestamp_max_us) == (min(stamps), max(stamps))


@settings(max_examples=60, deadline=None)
@given(first=st.integers(30, 90), length=st.integers(-3, 60))
def test_a_range_of_records_is_a_slice_of_all(first: int, length: int) -> None:
    block = blocks.parse(golden("compressed"))
    inside = [r for r in blocks.records(block) if first <= r.lsn < first + length]
    assert blocks.records(block, Lsn(first), Lsn(first + length)) == inside


def test_a_range_of_records_keeps_keys_and_headers_in_step() -> None:
    block = blocks.parse(golden("everything"))
    everything = blocks.records(block)
    assert blocks.records(block, Lsn(42)) == everything[1:]
    assert blocks.records(block, end=Lsn(43)) == everything[:2]
    assert blocks.records(block, Lsn(42), Lsn(43)) == everything[1:2]


def test_columns_that_say_nothing_are_not_stored() -> None:
    bare = blocks.draft([b"a", b"b"], timestamps_us=1)
    empty = blocks.draft([b"a", b"b"], keys=[None, None], headers=[(), ()], timestamps_us=1)
    assert placed(bare).data == placed(empty).data


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview])
def test_values_and_blocks_may_be_any_buffer(make: type) -> None:
    block = placed(blocks.draft([make(b"one")], timestamps_us=0))
    assert blocks.records(blocks.parse(make(block.data)))[0].value == b"one"


# -- Placing ----------------------------------------------------------------------------------


def test_the_first_placing_does_not_copy_and_the_second_does_not_touch_the_first() -> None:
    draft = blocks.draft([b"value"], timestamps_us=1)
    first = blocks.place(draft, LOG, EPOCH, Lsn(1), TOKEN)
    assert first.data is draft._buffer
    before = bytes(first.data)
    second = blocks.place(draft, LOG, Epoch(9), Lsn(500), TOKEN)
    assert bytes(first.data) == before
    assert blocks.parse(second.data).first == 500
    assert blocks.parse(second.data).epoch == 9
    assert blocks.records(second)[0].value == b"value"


def test_extreme_positions_and_tokens_fit() -> None:
    draft = blocks.draft([b"a", b"b"], timestamps_us=1)
    token = Token(2**64 - 1, 2**64 - 1)
    block = blocks.place(draft, LogId(2**64 - 1), Epoch(2**64 - 1), Lsn(LSN_MAX - 1), token)
    stored = blocks.parse(block.data)
    assert (stored.last, stored.token, stored.epoch) == (LSN_MAX, token, 2**64 - 1)
    assert [r.lsn for r in blocks.records(stored)] == [LSN_MAX - 1, LSN_MAX]


@pytest.mark.parametrize(
    ("log", "epoch", "first", "token"),
    [
        pytest.param(1, 1, 0, TOKEN, id="position below the first"),
        pytest.param(1, 1, LSN_MAX, TOKEN, id="range beyond the last position"),
        pytest.param(-1, 1, 1, TOKEN, id="negative log"),
        pytest.param(1, 2**64, 1, TOKEN, id="epoch too large"),
        pytest.param(1, 1, 1, Token(-1, 0), id="negative token"),
    ],
)
def test_an_impossible_place_is_refused(log: int, epoch: int, first: int, token: Token) -> None:
    draft = blocks.draft([b"a", b"b"], timestamps_us=1)
    with pytest.raises(UsageError):
        blocks.place(draft, LogId(log), Epoch(epoch), Lsn(first), token)


# -- Junk -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [EntryKind.HOLE, EntryKind.LOSS])
def test_junk_is_the_same_everywhere_and_has_no_records(kind: EntryKind) -> None:
    junk = blocks.junk(LOG, FIRST, 2**32 - 1, kind)
    assert junk.data == blocks.junk(LOG, FIRST, 2**32 - 1, kind).data
    stored = blocks.parse(junk.data)
    assert (stored.kind, stored.token, stored.epoch) == (kind, NO_TOKEN, 0)
    assert stored.last == FIRST + 2**32 - 2
    assert blocks.records(stored) == []


@pytest.mark.parametrize("count", [0, -1, 2**32])
def test_junk_of_an_impossible_length_is_refused(count: int) -> None:
    with pytest.raises(UsageError):
        blocks.junk(LOG, FIRST, count, EntryKind.HOLE)


# -- Limits and misuse ------------------------------------------------------------------------


def test_a_record_of_the_largest_size_fits_and_one_byte_more_does_not() -> None:
    draft = blocks.draft([b"a", bytes(RECORD_BYTES_MAX)], timestamps_us=0)
    assert blocks.records(placed(draft))[1].value == bytes(RECORD_BYTES_MAX)
    with pytest.raises(RecordTooLarge, match="record 1 of the batch"):
        blocks.draft([b"a", bytes(RECORD_BYTES_MAX + 1)], timestamps_us=0)


def test_keys_and_headers_count_as_parts_of_a_record() -> None:
    half = bytes(RECORD_BYTES_MAX // 2)
    blocks.draft([half], keys=[half], timestamps_us=0)
    with pytest.raises(RecordTooLarge):
        blocks.draft([half], keys=[half + b"x"], timestamps_us=0)
    with pytest.raises(RecordTooLarge):
        blocks.draft([b"", half], headers=[(), (("h", half),)], timestamps_us=0)


def test_many_records_may_exceed_the_size_of_one() -> None:
    draft = blocks.draft([bytes(MIB)] * 20, timestamps_us=0, compress=False)
    assert draft.size > RECORD_BYTES_MAX


def test_a_block_over_its_size_is_refused() -> None:
    with pytest.raises(UsageError, match="smaller batches"):
        blocks.draft([bytes(MIB)] * (BLOCK_BYTES_MAX // MIB), timestamps_us=0)


@pytest.mark.parametrize("count", [0, BLOCK_RECORDS_MAX + 1])
def test_a_block_holds_at_least_one_record_and_not_too_many(count: int) -> None:
    with pytest.raises(UsageError):
        blocks.draft([b""] * count, timestamps_us=0)


def test_a_block_of_the_most_records() -> None:
    block = placed(blocks.draft([b"x"] * BLOCK_RECORDS_MAX, timestamps_us=0))
    assert len(blocks.records(blocks.parse(block.data))) == BLOCK_RECORDS_MAX


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({"values": [None]}, id="value None"),
        pytest.param({"values": [5]}, id="value a number"),
        pytest.param({"keys": [b"a", b"b"]}, id="too many keys"),
        pytest.param({"keys": [5]}, id="key a number"),
        pytest.param({"timestamps_us": [1, 2]}, id="too many timestamps"),
        pytest.param({"timestamps_us": 2**63}, id="timestamp too large"),
        pytest.param({"timestamps_us": [2**63]}, id="one timestamp too large"),
        pytest.param({"timestamps_us": ["now"]}, id="timestamp a text"),
        pytest.param({"headers": []}, id="too few headers"),
        pytest.param({"headers": [(("a", None),)]}, id="header value None"),
        pytest.param({"headers": [(("\ud800", b""),)]}, id="header name not UTF-8"),
        pytest.param({"headers": [None]}, id="headers None"),
        pytest.param({"headers": [(("a", b"1"),), None], "values": [b"", b""]}, id="some None"),
    ],
)
def test_a_draft_of_wrong_arguments_is_refused(arguments: dict[str, object]) -> None:
    given: dict[str, object] = {"values": [b"a"], "timestamps_us": 1, **arguments}
    values = given.pop("values")
    with pytest.raises(UsageError):
        blocks.draft(values, **given)  # type: ignore[arg-type]


# -- Compression ------------------------------------------------------------------------------


def noise(size: int) -> bytes:
    """Bytes that do not compress, the same every time."""
    return b"".join(hashlib.sha256(b"%d" % n).digest() for n in range(size // 32))


NOISE = noise(65_536)
TINY_NOISE = [NOISE[start : start + 8] for start in range(0, len(NOISE), 8)]
NEARLY_NOISE = [noise(96)[:90] + bytes(10)] + [
    NOISE[start : start + 90] + bytes(10) for start in range(0, 60_000, 90)
]


@pytest.mark.parametrize(
    ("values", "is_compressed"),
    [
        pytest.param([b"water " * 100], True, id="text"),
        pytest.param([b"water"], False, id="too small"),
        pytest.param([noise(4096)], False, id="small noise"),
        pytest.param([noise(131_072), noise(131_072)[::-1]], False, id="noise that a sample tells"),
        pytest.param([noise(65536), b"water " * 50_000], False, id="the sample decides"),
        pytest.param(TINY_NOISE, True, id="tiny noise"),
        pytest.param(NEARLY_NOISE, True, id="columns and values save it together"),
    ],
)
def test_a_body_is_compressed_when_it_saves_an_eighth(
    values: list[bytes], is_compressed: bool
) -> None:
    block = placed(blocks.draft(values, timestamps_us=NOON_US))
    header = blocks.parse_header(block.data)
    assert bool(header.flags & Flags.ZSTD) is is_compressed
    if is_compressed:
        assert header.body_size <= header.raw_size * 7 / 8 + 1
    assert [r.value for r in blocks.records(block)] == values


def test_compression_can_be_declined() -> None:
    block = placed(blocks.draft([b"water " * 100], timestamps_us=0, compress=False))
    assert not blocks.parse_header(block.data).flags & Flags.ZSTD


def test_a_frame_is_held_to_the_size_its_header_names() -> None:
    frame = zstandard.ZstdCompressor().compress(bytes(1000))
    assert compression.decompress(frame, 1000, "block") == bytes(1000)
    for wrong in (999, 1001):
        with pytest.raises(CorruptBlock, match="claims 1000 bytes"):
            compression.decompress(frame, wrong, "block")


@settings(max_examples=200, deadline=None)
@given(
    value=st.one_of(st.binary(max_size=600), st.builds(lambda n: b"a" * n, st.integers(0, 40_000))),
    key=st.none() | st.binary(max_size=40),
    timestamp_us=st.integers(-(2**63), 2**63 - 1),
    compress=st.booleans(),
)
def test_a_lone_record_becomes_the_same_bytes_with_and_without_arrow(
    value: bytes, key: bytes | None, timestamp_us: int, compress: bool
) -> None:
    def bytes_of(values: list[bytes | bytearray]) -> bytes:
        made = blocks.draft(values, keys=[key], timestamps_us=[timestamp_us], compress=compress)
        return bytes(blocks.place(made, LOG, EPOCH, FIRST, TOKEN).data)

    # Only `bytes` go the short way.
    assert bytes_of([value]) == bytes_of([bytearray(value)])
