"""Cut blocks: the rows and columns that were asked for, whichever way the block arrives."""

from typing import Any

import msgspec
import pyarrow as pa
import pytest
from block_samples import EPOCH, FIRST, HEADERS, LOG, NOON_US, SAMPLES, TOKEN, placed
from cut_samples import cut_of, expected, expected_rows, rows
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.codec import arrow, blocks, cuts, frames
from millrace.core.messages import Blocks, Fetched, Found, Message, Refused, Revise, Write
from millrace.core.messages.root import Refusal
from millrace.errors import ProtocolError, UsageError
from millrace.types import RECORD_COLUMNS, Block, Epoch, LogId, Lsn, Selection

KEYS_ONLY = Selection(columns=("key",))
COUNT = 2_000


def wide(*, compress: bool = False, count: int = COUNT) -> Block:
    """Keys of a few bytes beside values of many, which do not compress well."""
    values = [b"%064x" % (number * 7919**11) * 2 for number in range(count)]
    return placed(
        blocks.draft(
            values,
            keys=[b"k%d" % (number % 100) for number in range(count)],
            timestamps_us=[NOON_US + number for number in range(count)],
            compress=compress,
        )
    )


SELECTIONS = {
    "columns": Selection(columns=("value", "key")),
    "headers alone": Selection(columns=("headers",)),
    "from a time on": Selection(time_first_us=NOON_US + 1),
    "up to a time": Selection(time_end_us=NOON_US + 1),
    "between times": Selection(("key",), NOON_US, NOON_US + 2),
    "an empty time": Selection(("key",), NOON_US + 2, NOON_US),
    "a key": Selection(keys=(b"key",)),
    "keys without their column": Selection(columns=("value",), keys=(b"k", b"key", b"k1", b"")),
    "no key at all": Selection(keys=()),
    "a key and a time": Selection(("timestamp",), NOON_US + 2, None, (b"k", b"key", b"wheel")),
    "nothing but positions": Selection(columns=()),
    "positions of a key": Selection(columns=(), keys=(b"wheel", b"k1")),
    "everything": Selection(),
}


@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS.keys())
@pytest.mark.parametrize("name", [name for name in SAMPLES if name not in ("hole", "loss")])
def test_whole_and_cut_give_the_rows_that_match(name: str, selection: Selection) -> None:
    block = SAMPLES[name]()
    for arriving in (block, blocks.parse(bytes(cut_of(block, selection).data))):
        batch = cuts.selected_batch(arriving, selection)
        assert batch.schema == arrow.schema_of(("lsn", *selection.columns))
        assert rows(batch) == expected_rows(block, selection)
        if len(selection.columns) == len(RECORD_COLUMNS):
            assert cuts.selected_records(arriving, selection) == expected(block, selection)


keys = st.sampled_from([None, b"", b"a", b"b", b"long key"])
times = st.integers(-4, 4)
headers = st.lists(st.tuples(st.text(max_size=2), st.binary(max_size=2)), max_size=2).map(tuple)
lines = st.tuples(st.binary(max_size=9), keys, times, headers)
some_columns = st.lists(st.sampled_from(RECORD_COLUMNS), unique=True).map(tuple)
selections = st.builds(
    Selection,
    some_columns,
    st.none() | times,
    st.none() | times,
    st.none() | st.lists(st.binary(max_size=1) | st.just(b"long key"), max_size=3).map(tuple),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(lines, min_size=1, max_size=30), selections, st.booleans(), st.data())
def test_any_selection_of_any_block(
    made: list[Any], selection: Selection, compress: bool, data: st.DataObject
) -> None:
    values, key_column, stamps, header_column = zip(*made, strict=True)
    block = placed(
        blocks.draft(
            values * 5,
            keys=key_column * 5,
            timestamps_us=stamps * 5,
            headers=header_column * 5,
            compress=compress,
        )
    )
    first = data.draw(st.none() | st.integers(FIRST - 2, block.end + 1))
    end = data.draw(st.none() | st.integers(FIRST - 2, block.end + 1))
    wanted = [
        row
        for row in expected_rows(block, selection)
        if (first is None or row[0] >= first) and (end is None or row[0] < end)
    ]
    for arriving in (block, cut_of(block, selection)):
        blocks.verify(arriving)
        assert rows(cuts.selected_batch(arriving, selection, first=first, end=end)) == wanted


