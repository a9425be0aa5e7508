"""What a user can get wrong when writing: a message that names it and the fix, and no row is in the
log."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from millrace import sync
from millrace.local import LocalCluster
from tests.spark.filled_logs import stored

WAIT_S = 120
Frame = Callable[[SparkSession], DataFrame]
VALUE = "string(id) AS value"


def rows_of(*columns: str) -> Frame:
    return lambda spark: spark.range(0, 100, 1, 1).selectExpr(*columns)


def refusal(work: Callable[[], object]) -> str:
    """Without frames of ours or of a worker's."""
    with pytest.raises(PySparkException) as refused:
        work()
    front = str(refused.value).split("JVM stacktrace")[0]
    assert "Traceback" not in front, front
    return front


@pytest.mark.parametrize(
    ("frame", "options", "says"),
    [
        (rows_of("id"), {}, "a log has no column id"),
        (rows_of("string(id) AS key"), {}, "has no column value"),
        (rows_of("id AS value"), {}, 'expr("CAST(value AS string)")'),
        (rows_of(VALUE), {"onNul": "skip"}, "did you mean onNull?"),
        (rows_of(VALUE), {"txnAppId": "job"}, "txnAppId needs txnVersion"),
        (rows_of(VALUE), {"log": "no-such-log"}, "`millrace log create no-such-log` makes it"),
        (
            rows_of("IF(id = 41, NULL, string(id)) AS value", "concat('key ', id) AS key"),
            {},
            "row 42 of partition 0, with the key key 41, has no value",
        ),
    ],
    ids=["column", "no value", "type", "option", "half a name", "log", "null"],
)
def test_a_batch_that_cannot_be_written(
    spark: SparkSession,
    calm_cluster: LocalCluster,
    log: sync.SyncLog,
    frame: Frame,
    options: dict[str, str],
    says: str,
) -> None:
    given = {"cluster": ",".join(calm_cluster.addresses), "log": log.name, **options}
    writer = frame(spark).write.format("millrace").options(**given)
    assert says in refusal(lambda: writer.mode("append").save())
    assert stored(log) == []


def test_rows_that_name_a_missing_log(
    spark: SparkSession, calm_cluster: LocalCluster, log: sync.SyncLog
) -> None:
    """The others are not written either."""
    frame = rows_of(VALUE, f"IF(id = 41, 'elsewhere', '{log.name}') AS log")(spark)
    writer = frame.write.format("millrace").option("cluster", ",".join(calm_cluster.addresses))
    assert "`millrace log create elsewhere` makes it" in refusal(writer.mode("append").save)
    assert stored(log) == []


def test_a_log_is_not_overwritten(
    spark: SparkSession, calm_cluster: LocalCluster, log: sync.SyncLog
) -> None:
    writer = rows_of(VALUE)(spark).write.format("millrace")
    writer = writer.option("cluster", ",".join(calm_cluster.addresses))
    message = refusal(lambda: writer.mode("overwrite").save(log.name))
    assert "a log is only ever appended to" in message
    assert '.mode("append")' in message


def plain(frame: DataFrame) -> DataFrame:
    return frame


def counted(frame: DataFrame) -> DataFrame:
    return frame.groupBy("value").count()


@pytest.mark.parametrize(
    ("mode", "change", "options", "says"),
    [
        ("complete", counted, {}, "outputMode complete would replace what it has"),
        ("append", plain, {"txnAppId": "a", "txnVersion": "1"}, "no meaning for writeStream"),
    ],
    ids=["complete", "a name of its own"],
)
def test_a_stream_that_cannot_be_written(
    spark: SparkSession,
    calm_cluster: LocalCluster,
    log: sync.SyncLog,
    tmp_path: Path,
    mode: str,
    change: Callable[[DataFrame], DataFrame],
    options: dict[str, str],
    says: str,
) -> None:
    frame = change(spark.readStream.format("rate").load())
    query = (
        frame.selectExpr("string(value) AS value")
        .writeStream.format("millrace")
        .outputMode(mode)
        .option("cluster", ",".join(calm_cluster.addresses))
        .options(**options)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start(log.name)
    )
    try:
        assert says in refusal(lambda: query.awaitTermination(WAIT_S))
    finally:
        query.stop()
    assert stored(log) == []
