"""Nothing waits for what cannot come any more: a deleted log, a closed client, a sealed log."""

import asyncio
import time
from typing import Any

import pytest

from millrace.client import Client, Log, UnknownAppend
from millrace.core.append import Appended
from millrace.errors import LogSealed, TrimPending, UnknownLog, UsageError
from millrace.local import LocalCluster
from millrace.types import NodeId
from tests.support.clusters import MakeCluster, connected, run

pytestmark = pytest.mark.alone

SOON_S = 10.0
LARGE = bytes(400 * 1024)


def test_a_deleted_log_is_unknown_to_all_who_use_it(calm_cluster: LocalCluster) -> None:
    async def body(client: Client, other: Client) -> None:
        log = await client.create_log("life-deleted", write_path="chain")
        await log.append(b"one")
        reader = await log.tail(1)
        assert await reader.take(timeout_ms=5_000) is not None
        await other.delete_log("life-deleted")
        async with asyncio.timeout(SOON_S):
            with pytest.raises(UnknownLog):
                await reader.take()
        with pytest.raises(UnknownLog):
            await log.append(b"two")
        with pytest.raises(UnknownLog):
            await log.append_many([b"two"])
        with pytest.raises(UnknownLog):
            await client.log("life-deleted")
        await other.create_log("life-deleted", write_path="chain")
        again = await client.log("life-deleted")
        assert again is not log
        assert await again.append(b"anew") == 1
        await reader.close()

    run(with_two(calm_cluster, body))


async def with_two(cluster: LocalCluster, body: Any) -> None:
    async with connected(cluster) as client, connected(cluster) as other:
        await body(client, other)


def test_a_closed_client_says_so_at_once(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await client.create_log("life-closed", write_path="chain")
            await log.append(b"one")
            reader = await log.tail(1)
            taking = asyncio.create_task(take_twice(reader))
            await asyncio.sleep(0)
        async with asyncio.timeout(SOON_S):
            with pytest.raises(UsageError, match="the client is closed"):
                await taking
        began_s = time.monotonic()
        for refused in (
            log.append(b"two"),
            log.append_many([b"two"]),
            log.read(),
            log.tail(),
            log.get(1),
            log.trim(1),
            client.log("life-closed"),
            client.create_log("life-closed-too", write_path="chain"),
        ):
            with pytest.raises(UsageError, match="the client is closed"):
                await refused
        assert time.monotonic() - began_s < 1.0

    run(body())


async def take_twice(reader: Any) -> None:
    await reader.take()
    await reader.take()


def test_asking_twice_at_once_opens_a_log_once(calm_cluster: LocalCluster) -> None:
    async def body(client: Client, other: Client) -> None:
        await client.create_log("life-opened", write_path="chain")
        first, second = await asyncio.gather(other.log("life-opened"), other.log("life-opened"))
        assert first is second

    run(with_two(calm_cluster, body))


def test_a_bad_record_among_many_appends_nothing(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await client.create_log("life-many", write_path="chain")
            with pytest.raises(UsageError):
                await log.append_many([*[LARGE] * 8, 7])  # type: ignore[list-item]
            assert await log.peek() == 0
            innocent = log.append(b"good")
            with pytest.raises(UsageError):
                await log.append(b"bad", timestamp_us=1.5)  # type: ignore[arg-type]
            assert await innocent == 1
            with pytest.raises(TypeError):
                await log.tail(fill_after=3)  # type: ignore[call-arg]

    run(body())


def test_many_in_a_sealed_log_tell_what_was_appended(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await client.create_log("life-sealed", write_path="chain")
            await log.seal()
            with pytest.raises(LogSealed) as raised:
                await log.append_many([LARGE] * 8)
            assert raised.value.appended == []
            assert len(raised.value.failures) == len(raised.value.outcomes) > 1

    run(body())


def test_what_was_unknown_is_settled_in_a_sealed_log(make_cluster: MakeCluster) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client, connected(cluster) as other:
            log = await client.create_log("events", write_path="chain")
            await log.append(b"one")
            tail = log.projection.tail
            cluster.pause(tail)
            try:
                with pytest.raises(UnknownAppend) as raised:
                    await log.append(b"two", timeout_ms=300)
            finally:
                cluster.resume(tail)
            await (await other.log("events")).seal()
            try:
                settled = await log.resume(raised.value)
            except LogSealed:
                assert (await log.bounds())[1] == 2
            else:
                assert settled == Appended(settled.first, settled.first)
                found = await log.get(settled.first)
                assert getattr(found, "value", None) == b"two"

    run(body(make_cluster(3)))


async def log_with_a_victim(client: Client) -> tuple[Log, NodeId]:
    """A trim begins without the victim: node 1 has the metadata, the sequencer and the tail say
    where the log ends."""
    for number in range(50):
        log = await client.create_log(f"events-{number}", write_path="chain")
        chain = log.projection.chain
        for node in chain[:-1]:
            if node not in (1, log.projection.sequencer):
                return log, node
    raise AssertionError("no log has such a chain")


def test_a_trim_that_cannot_be_applied_in_time_stands(make_cluster: MakeCluster) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log, victim = await log_with_a_victim(client)
            await log.append_many([b"%d" % number for number in range(10)])
            cluster.pause(victim)
            began_s = time.monotonic()
            try:
                with pytest.raises(TrimPending, match="stands"):
                    await log.trim(5, timeout_ms=700)
            finally:
                cluster.resume(victim)
            assert time.monotonic() - began_s < 5.0
            assert await client.directory.trim_end(log.info.id) == 5

    run(body(make_cluster(3)))