def test_a_cut_stands_for_its_block() -> None:
    block = wide()
    cut = cuts.cut(block, KEYS_ONLY)
    assert cut.is_cut
    fields = ("log", "first", "count", "last", "end", "epoch", "kind", "token")
    assert all(getattr(cut, name) == getattr(block, name) for name in fields)
    assert cut.checksum != block.checksum
    assert cut.size == len(cut.data) < block.size // 5
    header = blocks.parse_header(cut.data)
    assert (header.timestamp_min_us, header.timestamp_max_us) == (NOON_US, NOON_US + COUNT - 1)
    assert not block.is_cut and not blocks.parse(bytes(block.data)).is_cut
    assert blocks.parse(bytes(cut.data)).is_cut


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "compressed"])
def test_a_filter_leaves_out_what_does_not_match(compress: bool) -> None:
    block = wide(compress=compress)
    one_key = Selection(keys=(b"k7",))
    cut = cuts.cut(block, one_key)
    assert cut.is_cut and cut.size < block.size // 10
    assert len(cuts.selected_records(cut, one_key)) == COUNT // 100


HEADER_ONLY = {
    "too old": Selection(time_first_us=NOON_US + COUNT),
    "too young": Selection(time_end_us=NOON_US),
    "no such key": Selection(keys=(b"k100",)),
    "no columns and no filter": Selection(columns=()),
}


@pytest.mark.parametrize("selection", HEADER_ONLY.values(), ids=HEADER_ONLY.keys())
def test_a_cut_without_rows_is_a_header(selection: Selection) -> None:
    assert cuts.cut(wide(), selection).size == blocks.HEADER_BYTES


@pytest.mark.parametrize("selection", list(HEADER_ONLY.values())[:2], ids=list(HEADER_ONLY)[:2])
def test_time_is_decided_without_looking_at_the_body(selection: Selection) -> None:
    block = wide()
    header_alone = memoryview(bytes(block.data[: blocks.HEADER_BYTES]))
    bodiless = Block(LOG, FIRST, COUNT, EPOCH, block.kind, TOKEN, block.checksum, header_alone)
    assert cuts.cut(bodiless, selection).size == blocks.HEADER_BYTES


def test_keys_of_a_block_without_keys_are_decided_by_the_header() -> None:
    assert cuts.cut(SAMPLES["plain"](), Selection(keys=(b"k",))).size == blocks.HEADER_BYTES


@pytest.mark.parametrize(
    ("block", "selection"),
    [
        pytest.param(SAMPLES["hole"](), Selection(keys=()), id="a hole"),
        pytest.param(SAMPLES["loss"](), Selection(columns=()), id="a loss"),
        pytest.param(SAMPLES["everything"](), KEYS_ONLY, id="a tiny block"),
        pytest.param(wide(), Selection(), id="all is wanted"),
        pytest.param(wide(), Selection(time_first_us=NOON_US), id="all is young enough"),
        pytest.param(wide(), Selection(("value", "key")), id="too little is saved"),
        pytest.param(wide(count=20), KEYS_ONLY, id="a small block"),
    ],
)
def test_what_is_not_worth_cutting_goes_as_it_lies(block: Block, selection: Selection) -> None:
    assert cuts.cut(block, selection) is block


def test_a_block_with_absurd_columns_goes_as_it_lies() -> None:
    """Its writer made it so.  A reader that selects finds it as any reader does."""
    block = wide()
    data = bytearray(block.data)
    data[blocks.HEADER_BYTES : blocks.HEADER_BYTES + 4] = b"\xff\xff\xff\x00"
    header = blocks.parse_header(data)
    absurd = blocks.block_of(header, header.checksum, data)
    assert cuts.cut(absurd, KEYS_ONLY) is absurd


