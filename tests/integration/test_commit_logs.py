"""Commit logs over real processes: streams, their replicas, their committer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from millrace.client import Client, Log
from millrace.core.commit.record import CommitRecord, StreamRecord
from millrace.errors import LogSealed, PositionTrimmed, UsageError
from millrace.types import Gap, GapKind, Lsn, Record
from tests.support.clusters import MakeCluster, connected, eventually, run

WRITERS = 4


async def record_of(log: Log) -> CommitRecord:
    await log.peek()
    standing = log.standing
    assert isinstance(standing, CommitRecord)
    return standing


async def first_stream(log: Log) -> StreamRecord:
    return (await record_of(log)).streams[0]


async def read_all(log: Log) -> tuple[dict[bytes, int], list[Gap]]:
    """Every record once, at positions without a hole."""
    found: dict[bytes, int] = {}
    gaps: list[Gap] = []
    async with await log.read() as reader:
        async for part in reader:
            if isinstance(part, Gap):
                gaps.append(part)
                continue
            assert part.value not in found, "a record was appended twice"
            found[part.value] = part.lsn
    start, end = await log.bounds()
    if not gaps:
        assert sorted(found.values()) == list(range(start, end))
    return found, gaps


@contextlib.asynccontextmanager
async def writing(log: Log) -> AsyncIterator[dict[bytes, int]]:
    """Appends go on meanwhile; what was acknowledged, and where."""
    acknowledged: dict[bytes, int] = {}
    is_over = False

    async def write(writer: int) -> None:
        number = 0
        while not is_over:
            value = b"%d-%d" % (writer, number)
            acknowledged[value] = await log.append(value)
            number += 1

    tasks = [asyncio.create_task(write(writer)) for writer in range(WRITERS)]
    try:
        yield acknowledged
    finally:
        is_over = True
        await asyncio.gather(*tasks)


async def grows(acknowledged: dict[bytes, int], by: int = 200) -> None:
    want = len(acknowledged) + by

    async def enough() -> bool:
        return len(acknowledged) >= want

    await eventually(enough, what="appends to go on")


@pytest.mark.parametrize("streams", [1, 4])
def test_what_is_appended_is_read_in_one_order(make_cluster: MakeCluster, streams: int) -> None:
    cluster = make_cluster(5)

    async def body() -> None:
        async with connected(cluster) as client:
            log = await client.create_log("orders", write_path="commit", streams=streams)
            async with writing(log) as acknowledged:
                await grows(acknowledged)
            await log.append_many([b"many-%d" % number for number in range(10_000)])
            found, gaps = await read_all(log)
            assert not gaps
            assert len(found) == len(acknowledged) + 10_000
            assert acknowledged.items() <= found.items()
            used = [each for each in (await record_of(log)).streams if each.last]
            assert len(used) == streams, "appends are spread over the streams"

    run(body())


def test_two_readers_see_the_same(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(4)

    async def body() -> None:
        async with connected(cluster) as client, connected(cluster) as other:
            log = await client.create_log("orders", write_path="commit", streams=3)
            async with writing(log) as acknowledged:
                await grows(acknowledged)
            mine, _ = await read_all(log)
            theirs, _ = await read_all(await other.log("orders"))
            assert mine == theirs

    run(body())


@pytest.mark.parametrize("who", ["primary", "backup", "committer"])
def test_a_node_dies_and_returns(make_cluster: MakeCluster, who: str) -> None:
    cluster = make_cluster(5)

    async def body() -> None:
        async with connected(cluster) as client:
            log = await client.create_log("orders", write_path="commit", streams=2)
            async with writing(log) as acknowledged:
                await grows(acknowledged)
                victim = await choose(log, who)
                cluster.kill(victim)
                await grows(acknowledged)
                cluster.start([victim])
                await grows(acknowledged)
            found, gaps = await read_all(log)
            assert not gaps
            assert acknowledged.items() <= found.items()
            await whole(log)

    run(body())


async def choose(log: Log, who: str) -> int:
    """Never node 1, which has the metadata."""
    record = await record_of(log)
    if who == "committer":
        return next(node for node in (record.committer, 2) if node != 1)
    at = 0 if who == "primary" else 1
    return next(each.replicas[at] for each in record.streams if each.replicas[at] != 1)


async def whole(log: Log) -> None:
    async def is_whole() -> bool:
        record = await record_of(log)
        return all(len(each.replicas) == record.copies for each in record.streams)

    await eventually(is_whole, what="the streams to have all their replicas")


def test_a_stream_goes_on_with_one_of_three_replicas(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(3)

    async def body() -> None:
        async with connected(cluster) as client:
            log = await client.create_log("orders", write_path="commit")
            async with writing(log) as acknowledged:
                await grows(acknowledged)
                cluster.kill(2)
                await grows(acknowledged)
                cluster.kill(3)
                await grows(acknowledged)
                assert (await first_stream(log)).replicas == (1,)
                cluster.start([2, 3])
                await grows(acknowledged)
            await whole(log)
            found, gaps = await read_all(log)
            assert not gaps
            assert acknowledged.items() <= found.items()

    run(body())


def test_all_nodes_restart_and_nothing_is_lost(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(3)

    async def body() -> None:
        async with connected(cluster) as client:
            log = await client.create_log("orders", write_path="commit", streams=2)
            async with writing(log) as acknowledged:
                await grows(acknowledged)
        for node in (1, 2, 3):
            cluster.kill(node)
        cluster.start()
        async with connected(cluster) as client:
            log = await client.log("orders")
            async with writing(log) as more:
                await grows(more, 20)
            found, gaps = await _read_values(log)
            assert not gaps
            assert found >= acknowledged.keys()

    run(body())


async def _read_values(log: Log) -> tuple[set[bytes], list[Gap]]:
    values: set[bytes] = set()
    gaps: list[Gap] = []
    async with await log.read() as reader:
        async for part in reader:
            gaps.append(part) if isinstance(part, Gap) else values.add(part.value)
    return values, gaps


def test_streams_are_added_while_the_log_is_used(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(5)

    async def body() -> None:
        async with connected(cluster) as client:
            log = await client.create_log("orders", write_path="commit")
            async with writing(log) as acknowledged:
                await grows(acknowledged, 50)
                await log.streams.add()
                await used(log, 2)
            found, gaps = await read_all(log)
            assert not gaps
            assert acknowledged.items() <= found.items()

    run(body())


async def used(log: Log, streams: int) -> None:
    async def all_are() -> bool:
        record = await record_of(log)
        return len(record.streams) == streams and all(each.last for each in record.streams)

    await eventually(all_are, what="appends to the new stream")


def test_a_trimmed_log_begins_where_it_was_trimmed(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(3)

    async def body() -> None:
        async with connected(cluster) as client:
            log = await client.create_log("orders", write_path="commit", streams=2)
            for number in range(20):
                await log.append(b"%d" % number)
            assert await log.trim(11) == 11
            assert await log.bounds() == (11, 21)
            with pytest.raises(PositionTrimmed):
                await log.get(5)
            got = await log.get(15)
            assert isinstance(got, Record) and got.lsn == 15
            async with log.reader(Lsn(1), Lsn(21)) as reader:
                first = await anext(aiter(reader))
            assert isinstance(first, Gap)
            assert (first.kind, first.first, first.last) == (GapKind.TRIM, 1, 10)

    run(body())


def test_a_sealed_log_takes_no_more_appends_and_its_readers_end(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(3)

    async def body() -> None:
        async with connected(cluster) as client:
            log = await client.create_log("orders", write_path="commit", streams=2)
            await log.append_many([b"one", b"two"])
            await log.seal()
            with pytest.raises(LogSealed):
                await log.append(b"three")
            async with await log.read("start", None) as reader:
                values = [part.value async for part in reader if isinstance(part, Record)]
            assert values == [b"one", b"two"]

    run(body())


def test_what_cannot_be_is_said_at_creation(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(3)

    async def refused(client: Client, **options: object) -> str:
        with pytest.raises(UsageError) as caught:
            await client.create_log("orders", write_path="commit", **options)  # type: ignore[arg-type]
        return str(caught.value)

    async def body() -> None:
        async with connected(cluster) as client:
            assert "streams=0" in await refused(client, streams=0)
            assert "extras" in await refused(client, extras=1)
            assert "scopes" in await refused(client, replication={"rack": 2, "node": 3})

    run(body())


def test_what_one_call_appends_keeps_its_order(make_cluster: MakeCluster) -> None:
    """However many blocks it needs, and streams there are."""
    cluster = make_cluster(3)

    async def body() -> None:
        async with connected(cluster) as client:
            log = await client.create_log("order", write_path="commit", streams=3)
            values = [b"%05d" % number + bytes(100_000) for number in range(120)]
            ranges = await log.append_many(values)
            assert len(ranges) > 2
            firsts = [each.first for each in ranges]
            assert firsts == sorted(firsts)
            found, _ = await read_all(log)
            assert [value[:5] for value in found] == [value[:5] for value in values]
            chain = await client.create_log("order-chain")
            with pytest.raises(UsageError, match="only commit logs"):
                await chain.append_many([b"x"], stream=1)

    run(body())
