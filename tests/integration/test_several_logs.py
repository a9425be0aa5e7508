"""Several logs in one reader."""

from itertools import pairwise

import pytest

from millrace.client import Client, Log, LogGap, LogRecords, MultiReader
from millrace.errors import UnknownLog, UsageError
from millrace.local import LocalCluster
from millrace.lsn import lsn_of
from millrace.types import Epoch, Gap, GapKind, Lsn, Record
from tests.support.clusters import connected, eventually, run

FIRST = lsn_of(Epoch(1), 1)
SHORT_MS = 2_000
WAIT_MS = 20_000


async def make_log(client: Client, name: str, **options: object) -> Log:
    return await client.create_log(name, write_path="sequenced", **options)


async def two_logs(client: Client, name: str) -> tuple[Log, Log]:
    """A sequenced and a chain log, with ten records each."""
    one = await make_log(client, f"{name}-one")
    two = await client.create_log(f"{name}-two", write_path="chain")
    for log in (one, two):
        await log.append_many([b"%d" % number for number in range(10)], keys=[b"k"] * 10)
    return one, two


async def values_of(reader: MultiReader, count: int) -> dict[str, list[bytes]]:
    values: dict[str, list[bytes]] = {}
    while (found := await reader.read(count, timeout_ms=WAIT_MS)) is not None:
        assert isinstance(found, LogRecords)
        assert 1 <= len(found.records) <= count
        values.setdefault(found.log, []).extend(record.value for record in found.records)
    return values


def test_several_logs_in_one_reader(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client, client.reader() as reader:
            one, two = await two_logs(client, "face-several")
            await reader.start_reading(one, "start", "end")
            await reader.start_reading(two.name, 4, 8)
            assert reader.logs == [one.name, two.name]
            assert reader.is_reading(one)
            assert await values_of(reader, 3) == {
                one.name: [b"%d" % number for number in range(10)],
                two.name: [b"3", b"4", b"5", b"6"],
            }
            assert not reader.is_reading(one)
            assert reader.logs == []

    run(body())


def test_logs_take_turns(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client, client.reader() as reader:
            logs = await two_logs(client, "face-turns")
            for log in logs:
                await reader.start_reading(log)

            async def positions() -> list[object]:
                return [reader.explain(log)["next_lsn"] for log in logs]

            await eventually(positions, lambda seen: seen == ["e1n11", 11])
            turns: list[str] = []
            while len(turns) < 20:
                found = await reader.read(1, timeout_ms=WAIT_MS)
                assert isinstance(found, LogRecords)
                turns.append(found.log)
            assert all(before != after for before, after in pairwise(turns))

    run(body())


def test_a_gap_ends_a_batch(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log, _ = await two_logs(client, "face-gap")
            await log.trim(Lsn(FIRST + 4))
            async with client.reader() as reader:
                await reader.start_reading(log, FIRST, "end")
                gap = await reader.read(timeout_ms=WAIT_MS)
                assert gap == LogGap(log.name, Gap(GapKind.TRIM, FIRST, Lsn(FIRST + 3)))
                assert len((await values_of(reader, 99))[log.name]) == 6
            async with client.reader(skip_gaps=True) as reader:
                await reader.start_reading(log, FIRST, "end")
                assert len((await values_of(reader, 99))[log.name]) == 6
                end = Lsn(FIRST + 4)
                await reader.start_reading(log, FIRST, end)
                last = await reader.read(timeout_ms=WAIT_MS)
                assert last == LogGap(log.name, Gap(GapKind.TRIM, FIRST, Lsn(end - 1)))

    run(body())


def test_records_without_their_values(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await make_log(client, "face-bare")
            headers = (("h", b"v"),)
            lsn = await log.append(b"v" * 9_000, key=b"k", timestamp_us=7, headers=headers)
            async with client.reader(no_payload=True) as reader:
                await reader.start_reading(log, "start", "end")
                found = await reader.read(timeout_ms=WAIT_MS)
            assert found == LogRecords(log.name, [Record(lsn, b"", b"k", 7, headers)])

    run(body())


def test_reading_can_be_stopped_and_begun_again(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client, client.reader() as reader:
            log, _ = await two_logs(client, "face-again")
            for _ in range(2):
                await reader.start_reading(log)
                found = await reader.read(2, timeout_ms=WAIT_MS)
                assert isinstance(found, LogRecords)
                assert found.records[0].value == b"0"
            assert reader.is_healthy(log)
            assert reader.explain(log)["next_lsn"]
            await reader.stop_reading(log)
            assert await reader.read(timeout_ms=WAIT_MS) is None
            with pytest.raises(UsageError, match="not being read"):
                reader.is_healthy(log)
            await reader.start_reading(log, "end")
            assert await reader.read(timeout_ms=50) is None
            assert reader.is_reading(log)

    run(body())


def test_a_log_that_is_deleted_does_not_end_the_others(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client, client.reader() as reader:
            one, two = await two_logs(client, "face-deleted")
            await reader.start_reading(two)
            await reader.start_reading(one, "start", "end")
            await client.delete_log(two.name)
            values: list[bytes] = []
            errors: list[UnknownLog] = []
            while reader.logs:
                try:
                    found = await reader.read(timeout_ms=WAIT_MS)
                except UnknownLog as error:
                    errors.append(error)
                    assert not reader.is_reading(two)
                    continue
                if isinstance(found, LogRecords) and found.log == one.name:
                    values += [record.value for record in found.records]
            assert len(errors) == 1
            assert len(values) == 10

    run(body())


def test_no_more_logs_than_are_allowed(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            one, two = await two_logs(client, "face-most")
            async with MultiReader(client, logs_max=1) as reader:
                await reader.start_reading(one)
                await reader.start_reading(one)
                with pytest.raises(UsageError, match="stop one"):
                    await reader.start_reading(two)

    run(body())
