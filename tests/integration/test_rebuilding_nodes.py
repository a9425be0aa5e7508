"""Nodes are lost, drained and given up: copies are made anew, and readers notice nothing, or
exactly what is lost (R7, R11, R15)."""

import asyncio
from collections.abc import Collection

from millrace.client import Client, Log
from millrace.config import KeeperSettings
from millrace.core.epochs import EpochRecord
from millrace.core.messages import Copies, CopiesPage
from millrace.core.sequenced.verifying import Verdict, Wrong
from millrace.local import LocalCluster
from millrace.types import (
    LSN_MAX,
    AuthoritativeStatus,
    Copy,
    EntryKind,
    Gap,
    GapKind,
    LogId,
    Lsn,
    NodeId,
    Record,
)
from tests.support.clusters import MakeCluster, connected, eventually, kill, metrics_of, run, start

FULL = AuthoritativeStatus.FULLY_AUTHORITATIVE
LOST = AuthoritativeStatus.UNDERREPLICATION
EMPTY = AuthoritativeStatus.AUTHORITATIVE_EMPTY
AWAY = AuthoritativeStatus.UNAVAILABLE
SOON = KeeperSettings(
    interval_ms=100, retention_interval_ms=300, surplus_after_ms=60_000, rebuild_after_ms=500
)
BLOCKS = 40


async def filled(client: Client, replication: int = 3) -> Log:
    log = await client.create_log("events", replication=replication, write_path="sequenced")
    await appended(log, BLOCKS)
    return log


async def appended(log: Log, count: int) -> dict[Lsn, bytes]:
    """Each in a block of its own."""
    return {await log.append(b"%d" % number): b"%d" % number for number in range(count)}


async def becomes(client: Client, node: int, status: AuthoritativeStatus) -> None:
    """It has its first entry by then."""

    async def look() -> AuthoritativeStatus | None:
        standing = (await client.statuses()).get(NodeId(node))
        return None if standing is None else standing.entry.status

    await eventually(look, lambda found: found is status, what=f"node {node} is {status.value}")


async def past(client: Client, node: int) -> list[AuthoritativeStatus]:
    return [event.change.status for event in await client.events() if event.node == node]


async def is_sound(log: Log) -> Verdict:
    return await eventually(log.verify, lambda verdict: verdict.is_sound, what="a sound log")


async def copies_at(client: Client, node: int, log: LogId) -> tuple[Copy, ...]:
    page = await client.ask_node(NodeId(node), Copies(log, Lsn(1), LSN_MAX), 3_000)
    assert isinstance(page, CopiesPage), page
    return page.copies


def sequencer_of(log: Log) -> int:
    assert isinstance(log.standing, EpochRecord)
    return log.standing.sequencer


async def a_holder(client: Client, cluster: LocalCluster, log: Log, but: Collection[int]) -> int:
    """A node that holds records of the log, and is none of these; bridges lie everywhere."""
    for node in cluster.nodes:
        if node.id not in but:
            held = await copies_at(client, node.id, log.info.id)
            if any(copy.extent.kind is EntryKind.DATA for copy in held):
                return node.id
    raise AssertionError("nobody else holds anything")


async def read_to_the_end(log: Log) -> tuple[list[bytes], list[Gap]]:
    values: list[bytes] = []
    gaps: list[Gap] = []
    async with await log.read() as reader:
        async for item in reader:
            if isinstance(item, Record):
                values.append(item.value)
            else:
                gaps.append(item)
    return values, gaps


def losses(gaps: list[Gap]) -> list[Gap]:
    return [gap for gap in gaps if gap.kind is GapKind.DATALOSS]


def test_the_copies_of_a_wiped_node_are_made_elsewhere_and_it_counts_again(
    make_cluster: MakeCluster,
) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await filled(client)
            assert (await is_sound(log)).surplus == 0
            victim = await a_holder(client, cluster, log, but=(1, sequencer_of(log)))
            await kill(cluster, victim)
            cluster.wipe(victim)
            await start(cluster, victim)
            await becomes(client, victim, FULL)
            assert await past(client, victim) == [LOST, EMPTY, FULL]
            verdict = await is_sound(log)
            assert verdict.records == BLOCKS
            for node in cluster.nodes:
                for copy in await copies_at(client, node.id, log.info.id):
                    assert victim not in copy.placement.copyset
            values, gaps = await read_to_the_end(log)
            assert values == [b"%d" % number for number in range(BLOCKS)]
            assert not losses(gaps)
            given = [
                metrics_of(cluster, n.id)["millrace_rebuilt_blocks_total"] for n in cluster.nodes
            ]
            assert sum(given) >= BLOCKS

    run(body(make_cluster(5)))


