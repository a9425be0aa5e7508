"""An audit over real nodes: nothing on a healthy cluster under load, everything on a harmed one."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest
from pyspark.sql import SparkSession

from millrace.client import Client, Log
from millrace.core.commit.record import CommitRecord, stream_log_of
from millrace.core.sequenced.verifying import Wrong
from millrace.local import LocalCluster
from millrace.spark import workers
from millrace.spark.pipelines.audit import AuditReport, AuditSettings, audit, copies, run_audit
from millrace.spark.pipelines.audit.planning import find_logs
from millrace.spark.pipelines.audit.running import audit_logs
from millrace.spark.pipelines.context import Context
from millrace.store.layout import (
    block_key,
    decode_entry,
    encode,
    load_rows,
    open_tables,
    split_block_key,
)
from millrace.types import LogId, LogInfo, NodeId, Placement
from tests.support.clusters import QUICK_KEEPER, connected, eventually, run

# A commit log has copies on all nodes: no node that is late can be replaced by another.
KINDS = {"sequenced": 3, "chain": 3, "commit": 4}
BLOCKS = 12
RECORDS = 20  # Of each block.
AUDIT_TIMEOUT_S = 500.0
METADATA_NODE = 1


async def fill(log: Log) -> None:
    for number in range(BLOCKS):
        value = bytes([number]) * 500
        await log.append_many([value + bytes([each]) for each in range(RECORDS)])


@contextlib.asynccontextmanager
async def load_on(logs: list[Log]) -> AsyncIterator[None]:
    """Writers that do not stop until the body does."""

    async def write(log: Log) -> None:
        while True:
            await log.append(b"load" * 50)

    writers = [asyncio.create_task(write(log)) for log in logs]
    try:
        yield
    finally:
        for writer in writers:
            writer.cancel()
        await asyncio.gather(*writers, return_exceptions=True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Four nodes with a log of each kind, of which the tests harm one after the other."""
    folder = tmp_path_factory.mktemp("audited") / "cluster"
    with LocalCluster.create(folder, 4, keeper=QUICK_KEEPER, lease_ttl_ms=20_000) as made:
        made.start()

        async def body() -> None:
            async with connected(made) as client:
                for kind, replication in KINDS.items():
                    log = await client.create_log(
                        kind, write_path=kind, replication=replication, compression=False
                    )
                    await fill(log)

        run(body())
        yield made


def settings_of(cluster: LocalCluster, *logs: str) -> AuditSettings:
    return AuditSettings(cluster=",".join(cluster.addresses), logs=logs)


