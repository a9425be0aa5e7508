"""Blocks as Arrow batches: the same records, where they lie, and back."""

from typing import Any

import pyarrow as pa
import pytest
from block_samples import FIRST, HEADERS, NOON_US, SAMPLES, golden, placed
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.codec import arrow, blocks
from millrace.errors import RecordTooLarge, UsageError
from millrace.limits import RECORD_BYTES_MAX
from millrace.types import Block, Lsn, Record


def as_records(batch: pa.RecordBatch) -> list[Record]:
    stamps = batch.column("timestamp").cast(pa.int64()).to_pylist()
    rows = zip(
        batch.column("lsn").to_pylist(),
        batch.column("value").to_pylist(),
        batch.column("key").to_pylist(),
        stamps,
        batch.column("headers").to_pylist(),
        strict=True,
    )
    return [Record(lsn, value, key, at, tuple(pairs)) for lsn, value, key, at, pairs in rows]


def address_range(block: Block) -> range:
    whole = pa.py_buffer(block.data)
    return range(whole.address, whole.address + whole.size)


@pytest.mark.parametrize("name", SAMPLES)
def test_batch_and_records_agree(name: str) -> None:
    block = blocks.parse(golden(name))
    batch = arrow.record_batch(block)
    batch.validate(full=True)
    assert batch.schema == arrow.SCHEMA
    assert as_records(batch) == blocks.records(block)


@pytest.mark.parametrize("name", ["plain", "keys", "headers", "everything"])
def test_an_uncompressed_block_is_read_where_it_lies(name: str) -> None:
    block = SAMPLES[name]()
    inside = address_range(block)
    batch = arrow.record_batch(block)
    columns = ["value", "timestamp"]
    columns += ["key"] if name in ("keys", "everything") else []
    columns += ["headers"] if name in ("headers", "everything") else []
    for column in columns:
        buffers = [buffer for buffer in batch.column(column).buffers() if buffer is not None]
        assert buffers
        assert all(buffer.address in inside for buffer in buffers if buffer.size)
        assert all(buffer.address % 8 == 0 for buffer in buffers)


def test_a_batch_keeps_its_block_alive() -> None:
    batch = arrow.record_batch(SAMPLES["plain"]())
    assert batch.column("value").to_pylist() == [b"one", b"", b"three"]


def test_an_unaligned_block_is_moved() -> None:
    shifted = memoryview(bytearray(b"?" + golden("everything")))[1:]
    block = blocks.parse(shifted)
    batch = arrow.record_batch(block)
    for column in batch.columns:
        assert all(b.address % 8 == 0 for b in column.buffers() if b is not None)
    assert as_records(batch) == blocks.records(block)


@settings(max_examples=60, deadline=None)
@given(first=st.integers(30, 90), length=st.integers(-3, 60))
def test_a_range_is_a_slice(first: int, length: int) -> None:
    block = blocks.parse(golden("compressed"))
    batch = arrow.record_batch(block, first=Lsn(first), end=Lsn(first + length))
    assert batch.schema == arrow.SCHEMA
    assert as_records(batch) == blocks.records(block, Lsn(first), Lsn(first + length))


def test_columns_can_be_chosen() -> None:
    batch = arrow.record_batch(blocks.parse(golden("everything")), columns=["value", "lsn"])
    assert batch.schema.names == ["value", "lsn"]
    assert batch.column("lsn").to_pylist() == [41, 42, 43]
    junk = arrow.record_batch(blocks.parse(golden("hole")), columns=["key"])
    assert (junk.num_rows, junk.schema.names) == (0, ["key"])
    with pytest.raises(UsageError, match="no column colour"):
        arrow.record_batch(blocks.parse(golden("plain")), columns=["colour"])


# -- Batches to blocks ------------------------------------------------------------------------


def draft_of(columns: dict[str, Any], default_us: int = NOON_US) -> Block:
    batch = pa.RecordBatch.from_pydict(columns)
    return placed(arrow.draft_from_arrow(batch, timestamp_us_default=default_us))


@pytest.mark.parametrize("name", ["plain", "single", "keys", "headers", "everything"])
def test_a_batch_makes_the_same_block_as_its_records(name: str) -> None:
    batch = arrow.record_batch(SAMPLES[name]())
    again = placed(arrow.draft_from_arrow(batch, timestamp_us_default=0))
    assert bytes(again.data) == golden(name)


@settings(max_examples=80, deadline=None)
@given(start=st.integers(0, 39), length=st.integers(1, 40))
def test_a_slice_makes_the_same_block_as_its_rows(start: int, length: int) -> None:
    values = [b"v%d" % row * (row % 4) for row in range(40)]
    keys = [None if row % 3 == 0 else b"k%d" % row for row in range(40)]
    headers = [HEADERS[row % 3] for row in range(40)]
    stamps = list(range(100, 140))
    part = slice(start, start + length)
    whole = placed(blocks.draft(values, keys=keys, headers=headers, timestamps_us=stamps))
    batch = arrow.record_batch(whole).slice(start, length)
    direct = placed(
        blocks.draft(
            values[part], keys=keys[part], headers=headers[part], timestamps_us=stamps[part]
        )
    )
    sliced = placed(arrow.draft_from_arrow(batch, timestamp_us_default=0))
    assert bytes(sliced.data) == bytes(direct.data)


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.string(),
        pa.large_binary(),
        pa.large_string(),
        pa.binary_view(),
        pa.string_view(),
        pa.dictionary(pa.int32(), pa.binary()),
    ],
    ids=str,
)
def test_values_and_keys_of_any_binary_type(kind: pa.DataType) -> None:
    rows = pa.array([b"skipped", b"one", b"", b"three"], pa.binary()).cast(pa.string())
    column = rows.cast(pa.binary()).dictionary_encode() if "dict" in str(kind) else rows.cast(kind)
    block = draft_of({"value": column[1:], "key": column[1:]})
    assert [r.value for r in blocks.records(block)] == [b"one", b"", b"three"]
    assert [r.key for r in blocks.records(block)] == [b"one", b"", b"three"]


