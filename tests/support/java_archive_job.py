"""What a Java does before its classes are archived: a little of all that the tests do with Spark.

Its first session is local, and its second has a master and a worker inside and an executor beside
it, so that the classes of every kind of process are loaded in this one.

python -m tests.support.java_archive_job FOLDER
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from millrace.spark.defaults import missing_settings

LOCAL = "local[2,3]"
CLUSTER = "local-cluster[1,1,640]"
SCHEMA = "id BIGINT, key BINARY, text STRING, at TIMESTAMP"
ROWS = 20
# They run in executors alone.
OF_EXECUTORS = (
    "org.apache.spark.executor.CoarseGrainedExecutorBackend",
    "org.apache.spark.deploy.worker.WorkerWatcher",
)


class Rows(DataSourceReader, DataSourceStreamReader):
    def partitions(self, *_: object) -> list[InputPartition]:
        return [InputPartition(0), InputPartition(1)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        import datetime

        for number in range(ROWS):
            yield number, b"key", f"text {number}", datetime.datetime(2020, 1, 1)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"offset": 0}

    def latestOffset(self, *_: object) -> dict[str, int]:  # noqa: N802
        return {"offset": 2}


class Sink(DataSourceWriter, DataSourceStreamWriter):
    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], *_: object) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None], *_: object) -> None:
        pass


class Small(DataSource):
    @classmethod
    def name(cls) -> str:
        return "small"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> Rows:
        return Rows()

    def streamReader(self, schema: StructType) -> Rows:  # noqa: N802
        return Rows()

    def writer(self, schema: StructType, overwrite: bool) -> Sink:
        return Sink()

    def streamWriter(self, schema: StructType, overwrite: bool) -> Sink:  # noqa: N802
        return Sink()


def start(master: str, settings: dict[str, str]) -> SparkSession:
    """A session as Millrace makes it, where the environment says already what is started."""
    given = {"spark.master": master, **settings}
    added = missing_settings(given, os.environ)
    return SparkSession.builder.appName("archive").config(map={**given, **added}).getOrCreate()


def run_frames(spark: SparkSession, folder: Path) -> None:
    spark.dataSource.register(Small)
    rows = spark.read.format("small").load().where("id > 2").repartition(2)
    rows.write.format("small").mode("append").save()
    rows.write.parquet(str(folder / "rows"))
    upper = f.udf(str.upper, "string")
    stored = spark.read.parquet(str(folder / "rows")).select("id", upper("text").alias("text"))
    counts = spark.range(0, 100, 1, 2).groupBy((f.col("id") % 7).alias("id")).count()
    joined = counts.join(stored, "id").orderBy(f.desc("count"))
    joined.selectExpr("cast(id as string) v", "explode(array(1, 2)) each").collect()
    joined.toArrow()
    spark.createDataFrame([(1, "one")], "id INT, text STRING").collect()


def run_streams(spark: SparkSession, folder: Path) -> None:
    def keep(batch: DataFrame, number: int) -> None:
        batch.persist()
        batch.write.mode("append").parquet(str(folder / "batches"))
        batch.unpersist()

    stream = spark.readStream.format("small").load()
    counts = stream.groupBy("text").count().writeStream.outputMode("complete")
    writers = {
        "each": stream.writeStream.foreachBatch(keep),
        "small": stream.repartition(2).writeStream.format("small"),
        "parquet": stream.writeStream.format("parquet").option("path", str(folder / "stream")),
        "memory": counts.format("memory").queryName("counts"),
    }
    for name, writer in writers.items():
        place = str(folder / f"checkpoint-{name}")
        query = writer.option("checkpointLocation", place).trigger(availableNow=True).start()
        query.awaitTermination()


def run_tasks(spark: SparkSession) -> None:
    pairs = spark.sparkContext.parallelize(range(4), 2).map(lambda number: (number % 2, number))
    pairs.groupByKey().collect()


def main(given: str) -> None:
    folder = Path(given)
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.executor.memory": "640m",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.showConsoleProgress": "false",
    }
    spark = start(LOCAL, settings)
    run_frames(spark, folder)
    run_streams(spark, folder)
    run_tasks(spark)
    spark.stop()
    spark = start(CLUSTER, settings)
    run_tasks(spark)
    spark.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    for name in OF_EXECUTORS:
        gateway.jvm.java.lang.Class.forName(name)
    gateway.shutdown()
    gateway.proc.stdin.close()
    os._exit(gateway.proc.wait())  # Java writes the archive when it ends.


if __name__ == "__main__":
    main(*sys.argv[1:])
