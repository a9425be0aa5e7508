"""The committer of a log whose metadata is in etcd dies, or sleeps through its lease: another one
takes over, and what the first one still believes harms nobody (M5, G1, G2, L6)."""

from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest

from millrace.client import Client, Log
from millrace.core.commit.record import CommitRecord
from millrace.local import LocalCluster
from millrace.types import NodeId
from tests.support.clusters import MakeCluster, connected, eventually, kill, run, start
from tests.support.etcd import EtcdCluster
from tests.support.load import Follower, Ledger, assert_agree, load_on, read_all

NODES: Final = 5
STREAMS: Final = 3
WRITERS: Final = 8

Absence = Callable[[LocalCluster, Client, Log, Ledger], Awaitable[None]]


async def dies(cluster: LocalCluster, client: Client, log: Log, ledger: Ledger) -> None:
    before = await record_of(client, log)
    await kill(cluster, before.committer)
    await taken_over(client, log, before)
    await ledger.grown_by(200)
    await start(cluster, before.committer)


async def sleeps_through_its_lease(
    cluster: LocalCluster, client: Client, log: Log, ledger: Ledger
) -> None:
    before = await record_of(client, log)
    cluster.pause(before.committer)
    try:
        await gone(client, before.committer)
        await taken_over(client, log, before)
        await ledger.grown_by(200)
    finally:
        cluster.resume(before.committer)


async def record_of(client: Client, log: Log) -> CommitRecord:
    """As the repository has it."""
    record, _ = await client.directory.read_commits(log.info.id)
    assert record is not None
    return record


async def gone(client: Client, node: NodeId) -> None:
    async def is_gone() -> bool:
        return node not in (await client.directory.view()).live

    await eventually(is_gone, what=f"the lease of node {node} to run out")


async def taken_over(client: Client, log: Log, before: CommitRecord) -> None:
    def is_other(record: CommitRecord) -> bool:
        return record.term > before.term and record.committer != before.committer

    await eventually(lambda: record_of(client, log), is_other, what="another committer")


@pytest.mark.parametrize(
    "happens", [dies, sleeps_through_its_lease], ids=lambda each: each.__name__
)
def test_another_committer_takes_over(
    make_cluster: MakeCluster, tmp_path: Path, happens: Absence
) -> None:
    with EtcdCluster(tmp_path / "etcd") as etcd:
        urls = [f"http://{endpoint}" for endpoint in etcd.endpoints]
        run(body(make_cluster(NODES, etcd=urls), happens), timeout_s=60)


async def body(cluster: LocalCluster, happens: Absence) -> None:
    async with connected(cluster) as client, connected(cluster) as other:
        log = await client.create_log("orders", write_path="commit", streams=STREAMS)
        logs = [log, await other.log("orders")]  # The second one's writers are impatient.
        ledger, follower = Ledger(), Follower(logs[1])
        try:
            async with load_on(logs, ledger, writers=WRITERS):
                await ledger.grown_by(200)
                await happens(cluster, client, log, ledger)
                await ledger.grown_by(200)
                await whole(client, log)
            _, end = await log.bounds()
            await follower.reach(end)
        finally:
            await follower.close()
        tape = await read_all(log)
        assert tape.values == follower.tape.values, "both readers saw one dense sequence"
        assert not tape.gaps and not follower.tape.gaps
        assert max(Counter(ledger.acknowledged.values()).values()) == 1, "a position given twice"
        assert_agree(ledger, tape)


async def whole(client: Client, log: Log) -> None:
    """The one who was away has its part again, or somebody else has."""

    async def is_whole() -> bool:
        record = await record_of(client, log)
        return all(len(each.replicas) == record.copies for each in record.streams)

    await eventually(is_whole, what="the streams to have all their replicas")
