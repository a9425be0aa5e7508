"""A cluster grows and shrinks under its logs: they move to where the nodes are, and nobody who
appends or reads notices."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from millrace.client import Client, Log
from millrace.core.epochs import EpochRecord, metadata_log_of
from millrace.core.messages import Copies, CopiesPage
from millrace.core.sequenced.verifying import Verdict
from millrace.errors import TooFewNodes, UsageError
from millrace.local import LocalCluster
from millrace.lsn import epoch_of, first_of
from millrace.types import (
    LSN_MAX,
    AuthoritativeStatus,
    Copy,
    Gap,
    GapKind,
    LogId,
    Lsn,
    NodeId,
    Record,
)
from tests.support.clusters import MakeCluster, connected, eventually, run, start, stop

EMPTY = AuthoritativeStatus.AUTHORITATIVE_EMPTY


async def record_of(client: Client, log: LogId) -> EpochRecord:
    record, _ = await client.directory.read_epochs(log)
    assert record is not None
    return record


async def lies_on(client: Client, log: LogId, *nodes: int) -> EpochRecord:
    """And has recovered what was before."""
    wanted = {NodeId(node) for node in nodes}
    return await eventually(
        lambda: record_of(client, log),
        lambda record: (
            set(record.nodeset) == wanted
            and record.is_recorded
            and record.clean == record.epoch - 1
        ),
        what=f"log {log} on nodes {nodes}",
    )


async def becomes_empty(client: Client, node: int) -> None:
    async def look() -> object:
        return (await client.statuses()).get(NodeId(node))

    def is_empty(standing: object) -> bool:
        return standing is not None and standing.entry.status is EMPTY  # type: ignore[attr-defined]

    await eventually(look, is_empty, what=f"node {node} is empty")


async def copies_at(client: Client, node: int, log: LogId) -> tuple[Copy, ...]:
    page = await client.ask_node(NodeId(node), Copies(log, Lsn(1), LSN_MAX), 3_000)
    assert isinstance(page, CopiesPage), page
    return page.copies


async def is_sound(log: Log) -> Verdict:
    return await eventually(log.verify, lambda verdict: verdict.is_sound, what="a sound log")


async def grow(cluster: LocalCluster, count: int) -> list[int]:
    added = [cluster.add_node().id for _ in range(count)]
    await start(cluster, *added)
    return added


class Traffic:
    """Appends without a pause, each with an answer, and a reader that follows."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._is_stopping = False
        self.acknowledged: dict[Lsn, bytes] = {}
        self.read: list[tuple[Lsn, bytes]] = []
        self.gaps: list[Gap] = []

    async def append(self) -> None:
        number = 0
        while not self._is_stopping:
            value = b"%d" % number
            self.acknowledged[await self._log.append(value)] = value
            number += 1

    async def follow(self) -> None:
        async with await self._log.read("start", None) as reader:
            async for item in reader:
                if isinstance(item, Record):
                    self.read.append((item.lsn, item.value))
                else:
                    self.gaps.append(item)

    async def goes_on(self, count: int = 50) -> None:
        """So many more were appended, and read."""
        target = len(self.acknowledged) + count

        async def look() -> int:
            return len(self.read)

        await eventually(look, lambda read: read >= target, what=f"{target} records read")

    async def stop(self) -> None:
        self._is_stopping = True


@asynccontextmanager
async def traffic_on(log: Log) -> AsyncIterator[Traffic]:
    traffic = Traffic(log)
    appending = asyncio.create_task(traffic.append())
    following = asyncio.create_task(traffic.follow())
    try:
        yield traffic
        await traffic.stop()
        await appending

        async def look() -> int:
            return len(traffic.read)

        await eventually(look, lambda read: read == len(traffic.acknowledged), what="all read")
    finally:
        appending.cancel()
        following.cancel()
        await asyncio.gather(appending, following, return_exceptions=True)


def assert_undisturbed(traffic: Traffic) -> None:
    """Every record once, in order, and no gap but between epochs."""
    assert traffic.read == sorted(traffic.acknowledged.items())
    assert {gap.kind for gap in traffic.gaps} <= {GapKind.BRIDGE}


def test_a_log_grows_onto_new_nodes_and_leaves_a_drained_one(make_cluster: MakeCluster) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await client.create_log("events", replication=2, sticky_bytes=1)
            async with traffic_on(log) as traffic:
                await traffic.goes_on()
                await grow(cluster, 2)
                grown = await lies_on(client, log.info.id, 1, 2, 3, 4, 5)
                await traffic.goes_on(200)
                for node in (4, 5):
                    held = await copies_at(client, node, log.info.id)
                    assert {epoch_of(copy.extent.first) for copy in held} >= {grown.epoch}
                await client.drain(3)
                await lies_on(client, log.info.id, 1, 2, 4, 5)
                await traffic.goes_on()
                await becomes_empty(client, 3)
                await traffic.goes_on()
            assert_undisturbed(traffic)
            await is_sound(log)
            await stop(cluster, 3)
            assert [item.value for item in await values_of(log)] == [*traffic.acknowledged.values()]

    run(body(make_cluster(3)), timeout_s=180)


