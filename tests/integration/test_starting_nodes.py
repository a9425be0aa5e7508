"""A node that is starting: what it is asked before it has settled."""

import asyncio

from millrace.client import Client, Log
from millrace.codec.blocks import lone_record
from millrace.codec.frames import PROTOCOL_VERSION
from millrace.core.epochs import EpochRecord
from millrace.core.messages import AppendBlock, Hello, Message, Refusal, Refused
from millrace.errors import Unavailable
from millrace.local import LocalCluster
from millrace.runtime.links import Links
from millrace.types import Ack, AuthoritativeStatus, Epoch, Token
from tests.support.clusters import MakeCluster, connected, eventually, kill, run, start

METADATA_NODE = 1
STARTING = Refused(Refusal.UNAVAILABLE, detail="the node is starting")
BLOCKS = 5
LEASE_TTL_MS = 6_000  # The node waits for the end of its former lease.


async def log_of_another_sequencer(client: Client) -> tuple[Log, int]:
    """Than the metadata node, which cannot be wiped."""
    for number in range(20):
        log = await client.create_log(f"events{number}", replication=3, write_path="sequenced")
        for each in range(BLOCKS):
            await log.append(b"%d" % each)
        assert isinstance(log.standing, EpochRecord)
        if log.standing.sequencer != METADATA_NODE:
            return log, log.standing.sequencer
    raise AssertionError("one node sequences all logs")


async def ask_now(address: str, message: Message) -> Message:
    """By connections of its own, which wait for nothing when the last one has failed."""
    links = Links(Hello(PROTOCOL_VERSION))
    try:
        return await links.ask(address, message, 5_000)
    finally:
        await links.close()


def test_a_wiped_sequencer_takes_no_append_before_it_has_said_that_it_lost_its_disk(
    make_cluster: MakeCluster,
) -> None:
    """It would recover its log with itself as a witness, who never had a block."""

    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log, victim = await log_of_another_sequencer(client)
            block = lone_record(log.info.id, b"value", Token(1, 1))
            append = AppendBlock(log.info.id, Epoch(0), block, Ack.DISK)
            answers: list[Message] = []

            async def is_served() -> bool:
                try:
                    answers.append(await ask_now(cluster.node(victim).address, append))
                except Unavailable:
                    return False
                return answers[-1] != STARTING

            await kill(cluster, victim)
            cluster.wipe(victim)
            async with asyncio.TaskGroup() as group:
                group.create_task(start(cluster, victim))
                await eventually(is_served, what="an append that is served")
                said = [each.change.status for each in await client.events() if each.node == victim]
            assert STARTING in answers
            assert said[:1] == [AuthoritativeStatus.UNDERREPLICATION]

    run(body(make_cluster(4, lease_ttl_ms=LEASE_TTL_MS)))
