"""Documents that the map could not take, kept for people: Parquet files, one for each batch and
shard that had some.  A batch that runs again writes the same files again."""

from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.spark.pipelines.view.documents import Failure
from millrace.spark.pipelines.whole_files import make_folder, whole

_FIELDS: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "reason": pa.string(),
    "batch": pa.int64(),
}


def write_set_aside(folder: Path, batch: int, shard: int, failures: tuple[Failure, ...]) -> None:
    rows = [{"key": each.document, "reason": each.reason, "batch": batch} for each in failures]
    make_folder(folder)
    file = folder / f"batch-{batch:09d}-{shard:03d}.parquet"
    with whole(file) as draft:
        pq.write_table(pa.Table.from_pylist(rows, pa.schema(_FIELDS)), draft)


def count_set_aside(folder: Path, batch: int | None = None) -> int:
    """How many a batch had, or all together."""
    files = folder.glob("batch-*.parquet" if batch is None else f"batch-{batch:09d}-*.parquet")
    return sum(pq.read_metadata(file).num_rows for file in files)
