"""Rows that appear at once, in every kind of log, to every kind of reader."""

import contextlib
from collections.abc import AsyncIterator

import msgspec
import pyarrow as pa
import pytest

from millrace import Selection
from millrace.client import Client, Log, LogRecords
from millrace.client.publications import Staged
from millrace.codec.arrow import SCHEMA
from millrace.core.publications import staging_name
from millrace.errors import LogExists, StagedTooOld, UsageError
from millrace.local import LocalCluster
from millrace.types import Gap, GapKind, Lsn, Record
from tests.integration.test_selected_reads import filtered, joined
from tests.support.clusters import connected, eventually, run

PATHS = ["sequenced", "chain", "commit"]
WAIT_MS = 60_000
NOON_US = 1_700_000_000_000_000
every_path = pytest.mark.parametrize("path", PATHS)


def table(name: str, count: int) -> pa.Table:
    return pa.table(
        {
            "value": [f"{name}-{number}".encode() for number in range(count)],
            "key": [b"key-%d" % (number % 5) for number in range(count)],
            "timestamp": pa.array(range(NOON_US, NOON_US + count), pa.timestamp("us", "UTC")),
            "headers": [{"batch": name.encode()}] * count,
        },
        schema=pa.schema(
            [SCHEMA.field(column) for column in ("value", "key", "timestamp", "headers")]
        ),
    )


@contextlib.asynccontextmanager
async def new_log(
    cluster: LocalCluster, path: str, name: str, **options: object
) -> AsyncIterator[tuple[Client, Log]]:
    async with connected(cluster) as client:
        log = await client.create_log(f"{name}-{path}", replication=2, write_path=path, **options)
        yield client, log


async def read(
    log: Log, first: int | str = "start", until: int | str = "end"
) -> list[Record | Gap]:
    async with await log.read(first, until) as reader:
        return [one async for one in reader.records(timeout_ms=WAIT_MS)]


async def values(log: Log) -> list[bytes]:
    return [one.value for one in await read(log) if isinstance(one, Record)]


def named(name: str, count: int) -> list[bytes]:
    return [f"{name}-{number}".encode() for number in range(count)]


# -- Appearing ------------------------------------------------------------------------------------


@every_path
def test_rows_appear_at_once_at_positions_of_their_log(
    calm_cluster: LocalCluster, path: str
) -> None:
    async def body() -> None:
        async with new_log(calm_cluster, path, "appear") as (client, log):
            await log.append(b"before")
            staged = [await client.publications.stage(log.name, table(name, 300)) for name in "ab"]
            assert await values(log) == [b"before"], "nobody sees what is staged"
            published = await client.publications.publish("appear" + path, 1, staged)
            await log.append(b"behind")
            assert published.rows == {log.name: 600}
            found = [one for one in await read(log) if isinstance(one, Record)]
            assert [one.value for one in found] == [
                b"before", *named("a", 300), *named("b", 300), b"behind"
            ]  # fmt: skip
            first = found[0].lsn
            assert [one.lsn for one in found] == list(range(first, first + 602))
            assert found[301].timestamp == NOON_US
            assert (found[301].key, found[301].headers) == (b"key-0", (("batch", b"b"),))
            assert await log.get(found[301].lsn) == found[301]

    run(body())


@every_path
def test_readers_begin_and_end_anywhere(calm_cluster: LocalCluster, path: str) -> None:
    async def body() -> None:
        async with new_log(calm_cluster, path, "anywhere") as (client, log):
            publish, stage = client.publications.publish, client.publications.stage
            await log.append_many([b"x"] * 3)
            staged = [await stage(log.name, table(name, 20)) for name in "abc"]
            await publish("anywhere" + path, 1, [staged[2], staged[0]])
            await publish("anywhere" + path, 2, [staged[1]])
            await log.append_many([b"y"] * 3)
            everything = [one for one in await read(log) if isinstance(one, Record)]
            assert [one.value for one in everything[3:-3]] == [
                *named("c", 20), *named("a", 20), *named("b", 20)
            ]  # fmt: skip
            for begin, end in ((0, 66), (2, 4), (3, 23), (10, 35), (22, 24), (42, 64), (65, 66)):
                part = await read(log, everything[begin].lsn, everything[end - 1].lsn + 1)
                assert part == everything[begin:end]

    run(body())


@every_path
def test_who_follows_a_log_gets_what_is_published(calm_cluster: LocalCluster, path: str) -> None:
    async def body() -> None:
        async with (
            new_log(calm_cluster, path, "follow") as (client, log),
            await log.tail() as reader,
            client.reader() as several,
        ):
            await several.start_reading(log)
            for version in range(3):
                name = f"v{version}"
                staged = await client.publications.stage(log.name, table(name, 10))
                await client.publications.publish("follow" + path, version, [staged])
                taken = reader.records(timeout_ms=WAIT_MS)
                rows = [await anext(taken) for _ in range(10)]
                assert [row.value for row in rows if isinstance(row, Record)] == named(name, 10)
                heard = await several.read(timeout_ms=WAIT_MS)
                assert isinstance(heard, LogRecords)
                assert heard.records == rows

    run(body())


