"""Forgetting: by hand, by size, by age, for good; and finding a position by its time."""

import asyncio
import contextlib
import random
import time

import pytest

from millrace.client import Client, Log
from millrace.errors import LogExists, LogSealed, PositionBeyondTail, PositionTrimmed, UnknownLog
from millrace.limits import KIB
from millrace.local import LocalCluster
from millrace.types import Gap, GapKind, Lsn, Record, WritePath
from tests.support.clusters import assert_members_equal, connected, described_by, eventually, run
from tests.support.load import Tape, read_all
from tests.support.retention import forget_by_size

SECOND_US = 1_000_000


def test_trim_is_a_gap_to_readers_and_never_goes_back(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await client.create_log("trim", write_path="chain")
            for number in range(1, 21):
                await log.append(b"%d" % number)
            assert await log.trim(11) == 11
            assert await log.trim(5) == 11
            assert await log.bounds() == (11, 21)
            with pytest.raises(PositionTrimmed):
                await log.get(10)
            with pytest.raises(PositionBeyondTail):
                await log.trim(22)
            tape = Tape()
            async with await log.read(1) as reader:
                async for item in reader:
                    tape.take(item)
            assert tape.gaps == [Gap(GapKind.TRIM, Lsn(1), Lsn(10))]
            assert list(tape.values) == list(range(11, 21))
            await assert_members_equal(client, log)
            assert await log.trim("end") == 21
            assert await log.append(b"next") == 21

    run(body())


def test_retention_by_size(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            kept = 200 * KIB
            log = await client.create_log(
                "by-size", retention_bytes=kept, compression=False, write_path="chain"
            )
            await forget_by_size(client, log, kept, bytes_of)
            start, end = await log.bounds()
            assert end == 51
            assert 35 < start < 45
            tape = Tape(start)
            async with await log.read() as reader:
                async for item in reader:
                    tape.take(item)
            assert len(tape.values) == end - start

    run(body())


def test_retention_by_age(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await client.create_log("by-age", retention_ms=60_000, write_path="chain")
            now_us = time.time_ns() // 1000
            for number in range(10):
                await log.append(b"old", timestamp_us=now_us - (100 - number) * SECOND_US)
            for _ in range(5):
                await log.append(b"new", timestamp_us=now_us)
            await eventually(log.bounds, lambda bounds: bounds == (11, 16), what="retention by age")
            assert (await log.get(11)).__class__ is Record

    run(body())


def test_a_position_is_found_by_its_time(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await client.create_log("by-time", write_path="chain")
            for number in range(1, 31):
                await log.append(b"%d" % number, timestamp_us=(1_000 + number) * SECOND_US)

            async def first_at(position: str) -> int | None:
                async with await log.read(position) as reader:
                    async for item in reader:
                        assert isinstance(item, Record)
                        return item.lsn
                return None

            assert await first_at("@1000") == 1
            assert await first_at("@1017") == 17
            assert await first_at("@1016.5") == 17
            assert await first_at("@1970-01-01T00:16:57") == 17
            assert await first_at("@1031") is None
            assert await first_at("-3") == 28
            assert await first_at("+2") == 3

    run(body())


def test_a_sealed_log_takes_no_more_and_stays_readable(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client, connected(calm_cluster) as other:
            log = await client.create_log("sealed", write_path="chain")
            theirs = await other.log("sealed")
            values = [b"%d" % number for number in range(10)]
            await log.append_many(values)
            assert (await log.seal()).is_sealed
            for each in (log, theirs):
                with pytest.raises(LogSealed):
                    await each.append(b"too late")
                assert list((await read_all(each)).values.values()) == values

    run(body())


def test_deleting_a_log_frees_its_space(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await client.create_log("deleted", compression=False, write_path="chain")
            before = await used_bytes(client)
            choices = random.Random(2)
            await log.append_many([choices.randbytes(100 * KIB) for _ in range(60)])
            full = await used_bytes(client)
            assert all(b > a + 5 * KIB * KIB for a, b in zip(before, full, strict=True))
            await client.delete_log("deleted")
            with pytest.raises(UnknownLog):
                await client.log("deleted")
            await eventually(
                lambda: used_bytes(client),
                lambda used: all(u < f - 5 * KIB * KIB for u, f in zip(used, full, strict=True)),
                what="the space of a deleted log",
            )
            again = await client.create_log("deleted", write_path="chain")
            assert await again.append(b"first") == 1

    run(body())


async def bytes_of(client: Client, log: Log) -> int:
    described = await described_by(client, log.projection.tail, log.info.id)
    assert described is not None
    return described.bytes


async def used_bytes(client: Client) -> list[int]:
    nodes = (await client.status()).nodes
    return [node.description.bytes_used for node in nodes if node.description is not None]


def test_creations_that_lose_a_race_leave_nothing(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connected(calm_cluster)) for _ in range(3)]
            results = await asyncio.gather(
                *(client.create_log("raced", write_path="chain") for client in clients),
                return_exceptions=True,
            )
            made = [result for result in results if isinstance(result, Log)]
            assert len(made) == 1
            assert [type(result) for result in results].count(LogExists) == 2
            assert await made[0].append(b"first") == 1
            directory = clients[0].directory
            chains = {
                info.id
                for info in await directory.logs()
                if info.attributes.write_path is WritePath.CHAIN
            }
            assert {projection.log for projection in await directory.projections()} == chains

    run(body())
