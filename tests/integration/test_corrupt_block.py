"""A block that rots on the tail's disk is never served; readers get it from another member."""

import random
from pathlib import Path

from millrace.core.messages import Fetch, Read, Refusal, Refused
from millrace.limits import KIB
from millrace.local import LocalCluster
from millrace.types import Lsn, Record
from tests.support.clusters import (
    MakeCluster,
    bytes_at,
    connected,
    kill,
    metrics_of,
    run,
    start,
    whole_chain,
)
from tests.support.load import read_all

BLOCKS = 6
DAMAGED = (2, 5)  # Positions whose blocks rot.


def test_a_damaged_block_comes_from_another_member(make_cluster: MakeCluster) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await client.create_log("events", compression=False, write_path="chain")
            choices = random.Random(8)
            values = [choices.randbytes(20 * KIB) for _ in range(BLOCKS)]
            for value in values:
                await log.append(value)
            projection = log.projection
            tail, epoch, number = projection.tail, projection.epoch, log.info.id
            blocks = await bytes_at(client, tail, number, epoch, Lsn(BLOCKS + 1))
            await kill(cluster, tail)
            for lsn in DAMAGED:
                damage(cluster, tail, blocks[Lsn(lsn)])
            await start(cluster, tail)

            assert list((await read_all(log)).values.values()) == values
            for lsn, value in enumerate(values, 1):
                found = await log.get(lsn)
                assert isinstance(found, Record)
                assert found.value == value
            assert log.projection == projection, "the tail has not changed"

            for lsn in DAMAGED:
                for request in (
                    Read(number, epoch, Lsn(lsn)),
                    Fetch(number, epoch, Lsn(lsn), Lsn(lsn + 1), 1 << 20),
                ):
                    answer = await client.ask_node(tail, request, 5_000)
                    assert isinstance(answer, Refused)
                    assert answer.reason is Refusal.CORRUPT
            assert metrics_of(cluster, tail)["millrace_corrupt_blocks_total"] >= 2 * len(DAMAGED)
            await log.append(b"goes on")

    run(body(make_cluster(3, lease_ttl_ms=20_000)))


def test_a_learner_gets_a_damaged_block_from_another_member(make_cluster: MakeCluster) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await client.create_log("events", compression=False, write_path="chain")
            choices = random.Random(9)
            values = [choices.randbytes(20 * KIB) for _ in range(BLOCKS)]
            for value in values:
                await log.append(value)
            head, middle, tail = log.projection.chain
            (newcomer,) = {1, 2, 3, 4} - {head, middle, tail}
            number, epoch = log.info.id, log.projection.epoch
            blocks = await bytes_at(client, tail, number, epoch, Lsn(BLOCKS + 1))
            await kill(cluster, tail)
            damage(cluster, tail, blocks[Lsn(2)])
            await start(cluster, tail)
            await kill(cluster, middle)
            await log.append(b"the chain changes")
            grown = await whole_chain(client, number)
            assert grown.chain == (head, tail, newcomer)
            learned = await bytes_at(client, grown.tail, number, grown.epoch, Lsn(BLOCKS + 1))
            assert learned == blocks
            assert list((await read_all(log)).values.values()) == [*values, b"the chain changes"]

    run(body(make_cluster(4, lease_ttl_ms=4_000)))


def damage(cluster: LocalCluster, number: int, block: bytes) -> None:
    """Flip a bit where the block's bytes lie in the stopped node's file."""
    path = Path(cluster.node(number).folder) / "data" / "store" / "data.mdb"
    whole = path.read_bytes()
    at = whole.index(block) + len(block) // 2
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([whole[at] ^ 0x10]))
