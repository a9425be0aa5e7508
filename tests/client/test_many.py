"""How many records become blocks."""

import pyarrow as pa
import pytest

from millrace.client.many import draft_table
from millrace.limits import BLOCK_BYTES_TARGET, BLOCK_RECORDS_MAX

ROW_BYTES = 1_000


def table_of(size_bytes: int, chunks: int = 1) -> pa.Table:
    rows = size_bytes // ROW_BYTES
    batch = pa.record_batch({"value": pa.array([bytes(ROW_BYTES)] * rows, pa.binary())})
    return pa.Table.from_batches([batch] * chunks)


@pytest.mark.parametrize(
    ("size_bytes", "blocks"),
    [
        pytest.param(BLOCK_BYTES_TARGET // 4, 1, id="little"),
        pytest.param(BLOCK_BYTES_TARGET * 5 // 4, 1, id="a crumb more than a block"),
        pytest.param(BLOCK_BYTES_TARGET * 7 // 4, 2, id="nearly two"),
        pytest.param(BLOCK_BYTES_TARGET * 21 // 4, 5, id="five and a crumb"),
    ],
)
def test_a_table_is_cut_into_equal_blocks(size_bytes: int, blocks: int) -> None:
    counts = [each.count for each in draft_table(table_of(size_bytes), False)]
    assert len(counts) == blocks
    assert sum(counts) == size_bytes // ROW_BYTES
    assert max(counts) - min(counts) < blocks


def test_a_block_has_rows_of_one_chunk() -> None:
    counts = [each.count for each in draft_table(table_of(10 * ROW_BYTES, chunks=3), False)]
    assert counts == [10, 10, 10]


def test_no_block_has_more_records_than_it_may() -> None:
    many = pa.table({"value": pa.array([b""] * (BLOCK_RECORDS_MAX + 1), pa.binary())})
    counts = [each.count for each in draft_table(many, False)]
    assert len(counts) == 2
    assert max(counts) <= BLOCK_RECORDS_MAX


def test_an_empty_table_has_no_block() -> None:
    assert draft_table(table_of(0), False) == []
    assert draft_table(pa.table({"value": pa.array([], pa.binary())}), False) == []
