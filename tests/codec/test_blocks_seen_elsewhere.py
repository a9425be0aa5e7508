"""Blocks of a commit log: read at the log's positions, though their headers say a stream's."""

from typing import Any

import msgspec
import pytest
from block_samples import NOON_US, SAMPLES
from cut_samples import cut_of, rows

from millrace.codec import arrow, blocks, cuts, frames
from millrace.core.commit.record import stream_log_of
from millrace.core.messages import Blocks
from millrace.errors import ProtocolError
from millrace.types import LSN_MAX, Block, Epoch, LogId, Lsn, Selection, StreamId, Token

LOG = LogId(9)
STREAM = stream_log_of(LOG, StreamId(4))
PLACE = Lsn(7_000_001)

SELECTIONS = {
    "nothing": None,
    "columns": Selection(columns=("value", "key")),
    "times": Selection(time_first_us=NOON_US + 1),
    "keys": Selection(keys=(b"key", b"k1")),
    "positions": Selection(columns=()),
    "all": Selection(),
}


def moved(lines: list[tuple[Any, ...]], by: int) -> list[tuple[Any, ...]]:
    return [(line[0] + by, *line[1:]) for line in lines]


@pytest.mark.parametrize("name", SAMPLES)
def test_records_lie_where_the_block_is_seen(name: str) -> None:
    block = SAMPLES[name]()
    seen = blocks.seen_at(block, LOG, PLACE)
    by = PLACE - block.first
    assert (seen.log, seen.first, seen.last, seen.end) == (
        LOG,
        PLACE,
        block.last + by,
        block.end + by,
    )
    assert seen.data is block.data
    assert blocks.records(seen) == [
        msgspec.structs.replace(record, lsn=Lsn(record.lsn + by))
        for record in blocks.records(block)
    ]
    assert rows(arrow.record_batch(seen)) == moved(rows(arrow.record_batch(block)), by)


@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS.keys())
@pytest.mark.parametrize("name", [name for name in SAMPLES if name not in ("hole", "loss")])
def test_selected_rows_lie_where_the_block_is_seen(name: str, selection: Selection | None) -> None:
    """Whole or cut, and as it arrives."""
    block = SAMPLES[name]()
    seen = blocks.seen_at(block, LOG, PLACE)
    first, end = Lsn(PLACE + 1), Lsn(seen.end + 5)
    by = PLACE - block.first
    batch = cuts.selected_batch(block, selection, first=Lsn(first - by), end=Lsn(end - by))
    expected = moved(rows(batch), by)
    arriving = [seen]
    if selection is not None:
        piece = cut_of(seen, selection)
        assert (piece.log, piece.first, piece.end) == (seen.log, seen.first, seen.end)
        arriving.append(blocks.seen_at(blocks.parse(bytes(piece.data)), LOG, PLACE))
    for each in arriving:
        assert rows(cuts.selected_batch(each, selection, first=first, end=end)) == expected


def in_stream(first: int, count: int = 2) -> Block:
    draft = blocks.draft([b"%d" % each for each in range(count)], timestamps_us=1, compress=False)
    return blocks.place(draft, STREAM, Epoch(2), Lsn(first), Token(1, first))


def received(message: Blocks) -> Blocks:
    data = b"".join(frames.encode(message))
    header = frames.parse_frame_header(data)
    arrived = frames.decode(header, memoryview(data)[frames.FRAME_HEADER_BYTES :])
    assert isinstance(arrived, Blocks)
    return arrived


def test_blocks_that_travel_with_their_positions_are_seen_there() -> None:
    sent = (in_stream(1), in_stream(3))
    message = received(Blocks(1, 1, sent, Lsn(99), (Lsn(40), Lsn(57))))
    assert [(one.log, one.first, one.end) for one in message.blocks] == [
        (LOG, 40, 42),
        (LOG, 57, 59),
    ]
    assert [bytes(one.data) for one in message.blocks] == [bytes(one.data) for one in sent]
    assert [record.lsn for one in message.blocks for record in blocks.records(one)] == [
        40,
        41,
        57,
        58,
    ]


def test_a_block_that_is_seen_in_the_log_is_sent_as_it_lies_in_its_stream() -> None:
    """Sending it on, in a process or between two, does not move it."""
    seen = blocks.seen_at(in_stream(3), LOG, Lsn(57))
    (arrived,) = received(Blocks(1, 1, (seen,), Lsn(99), (seen.first,))).blocks
    assert (arrived.log, arrived.first) == (seen.log, seen.first)
    stored = blocks.parse(arrived.data)
    assert (stored.log, stored.first) == (STREAM, 3)


@pytest.mark.parametrize(
    "firsts",
    [
        pytest.param([5], id="too few"),
        pytest.param([5, 6, 7], id="too many"),
        pytest.param([0, 6], id="before the first"),
        pytest.param([-3, 6], id="negative"),
        pytest.param([5, LSN_MAX], id="beyond the last"),
    ],
)
def test_positions_that_make_no_sense_are_refused(firsts: list[int]) -> None:
    message = Blocks(1, 1, (in_stream(1), in_stream(3)), Lsn(9), tuple(map(Lsn, firsts)))
    with pytest.raises(ProtocolError, match=r"positions|of a commit log"):
        received(message)
