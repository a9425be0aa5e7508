"""How fast Spark reads a log: as a batch and as a stream, beside rows from memory and Parquet.

One query reads all rows into Spark's `noop` sink, which takes rows and does nothing.

1. A batch is timed from `spark.read` to the end of the action: planning counts.
2. A stream is timed by Spark: the rate is rows by the sum of `triggerExecution` over the
   micro-batches that had rows.  The wall time from `start()` to the end of the query is kept too;
   it has the start of the query's own Python processes in it, whatever the source.
3. A round that did not read every row counts as a failure, not as a fast round.
"""

import time
from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from bench.measure import Sample, cpu_seconds
from bench.peer import PeerFailure
from bench.progress import progress
from bench.spark.memory import NAME as MEMORY_FORMAT
from bench.spark.profile import SparkProfile, measure_in_turns
from bench.spark.results import Mode, Rates, Source
from bench.spark.stage import FilledLog, Stage, check_rows
from bench.workloads import size_text

QUERY_SECONDS_MAX: Final = 120

Timed = tuple[float, float]  # Seconds by which the rate is told, and by the clock on the wall.


class _Cell:
    """One source in one mode."""

    def __init__(
        self,
        stage: Stage,
        filled: FilledLog,
        mode: Mode,
        source: Source,
        frame: Callable[[], DataFrame],
    ) -> None:
        self.rates = Rates(mode, source, filled.value_bytes)
        self._stage = stage
        self._filled = filled
        self._frame = frame

    def round(self, *, is_kept: bool) -> None:
        servers = self._stage.process_ids
        before = cpu_seconds(servers)
        seconds, wall_seconds = self._read()
        after = cpu_seconds(servers)
        rows = self._filled.rows
        sample = Sample(
            records=rows,
            payload_bytes=rows * self._filled.value_bytes,
            seconds=seconds,
            cpu_seconds=None if before is None or after is None else after - before,
            latency=None,
        )
        if is_kept:
            self.rates.samples.append(sample)
            self.rates.wall_seconds.append(wall_seconds)
        mark = "" if is_kept else "  (warm-up)"
        progress(
            f"  {self.rates.mode.value:21}{self.rates.source.value:9}"
            f"{sample.records_per_second:12,.0f}/s {sample.megabytes_per_second:9,.1f} MB/s{mark}"
        )

    def _read(self) -> Timed:
        if self.rates.mode is Mode.BATCH:
            return _read_batch(self._frame)
        return _read_stream(self._stage, self._frame, self._filled.rows)


def measure(stage: Stage, profile: SparkProfile, into: list[Rates]) -> None:
    """All sizes; what was measured is in `into`, also when a later size fails."""
    for number, (value_bytes, rows) in enumerate(profile.sizes):
        progress(f"Spark reads {rows:,} records of {size_text(value_bytes)}")
        filled = FilledLog(stage, value_bytes, rows)
        cells = _cells(stage, filled)
        into += [cell.rates for cell in cells]
        measure_in_turns(cells, profile, is_first=number == 0)
        filled.delete()


def _cells(stage: Stage, filled: FilledLog) -> list[_Cell]:
    """Readers of Spark keep the options they were given, so each query has its own."""
    spark, from_log, from_memory = stage.spark, filled.log_options(), filled.memory_options()
    from_start = {**from_log, "startingOffsets": "earliest"}
    parquet_path = str(filled.write_parquet())
    batches: dict[Source, Callable[[], DataFrame]] = {
        Source.MILLRACE: lambda: spark.read.format("millrace").options(**from_log).load(),
        Source.MEMORY: lambda: spark.read.format(MEMORY_FORMAT).options(**from_memory).load(),
        Source.PARQUET: lambda: spark.read.parquet(parquet_path),
    }
    streams: dict[Source, Callable[[], DataFrame]] = {
        Source.MILLRACE: lambda: spark.readStream.format("millrace").options(**from_start).load(),
        Source.MEMORY: lambda: spark.readStream.format(MEMORY_FORMAT).options(**from_memory).load(),
    }
    for source, frame in batches.items():
        check_rows(frame(), filled.rows, filled.value_bytes, source.value)
    return [
        *(_Cell(stage, filled, Mode.BATCH, *each) for each in batches.items()),
        *(_Cell(stage, filled, Mode.STREAM, *each) for each in streams.items()),
    ]


def _read_batch(frame: Callable[[], DataFrame]) -> Timed:
    """Keeps 1."""
    started = time.perf_counter()
    frame().write.format("noop").mode("overwrite").save()
    seconds = time.perf_counter() - started
    return seconds, seconds


def _read_stream(stage: Stage, frame: Callable[[], DataFrame], rows: int) -> Timed:
    """Keeps 2 and 3."""
    started = time.perf_counter()
    query = (
        frame()
        .writeStream.format("noop")
        .option("checkpointLocation", str(stage.new_path("checkpoint")))
        .trigger(availableNow=True)
        .start()
    )
    if not query.awaitTermination(QUERY_SECONDS_MAX):
        query.stop()
        raise PeerFailure(f"a stream of {rows} rows did not end within {QUERY_SECONDS_MAX} s")
    wall_seconds = time.perf_counter() - started
    return trigger_seconds(query, rows), wall_seconds


def trigger_seconds(query: StreamingQuery, rows: int) -> float:
    batches = [each for each in query.recentProgress if each.numInputRows]
    found = sum(each.numInputRows for each in batches)
    if found != rows:
        raise PeerFailure(f"a stream read {found} rows instead of {rows}")
    return sum(each.durationMs["triggerExecution"] for each in batches) / 1000
