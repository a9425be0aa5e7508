"""How fast Spark writes a log, beside what the plain client appends of such rows.

Rows cost neither of them anything but the way into the log: they lie in Spark's cache as in the
client's memory, and those of a stream, which cannot read a cache, Spark cuts out of a constant.
What a source in Python (`memory.py`) costs is no cost of the sink.

1. A batch is timed from the frame to the end of the action: planning and publication count.
2. A stream is one micro-batch, timed by Spark: `triggerExecution`.
3. The client appends Arrow tables in one process, about as large as what a task of the sink sends
   at a time, and as many at once as all tasks of the sink do; both write with the log's own `ack`.
4. A round after which the log does not have every row counts as a failure, not as a fast round.
5. Logs are not compressed: nobody would gain by it from random values, all would from a constant.
6. Spark is told how large rows are if they are small (`expect_rows`), as `docs/spark.md` advises;
   what it writes untold is measured beside it.
"""

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, functions

from bench.measure import Sample, cpu_seconds
from bench.peer import PeerFailure
from bench.progress import progress
from bench.spark import rows as spark_rows
from bench.spark.memory import NAME as MEMORY_FORMAT
from bench.spark.profile import SparkProfile, measure_in_turns
from bench.spark.results import Mode, Rates, Source
from bench.spark.rows import KEY_BYTES
from bench.spark.stage import Stage
from bench.spark.throughput import QUERY_SECONDS_MAX, trigger_seconds
from bench.workloads import size_text
from millrace import sync
from millrace.limits import KIB, MIB
from millrace.spark import expect_rows
from millrace.spark.sink.staging import PIECE_BYTES, PIECES_UNDER_WAY_MAX

COLUMNS: Final = ("key", "value", "timestamp")
BATCH_ROWS: Final = 10_000  # In which Spark gets what it caches.
BATCH_BYTES_MAX: Final = 16 * MIB
RATE_FORMAT: Final = "rate-micro-batch"  # Spark's own: as many rows as asked for, in each batch.
POOL_BYTES: Final = 64 * KIB  # Of the constant: where in it a value may begin.
ROW_MORE_BYTES: Final = KEY_BYTES + 64  # Of a row beside its value.
TOLD_BYTES_MAX: Final = 1 * KIB
KINDS: Final = (
    (Mode.WRITE, Source.CLIENT),
    (Mode.WRITE, Source.MILLRACE),
    (Mode.STREAM_WRITE, Source.MILLRACE),
    (Mode.UNTOLD_WRITE, Source.MILLRACE),
)
_STRIDE: Final = 1_009  # From one row to the next.
_SEED: Final = 40


