"""A Spark query whose `logPattern` matches nothing: a batch fails, a stream says so and waits."""

import logging
import re
import secrets

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from millrace import sync
from millrace.errors import UnknownLog
from millrace.local import LocalCluster
from millrace.spark import options
from millrace.spark.batch import BatchReader
from millrace.spark.columns import default_schema
from millrace.spark.options import Options
from millrace.spark.stream import StreamReader


def parsed(cluster: LocalCluster, pattern: str, **more: str) -> Options:
    given = {"cluster": ",".join(cluster.addresses), "logPattern": pattern}
    return options.parse({**given, "startingOffsets": "earliest", **more})


@pytest.fixture
def stem(calm_cluster: LocalCluster) -> str:
    """Of names that no log has yet; one has it as a part."""
    stem = f"pattern-{secrets.token_hex(4)}"
    with sync.connect(calm_cluster.addresses) as client:
        client.create_log(f"my-{stem}")
    return stem


def test_a_batch_fails_and_names_the_logs_that_there_are(
    calm_cluster: LocalCluster, stem: str
) -> None:
    chosen = parsed(calm_cluster, stem)
    with pytest.raises(UnknownLog, match=f"matches logPattern='{stem}', .* the whole name; it has"):
        BatchReader(chosen, default_schema(chosen)).partitions()


def test_a_stream_warns_once_and_reads_what_comes_to_match(
    calm_cluster: LocalCluster, stem: str, caplog: pytest.LogCaptureFixture
) -> None:
    chosen = parsed(calm_cluster, f"{stem}-.*", maxWaitMs="50")
    reader = StreamReader(chosen, default_schema(chosen))
    with caplog.at_level(logging.WARNING, "millrace.spark"):
        start = reader.initialOffset()
        again = reader.latestOffset(start, ReadAllAvailable())
    assert len(re.findall("the query waits for one", caplog.text)) == 1
    assert again["logs"] == {}
    with sync.connect(calm_cluster.addresses) as client:
        client.create_log(f"{stem}-a").append(b"one")
    assert list(reader.latestOffset(again, ReadAllAvailable())["logs"]) == [f"{stem}-a"]
    reader.stop()
