"""Writers that die between taking a position and writing it, or half-way down the chain (C1)."""

import os
import signal
import subprocess
import sys

from millrace.client import Client, Log, Reader
from millrace.codec.blocks import draft, place
from millrace.core.messages import Issued, Message, Next, Write, Written
from millrace.local import LocalCluster
from millrace.types import Ack, Block, Gap, GapKind, Lsn, NodeId, Record, Token
from tests.support.clusters import assert_members_equal, connected, eventually, run
from tests.support.load import Follower, read_all

WRITER_THAT_WAITS = """
import asyncio, sys
from millrace.client import connect
from millrace.core.messages import Next

async def main():
    client = await connect(sys.argv[1])
    log = await client.log(sys.argv[2])
    projection = log.projection
    issued = await client.ask_node(
        projection.sequencer, Next(projection.log, projection.epoch, 3), 5_000
    )
    print(issued.first, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_a_killed_writers_positions_become_a_hole(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await client.create_log("hole", write_path="chain")
            await log.append(b"before")
            assert take_and_die(calm_cluster, "hole") == 2
            assert await log.append(b"after") == 5
            follower = Follower(log, fill_after_ms=200)
            await follower.reach(6)
            await follower.close()
            assert follower.tape.values == {1: b"before", 5: b"after"}
            assert follower.tape.gaps == [hole(2, 4)]
            assert await log.get(3) == hole(3, 3)
            await assert_members_equal(client, log)

    run(body())


def test_a_hole_at_the_very_end_is_found_too(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await client.create_log("hole-at-the-end", write_path="chain")
            await log.append(b"before")
            await take(client, log, 2)
            tape = await read_all(log)
            assert tape.gaps == [hole(2, 3)]
            assert await log.append(b"after") == 4

    run(body())


def test_a_reader_told_never_to_fill_waits(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await client.create_log("hole-kept", write_path="chain")
            first = await take(client, log, 1)
            await log.append(b"after")
            reader = await log.read("start", None, fill_after_ms=None)
            async with reader:

                async def waits_for() -> object:
                    return reader.explain()["waits_for"]

                await eventually(waits_for, lambda what: what in ("repair", "tail"))
                # The writer is only slow: its block arrives in the end.
                block = block_at(log, first, b"late")
                for node in log.projection.chain:
                    assert isinstance(await write(client, log, node, block), Written)
                seen = await next_items(reader, 2)
            assert [item.value for item in seen if isinstance(item, Record)] == [b"late", b"after"]

    run(body())


def test_a_late_writer_loses_to_the_filler_and_takes_another_position(
    calm_cluster: LocalCluster,
) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await client.create_log("hole-late", write_path="chain")
            first = await take(client, log, 1)
            assert (await read_all(log)).gaps == [Gap(GapKind.HOLE, first, first)]
            late = await write(client, log, log.projection.head, block_at(log, first, b"late"))
            assert not isinstance(late, Written)
            assert list((await read_all(log)).values.values()) == []

    run(body())


def test_a_partial_write_is_completed_by_the_reader(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await client.create_log("partial", write_path="chain")
            await log.append(b"before")
            first = await take(client, log, 1)
            block = block_at(log, first, b"half-way")
            assert isinstance(await write(client, log, log.projection.head, block), Written)
            await log.append(b"after")
            # Completing waits for nobody: a reader that would never fill sees it.
            async with await log.read("start", "end", fill_after_ms=None) as reader:
                seen = [item async for item in reader]
            values = [item.value for item in seen if isinstance(item, Record)]
            assert values == [b"before", b"half-way", b"after"]
            await assert_members_equal(client, log)

    run(body())


def hole(first: int, last: int) -> Gap:
    return Gap(GapKind.HOLE, Lsn(first), Lsn(last))


def take_and_die(cluster: LocalCluster, name: str) -> int:
    """A process takes three positions and is killed with them."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER_THAT_WAITS, ",".join(cluster.addresses), name],
        stdout=subprocess.PIPE,
        text=True,
    )
    with writer:
        assert writer.stdout is not None
        first = int(writer.stdout.readline())
        os.kill(writer.pid, signal.SIGKILL)
    return first


async def take(client: Client, log: Log, count: int) -> Lsn:
    projection = log.projection
    request = Next(projection.log, projection.epoch, count)
    issued = await client.ask_node(projection.sequencer, request, 5_000)
    assert isinstance(issued, Issued)
    return issued.first


def block_at(log: Log, first: Lsn, value: bytes) -> Block:
    drafted = draft([value], timestamps_us=1, compress=False)
    return place(drafted, log.info.id, log.projection.epoch, first, Token(77, first))


async def write(client: Client, log: Log, node: NodeId, block: Block) -> Message:
    projection = log.projection
    message = Write(projection.log, projection.epoch, block, projection.chain, Ack.DISK)
    return await client.ask_node(node, message, 5_000)


async def next_items(reader: Reader, count: int) -> list[Record | Gap]:
    items: list[Record | Gap] = []
    async for item in reader:
        items.append(item)
        if len(items) == count:
            break
    return items
