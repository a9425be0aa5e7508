"""Whatever bytes come in: a block or CorruptBlock, never a crash, never a wrong record."""

import struct
from collections.abc import Callable

import pytest
import zstandard
from block_samples import SAMPLES, golden, resealed, with_field
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.codec import arrow, blocks
from millrace.errors import CorruptBlock
from millrace.limits import BLOCK_BYTES_MAX, BLOCK_RECORDS_MAX
from millrace.types import Block, EntryKind, Epoch, Token

HEADER_BYTES = 88
BODY = HEADER_BYTES + 24  # Where the first section begins, behind the section table.


@pytest.mark.parametrize("name", SAMPLES)
def test_every_flipped_byte_is_noticed(name: str) -> None:
    data = golden(name)
    for offset in range(len(data)):
        for mask in (0x01, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[offset] ^= mask
            with pytest.raises(CorruptBlock):
                blocks.parse(damaged)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_truncation_and_extension_is_noticed(name: str) -> None:
    data = golden(name)
    for size in range(len(data)):
        with pytest.raises(CorruptBlock):
            blocks.parse(data[:size])
    with pytest.raises(CorruptBlock, match="its header says"):
        blocks.parse(data + b"\0")


def test_without_verify_only_the_body_is_trusted() -> None:
    damaged = bytearray(golden("plain"))
    damaged[-1] ^= 1
    assert blocks.parse(damaged, verify=False).count == 3
    damaged[20] ^= 1
    with pytest.raises(CorruptBlock, match="header checksum"):
        blocks.parse(damaged, verify=False)


@pytest.mark.parametrize(
    ("sample", "kind", "offset", "value", "complaint"),
    [
        pytest.param("plain", "H", 4, 2, "version 2", id="newer version"),
        pytest.param("plain", "H", 6, 32, "not all known", id="unknown flag"),
        pytest.param("keys", "H", 6, 8 | 2, "not all known", id="cut and with keys"),
        pytest.param("hole", "H", 6, 8, "no writer", id="hole that is cut"),
        pytest.param("plain", "B", 8, 4, "not all known", id="unknown kind"),
        pytest.param("plain", "B", 9, 1, "not all known", id="reserved byte"),
        pytest.param("plain", "I", 12, 0, "no positions", id="no records"),
        pytest.param("plain", "I", 12, BLOCK_RECORDS_MAX + 1, "exceed", id="too many records"),
        pytest.param("plain", "Q", 24, 0, "outside", id="position 0"),
        pytest.param("plain", "Q", 24, 2**63 - 2, "outside", id="range past the last position"),
        pytest.param("plain", "Q", 24, 2**64 - 1, "outside", id="position past the last"),
        pytest.param("plain", "q", 56, 2**62, "oldest", id="timestamps crossed"),
        pytest.param("plain", "I", 72, 2**32 - 1, "exceeds", id="body of 4 GiB"),
        pytest.param("plain", "I", 76, BLOCK_BYTES_MAX, "exceeds", id="raw size over the limit"),
        pytest.param("plain", "I", 76, 1, "sizes differ", id="two sizes"),
        pytest.param("compressed", "I", 76, 1, "no smaller", id="raw smaller than compressed"),
        pytest.param("hole", "Q", 32, 1, "no writer", id="hole with an epoch"),
        pytest.param("hole", "Q", 40, 1, "no writer", id="hole with a client"),
        pytest.param("hole", "H", 6, 2, "no writer", id="hole with keys"),
        pytest.param("hole", "q", 64, 1, "no writer", id="hole with a timestamp"),
        pytest.param("plain", "B", 8, 1, "no writer", id="hole with records"),
    ],
)
def test_a_senseless_header_with_right_checksums(
    sample: str, kind: str, offset: int, value: int, complaint: str
) -> None:
    with pytest.raises(CorruptBlock, match=complaint):
        blocks.parse(with_field(golden(sample), kind, offset, value))


def read_both_ways(data: bytes) -> None:
    """Both readers must refuse; each in turn, so that neither hides behind the other."""
    block = blocks.parse(data)
    with pytest.raises(CorruptBlock, match="of log 7"):
        blocks.records(block)
    with pytest.raises(CorruptBlock, match="of log 7"):
        arrow.record_batch(block)


# Offsets of the sections of the golden block "everything": three records, three header entries.
TIMESTAMPS, VALUE_OFFSETS, VALUES = BODY, BODY + 24, BODY + 40
KEY_VALIDITY, KEY_OFFSETS, KEYS = BODY + 48, BODY + 56, BODY + 72
ROW_OFFSETS, NAME_OFFSETS = BODY + 80, BODY + 96


@pytest.mark.parametrize(
    ("offset", "value"),
    [
        pytest.param(VALUE_OFFSETS, 1, id="values begin late"),
        pytest.param(VALUE_OFFSETS, -1, id="values begin before the body"),
        pytest.param(VALUE_OFFSETS + 4, 5, id="value offsets fall"),
        pytest.param(VALUE_OFFSETS + 4, 2**31 - 1, id="value offset far outside"),
        pytest.param(VALUE_OFFSETS + 8, -(2**31), id="value offset far before"),
        pytest.param(VALUE_OFFSETS + 12, 5, id="values end early"),
        pytest.param(VALUE_OFFSETS + 12, 7, id="values end late"),
        pytest.param(KEY_OFFSETS + 4, 9, id="key offset outside"),
        pytest.param(KEY_OFFSETS + 12, 100, id="keys end late"),
        pytest.param(ROW_OFFSETS + 4, 2**30, id="header row outside"),
        pytest.param(ROW_OFFSETS + 8, -2, id="header row before"),
        pytest.param(ROW_OFFSETS + 12, 2, id="header entry without a row"),
        pytest.param(NAME_OFFSETS + 4, 1_000_000, id="header name outside"),
        pytest.param(HEADER_BYTES, 2**31 - 1, id="value bytes beyond the body"),
        pytest.param(HEADER_BYTES, -8, id="value bytes near 4 GiB"),
        pytest.param(HEADER_BYTES + 4, 0, id="no key bytes"),
        pytest.param(HEADER_BYTES + 8, 2**31 - 1, id="header entries beyond the body"),
        pytest.param(HEADER_BYTES + 8, 0, id="no header entries"),
        pytest.param(HEADER_BYTES + 12, 1000, id="name bytes beyond the body"),
        pytest.param(HEADER_BYTES + 16, 1000, id="header bytes beyond the body"),
        pytest.param(HEADER_BYTES + 20, 1, id="reserved number of the table"),
    ],
)
def test_absurd_columns_with_right_checksums(offset: int, value: int) -> None:
    read_both_ways(with_field(golden("everything"), "i", offset, value))


def test_the_offsets_above_are_where_the_table_says() -> None:
    data = golden("everything")
    assert struct.unpack_from("<4i", data, VALUE_OFFSETS) == (0, 1, 3, 6)
    assert data[VALUES : VALUES + 6] == b"abbccc"
    assert data[KEY_VALIDITY] == 0b110
    assert struct.unpack_from("<4i", data, KEY_OFFSETS) == (0, 0, 3, 4)
    assert data[KEYS : KEYS + 4] == b"keyk"
    assert struct.unpack_from("<4i", data, ROW_OFFSETS) == (0, 2, 2, 3)


def test_a_header_name_that_is_not_utf8() -> None:
    data = bytearray(golden("everything"))
    data[data.index(b"trace")] = 0xFF
    read_both_ways(resealed(bytes(data)))


@pytest.mark.parametrize(
    ("sample", "flags"),
    [
        pytest.param("plain", 2, id="keys that are not there"),
        pytest.param("plain", 4, id="headers that are not there"),
        pytest.param("keys", 0, id="keys denied"),
        pytest.param("everything", 2, id="headers denied"),
        pytest.param("everything", 4, id="keys denied beside headers"),
    ],
)
def test_flags_that_contradict_the_body(sample: str, flags: int) -> None:
    read_both_ways(with_field(golden(sample), "H", 6, flags))


@pytest.mark.parametrize("count", [1, 2, 4, BLOCK_RECORDS_MAX])
def test_a_count_that_contradicts_the_body(count: int) -> None:
    read_both_ways(with_field(golden("everything"), "I", 12, count))


def test_a_body_too_small_for_its_table() -> None:
    data = bytearray(golden("plain")[: HEADER_BYTES + 8])
    struct.pack_into("<II", data, 72, 8, 8)
    read_both_ways(resealed(bytes(data)))


# -- Compressed bodies ------------------------------------------------------------------------


def with_frame(frame: bytes, raw_size: int) -> bytes:
    data = bytearray(golden("compressed")[:HEADER_BYTES] + frame)
    struct.pack_into("<II", data, 72, len(frame), raw_size)
    return resealed(bytes(data))


def raw_size() -> int:
    return blocks.parse_header(golden("compressed")).raw_size


FRAMES: dict[str, Callable[[], bytes]] = {
    "not a frame": lambda: b"not zstd at all",
    "empty": lambda: b"",
    "a bomb": lambda: zstandard.ZstdCompressor().compress(bytes(2**24)),
    "a claim of a terabyte": lambda: b"\x28\xb5\x2f\xfd\xe0" + (2**40).to_bytes(8, "little"),
    "a frame that does not say its size": lambda: zstandard.ZstdCompressor(
        write_content_size=False
    ).compress(bytes(4096)),
    "a frame cut short": lambda: golden("compressed")[HEADER_BYTES:-4],
    "a frame with a tail": lambda: golden("compressed")[HEADER_BYTES:] + b"tail",
    "two frames": lambda: golden("compressed")[HEADER_BYTES:] * 2,
    "noise of the right size": lambda: zstandard.ZstdCompressor().compress(b"\xff" * raw_size()),
}


@pytest.mark.parametrize("name", FRAMES)
def test_a_bad_frame_with_right_checksums(name: str) -> None:
    read_both_ways(with_frame(FRAMES[name](), raw_size()))


def test_a_frame_that_holds_more_than_it_claims() -> None:
    """The claim is changed inside of the frame, so that it agrees with the block's header."""
    frame = bytearray(zstandard.ZstdCompressor().compress(bytes(1_000_000)))
    claim = frame.index(struct.pack("<I", 1_000_000))
    struct.pack_into("<I", frame, claim, 70_000)
    assert zstandard.frame_content_size(bytes(frame)) == 70_000
    read_both_ways(with_frame(bytes(frame), 70_000))


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_damage_with_right_checksums_reads_or_is_corrupt(data: st.DataObject) -> None:
    damaged = bytearray(golden(data.draw(st.sampled_from(["everything", "compressed", "keys"]))))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        block = blocks.parse(resealed(bytes(damaged)))
        records = blocks.records(block)
        batch = arrow.record_batch(block)
    except CorruptBlock:
        return
    batch.validate(full=True)
    assert len(records) == batch.num_rows
    assert batch.column("value").to_pylist() == [record.value for record in records]


# -- Verify -----------------------------------------------------------------------------------


def test_verify_compares_the_fields_with_the_bytes() -> None:
    data = golden("plain")
    for name, value in {"first": 9, "epoch": Epoch(8), "token": Token(1, 1), "log": 1}.items():
        block = blocks.parse(data)
        setattr(block, name, value)
        with pytest.raises(CorruptBlock, match=name):
            blocks.verify(block)


def test_a_block_that_claims_more_records_than_its_bytes_hold() -> None:
    stored = blocks.parse(golden("plain"))
    lying = Block(
        stored.log,
        stored.first,
        4,
        stored.epoch,
        EntryKind.DATA,
        stored.token,
        stored.checksum,
        stored.data,
    )
    read_both_ways_of(lying)


def read_both_ways_of(block: Block) -> None:
    with pytest.raises(CorruptBlock):
        blocks.records(block)
    with pytest.raises(CorruptBlock):
        arrow.record_batch(block)