@pytest.mark.parametrize(
    ("column", "expected_us"),
    [
        pytest.param(pa.array([5, None], pa.int64()), [5, 77], id="int64"),
        pytest.param(pa.array([5, 6], pa.timestamp("us")), [5, 6], id="us"),
        pytest.param(pa.array([5, None], pa.timestamp("us", "UTC")), [5, 77], id="us UTC"),
        pytest.param(pa.array([5, 6], pa.timestamp("s", "Asia/Tokyo")), [5e6, 6e6], id="seconds"),
        pytest.param(pa.array([5999, -1], pa.timestamp("ns")), [5, 0], id="ns"),
        pytest.param(pa.array([9, 5, 6], pa.int64())[1:], [5, 6], id="slice"),
    ],
)
def test_timestamps_of_any_unit(column: Any, expected_us: list[int]) -> None:
    block = draft_of({"value": [b"a", b"b"], "timestamp": column}, default_us=77)
    assert [r.timestamp for r in blocks.records(block)] == expected_us


def test_without_timestamps_the_default_is_taken() -> None:
    assert blocks.records(draft_of({"value": [b"a"]}, default_us=9))[0].timestamp == 9


HEADER_LIST = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
HEADER_MAP = pa.map_(pa.string(), pa.binary())


@pytest.mark.parametrize(
    "column",
    [
        pytest.param(pa.array([[("a", b"1")], None, []], HEADER_MAP), id="map"),
        pytest.param(
            pa.array([[("x", b"0")], [("a", b"1")], None, []], HEADER_MAP)[1:], id="sliced map"
        ),
        pytest.param(
            pa.array([[{"key": "a", "value": b"1"}], None, []], HEADER_LIST), id="list of structs"
        ),
    ],
)
def test_headers_of_any_shape(column: Any) -> None:
    block = draft_of({"value": [b"1", b"2", b"3"], "headers": column})
    assert [r.headers for r in blocks.records(block)] == [(("a", b"1"),), (), ()]


def test_headers_under_a_null_row_do_not_appear() -> None:
    maps = pa.array([[("a", b"1")], [("hidden", b"2")]], HEADER_MAP)
    hidden = pa.Array.from_buffers(
        HEADER_MAP, 2, [pa.py_buffer(b"\x01"), maps.buffers()[1]], children=[maps.values]
    )
    block = draft_of({"value": [b"1", b"2"], "headers": hidden})
    assert [r.headers for r in blocks.records(block)] == [(("a", b"1"),), ()]


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param({"key": [b"a"]}, id="no values"),
        pytest.param({"value": [b"a", None]}, id="null value"),
        pytest.param({"value": [1, 2]}, id="values are numbers"),
        pytest.param({"value": [b"a"], "key": [1.5]}, id="keys are numbers"),
        pytest.param({"value": [b"a"], "colour": [b"red"]}, id="unknown column"),
        pytest.param({"value": [b"a"], "timestamp": ["noon"]}, id="timestamp a text"),
        pytest.param({"value": [b"a"], "headers": [b"h"]}, id="headers are bytes"),
        pytest.param(
            {"value": [b"a"], "headers": pa.array([[("a", None)]], HEADER_MAP)}, id="null header"
        ),
        pytest.param({"value": pa.array([], pa.binary())}, id="empty batch"),
    ],
)
def test_a_batch_that_is_no_block_is_refused(columns: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        draft_of(columns)


def test_a_default_timestamp_out_of_range_is_refused() -> None:
    for columns in ({"value": [b"a"]}, {"value": [b"a"], "timestamp": pa.nulls(1, pa.int64())}):
        with pytest.raises(UsageError):
            draft_of(columns, default_us=2**63)


def test_a_malformed_batch_is_refused_before_it_is_read() -> None:
    offsets = pa.py_buffer(b"".join(n.to_bytes(4, "little") for n in (0, 9, 3)))
    absurd = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"abc")])
    with pytest.raises(UsageError):
        draft_of({"value": absurd})


def test_a_record_too_large_in_a_batch() -> None:
    with pytest.raises(RecordTooLarge, match="record 1"):
        draft_of({"value": [b"", bytes(RECORD_BYTES_MAX + 1)]})


def test_positions_of_a_batch_are_given_by_the_log() -> None:
    block = draft_of({"lsn": [900], "value": [b"a"]})
    assert blocks.records(block)[0].lsn == FIRST