@every_path
def test_selections_give_the_same_of_published_rows(calm_cluster: LocalCluster, path: str) -> None:
    selections = [
        Selection(columns=()),
        Selection(columns=("key",)),
        Selection(keys=(b"key-3",)),
        Selection(columns=("value",), time_first_us=NOON_US + 700, time_end_us=NOON_US + 720),
        Selection(keys=(b"nobody",)),
        Selection(time_first_us=NOON_US + 10**9),
    ]

    async def body() -> None:
        async with new_log(calm_cluster, path, "select", compression=False) as (client, log):
            stage = client.publications.stage
            await log.append(b"before")  # So rows are published elsewhere than they were staged.
            staged = [await stage(log.name, table(name, 1_000)) for name in "ab"]
            await client.publications.publish("select" + path, 1, staged)

            async def batches(select: Selection | None) -> pa.Table:
                async with await log.read(select=select) as reader:
                    parts = [one async for one in reader.batches(timeout_ms=WAIT_MS)]
                    return joined(parts, select)

            everything = await batches(None)
            assert len(everything) == 2_001
            for select in selections:
                assert await batches(select) == filtered(everything, select)

    run(body())


def test_rows_of_a_stream_are_read_where_they_were_published(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with new_log(calm_cluster, "commit", "stream") as (client, log):
            await log.append(b"before")
            staged = await client.publications.stage(log.name, table("a", 20))
            await client.publications.publish("stream", 1, [staged])
            entries = [one async for one in log.read_stream(1, 5, 9)]
            assert [
                (one.position, one.record.lsn, one.record.value)
                for one in entries
                if not isinstance(one, Gap)
            ] == [(lsn, lsn, b"a-%d" % (lsn - 2)) for lsn in range(5, 9)]

    run(body())


# -- Once -----------------------------------------------------------------------------------------


def test_a_version_is_published_once(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with new_log(calm_cluster, "chain", "once") as (client, log):
            publish, last = client.publications.publish, client.publications.last
            staged = [await client.publications.stage(log.name, table(name, 3)) for name in "ab"]
            assert await last("once") is None
            assert not (await publish("once", 5, staged[:1])).is_repeated
            for version in (5, 4):
                assert (await publish("once", version, staged[1:])).is_repeated
            assert await last("once") == 5
            assert (await publish("once", 6, [])).rows == {}, "a batch may be empty"
            assert await last("once") == 6
            assert await values(log) == named("a", 3)

    run(body())


def test_nothing_is_remembered_of_what_is_published_only_once(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with new_log(calm_cluster, "chain", "lone") as (client, log):
            staged = await client.publications.stage(log.name, table("a", 3))
            await client.publications.publish("lone", 0, [staged], is_once=True)
            assert await client.directory.read_publication("lone") == (None, 0)
            assert await values(log) == named("a", 3)

    run(body())


def test_what_was_staged_too_long_ago_is_refused(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with new_log(calm_cluster, "chain", "stale") as (client, log):
            staged = await client.publications.stage(log.name, table("a", 3))
            assert staged.place is not None
            staged_at_ms = staged.place.staged_at_ms - staged.time_to_live_ms - 1_000
            old_place = msgspec.structs.replace(staged.place, staged_at_ms=staged_at_ms)
            old = msgspec.structs.replace(staged, place=old_place)
            with pytest.raises(StagedTooOld, match="stage them again"):
                await client.publications.publish("stale", 1, [old])
            assert await client.publications.last("stale") is None
            assert await values(log) == []
            await client.publications.publish("stale", 1, [staged])
            assert (await client.publications.publish("stale", 1, [old])).is_repeated, (
                "what was published is told, however late"
            )

    run(body())


@pytest.mark.parametrize(
    ("app", "version"),
    [
        pytest.param("", 1, id="no name"),
        pytest.param("a" * 2_000, 1, id="a long name"),
        pytest.param("app", -1, id="a negative version"),
    ],
)
def test_what_cannot_be_published(calm_cluster: LocalCluster, app: str, version: int) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            with pytest.raises(UsageError, match=r"app=|version="):
                await client.publications.publish(app, version, [])

    run(body())


# -- Staging logs ---------------------------------------------------------------------------------


def test_staging_logs_are_made_as_their_log_seen_by_nobody_and_deleted_with_it(
    calm_cluster: LocalCluster,
) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await client.create_log("hidden", replication=2, write_path="commit", streams=2)
            staged = await client.publications.stage(log.name, table("a", 3))
            assert (staged.log, staged.rows) == ("hidden", 3)
            staging = await client.log(staging_name(log.info.id))
            assert staging.info.attributes.replication == 2
            assert staging.info.attributes.write_path is log.info.attributes.write_path
            assert len(staging.streams.record.streams) == 2
            assert staging.name not in {info.name for info in await client.logs()}
            assert staging.name in {info.name for info in await client.logs(has_internal=True)}
            with pytest.raises(UsageError, match="not a log name"):
                await client.create_log("@staged/1")
            await client.delete_log(log.name)
            assert staging.name not in {info.name for info in await client.logs(has_internal=True)}

    run(body())


def test_what_was_staged_for_a_deleted_log_is_forgotten(calm_cluster: LocalCluster) -> None:
    """Its client died in the middle of deleting it."""

    async def body() -> None:
        async with new_log(calm_cluster, "chain", "orphan") as (client, log):
            await client.publications.stage(log.name, table("a", 3))
            await client.directory.remove_log(log.info)

            async def names() -> set[str]:
                return {info.name for info in await client.logs(has_internal=True)}

            name = staging_name(log.info.id)
            await eventually(names, lambda seen: name not in seen, what="the keeper forgets it")

    run(body())


def test_internal_logs_have_names_of_their_own(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            await client.create_internal_log("@ring/7", replication=2)
            with pytest.raises(LogExists):
                await client.create_internal_log("@ring/7", replication=2)
            for name in ("ring", "@ring", "@/7", "@ring/"):
                with pytest.raises(UsageError, match="not the name of an internal log"):
                    await client.create_internal_log(name, replication=2)

    run(body())


# -- Keeping and forgetting -----------------------------------------------------------------------


@every_path
def test_trimming_a_log_forgets_what_it_published(calm_cluster: LocalCluster, path: str) -> None:
    async def body() -> None:
        async with new_log(calm_cluster, path, "trim") as (client, log):
            client.publications.time_to_live_ms = 1
            ends: list[Lsn] = []
            for version in range(3):
                staged = await client.publications.stage(log.name, table(f"v{version}", 10))
                await client.publications.publish("trim" + path, version, [_timeless(staged)])
                ends.append((await log.readable_bounds())[1])
            staging = await client.log(staging_name(log.info.id))
            start, _ = await staging.bounds()
            await log.trim(ends[0])
            assert await values(log) == named("v1", 10) + named("v2", 10)
            assert (await staging.bounds())[0] > start
            await log.trim(ends[2])
            assert await values(log) == []

    run(body())


def _timeless(staged: Staged) -> Staged:
    """As if it lived long enough to be published, however slow this machine is."""
    return msgspec.structs.replace(staged, time_to_live_ms=WAIT_MS)


@every_path
def test_rows_that_are_gone_are_a_gap_where_they_were_published(
    calm_cluster: LocalCluster, path: str
) -> None:
    async def body() -> None:
        async with new_log(calm_cluster, path, "gone") as (client, log):
            stage = client.publications.stage
            staged = [await stage(log.name, table(name, 10)) for name in "ab"]
            await client.publications.publish("gone" + path, 1, staged)
            staging = await client.log(staging_name(log.info.id))
            assert staged[1].place is not None
            await staging.trim(Lsn(staged[1].place.ranges[0].first + 3))
            gap, *rows = await read(log)
            assert isinstance(gap, Gap)
            assert gap.kind is GapKind.TRIM
            assert [row.value for row in rows if isinstance(row, Record)] == named("b", 10)[3:]
            assert isinstance(rows[0], Record)
            assert rows[0].lsn == gap.last + 1 == gap.first + 13

    run(body())


@every_path
def test_what_is_young_is_kept_whatever_its_size(calm_cluster: LocalCluster, path: str) -> None:
    """Rows that are larger than all that their log keeps can be published all the same."""

    async def body() -> None:
        async with new_log(calm_cluster, path, "young", retention_bytes=1_000) as (client, log):
            staged = await client.publications.stage(log.name, table("a", 2_000))
            await client.publications.stage(log.name, table("never published", 2_000))

            async def begin() -> Lsn:
                return (await log.bounds())[0]

            start = await begin()
            for _ in range(20):
                await log.append(bytes(1_000))
            await eventually(begin, lambda now: now > start, what="the keeper looks at sizes")
            await client.publications.publish("young" + path, 1, [staged])
            found = [value for value in await values(log) if value.startswith(b"a-")]
            assert found == named("a", 2_000)

    run(body())


@every_path
def test_a_log_weighs_as_much_as_what_it_published(calm_cluster: LocalCluster, path: str) -> None:
    async def body() -> None:
        async with new_log(calm_cluster, path, "weigh", compression=False) as (client, log):
            staged = await client.publications.stage(log.name, table("a", 5_000))
            await client.publications.publish("weigh" + path, 1, [staged])
            assert staged.place is not None
            start, end = await log.readable_bounds()
            weighed = sum(each.bytes for each in await log.weigh(start, end, 8))
            assert staged.place.size_bytes / 2 < weighed < staged.place.size_bytes * 2

    run(body())
