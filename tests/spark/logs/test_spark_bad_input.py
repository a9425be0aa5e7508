"""What a user can get wrong: a message in the driver that names the option and the fix."""

import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from millrace import sync
from millrace.local import LocalCluster
from millrace.local.cluster import free_ports
from tests.spark.filled_logs import fill

SECONDS_MAX = 30


@pytest.fixture
def ten(log: sync.SyncLog) -> sync.SyncLog:
    fill(log, 10)
    return log


def refusal_of_read(spark: SparkSession, schema: str | None = None, **options: object) -> str:
    def read() -> None:
        reader = spark.read.format("millrace").options(**{k: str(v) for k, v in options.items()})
        (reader if schema is None else reader.schema(schema)).load().collect()

    return refusal(read)


def refusal_of_stream(spark: SparkSession, checkpoint: Path, **options: object) -> str:
    def run() -> None:
        query = (
            spark.readStream.format("millrace")
            .options(**{name: str(value) for name, value in options.items()})
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(SECONDS_MAX)

    return refusal(run)


def refusal(work: Callable[[], None]) -> str:
    started = time.monotonic()
    with pytest.raises(PySparkException) as refused:
        work()
    assert time.monotonic() - started < SECONDS_MAX
    return checked(str(refused.value))


def checked(message: str) -> str:
    """No frames of ours or of a worker's."""
    front = message.split("JVM stacktrace")[0]
    assert "Traceback" not in front, front
    assert 'File "' not in front, front
    return front


def test_options(spark: SparkSession, calm_cluster: LocalCluster, ten: sync.SyncLog) -> None:
    cluster = ",".join(calm_cluster.addresses)
    assert "the option cluster is missing" in refusal_of_read(spark, log=ten.name)
    assert "did you mean startingOffsets" in refusal_of_read(
        spark, cluster=cluster, log=ten.name, startingOfsets="latest"
    )
    assert "both say what to read" in refusal_of_read(
        spark, cluster=cluster, log=ten.name, logs="a,b"
    )
    assert "belongs to spark.readStream" in refusal_of_read(
        spark, cluster=cluster, log=ten.name, maxRecordsPerTrigger=5
    )
    assert "there are log, lsn, key" in refusal_of_read(
        spark, "offset bigint", cluster=cluster, log=ten.name
    )
    assert "the column lsn is bigint, not int" in refusal_of_read(
        spark, "lsn int", cluster=cluster, log=ten.name
    )


def test_positions_and_logs(
    spark: SparkSession, calm_cluster: LocalCluster, ten: sync.SyncLog
) -> None:
    cluster = ",".join(calm_cluster.addresses)
    missing = refusal_of_read(spark, cluster=cluster, log="no-such-log")
    assert "has no log 'no-such-log'" in missing
    beyond = refusal_of_read(
        spark, cluster=cluster, log=ten.name, startingOffsets=f'{{"{ten.name}": 500}}'
    )
    assert "position 500 lies beyond the end" in beyond
    assert "next position is 11" in beyond
    stranger = refusal_of_read(spark, cluster=cluster, log=ten.name, startingOffsets='{"other": 5}')
    assert "which the query does not read" in stranger


def test_a_cluster_that_does_not_answer(spark: SparkSession) -> None:
    message = refusal_of_read(spark, cluster=f"127.0.0.1:{free_ports(1)[0]}", log="clicks")
    assert "no node of the cluster answers" in message


def test_checkpoints_of_something_else(
    spark: SparkSession,
    calm_cluster: LocalCluster,
    client: sync.SyncClient,
    ten: sync.SyncLog,
    tmp_path: Path,
) -> None:
    cluster = ",".join(calm_cluster.addresses)
    stream = spark.readStream.format("millrace").option("cluster", cluster).option("log", ten.name)
    query = (
        stream.option("startingOffsets", "earliest")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(SECONDS_MAX)
    other = client.create_log(f"other-{secrets.token_hex(4)}", write_path="chain")
    message = refusal_of_stream(spark, tmp_path / "checkpoint", cluster=cluster, log=other.name)
    assert f"log '{ten.name}' is in the checkpoint" in message
    client.delete_log(ten.name)
    again = client.create_log(ten.name, write_path="chain")
    fill(again, 10)
    message = refusal_of_stream(spark, tmp_path / "checkpoint", cluster=cluster, log=ten.name)
    assert "deleted and made again" in message
    offsets = tmp_path / "checkpoint" / "offsets" / "0"
    text = offsets.read_text()
    for path in (tmp_path / "checkpoint" / "offsets").glob(".*.crc"):
        path.unlink()
    offsets.write_text(re.sub(r'("cluster": ?")', r"\1elsewhere-", text))
    message = refusal_of_stream(spark, tmp_path / "checkpoint", cluster=cluster, log=ten.name)
    assert "belongs to the cluster elsewhere-" in message
