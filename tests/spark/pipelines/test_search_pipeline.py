"""The pipeline `search` with Spark and a cluster: what is in the documents now is found."""

import json
import secrets
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millrace import sync
from millrace.errors import StateMismatch
from millrace.local import LocalCluster
from millrace.spark.pipelines import Context
from millrace.spark.pipelines.search import SearchSettings, query_search, run_search


def test_documents_are_found_as_they_are_now(
    spark: SparkSession, calm_cluster: LocalCluster, client: sync.SyncClient, tmp_path: Path
) -> None:
    bucket = client.create_bucket(f"texts-{secrets.token_hex(3)}", partitions=8, replicas=1)
    settings = SearchSettings(
        cluster=",".join(calm_cluster.addresses),
        bucket=bucket.name,
        key_prefix="text_",
        until_caught_up=True,
        shards=3,
    )

    def found(query: str) -> set[bytes]:
        return {hit.key for hit in query_search(tmp_path, query, as_of_now=True).hits}

    def write(**texts: str) -> None:
        bucket.set_many({k.encode(): json.dumps({"text": v}).encode() for k, v in texts.items()})

    write(text_1="the old water wheel", text_2="a new water pump", text_3="water and bridges")
    bucket.set(b"text_4", b"\xff water, but no JSON")
    write(other="water under another name")
    run_search(settings, Context.at(tmp_path, spark))
    assert found("water") == {b"text_1", b"text_2", b"text_3"}
    write(text_2="an electric pump")
    bucket.delete(b"text_3")
    run_search(settings, Context.at(tmp_path, spark))
    assert found("water") == {b"text_1"}
    assert found("electric") == {b"text_2"}
    [hit] = query_search(tmp_path, "wheel").hits
    assert hit.snippet == "the old water [wheel]"
    client.delete_bucket(bucket.name)


def test_a_folder_without_an_index_is_told(tmp_path: Path) -> None:
    with pytest.raises(StateMismatch, match="it is no search that ever ran"):
        query_search(tmp_path, "water")