def test_columns_are_read_where_the_cut_lies() -> None:
    cut = cuts.cut(wide(), Selection(columns=("key", "timestamp")))
    lies = pa.py_buffer(cut.data)
    inside = range(lies.address, lies.address + lies.size)
    batch = cuts.selected_batch(cut, Selection(columns=("key", "timestamp")))
    buffers = [one for column in batch.columns for one in column.buffers() if one is not None]
    assert len(buffers) == 4
    assert all(buffer.address in inside for buffer in buffers)


def test_an_unaligned_cut_is_copied_first() -> None:
    cut = cuts.cut(wide(), KEYS_ONLY)
    moved = blocks.parse(memoryview(b"x" + bytes(cut.data))[1:])
    assert rows(cuts.selected_batch(moved, KEYS_ONLY)) == expected_rows(wide(), KEYS_ONLY)


def test_columns_of_a_batch_are_chosen_among_the_selected() -> None:
    selection = Selection(columns=("timestamp", "key"), keys=(b"k", b"key"))
    block = SAMPLES["everything"]()
    for arriving in (block, cut_of(block, selection)):
        batch = cuts.selected_batch(arriving, selection, columns=("key",))
        assert rows(batch) == [(b"key",), (b"k",)]
        with pytest.raises(UsageError, match="no column value: the selection gives lsn, timestamp"):
            cuts.selected_batch(arriving, selection, columns=("key", "value"))


def test_records_need_all_columns() -> None:
    with pytest.raises(UsageError, match="no column value, timestamp, headers"):
        cuts.selected_records(SAMPLES["everything"](), KEYS_ONLY)


def test_a_cut_is_not_read_as_if_it_were_whole() -> None:
    cut = cuts.cut(wide(), KEYS_ONLY)
    with pytest.raises(UsageError, match="was cut"):
        blocks.records(cut)
    with pytest.raises(UsageError, match="was cut"):
        arrow.record_batch(cut)


def test_no_selection_is_everything() -> None:
    block = SAMPLES["everything"]()
    assert cuts.selected_batch(block, None).equals(arrow.record_batch(block))
    assert cuts.selected_records(block, None) == blocks.records(block)


def test_headers_come_back_as_they_were() -> None:
    selection = Selection(time_first_us=NOON_US + 1)
    found = cuts.selected_records(cut_of(SAMPLES["everything"](), selection), selection)
    assert [record.headers for record in found] == list(HEADERS[1:])


def received(message: Message) -> Message:
    data = b"".join(frames.encode(message))
    return frames.decode(
        frames.parse_frame_header(data), memoryview(data)[frames.FRAME_HEADER_BYTES :]
    )


CUT = cuts.cut(wide(), KEYS_ONLY)
CARRIERS: dict[str, Message] = {
    "Write": Write(LogId(7), Epoch(3), CUT, ()),
    "Revise": Revise(LogId(7), Epoch(3), Lsn(1), (), (SAMPLES["plain"](), CUT), ()),
    "Found": Found(CUT),
    "Fetched": Fetched((CUT,), Lsn(1)),
    "Refused": Refused(Refusal.WRITTEN, Epoch(3), blocks=(CUT,)),
}


@pytest.mark.parametrize("name", CARRIERS)
def test_a_cut_travels_on_read_streams_alone(name: str) -> None:
    with pytest.raises(ProtocolError, match=f"{name} carries a block cut for a reader"):
        received(CARRIERS[name])
    message = received(Blocks(1, 1, (SAMPLES["plain"](), CUT)))
    assert isinstance(message, Blocks)
    assert [block.is_cut for block in message.blocks] == [False, True]


def test_a_selection_travels_with_its_start() -> None:
    for selection in SELECTIONS.values():
        packed = msgspec.msgpack.encode(selection)
        assert msgspec.msgpack.decode(packed, type=Selection) == selection
