"""A Spark source whose rows lie in memory: the ceiling of what any source in Python can reach.

It plans as the `millrace` source does (as many partitions, batches of the same size, one limit on
the rows of a micro-batch, a wait for news) and has nothing to fetch.  As a stream it ends where a
small file says, so that another process can add rows; without the file all rows are there.
"""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from bench.spark import rows as spark_rows
from millrace.spark import workers

NAME: Final = "bench_memory"
SCHEMA: Final = StructType(
    [
        StructField("log", StringType()),
        StructField("lsn", LongType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("timestamp", TimestampType()),
    ]
)
WAIT_MS_DEFAULT: Final = 500  # As the `millrace` source waits by default.
POLL_S: Final = 0.001
_COUNT_BYTES: Final = 8


def publish(path: Path, count: int) -> None:
    """From now on the stream has `count` rows."""
    path.write_bytes(count.to_bytes(_COUNT_BYTES, "little"))


def published(path: Path) -> int:
    """Keeps the reader safe from a writer in mid-write: a short file says nothing new."""
    content = path.read_bytes()
    return int.from_bytes(content, "little") if len(content) == _COUNT_BYTES else 0


class MemorySource(DataSource):
    """Options: `rows`, `valueBytes`, `batchRows`, `partitions`; of a stream also `feed`,
    `maxRecordsPerTrigger` and `maxWaitMs`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return _BatchReader(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return _StreamReader(self.options)


class _Rows:
    """What both readers share: how ranges are cut, and how they are read."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._value_bytes = int(options["valueBytes"])
        self._batch_rows = int(options["batchRows"])
        self._partitions_max = int(options["partitions"])

    def cut(self, first: int, end: int) -> list[InputPartition]:
        """Into whole batches, about equally many for each partition."""
        batch_rows = self._batch_rows
        front, back = first // batch_rows, -(-end // batch_rows)
        count = max(1, min(self._partitions_max, back - front))
        edges = [
            (front + (back - front) * number // count) * batch_rows for number in range(1, count)
        ]
        firsts, ends = [first, *edges], [*edges, end]
        return [InputPartition(each) for each in zip(firsts, ends, strict=True)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        workers.freeze()  # As the `millrace` source does.
        first, end = partition.value
        return spark_rows.batches(self._value_bytes, self._batch_rows, first, end)


class _BatchReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._rows = _Rows(options)
        self._count = int(options["rows"])

    def partitions(self) -> list[InputPartition]:
        return self._rows.cut(0, self._count)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.read(partition)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._rows = _Rows(options)
        self._count = int(options["rows"])
        self._feed = Path(options["feed"]) if "feed" in options else None
        self._limit = int(options.get("maxRecordsPerTrigger", 0))
        self._wait_s = int(options.get("maxWaitMs", WAIT_MS_DEFAULT)) / 1000

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"next": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._limit) if self._limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """All rows are there when the query starts."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        begin = int(start["next"])
        end = self._end_after(begin)
        if isinstance(limit, ReadMaxRows):
            end = min(end, begin + limit.max_rows)
        return {"next": end}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return self._rows.cut(int(start["next"]), int(end["next"]))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.read(partition)

    def _end_after(self, begin: int) -> int:
        """Where the rows end; waits for more if there are none."""
        if self._feed is None:
            return self._count
        deadline = time.monotonic() + self._wait_s
        while (end := published(self._feed)) <= begin and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return max(begin, end)
