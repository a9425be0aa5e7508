"""Frames and streams into logs of each kind: every row once, in order, whole or not at all."""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSourceStreamWriter
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from millrace import sync
from millrace.local import LocalCluster
from millrace.spark import workers
from millrace.spark.sink.options import parse
from millrace.spark.sink.writers import StreamWriter
from millrace.spark.source import MillraceSource
from millrace.types import Gap, Record
from tests.spark.filled_logs import TIME_FIRST_US, fill, rows, stored

KINDS = ["chain", "sequenced", "commit"]
WAIT_S = 120
# All that a record has, of rows 0, 1, 2, ...
WHOLE = (
    "concat('key-', id) AS key",
    "concat('value-', id) AS value",
    f"timestamp_micros({TIME_FIRST_US} + id) AS timestamp",
    "IF(id % 2 = 0, array(named_struct('key', 'even', 'value', binary(string(id)))), NULL)"
    " AS headers",
)


class Sink:
    """Writes into logs of one cluster."""

    def __init__(self, spark: SparkSession, cluster: LocalCluster) -> None:
        self.spark = spark
        self.cluster = ",".join(cluster.addresses)

    def write(self, frame: DataFrame, log: str | None = None, **options: object) -> None:
        writer = frame.write.format("millrace").mode("append").option("cluster", self.cluster)
        writer.options(**{name: str(value) for name, value in options.items()}).save(log)

    def stream(self, frame: DataFrame, log: str, folder: Path, **options: object) -> StreamingQuery:
        """What is available now; waits for the end, and raises what went wrong."""
        writer = frame.writeStream.format(str(options.pop("format", "millrace")))
        query = (
            writer.option("cluster", self.cluster)
            .options(**{name: str(value) for name, value in options.items()})
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start(log)
        )
        assert query.awaitTermination(WAIT_S)
        return query

    def read(self, log: str, **options: object) -> DataFrame:
        reader = self.spark.read.format("millrace").option("cluster", self.cluster)
        return reader.options(**{name: str(value) for name, value in options.items()}).load(log)

    def follow(self, log: str, **options: object) -> DataFrame:
        reader = self.spark.readStream.format("millrace").option("cluster", self.cluster)
        reader = reader.option("startingOffsets", "earliest")
        return reader.options(**{name: str(value) for name, value in options.items()}).load(log)


@pytest.fixture
def sink(spark: SparkSession, calm_cluster: LocalCluster) -> Sink:
    return Sink(spark, calm_cluster)


@pytest.fixture
def make_log(client: sync.SyncClient) -> Callable[[str], sync.SyncLog]:
    return lambda kind: client.create_log(f"{kind}-{secrets.token_hex(4)}", write_path=kind)


MakeLog = Callable[[str], sync.SyncLog]


def records(log: sync.SyncLog) -> list[Record]:
    with log.read() as reader:
        return [each for each in reader if not isinstance(each, Gap)]


def values(log: sync.SyncLog) -> list[str]:
    return [record.value.decode() for record in records(log)]


def numbered(*numbers: range) -> list[str]:
    return [f"value-{number}" for each in numbers for number in each]


# -- Batches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_is_in_the_log_as_it_was(sink: Sink, make_log: MakeLog, kind: str) -> None:
    log = make_log(kind)
    sink.write(sink.spark.range(0, 1_000, 1, 3).selectExpr(*WHOLE), log.name)
    found = records(log)
    assert [record.value.decode() for record in found] == numbered(range(1_000))
    for number in (0, 1, 998, 999):
        assert found[number].key == f"key-{number}".encode()
        assert found[number].timestamp == TIME_FIRST_US + number
        wanted = (("even", str(number).encode()),) if number % 2 == 0 else ()
        assert tuple(found[number].headers) == wanted
    assert rows(sink.read(log.name)) == stored(log)


def test_each_row_goes_to_the_log_that_it_names(sink: Sink, make_log: MakeLog) -> None:
    logs = [make_log(kind) for kind in KINDS]
    names = ", ".join(f"'{log.name}'" for log in logs)
    named = f"element_at(array({names}), 1 + int(id % 3)) AS topic"
    sink.write(sink.spark.range(0, 300, 1, 2).selectExpr(*WHOLE, named))
    for number, log in enumerate(logs):
        assert values(log) == numbered(range(number, 300, 3))


def test_a_sorted_frame_is_sorted_in_the_log(sink: Sink, make_log: MakeLog) -> None:
    log = make_log("sequenced")
    shuffled = sink.spark.range(0, 500, 1, 4).orderBy(f.rand(7)).orderBy(f.desc("id"))
    sink.write(shuffled.selectExpr(*WHOLE), log.name)
    assert values(log) == numbered(range(499, -1, -1))


def test_a_view_takes_rows_from_sql(sink: Sink, make_log: MakeLog) -> None:
    log = make_log("commit")
    sink.spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW taking (value string) USING millrace "
        f"OPTIONS (cluster '{sink.cluster}', log '{log.name}')"
    )
    sink.spark.sql("INSERT INTO taking SELECT concat('value-', id) FROM range(5)")
    assert sorted(values(log)) == numbered(range(5))