async def values_of(log: Log) -> list[Record]:
    async with await log.read() as reader:
        return [item async for item in reader if isinstance(item, Record)]


def test_a_node_of_a_log_that_needs_all_is_drained_once_there_is_a_fourth(
    make_cluster: MakeCluster,
) -> None:
    """The epochs of before lay on three nodes, and need three."""

    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await client.create_log("events", replication=3)
            async with traffic_on(log) as traffic:
                await traffic.goes_on()
                with pytest.raises(UsageError, match="cannot be drained"):
                    await client.drain(2)
                await grow(cluster, 1)
                await client.drain(2)
                await lies_on(client, log.info.id, 1, 3, 4)
                await becomes_empty(client, 2)
                await traffic.goes_on()
            assert_undisturbed(traffic)
            await is_sound(log)
            for copy in await copies_at(client, 4, log.info.id):
                assert set(copy.placement.copyset) == {1, 3, 4}
            metadata = await record_of(client, metadata_log_of(log.info.id))
            assert set(metadata.nodeset) == {1, 2, 3, 4}
            await stop(cluster, 2)
            assert len(await values_of(log)) == len(traffic.acknowledged)
            await client.change_log("events", replication=2)

    run(body(make_cluster(3)), timeout_s=180)


def test_every_node_is_replaced_under_one_reader(make_cluster: MakeCluster) -> None:
    """One that stands still in the first epoch while all its nodes leave."""

    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await client.create_log("events", replication=2)
            first = [await log.append(b"%d" % number) for number in range(20)]
            async with await log.read("start", None) as reader:
                items = aiter(reader)
                seen = [await anext(items)]
                added = await grow(cluster, 2)
                for old in (2, 3):
                    await client.drain(old)
                    await becomes_empty(client, old)
                await log.append(b"last")
                while not isinstance(seen[-1], Record) or seen[-1].value != b"last":
                    seen.append(await anext(items))
            found = [item for item in seen if isinstance(item, Record)]
            gaps = {item.kind for item in seen if isinstance(item, Gap)}
            assert [item.lsn for item in found[:-1]] == first
            assert gaps <= {GapKind.BRIDGE}
            assert set((await record_of(client, log.info.id)).nodeset) == {1, *added}

    run(body(make_cluster(3)), timeout_s=180)


def test_a_node_that_is_dead_for_a_while_moves_nothing(make_cluster: MakeCluster) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await client.create_log("events", replication=2)
            other = await client.create_log("others", replication=2, nodeset_size=3)
            before = await record_of(client, other.info.id)
            victim = next(n for n in before.nodeset if n not in (1, before.sequencer))
            await stop(cluster, victim)
            async with traffic_on(log) as traffic:
                await traffic.goes_on(200)
            await start(cluster, victim)
            for each in (log, other):
                assert (await record_of(client, each.info.id)).since == 1

    run(body(make_cluster(5)))


def test_copies_and_nodes_of_a_log_are_changed(make_cluster: MakeCluster) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await client.create_log("events", replication=2)
            async with traffic_on(log) as traffic:
                await traffic.goes_on()
                info, record = await client.change_log("events", replication=3, nodeset_size=4)
                assert (info.attributes.replication, info.attributes.nodeset_size) == (3, 4)
                assert (record.replication.copies, len(record.nodeset)) == (3, 4)
                await traffic.goes_on()
            assert_undisturbed(traffic)
            await is_sound(log)
            since = first_of(record.since)
            sizes = {
                len(copy.placement.copyset)
                for node in record.nodeset
                for copy in await copies_at(client, node, log.info.id)
                if copy.extent.first >= since
            }
            assert sizes == {3}
            _, grown = await client.change_log("events", nodeset_size="all")
            assert len(grown.nodeset) == 5
            assert grown.replication.copies == 3

    run(body(make_cluster(5)))


def test_what_cannot_be_is_refused(make_cluster: MakeCluster) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            await client.create_log("events", replication=2)
            await client.create_log("chained", replication=2, write_path="chain")
            with pytest.raises(UsageError, match="say what to change"):
                await client.change_log("events")
            with pytest.raises(UsageError, match="needs as many nodes"):
                await client.change_log("events", nodeset_size=1)
            with pytest.raises(TooFewNodes, match="cannot be stored so"):
                await client.change_log("events", replication=4)
            with pytest.raises(UsageError, match="only sequenced logs"):
                await client.change_log("chained", replication=3)
            assert (await client.log("events")).info.attributes.replication == 2

    run(body(make_cluster(3)))
