"""The pipeline `view` with Spark and a cluster: its results, wherever they are kept, are those of
the documents as they are."""

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from millrace import sync
from millrace.local import LocalCluster
from millrace.spark.pipelines import Context
from millrace.spark.pipelines.view import (
    Language,
    OnError,
    ResultKind,
    ViewSettings,
    newest_version,
    query_view,
    run_view,
)
from tests.spark.filled_logs import stored
from tests.spark.pipelines import view_functions

FUNCTIONS = view_functions.__file__
CITIES = ("york", "bath", "ely")
SELECT = "SELECT city AS key, amount AS value FROM documents WHERE city IS NOT NULL"
COLUMNS = "city STRING, amount BIGINT"


class Orders:
    """A bucket of orders, and what is in it."""

    def __init__(self, client: sync.SyncClient) -> None:
        self.name = f"orders-{secrets.token_hex(3)}"
        self.bucket = client.create_bucket(self.name, partitions=8, replicas=1)
        self.documents: dict[str, dict[str, Any]] = {}

    def write(self, documents: dict[str, dict[str, Any]]) -> None:
        self.bucket.set_many({k.encode(): json.dumps(v).encode() for k, v in documents.items()})
        self.documents |= documents

    def delete(self, *keys: str) -> None:
        self.bucket.delete_many([key.encode() for key in keys])
        for key in keys:
            del self.documents[key]

    def change(self) -> None:
        """Some of everything: a city that comes, one that goes, amounts, deletions."""
        rest = [key for key, each in self.documents.items() if each.get("city") != "ely"]
        self.delete(*(key for key in self.documents if key not in rest))
        self.write({key: {"city": "hull", "amount": 5} for key in rest[::3]})
        self.write({key: {"city": "york", "amount": 7} for key in rest[1::3]})
        self.delete(*rest[2::5])

    def sums(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for document in self.documents.values():
            for city, amount in view_functions.by_city(document):
                found[city] = found.get(city, 0) + amount
        return found


@pytest.fixture
def orders(client: sync.SyncClient) -> Iterator[Orders]:
    orders = Orders(client)
    orders.write({f"o{at}": {"city": CITIES[at % 3], "amount": at} for at in range(300)})
    orders.write({"no-city": {"amount": 1}})
    yield orders
    client.delete_bucket(orders.name)


@pytest.fixture
def view(spark: SparkSession, calm_cluster: LocalCluster, orders: Orders, tmp_path: Path) -> "View":
    return View(spark, ",".join(calm_cluster.addresses), orders.name, tmp_path / "home")


class View:
    def __init__(self, spark: SparkSession, cluster: str, bucket: str, home: Path) -> None:
        self.spark = spark
        self.home = home
        self._given: dict[str, Any] = {"cluster": cluster, "bucket": bucket}

    def catch_up(self, **settings: Any) -> None:
        given = {"map": f"{FUNCTIONS}:by_city", "reduce": "sum", **self._given, **settings}
        run_view(
            ViewSettings(until_caught_up=True, shards=3, **given), Context.at(self.home, self.spark)
        )

    def forget_last_batch(self) -> None:
        """As if the driver had died before it noted that the batch is over."""
        commits = self.home / "checkpoint/commits"
        last = max(int(file.name) for file in commits.glob("[0-9]*"))
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)

    def sums(self) -> dict[str, int]:
        return {row.key: row.value for row in query_view(self.home, as_of_now=True).rows}


@pytest.mark.parametrize(
    "map",
    [
        {},
        {"map": f"{FUNCTIONS}:by_city_in_pandas", "language": Language.PANDAS},
        {"map": SELECT, "columns": COLUMNS, "language": Language.SQL},
    ],
    ids=["python", "pandas", "sql"],
)
def test_results_follow_the_documents(view: View, orders: Orders, map: dict[str, Any]) -> None:
    view.catch_up(**map)
    assert view.sums() == orders.sums()
    orders.change()
    view.catch_up(**map)
    assert view.sums() == orders.sums()
    assert query_view(view.home, "york").rows[0].value == orders.sums()["york"]
    assert [row.key for row in query_view(view.home, first="c", last="hull").rows] == ["hull"]


