"""A cluster whose metadata is in etcd survives the loss of any one machine of either kind."""

import random
from pathlib import Path

from millrace.client import Client, Log
from millrace.local import LocalCluster
from tests.support.clusters import (
    MakeCluster,
    assert_members_equal,
    connected,
    kill,
    run,
    start,
    whole_chain,
)
from tests.support.etcd import EtcdCluster
from tests.support.load import Follower, Ledger, assert_agree, load_on, read_all

KILLS = 5


def test_any_node_and_one_member_of_etcd_may_die(make_cluster: MakeCluster, tmp_path: Path) -> None:
    with EtcdCluster(tmp_path / "etcd", 3) as etcd:
        urls = [f"http://{endpoint}" for endpoint in etcd.endpoints]
        run(body(make_cluster(4, etcd=urls), etcd))


async def body(cluster: LocalCluster, etcd: EtcdCluster) -> None:
    async with connected(cluster) as client:
        log = await client.create_log("events", write_path="chain")
        ledger, follower = Ledger(), Follower(log)
        async with load_on([log], ledger, writers=16):
            await ledger.grown_by(200)
            etcd.leader().kill()
            await ledger.grown_by(200)
            await kill_in_turn(cluster, client, log, ledger)
            # It stays away: `three` in tests/meta/test_repository_etcd.py says why.
            await kill(cluster, log.projection.sequencer)
            await ledger.grown_by(200)
            await whole_chain(client, log.info.id)
        _, end = await log.bounds()
        await follower.reach(end)
        await follower.close()
        assert_agree(ledger, await read_all(log))
        await assert_members_equal(client, log)


async def kill_in_turn(cluster: LocalCluster, client: Client, log: Log, ledger: Ledger) -> None:
    """Any node, one at a time: none of them is special here."""
    choices = random.Random(5)
    for number in range(KILLS):
        victim = 1 + number % len(cluster.nodes)
        await kill(cluster, victim)
        await ledger.grown_by(choices.randrange(50, 200))
        await start(cluster, victim)
        await whole_chain(client, log.info.id)
