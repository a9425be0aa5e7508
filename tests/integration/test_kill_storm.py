"""Nodes are killed again and again under a heavy load; the log must not care (G1, G2, G4, L6)."""

import random
from typing import Final

import pytest

from millrace.client import Client
from millrace.local import LocalCluster
from millrace.types import Ack, LogId
from tests.support.clusters import (
    MakeCluster,
    assert_members_equal,
    connected,
    kill,
    projection_of,
    run,
    start,
    whole_chain,
)
from tests.support.load import Follower, Ledger, assert_agree, load_on, read_all

KILLS: Final = 20
NODES: Final = 5
METADATA_NODE: Final = 1


@pytest.mark.parametrize("ack", list(Ack), ids=lambda ack: ack.value)
def test_twenty_kills_lose_nothing_and_double_nothing(make_cluster: MakeCluster, ack: Ack) -> None:
    run(storm(make_cluster(NODES), ack), timeout_s=280)


async def storm(cluster: LocalCluster, ack: Ack) -> None:
    async with connected(cluster) as one, connected(cluster) as two:
        await one.create_log(
            "first", write_path="chain"
        )  # Takes the metadata node; the next log does not.
        log = await one.create_log("storm", ack=ack, write_path="chain")
        logs = [log, await two.log("storm")]
        ledger, follower = Ledger(), Follower(logs[1])
        try:
            async with load_on(logs, ledger):
                await ledger.grown_by(500)
                await kill_again_and_again(cluster, one, log.info.id, ledger, ack)
                await ledger.grown_by(500)
            _, end = await log.bounds()
            await follower.reach(end)
            tape = await read_all(log)
            assert tape.values == follower.tape.values
            assert_agree(ledger, tape)
            assert ledger.unknown, "no outcome was unknown: the load is too tame"
            await assert_members_equal(one, log)
        finally:
            await follower.close()


async def kill_again_and_again(
    cluster: LocalCluster, client: Client, log: LogId, ledger: Ledger, ack: Ack
) -> None:
    choices = random.Random(ack.value)
    for number in range(KILLS):
        if ack is Ack.MEMORY:
            # What is only in memory survives one loss at a time.
            await whole_chain(client, log)
        victim = await choose_victim(client, log, choices, number)
        await ledger.grown_by(choices.randrange(1, 400))
        await kill(cluster, victim)
        await start(cluster, victim)


async def choose_victim(client: Client, log: LogId, choices: random.Random, number: int) -> int:
    """Every fourth time the sequencer, else a member of the chain, seldom somebody else."""
    projection = await projection_of(client, log)
    members = [node for node in projection.chain if node != METADATA_NODE]
    if number % 4 == 3 and projection.sequencer != METADATA_NODE:
        return projection.sequencer
    if members and choices.random() < 0.85:
        return choices.choice(members)
    return choices.randrange(METADATA_NODE + 1, NODES + 1)
