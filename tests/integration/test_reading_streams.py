"""One stream of a commit log, read by its own positions."""

import pytest

import millrace
from millrace.client import Client, Log
from millrace.client.stream_reading import StreamEntry
from millrace.errors import PositionBeyondTail, UsageError
from millrace.local import LocalCluster
from millrace.types import Gap, GapKind, Record
from tests.support.clusters import MakeCluster, connected, run

RECORDS = 300


async def filled(client: Client, name: str, streams: int = 2) -> Log:
    log = await client.create_log(name, write_path="commit", streams=streams)
    for number in range(RECORDS // 10):
        await log.append_many([b"%d-%d" % (number, at) for at in range(10)])
    return log


async def entries(
    log: Log, stream: int, first: int = 1, end: int | None = None
) -> list[StreamEntry]:
    found = [each async for each in log.read_stream(stream, first, end)]
    return [each for each in found if isinstance(each, StreamEntry)]


def test_all_streams_together_are_the_log(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await filled(client, "streams-all")
            found: list[Record] = []
            for stream in (1, 2):
                mine = await entries(log, stream)
                assert [each.position for each in mine] == list(range(1, len(mine) + 1))
                places = [each.record.lsn for each in mine]
                assert places == sorted(places)
                found += [each.record for each in mine]
            async with await log.read() as reader:
                whole = [part async for part in reader]
            assert sorted(found, key=lambda record: record.lsn) == whole

    run(body())


def test_a_part_of_a_stream(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await filled(client, "streams-part", streams=1)
            some = await entries(log, 1, 15, 42)
            assert [each.position for each in some] == list(range(15, 42))
            assert await entries(log, 1, RECORDS + 1) == []
            assert len(await entries(log, 1, RECORDS, RECORDS + 50)) == 1
            with pytest.raises(PositionBeyondTail, match="its next position is 301"):
                await entries(log, 1, RECORDS + 2)
            with pytest.raises(UsageError, match="has no stream 7: it has 1"):
                await entries(log, 7)
            for first, end in ((0, None), (5, 4)):
                with pytest.raises(UsageError, match="cannot be read from"):
                    await entries(log, 1, first, end)

    run(body())


def test_what_was_trimmed_is_a_gap_of_the_stream(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await filled(client, "streams-trimmed", streams=1)
            await log.trim(101)
            await log.append(b"replicas hear of a trim with a commit")
            found = [each async for each in log.read_stream(1)]
            assert found[0] == Gap(GapKind.TRIM, found[0].first, found[0].last)
            rest = [each for each in found[1:] if isinstance(each, StreamEntry)]
            assert len(rest) == len(found) - 1
            assert (rest[0].position, rest[-1].position) == (found[0].last + 1, RECORDS + 1)

    run(body())


def test_other_logs_have_no_streams(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await client.create_log("streams-none")
            with pytest.raises(UsageError, match="only commit logs have streams"):
                log.read_stream(1)

    run(body())


def test_any_replica_will_do(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(4)

    async def body() -> None:
        async with connected(cluster) as client:
            log = await filled(client, "streams-replicas", streams=1)
            before = await entries(log, 1)
            record = (await log.streams.describe(10_000)).record
            cluster.kill(next(node for node in record.streams[0].replicas if node != 1))
            assert await entries(log, 1) == before

    run(body())


def test_streams_without_await(calm_cluster: LocalCluster) -> None:
    with millrace.sync.connect(calm_cluster.addresses) as client:
        log = client.create_log("streams-sync", write_path="commit")
        log.append_many([b"a", b"b", b"c"])
        found = list(log.read_stream(1, 2))
        assert [each.record.value for each in found if isinstance(each, StreamEntry)] == [
            b"b",
            b"c",
        ]