def test_readers_and_writers_go_on_while_a_node_is_wiped(make_cluster: MakeCluster) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await filled(client)
            seen: list[bytes] = []
            lost: list[Gap] = []

            async def follow() -> None:
                async with await log.read("start", None) as reader:
                    async for item in reader:
                        if isinstance(item, Record):
                            seen.append(item.value)
                        elif item.kind is GapKind.DATALOSS:
                            lost.append(item)

            following = asyncio.create_task(follow())
            await kill(cluster, 2)
            cluster.wipe(2)
            await log.append(b"while it is dead")
            await start(cluster, 2)
            await log.append(b"while it is empty")
            await becomes(client, 2, FULL)
            await log.append(b"when it is back")

            async def last() -> bytes:
                return seen[-1]

            await eventually(
                last, lambda value: value == b"when it is back", what="the last record"
            )
            following.cancel()
            assert not lost
            assert len(seen) == BLOCKS + 3
            await is_sound(log)

    run(body(make_cluster(5)))


def test_where_no_other_node_is_left_a_wiped_node_gets_its_own_copies_back(
    make_cluster: MakeCluster,
) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await filled(client)
            await kill(cluster, 3)
            cluster.wipe(3)
            await start(cluster, 3)
            await log.append(b"goes on at once")
            await becomes(client, 3, FULL)
            assert await past(client, 3) == [LOST, FULL]
            verdict = await is_sound(log)
            assert verdict.copies == 3 * verdict.blocks

    run(body(make_cluster(3)))


def test_a_node_that_is_dead_for_long_is_rebuilt_and_comes_back_empty(
    make_cluster: MakeCluster,
) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await filled(client)
            await kill(cluster, 3)
            await becomes(client, 3, EMPTY)
            assert await past(client, 3) == [AWAY, EMPTY]
            verdict = await is_sound(log)
            assert verdict.records == BLOCKS
            await start(cluster, 3)
            await becomes(client, 3, FULL)
            assert await copies_at(client, 3, log.info.id) == ()
            await is_sound(log)

    run(body(make_cluster(5, keeper=SOON)))


def test_a_node_that_comes_back_with_its_disk_before_it_is_rebuilt_is_what_it_was(
    make_cluster: MakeCluster,
) -> None:
    """Nobody else can take the copies of a log with one copy, so it is waited for."""

    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await filled(client, replication=1)
            await kill(cluster, 3)
            await becomes(client, 3, AWAY)
            await start(cluster, 3)
            await becomes(client, 3, FULL)
            assert await past(client, 3) == [AWAY, FULL]
            values, gaps = await read_to_the_end(log)
            assert len(values) == BLOCKS
            assert not losses(gaps)

    run(body(make_cluster(3, keeper=SOON)))


def test_a_drained_node_holds_nothing_that_is_needed_and_takes_nothing_new(
    make_cluster: MakeCluster,
) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await filled(client)
            await client.drain(4)
            await log.append(b"elsewhere")
            await becomes(client, 4, EMPTY)
            assert await past(client, 4) == [FULL, EMPTY]
            verdict = await is_sound(log)
            assert verdict.records == BLOCKS + 1

            async def held() -> tuple[Copy, ...]:
                return await copies_at(client, 4, log.info.id)

            await eventually(held, lambda copies: copies == (), what="an empty node")
            values, gaps = await read_to_the_end(log)
            assert len(values) == BLOCKS + 1
            assert not losses(gaps)
            await client.drain(4, cancel=True)
            await becomes(client, 4, FULL)
            await is_sound(log)

    run(body(make_cluster(5)))


async def leaves(client: Client, log: Log, nodes: set[int]) -> None:
    """The log's nodeset follows a drain."""

    async def has_left() -> bool:
        record, _ = await client.directory.read_epochs(log.info.id)
        return record is not None and not nodes & set(record.nodeset)

    await eventually(has_left, what="the log to leave the drained nodes")


def test_a_dead_node_is_waited_for_until_it_is_given_up(make_cluster: MakeCluster) -> None:
    """A log with one copy: what the node held is lost, and nothing else."""

    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await client.create_log("events", replication=1, write_path="sequenced")
            needed = {1, sequencer_of(log)}
            for node in needed:
                await client.drain(node)
            for node in needed:
                await becomes(client, node, EMPTY)
            await leaves(client, log, needed)
            lost = await appended(log, BLOCKS)
            victim = await a_holder(client, cluster, log, but=needed)
            await kill(cluster, victim)
            kept = await appended(log, BLOCKS)
            reading = asyncio.create_task(read_to_the_end(log))
            await becomes(client, victim, AWAY)
            assert not reading.done()
            await client.mark_unrecoverable(victim)
            values, gaps = await reading
            assert values == list(kept.values())
            told = losses(gaps)
            assert sum(gap.last + 1 - gap.first for gap in told) == len(lost), gaps
            assert all(any(gap.first <= lsn <= gap.last for gap in told) for lsn in lost)
            assert (await log.verify()).counts[Wrong.NOT_TILED] == 1

    run(body(make_cluster(5, keeper=SOON)))