def test_rows_of_an_attempt_that_failed_are_never_seen(
    sink: Sink, make_log: MakeLog, tmp_path: Path
) -> None:
    """Its rows are many enough to be staged before the last of them fails."""
    failed = tmp_path / "failed"

    @f.udf("string", useArrow=False)
    def fails_once(number: int) -> str:
        if number == 299 and TaskContext.get().attemptNumber() == 0:  # type: ignore[union-attr]
            failed.touch()
            raise RuntimeError("the first attempt ends here")
        return f"{number} " + "x" * 60_000

    log = make_log("chain")
    sink.write(sink.spark.range(0, 300, 1, 1).select(fails_once("id").alias("value")), log.name)
    assert failed.exists()
    assert [int(value.split()[0]) for value in values(log)] == list(range(300))


def test_a_write_that_is_repeated_under_its_name_is_written_once(
    sink: Sink, make_log: MakeLog
) -> None:
    log, other = make_log("chain"), make_log("commit")
    frame = sink.spark.range(10).selectExpr(*WHOLE)
    for version in (0, 0, 1, 0, 1):
        sink.write(frame, log.name, txnAppId=log.name, txnVersion=version)
    assert values(log) == numbered(range(10), range(10))
    sink.write(frame, other.name, txnAppId=log.name, txnVersion=0)
    assert values(other) == numbered(range(10))


def test_without_a_name_each_write_counts(sink: Sink, make_log: MakeLog) -> None:
    log = make_log("sequenced")
    for _ in range(2):
        sink.write(sink.spark.range(10).selectExpr(*WHOLE), log.name, ack="memory")
    assert values(log) == numbered(range(10), range(10))


def test_nulls_are_left_out_if_asked(sink: Sink, make_log: MakeLog) -> None:
    log = make_log("chain")
    frame = sink.spark.range(10).selectExpr("IF(id = 3, NULL, concat('value-', id)) AS value")
    sink.write(frame, log.name, onNull="skip")
    assert sorted(values(log)) == numbered(range(3), range(4, 10))


# -- Streams ------------------------------------------------------------------------------------


@pytest.fixture
def source(log: sync.SyncLog) -> sync.SyncLog:
    fill(log, 1_000)
    return log


def last_published(sink: Sink, query: StreamingQuery) -> int | None:
    return workers.run(workers.client(sink.cluster).publications.last(str(query.id)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_goes_on_where_it_was(
    sink: Sink, make_log: MakeLog, source: sync.SyncLog, tmp_path: Path, kind: str
) -> None:
    log = make_log(kind)
    frame = sink.follow(source.name, maxRecordsPerTrigger=400).select("key", "value")
    for count in (1_000, 1_500):
        query = sink.stream(frame, log.name, tmp_path)
        assert [each[1:] for each in stored(log)] == [each[1:] for each in stored(source)]
        assert rows(sink.read(log.name)) == stored(log)
        assert len(stored(log)) == count
        fill(source, 500, first=count)
    assert last_published(sink, query) == 4


def test_a_micro_batch_without_rows_is_remembered(
    sink: Sink, make_log: MakeLog, source: sync.SyncLog, tmp_path: Path
) -> None:
    log = make_log("chain")
    query = sink.stream(sink.follow(source.name).select("value").where("false"), log.name, tmp_path)
    assert values(log) == []
    assert last_published(sink, query) == 0


def test_for_each_batch_written_twice_is_there_once(
    sink: Sink, make_log: MakeLog, source: sync.SyncLog, tmp_path: Path
) -> None:
    log = make_log("sequenced")
    written: list[int] = []

    def write(frame: DataFrame, number: int) -> None:
        for _ in range(2):
            sink.write(frame, log.name, txnAppId=log.name, txnVersion=number)
        written.append(number)

    frame = sink.follow(source.name, maxRecordsPerTrigger=400).select("key", "value")
    query = (
        frame.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT_S)
    assert written == [0, 1, 2]
    assert [each[1:] for each in stored(log)] == [each[1:] for each in stored(source)]


def failing_source(mark: Path) -> type[MillraceSource]:
    """The sink, but its driver fails at a micro-batch, once, right after it was published."""

    class Failing(StreamWriter):
        def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
            super().commit(messages, batchId)
            if batchId == 1 and not mark.exists():
                mark.touch()
                raise RuntimeError("the driver ends here")

    class FailingSource(MillraceSource):
        @classmethod
        def name(cls) -> str:
            return "failing_millrace"

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
            return Failing(parse(self.options), schema, overwrite)

    return FailingSource


def test_a_micro_batch_that_comes_again_after_it_was_published_is_not_written_again(
    sink: Sink, make_log: MakeLog, source: sync.SyncLog, tmp_path: Path
) -> None:
    sink.spark.dataSource.register(failing_source(tmp_path / "mark"))
    log = make_log("commit")
    frame = sink.follow(source.name, maxRecordsPerTrigger=400).select("key", "value")
    with pytest.raises(PySparkException, match="the driver ends here"):
        sink.stream(frame, log.name, tmp_path, format="failing_millrace")
    assert len(stored(log)) == 800
    sink.stream(frame, log.name, tmp_path, format="failing_millrace")
    assert [each[1:] for each in stored(log)] == [each[1:] for each in stored(source)]