class _Writing:
    """One way to write the rows of one size."""

    def __init__(self, stage: Stage, rates: Rates, rows: int, cached: DataFrame) -> None:
        self.rates = rates
        self._stage = stage
        self._rows = rows
        self._size = rates.payload_bytes
        self._cached = cached

    def round(self, *, is_kept: bool) -> None:
        name = self._stage.new_path("sink").name
        log = self._stage.create_log(name, compression=False)  # Keeps 5.
        is_told = self.rates.mode is not Mode.UNTOLD_WRITE and _is_told(self._size)
        row_bytes = self._size + ROW_MORE_BYTES
        expect_rows(self._stage.spark, bytes_max=row_bytes if is_told else None)
        before = cpu_seconds(self._stage.process_ids)
        seconds = self._ways()[self.rates.mode, self.rates.source](log)
        after = cpu_seconds(self._stage.process_ids)
        first, end = log.bounds()
        if end - first != self._rows:
            raise PeerFailure(f"{self.rates.name}: {end - first} rows in the log, not {self._rows}")
        self._stage.client.delete_log(name)
        sample = Sample(
            records=self._rows,
            payload_bytes=self._rows * self._size,
            seconds=seconds,
            cpu_seconds=None if before is None or after is None else after - before,
            latency=None,
        )
        if is_kept:
            self.rates.samples.append(sample)
        mark = "" if is_kept else "  (warm-up)"
        progress(
            f"  {self.rates.mode.value:26}{self.rates.source.value:9}"
            f"{sample.records_per_second:12,.0f}/s {sample.megabytes_per_second:9,.1f} MB/s{mark}"
        )

    def _ways(self) -> dict[tuple[Mode, Source], Callable[[sync.SyncLog], float]]:
        return {
            (Mode.WRITE, Source.MILLRACE): self._write_batch,
            (Mode.STREAM_WRITE, Source.MILLRACE): self._write_stream,
            (Mode.UNTOLD_WRITE, Source.MILLRACE): self._write_batch,
            (Mode.WRITE, Source.CLIENT): self._append,
        }

    def _append(self, log: sync.SyncLog) -> float:
        """Keeps 3.  The rows are made before: they cost Spark nothing either."""
        chunk = max(1, PIECE_BYTES // self._size)
        tables = [
            pa.table(batch.select(COLUMNS))
            for batch in spark_rows.batches(self._size, chunk, 0, self._rows)
        ]
        at_once = _partitions(self._stage) * PIECES_UNDER_WAY_MAX
        with ThreadPoolExecutor(at_once) as callers:
            started = time.perf_counter()
            list(callers.map(log.append_table, tables))
            return time.perf_counter() - started

    def _write_batch(self, log: sync.SyncLog) -> float:
        """Keeps 1."""
        options = self._stage.log_options(log.name)
        started = time.perf_counter()
        self._cached.write.format("millrace").options(**options).mode("append").save()
        return time.perf_counter() - started

    def _write_stream(self, log: sync.SyncLog) -> float:
        """Keeps 2."""
        query = (
            self._constant_rows()
            .writeStream.format("millrace")
            .options(**self._stage.log_options(log.name))
            .option("checkpointLocation", str(self._stage.new_path("checkpoint")))
            .trigger(availableNow=True)
            .start()
        )
        if not query.awaitTermination(QUERY_SECONDS_MAX):
            query.stop()
            raise PeerFailure(f"{self.rates.name} did not end within {QUERY_SECONDS_MAX} s")
        return trigger_seconds(query, self._rows)

    def _constant_rows(self) -> DataFrame:
        pool = functions.lit(random.Random(_SEED).randbytes(self._size + POOL_BYTES))
        first = (functions.col("value") * _STRIDE % POOL_BYTES + 1).cast("int")
        reader = self._stage.spark.readStream.format(RATE_FORMAT).options(
            rowsPerBatch=self._rows, numPartitions=_partitions(self._stage)
        )
        return reader.load().select(
            functions.substring(pool, first, functions.lit(KEY_BYTES)).alias("key"),
            functions.substring(pool, first, functions.lit(self._size)).alias("value"),
            "timestamp",
        )


def _partitions(stage: Stage) -> int:
    return stage.spark.sparkContext.defaultParallelism


@contextmanager
def _cached_rows(stage: Stage, value_bytes: int, rows: int) -> Iterator[DataFrame]:
    reader = stage.spark.read.format(MEMORY_FORMAT).options(
        rows=rows,
        valueBytes=value_bytes,
        batchRows=max(1, min(BATCH_ROWS, BATCH_BYTES_MAX // value_bytes)),
        partitions=_partitions(stage),
    )
    cached = reader.load().select(*COLUMNS).persist(StorageLevel.MEMORY_ONLY)
    try:
        cached.count()
        yield cached
    finally:
        expect_rows(stage.spark, bytes_max=None)
        cached.unpersist(blocking=True)


def measure(stage: Stage, profile: SparkProfile, into: list[Rates]) -> None:
    """All sizes; what was measured is in `into`, also when a later size fails."""
    for number, (value_bytes, rows) in enumerate(profile.sizes):
        progress(f"Spark writes {rows:,} records of {size_text(value_bytes)}")
        with _cached_rows(stage, value_bytes, rows) as cached:
            cells = [
                _Writing(stage, Rates(*kind, value_bytes), rows, cached)
                for kind in KINDS
                if _is_told(value_bytes) or Mode.UNTOLD_WRITE not in kind
            ]
            into += [cell.rates for cell in cells]
            measure_in_turns(cells, profile, is_first=number == 0)


def _is_told(value_bytes: int) -> bool:
    """Keeps 6."""
    return value_bytes <= TOLD_BYTES_MAX
