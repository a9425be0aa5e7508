"""How many records become blocks."""

import pyarrow as pa
import pytest

from millrace.client.many import draft_table, draft_values
from millrace.limits import BLOCK_BYTES_TARGET, BLOCK_RECORDS_MAX, KIB

ROW_BYTES = 1_000


def table_of(row_bytes: int, rows: int, chunks: int = 1) -> pa.Table:
    batch = pa.record_batch({"value": pa.array([bytes(row_bytes)] * rows, pa.binary())})
    return pa.Table.from_batches([batch] * chunks)


@pytest.mark.parametrize(
    ("row_bytes", "rows", "blocks"),
    [
        pytest.param(ROW_BYTES, 250, 1, id="little"),
        pytest.param(ROW_BYTES, 1_300, 1, id="a crumb more than a block"),
        pytest.param(ROW_BYTES, 1_800, 2, id="nearly two"),
        pytest.param(ROW_BYTES, 5_500, 5, id="five and a crumb"),
        pytest.param(100 * KIB, 101, 10, id="few large rows"),
        pytest.param(3 * BLOCK_BYTES_TARGET, 3, 3, id="each larger than a block"),
    ],
)
def test_rows_are_cut_into_equal_blocks(row_bytes: int, rows: int, blocks: int) -> None:
    of_table = draft_table(table_of(row_bytes, rows), False)
    of_values = draft_values([bytes(row_bytes)] * rows, None, 0, None, False)
    for drafts in (of_table, of_values):
        counts = [each.count for each in drafts]
        assert len(counts) == blocks
        assert sum(counts) == rows
        assert max(counts) - min(counts) <= 1


def test_a_block_has_rows_of_one_chunk() -> None:
    counts = [each.count for each in draft_table(table_of(ROW_BYTES, 10, chunks=3), False)]
    assert counts == [10, 10, 10]


def test_no_block_has_more_records_than_it_may() -> None:
    many = pa.table({"value": pa.array([b""] * (BLOCK_RECORDS_MAX + 1), pa.binary())})
    counts = [each.count for each in draft_table(many, False)]
    assert len(counts) == 2
    assert max(counts) <= BLOCK_RECORDS_MAX


def test_an_empty_table_has_no_block() -> None:
    assert draft_table(table_of(ROW_BYTES, 0), False) == []
    assert draft_table(pa.table({"value": pa.array([], pa.binary())}), False) == []
