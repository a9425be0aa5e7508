"""How fast Spark writes a log, beside what the plain client appends of the same rows.

Rows come from memory (`memory.py`), so that nothing but the way into the log is measured.

1. A batch is timed from the frame to the end of the action: planning and publication count.
2. A stream is one micro-batch, timed by Spark: `triggerExecution`.
3. The client appends Arrow tables, one after the other, in one process, as large as what a task of
   the sink sends at a time; both write with the log's own `ack`.
4. A round after which the log does not have every row counts as a failure, not as a fast round.
"""

import time
from collections.abc import Callable
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from bench.measure import Sample, cpu_seconds
from bench.peer import PeerFailure
from bench.runner import progress
from bench.spark import rows as spark_rows
from bench.spark.memory import NAME as MEMORY_FORMAT
from bench.spark.profile import SparkProfile, rounds
from bench.spark.results import Mode, Rates, Source
from bench.spark.stage import Stage
from bench.spark.throughput import QUERY_SECONDS_MAX, trigger_seconds
from bench.workloads import size_text
from millrace import sync
from millrace.spark.sink.staging import PIECE_BYTES

COLUMNS: Final = ("key", "value", "timestamp")
BATCH_ROWS: Final = 10_000  # As Spark gives them to a writer, unless told otherwise.
BATCH_BYTES_MAX: Final = 16 * 1024 * 1024


class _Writing:
    """One way to write the rows of one size."""

    def __init__(self, stage: Stage, rates: Rates, rows: int) -> None:
        self.rates = rates
        self._stage = stage
        self._rows = rows
        self._size = rates.payload_bytes

    def round(self, *, is_kept: bool) -> None:
        name = self._stage.new_path("sink").name
        log = self._stage.create_log(name)
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
            f"  {self.rates.mode.value:21}{self.rates.source.value:9}"
            f"{sample.records_per_second:12,.0f}/s {sample.megabytes_per_second:9,.1f} MB/s{mark}"
        )

    def _ways(self) -> dict[tuple[Mode, Source], Callable[[sync.SyncLog], float]]:
        return {
            (Mode.WRITE, Source.MILLRACE): self._write_batch,
            (Mode.STREAM_WRITE, Source.MILLRACE): self._write_stream,
            (Mode.WRITE, Source.CLIENT): self._append,
        }

    def _append(self, log: sync.SyncLog) -> float:
        """Keeps 3.  The rows are made before: they cost Spark nothing either."""
        chunk = max(1, PIECE_BYTES // self._size)
        tables = [
            pa.table(batch.select(COLUMNS))
            for batch in spark_rows.batches(self._size, chunk, 0, self._rows)
        ]
        started = time.perf_counter()
        for table in tables:
            log.append_table(table)
        return time.perf_counter() - started

    def _write_batch(self, log: sync.SyncLog) -> float:
        """Keeps 1."""
        started = time.perf_counter()
        frame: DataFrame = (
            self._stage.spark.read.format(MEMORY_FORMAT).options(**self._memory()).load()
        )
        options = self._stage.log_options(log.name)
        frame.select(*COLUMNS).write.format("millrace").options(**options).mode("append").save()
        return time.perf_counter() - started

    def _write_stream(self, log: sync.SyncLog) -> float:
        """Keeps 2."""
        reader = self._stage.spark.readStream.format(MEMORY_FORMAT).options(**self._memory())
        query = (
            reader.load()
            .select(*COLUMNS)
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

    def _memory(self) -> dict[str, str]:
        return {
            "rows": str(self._rows),
            "valueBytes": str(self._size),
            "batchRows": str(max(1, min(BATCH_ROWS, BATCH_BYTES_MAX // self._size))),
            "partitions": str(self._stage.spark.sparkContext.defaultParallelism),
        }


def measure(stage: Stage, profile: SparkProfile, into: list[Rates]) -> None:
    """All sizes; what was measured is in `into`, also when a later size fails."""
    for number, (value_bytes, rows) in enumerate(profile.sizes):
        progress(f"Spark writes {rows:,} records of {size_text(value_bytes)}")
        kinds = [
            (Mode.WRITE, Source.CLIENT),
            (Mode.WRITE, Source.MILLRACE),
            (Mode.STREAM_WRITE, Source.MILLRACE),
        ]
        cells = [_Writing(stage, Rates(*kind, value_bytes), rows) for kind in kinds]
        into += [cell.rates for cell in cells]
        for _ in range(1 if number else profile.warm_up_rounds):
            for cell in cells:
                cell.round(is_kept=False)
        deadline = time.perf_counter() + profile.size_seconds_max
        for turn in rounds(profile.rounds, deadline):
            first = turn % len(cells)
            for cell in [*cells[first:], *cells[:first]]:
                cell.round(is_kept=True)
