"""Two of three nodes fail one after the other: the log goes on with one, and says so; nodes that
return are synchronized until the chain has all its members again (seed 002, C4, C5)."""

from millrace.client import Client, Log
from millrace.core.projection import Projection
from millrace.local import LocalCluster
from tests.support.clusters import (
    MakeCluster,
    Noted,
    assert_members_equal,
    connected,
    eventually,
    kill,
    projection_of,
    run,
    start,
    whole_chain,
)
from tests.support.load import Follower, Ledger, assert_agree, load_on, read_all


def test_three_nodes_two_fail_and_return(make_cluster: MakeCluster) -> None:
    async def body(cluster: LocalCluster) -> None:
        noted = Noted()
        async with connected(cluster, noted=noted) as client:
            log = await client.create_log("events", write_path="chain")
            ledger, follower = Ledger(), Follower(log)
            async with load_on([log], ledger, writers=16):
                await ledger.grown_by(200)
                await kill(cluster, 3)
                await ledger.grown_by(200)
                assert (await shrunk(client, log, 2)).is_degraded
                await kill(cluster, 2)
                await ledger.grown_by(200)
                alone = await shrunk(client, log, 1)
                assert alone.chain == (1,)
                assert not alone.is_redundant
                assert was_told(noted, cluster)
                await start(cluster, 2)
                await whole_chain(client, log.info.id, 2)
                await ledger.grown_by(200)
                await start(cluster, 3)
                await whole_chain(client, log.info.id, 3)
                await ledger.grown_by(200)
            await agree(client, log, ledger, follower)

    run(body(make_cluster(3)))


def test_five_nodes_two_of_the_chain_fail_and_others_take_their_places(
    make_cluster: MakeCluster,
) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            await client.create_log("other", write_path="chain")
            log = await client.create_log("events", write_path="chain")
            chain = log.projection.chain
            ledger, follower = Ledger(), Follower(log)
            async with load_on([log], ledger, writers=16):
                await ledger.grown_by(200)
                for victim in chain[1:]:
                    await kill(cluster, victim)
                    await ledger.grown_by(200)
                grown = await whole_chain(client, log.info.id)
                assert not set(chain[1:]) & set(grown.chain)
                assert chain[0] in grown.chain
                await ledger.grown_by(200)
            await agree(client, log, ledger, follower)
            # Those that return are not needed, and not members by having been some.
            await start(cluster, *chain[1:])
            await log.append(b"after")
            assert (await projection_of(client, log.info.id)).chain == grown.chain

    run(body(make_cluster(5)))


async def shrunk(client: Client, log: Log, length: int) -> Projection:
    return await eventually(
        lambda: projection_of(client, log.info.id),
        lambda projection: len(projection.chain) == length,
        what=f"a chain of {length}",
    )


def was_told(noted: Noted, cluster: LocalCluster) -> bool:
    """Whoever changed the chain told it: this client, or the keeper in its log."""
    return "chain.no_redundancy" in noted.events() or any(
        "chain.no_redundancy" in cluster.log_text(node.id) for node in cluster.nodes
    )


async def agree(client: Client, log: Log, ledger: Ledger, follower: Follower) -> None:
    _, end = await log.bounds()
    await follower.reach(end)
    await follower.close()
    tape = await read_all(log)
    assert tape.values == follower.tape.values
    assert_agree(ledger, tape)
    await assert_members_equal(client, log)
