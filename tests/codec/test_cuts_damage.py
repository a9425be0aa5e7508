"""Cut bodies from a hostile or broken node: rows that lie in the block, or CorruptBlock."""

import struct
import tracemalloc
from collections.abc import Callable

import pyarrow as pa
import pytest
from block_samples import NOON_US, SAMPLES, resealed
from cut_samples import cut_of
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.codec import arrow, blocks, cuts
from millrace.codec.blocks import HEADER_BYTES
from millrace.errors import CorruptBlock
from millrace.types import Block, Selection

LATE = Selection(time_first_us=NOON_US + 1)  # Two of three rows, all columns.
GOOD = bytes(cut_of(SAMPLES["everything"](), LATE).data)
KEYED = Selection(columns=("key",), time_first_us=NOON_US)
SCHEMA = arrow.schema_of(("lsn", "key"))


def with_body(body: bytes | pa.Buffer) -> Block:
    """A cut block with right checksums around any body."""
    data = bytearray(GOOD[:HEADER_BYTES] + bytes(body))
    struct.pack_into("<II", data, 72, len(data) - HEADER_BYTES, len(data) - HEADER_BYTES)
    return blocks.parse(resealed(bytes(data)))


def keyed(lsns: list[int | None], keys: list[bytes | None]) -> bytes:
    batch = pa.record_batch([pa.array(lsns, pa.int64()), pa.array(keys, pa.binary())], SCHEMA)
    return batch.serialize().to_pybytes()


def compressed(rows: int) -> bytes:
    batch = pa.record_batch([pa.array([41]), pa.array([bytes(rows)], pa.binary())], SCHEMA)
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=options) as stream:
        stream.write_batch(batch)
    return sink.getvalue().to_pybytes()[SCHEMA.serialize().size :]


BODIES: dict[str, Callable[[], bytes]] = {
    "noise": lambda: b"\xa5" * 300,
    "zeros": lambda: bytes(64),
    "a byte": lambda: b"\xff",
    "the end of a stream": lambda: b"\xff\xff\xff\xff\0\0\0\0",
    "a schema": lambda: SCHEMA.serialize().to_pybytes(),
    "cut short": lambda: keyed([41, 42], [b"a", b"b"])[:-8],
    "metadata alone": lambda: keyed([41, 42], [b"a", b"b"])[:120],
    "a bomb": lambda: compressed(2**28),
    "other columns": lambda: pa.record_batch([pa.array([41])], ["lsn"]).serialize().to_pybytes(),
    "a position before the block": lambda: keyed([40, 41], [b"a", b"b"]),
    "a position behind the block": lambda: keyed([41, 44], [b"a", b"b"]),
    "a position far outside": lambda: keyed([-(2**63), 2**63 - 1], [b"a", b"b"]),
    "positions that fall": lambda: keyed([42, 41], [b"a", b"b"]),
    "a position twice": lambda: keyed([41, 41], [b"a", b"b"]),
    "no position": lambda: keyed([41, None], [b"a", b"b"]),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_bad_body_with_right_checksums(name: str) -> None:
    block = with_body(BODIES[name]())
    tracemalloc.start()
    taken = pa.total_allocated_bytes()
    with pytest.raises(CorruptBlock, match="of log 7"):
        cuts.selected_batch(block, KEYED)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()
    assert pa.total_allocated_bytes() - taken < 1_000_000


def test_the_body_that_these_are_made_from_is_good() -> None:
    batch = cuts.selected_batch(with_body(keyed([41, 43], [b"a", None])), KEYED)
    assert batch.to_pydict() == {"lsn": [41, 43], "key": [b"a", None]}


def test_nulls_where_none_can_be() -> None:
    selection = Selection(columns=("value",), time_first_us=NOON_US)
    schema = arrow.schema_of(("lsn", "value"))
    batch = pa.record_batch([pa.array([41]), pa.array([None], pa.binary())], schema)
    with pytest.raises(CorruptBlock, match="nulls in value"):
        cuts.selected_batch(with_body(batch.serialize()), selection)


@pytest.mark.parametrize("body", [b"", keyed([41, 42], [b"a", b"b"])], ids=["none", "some"])
def test_without_a_filter_every_row_is_there(body: bytes) -> None:
    with pytest.raises(CorruptBlock, match="cut without a filter"):
        cuts.selected_batch(with_body(body), Selection(columns=("key",)))


@settings(max_examples=1_000, deadline=None)
@given(data=st.data())
def test_any_damage_with_right_checksums_reads_or_is_corrupt(data: st.DataObject) -> None:
    damaged = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(HEADER_BYTES, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    block = blocks.parse(resealed(bytes(damaged)))
    try:
        records = cuts.selected_records(block, LATE)
    except CorruptBlock:
        return
    lsns = [record.lsn for record in records]
    assert lsns == sorted(set(lsns))
    assert all(block.first <= lsn < block.end for lsn in lsns)
    assert all(isinstance(record.value, bytes) for record in records)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300), st.sampled_from([KEYED, LATE, Selection(columns=())]))
def test_any_body_reads_or_is_corrupt(body: bytes, selection: Selection) -> None:
    try:
        batch = cuts.selected_batch(with_body(body), selection)
    except CorruptBlock:
        return
    batch.validate(full=True)