def test_a_bucket_has_a_document_for_each_view_key(
    view: View, orders: Orders, client: sync.SyncClient
) -> None:
    target = client.create_bucket(f"sums-{secrets.token_hex(3)}", partitions=4, replicas=1)
    kept: dict[str, Any] = {"result": ResultKind.BUCKET, "target": target.name}
    view.catch_up(**kept)
    orders.change()
    view.catch_up(**kept)
    found = target.get_many([json.dumps(city).encode() for city in (*CITIES, "hull")])
    assert {json.loads(k): json.loads(v.value) for k, v in found.items()} == orders.sums()


def test_a_table_is_whole_in_every_version(
    view: View, orders: Orders, spark: SparkSession, tmp_path: Path
) -> None:
    kept: dict[str, Any] = {"result": ResultKind.TABLE, "target": str(tmp_path / "table")}
    view.catch_up(**kept)
    first, before = newest_version(tmp_path / "table"), orders.sums()
    orders.change()
    view.catch_up(**kept)
    assert _sums_in(pq.read_table(newest_version(tmp_path / "table")).to_pylist()) == orders.sums()
    assert _sums_in(pq.read_table(first).to_pylist()) == before, "who reads it can end"
    read = spark.read.parquet(newest_version(tmp_path / "table")).collect()
    assert _sums_in([row.asDict() for row in read]) == orders.sums()


def test_a_log_tells_every_change_of_a_result_once(
    view: View, orders: Orders, client: sync.SyncClient
) -> None:
    log = client.create_log(f"sums-{secrets.token_hex(3)}")
    kept: dict[str, Any] = {"result": ResultKind.LOG, "target": log.name}
    view.catch_up(**kept)
    orders.change()
    view.catch_up(**kept)
    told = _told(log)
    view.forget_last_batch()
    view.catch_up(**kept)
    assert _told(log) == told, "a batch that ran again told nothing again"
    assert _merged(told) == orders.sums()
    assert {"key": "ely", "deleted": True} in told


def test_a_document_that_the_map_cannot_take_stops_the_view(view: View, orders: Orders) -> None:
    orders.write({"bad": {"city": "york"}})
    with pytest.raises(StreamingQueryException) as raised:
        view.catch_up()
    said = str(raised.value)
    assert "document 'bad': KeyError: 'amount' (view_functions.py, line " in said
    assert "on_error=set_aside" in said


def test_or_is_set_aside_until_it_is_mended(view: View, orders: Orders) -> None:
    good = orders.sums()
    orders.write({"bad": {"city": "york"}})
    view.catch_up(on_error=OnError.SET_ASIDE)
    assert view.sums() == good
    [row] = pq.read_table(view.home / "set_aside").to_pylist()
    assert row["key"] == b"bad"
    assert "KeyError: 'amount'" in row["reason"]
    progress = Context.at(view.home).reported()
    assert progress.note == "1 set aside"
    orders.write({"bad": {"city": "york", "amount": 1_000}})
    view.catch_up(on_error=OnError.SET_ASIDE)
    assert view.sums() == orders.sums()


def _sums_in(rows: list[dict[str, Any]]) -> dict[str, int]:
    return {json.loads(row["key"]): json.loads(row["value"]) for row in rows}


def _told(log: sync.SyncLog) -> list[dict[str, Any]]:
    return [msgspec.json.decode(value) for _, _, value in stored(log)]


def _merged(told: list[dict[str, Any]]) -> dict[str, int]:
    last = {each["key"]: each for each in told}
    return {key: each["value"] for key, each in last.items() if not each.get("deleted")}