def test_a_healthy_cluster_under_load_has_no_deviations(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    context = Context.at(tmp_path, spark)

    async def body() -> None:
        async with connected(cluster) as client:
            logs = [await client.log(kind) for kind in KINDS]
            async with load_on(logs):
                await asyncio.to_thread(run_audit, settings_of(cluster), context)

    run(body(), AUDIT_TIMEOUT_S)
    conclusion = context.conclusion
    assert conclusion is not None
    assert conclusion.is_good, conclusion.summary
    verdicts = {each["log"]: each["verdict"] for each in conclusion.details["logs"]}
    assert set(verdicts) == set(KINDS)
    for verdict in verdicts.values():
        assert verdict["blocks"] >= BLOCKS
        assert verdict["records"] >= BLOCKS * RECORDS
        assert verdict["copies"] >= 3 * verdict["blocks"]


def test_every_copy_is_a_row(spark: SparkSession, cluster: LocalCluster) -> None:
    rows = copies(spark, settings_of(cluster, "chain")).where("state = 'sound'").collect()
    nodes_by_first: dict[int, set[int]] = {}
    for row in rows:
        nodes_by_first.setdefault(row["first"], set()).add(row["node"])
        assert row["node"] in row["copyset"]
    assert all(len(nodes) == 3 for nodes in nodes_by_first.values())
    assert len(nodes_by_first) >= BLOCKS


@pytest.mark.parametrize("is_made_anew", [False, True], ids=["deleted", "made anew"])
def test_a_log_that_is_deleted_meanwhile_is_told_and_the_others_are_audited(
    spark: SparkSession, cluster: LocalCluster, is_made_anew: bool
) -> None:
    settings = settings_of(cluster)
    client = workers.client(settings.cluster)

    async def find_and_delete() -> list[LogInfo]:
        await fill(await client.create_log("passing", write_path="chain"))
        infos = await find_logs(client, ("passing", "commit"))
        await client.delete_log("passing")
        if is_made_anew:
            await client.create_log("passing", write_path="chain")
        return infos

    async def tidy() -> None:
        if is_made_anew:
            await client.delete_log("passing")

    infos = workers.run(find_and_delete())
    report = audit_logs(spark, settings, client, infos)
    workers.run(tidy())
    assert {each.log: each.is_deleted for each in report.logs} == {"passing": True, "commit": False}
    assert report.is_sound
    assert "deleted: chain log passing: while it was to be audited" in report.lines()
    commit = next(each for each in report.logs if each.log == "commit")
    assert commit.verdict.blocks >= BLOCKS


# -- Harm ------------------------------------------------------------------------------------------


class StoppedStore:
    """The store of a node that is not running, in the test's hands."""

    def __init__(self, cluster: LocalCluster, node: NodeId, log: LogId) -> None:
        path = Path(cluster.node(node).folder) / "data" / "store"
        self._environment = lmdb.open(os.fspath(path), max_dbs=8, map_size=1 << 30)
        self._tables = open_tables(self._environment)
        with self._environment.begin() as transaction:
            row = load_rows(transaction, self._tables).get(log)
        self._slot = -1 if row is None else row.slot  # -1: it has nothing of the log.

    def firsts(self) -> list[int]:
        with (
            self._environment.begin() as transaction,
            transaction.cursor(self._tables.index) as cursor,
        ):
            keys = [split_block_key(key) for key in cursor.iternext(values=False)]
        return [first for slot, first in keys if slot == self._slot]

    def delete(self, first: int) -> None:
        key = block_key(self._slot, first)
        with self._environment.begin(write=True) as transaction:
            assert transaction.delete(key, db=self._tables.index)
            assert transaction.delete(key, db=self._tables.blocks)

    def flip(self, first: int) -> None:
        key = block_key(self._slot, first)
        with self._environment.begin(write=True) as transaction:
            data = bytearray(transaction.get(key, db=self._tables.blocks))
            data[len(data) // 2] ^= 0x10
            transaction.put(key, bytes(data), db=self._tables.blocks)

    def amend(self, first: int, change: Callable[[Placement], Placement]) -> None:
        key = block_key(self._slot, first)
        with self._environment.begin(write=True) as transaction:
            entry = decode_entry(transaction.get(key, db=self._tables.index))
            entry = entry.placed(change(entry.placement))
            transaction.put(key, encode(entry), db=self._tables.index)

    def close(self) -> None:
        self._environment.close()


async def holders_of(client: Client, name: str) -> tuple[list[NodeId], LogId]:
    """The nodes that may hold blocks of the log, but for the one that hosts the metadata; and the
    number under which they do."""
    log = await client.log(name)
    standing = log.standing
    if isinstance(standing, CommitRecord):
        stream = max(standing.streams, key=lambda each: each.local_end)
        members, number = stream.replicas, stream_log_of(log.info.id, stream.stream)
    else:
        described: Any = await log.describe()
        members, number = described.members, log.info.id
    return [NodeId(node) for node in members if node != METADATA_NODE], number


def stopped_holder(
    cluster: LocalCluster, nodes: Iterable[NodeId], log: LogId
) -> tuple[NodeId, StoppedStore]:
    """The one that holds most: copysets are drawn, and one may have none of a short log."""
    stores = {node: StoppedStore(cluster, node, log) for node in nodes}
    most = max(stores, key=lambda node: len(stores[node].firsts()))
    for node, store in stores.items():
        if node != most:
            store.close()
    return most, stores[most]


async def all_are_back(cluster: LocalCluster) -> None:
    """Until each stream has its replicas again: those that started late were left out."""
    async with connected(cluster) as client:

        async def look() -> bool:
            record, _ = await client.directory.read_commits((await client.log("commit")).info.id)
            assert record is not None
            return all(len(each.replicas) == KINDS["commit"] for each in record.streams)

        await eventually(look, what="all replicas", timeout_s=120.0)


Harm = Callable[[StoppedStore, int, NodeId], None]


def delete_copy(store: StoppedStore, first: int, node: NodeId) -> None:
    store.delete(first)


def flip_byte(store: StoppedStore, first: int, node: NodeId) -> None:
    store.flip(first)


def name_a_stranger(store: StoppedStore, first: int, node: NodeId) -> None:
    """In place of another holder, as if the copy had been moved."""

    def change(placement: Placement) -> Placement:
        strangers = {1, 2, 3, 4} - set(placement.copyset)
        moved = (node, *[other for other in placement.copyset if other != node][:1], *strangers)
        return Placement(tuple(map(NodeId, moved)), placement.wave, placement.recovery)

    store.amend(first, change)


def forget_a_holder(store: StoppedStore, first: int, node: NodeId) -> None:
    def change(placement: Placement) -> Placement:
        return Placement(placement.copyset[:2], placement.wave, placement.recovery)

    store.amend(first, change)


def name_others_only(store: StoppedStore, first: int, node: NodeId) -> None:
    def change(placement: Placement) -> Placement:
        return Placement(tuple(each for each in placement.copyset if each != node))

    store.amend(first, change)


HARMS: list[tuple[str, Harm, set[Wrong]]] = [
    ("sequenced", delete_copy, {Wrong.TOO_FEW_COPIES, Wrong.NOT_HELD}),
    ("sequenced", flip_byte, {Wrong.DAMAGED}),
    ("sequenced", name_a_stranger, {Wrong.NOT_HELD}),
    ("sequenced", forget_a_holder, {Wrong.TOO_FEW_NAMED}),
    ("chain", delete_copy, {Wrong.NOT_HELD}),
    ("chain", flip_byte, {Wrong.DAMAGED}),
    ("chain", name_others_only, {Wrong.TOO_FEW_NAMED}),
    ("commit", flip_byte, {Wrong.DAMAGED}),
]


@pytest.fixture(scope="module")
def harmed(
    spark: SparkSession, cluster: LocalCluster
) -> tuple[AuditReport, dict[tuple[str, str], int]]:
    """All harms at once, each at a block of its own; where each was done."""
    places: dict[tuple[str, str], int] = {}

    async def victims() -> dict[str, tuple[list[NodeId], LogId]]:
        async with connected(cluster) as client:
            return {kind: await holders_of(client, kind) for kind in KINDS}

    holders = run(victims())
    for each in cluster.nodes:  # The metadata first: nobody can take the place of a node.
        cluster.kill(each.id)
    for kind, (nodes, number) in holders.items():
        node, store = stopped_holder(cluster, nodes, number)
        firsts = iter(store.firsts())
        for log, harm, _ in HARMS:
            if log == kind:
                places[log, harm.__name__] = first = next(firsts)
                harm(store, first, node)
        store.close()
    cluster.start()
    run(all_are_back(cluster), AUDIT_TIMEOUT_S)
    return audit(spark, settings_of(cluster)), places


@pytest.mark.parametrize(
    ("log", "harm", "wrongs"),
    HARMS,
    ids=[f"{log}-{harm.__name__}" for log, harm, _ in HARMS],
)
def test_each_harm_is_found_where_it_was_done(
    harmed: tuple[AuditReport, dict[tuple[str, str], int]],
    log: str,
    harm: Harm,
    wrongs: set[Wrong],
) -> None:
    report, places = harmed
    first = places[log, harm.__name__]
    found = next(each.verdict for each in report.logs if each.log == log).findings
    assert {each.wrong for each in found if each.first == first} == wrongs


def test_nothing_else_is_found(
    harmed: tuple[AuditReport, dict[tuple[str, str], int]],
) -> None:
    report, places = harmed
    for each in report.logs:
        harmed_here = {first for (log, _), first in places.items() if log == each.log}
        assert {finding.first for finding in each.verdict.findings} == harmed_here
    assert not report.is_sound
