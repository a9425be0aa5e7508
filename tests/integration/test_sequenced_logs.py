"""Sequenced logs over real processes: what crosses the network, and what a death costs."""

import asyncio
from collections.abc import Sequence

import pytest

from millrace.client import Client, Log, Reader, UnknownAppend
from millrace.core.reading.settings import SequencedReadSettings
from millrace.local import LocalCluster
from millrace.lsn import epoch_of, lsn_of
from millrace.types import Epoch, Gap, GapKind, Lsn, NodeId, Record
from tests.support.clusters import MakeCluster, connected, eventually, kill, metrics_of, run

BLOCKS = 60
RECORDS_PER_BLOCK = 50
VALUE = b"v" * 1_000
WAIT_MS = 10_000
FIRST = lsn_of(Epoch(1), 1)
ALL_SEND_ALL = SequencedReadSettings(is_single_copy=False)


async def make_log(client: Client, name: str, **options: object) -> Log:
    return await client.create_log(
        name, write_path="sequenced", compression=False, replication=3, **options
    )


async def fill(log: Log, blocks: int = BLOCKS, tag: bytes = b"") -> dict[Lsn, bytes]:
    """Blocks one behind the other; what is where."""
    written: dict[Lsn, bytes] = {}
    for block in range(blocks):
        values = [tag + b"%d.%d " % (block, n) + VALUE for n in range(RECORDS_PER_BLOCK)]
        written |= await append(log, values)
    return written


async def append(log: Log, values: Sequence[bytes]) -> dict[Lsn, bytes]:
    try:
        (appended,) = await log.append_many(values)
    except UnknownAppend as unknown:
        appended = await log.resume(unknown)
    return {Lsn(appended.first + at): value for at, value in enumerate(values)}


async def read_all(reader: Reader) -> tuple[dict[Lsn, bytes], list[Gap]]:
    records: dict[Lsn, bytes] = {}
    gaps: list[Gap] = []
    async for item in reader:
        if isinstance(item, Gap):
            gaps.append(item)
        else:
            assert item.lsn not in records, "delivered twice"
            records[item.lsn] = item.value
    return records, gaps


@pytest.fixture
def five(make_cluster: MakeCluster) -> LocalCluster:
    return make_cluster(5)


def others(cluster: LocalCluster, *spared: int) -> list[int]:
    """Nodes that may be killed: not that of the metadata, nor those to be spared."""
    return [node.id for node in cluster.nodes if node.id not in (1, *spared)]


def rewinds(reader: Reader) -> dict[str, int]:
    counted = reader.explain()["rewinds"]
    assert isinstance(counted, dict)
    return counted


@pytest.mark.alone
def test_one_copy_crosses_the_network(five: LocalCluster) -> None:
    async def body() -> None:
        async with connected(five) as client:
            log = await make_log(client, "copies")
            written = await fill(log)
            async with await log.read() as reader:
                assert await read_all(reader) == (written, [])
                assert reader.bytes_received <= 1.02 * reader.bytes_delivered
                assert rewinds(reader) == {}
            async with log.reader(FIRST, None, settings=ALL_SEND_ALL) as reader:
                for _ in range(BLOCKS):
                    await reader.take(WAIT_MS)

                async def ratio() -> float:
                    return reader.bytes_received / reader.bytes_delivered

                await eventually(ratio, lambda seen: seen == 3, what="all copies to be sent")

    run(body())


def test_who_ships_nothing_reads_no_payload(five: LocalCluster) -> None:
    """One sticky copyset holds the whole log, and its first node sends it all."""

    async def body() -> None:
        async with connected(five) as client:
            log = await make_log(client, "index-only", copyset_order="stored")
            written = await fill(log)

            before = blocks_read(five)
            async with await log.read() as reader:
                assert await read_all(reader) == (written, [])
            after = blocks_read(five)
            read = [late - early for early, late in zip(before, after, strict=True)]
            assert sorted(read) == [0, 0, 0, 0, BLOCKS]

    run(body())


def blocks_read(cluster: LocalCluster) -> list[float]:
    return [
        metrics_of(cluster, node.id)["millrace_store_blocks_read_total"] for node in cluster.nodes
    ]


@pytest.mark.alone
def test_one_death_is_one_rewind_and_no_gap(five: LocalCluster) -> None:
    async def body() -> None:
        async with connected(five) as client:
            log = await make_log(client, "one-death")
            record = log.standing
            written = await fill(log)
            reader = log.reader(FIRST, None)
            seen: dict[Lsn, bytes] = {}
            gaps: list[Gap] = []

            async def follow() -> None:
                async for item in reader:
                    if isinstance(item, Gap):
                        gaps.append(item)
                    else:
                        seen[item.lsn] = item.value

            task = asyncio.create_task(follow())
            await eventually(lambda: _length(seen), lambda n: n == len(written))
            victim = next(node for node in _senders(reader) if node not in (1, record.sequencer))
            await kill(five, victim)
            written |= await fill(log, tag=b"after ")
            await eventually(lambda: _length(seen), lambda n: n == len(written))
            assert seen == written and gaps == []
            assert sum(rewinds(reader).values()) == 1, rewinds(reader)
            task.cancel()
            await reader.close()

    run(body())


async def _length(seen: dict[Lsn, bytes]) -> int:
    return len(seen)


def _senders(reader: Reader) -> list[NodeId]:
    nodes = reader.explain()["nodes"]
    assert isinstance(nodes, dict)
    return list(nodes)


def test_with_all_copies_but_one_away_everything_is_delivered(five: LocalCluster) -> None:
    async def body() -> None:
        async with connected(five) as client:
            log = await make_log(client, "two-deaths")
            written = await fill(log)
            await log.append(b"released")  # What was written before is known to be released.
            await kill(five, *others(five, log.standing.sequencer)[:2])
            reader = log.reader(FIRST, Lsn(max(written) + 1))
            async with reader:
                assert await read_all(reader) == (written, [])

    run(body())


def test_a_sequencer_killed_in_mid_append_costs_an_epoch_and_nothing_else(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(6)

    async def body() -> None:
        async with connected(cluster) as client:
            log = await make_log(client, "lost-sequencer")
            written = await fill(log, 5)
            is_over = False

            async def write(writer: int) -> dict[Lsn, bytes]:
                mine: dict[Lsn, bytes] = {}
                number = 0
                while not is_over:
                    mine |= await append(log, [b"writer %d: %d" % (writer, number)])
                    number += 1
                return mine

            writers = [asyncio.create_task(write(writer)) for writer in range(4)]
            sequencer = await _movable_sequencer(client, log)
            await kill(cluster, sequencer)

            async def epoch() -> Epoch:
                record, _ = await client.directory.read_epochs(log.info.id)
                assert record is not None
                return record.epoch if record.sequencer != sequencer else Epoch(0)

            new = await eventually(epoch, what="another sequencer")
            await eventually(lambda: _reached(log, new), what="an append in the new epoch")
            is_over = True
            for writer in writers:
                written |= await writer
            async with await log.read() as reader:
                records, gaps = await read_all(reader)
            assert written.items() <= records.items()
            assert len(set(records.values())) == len(records), "an append is there twice"
            assert {gap.kind for gap in gaps} <= {GapKind.BRIDGE, GapKind.HOLE}
            bridged = [epoch_of(gap.first) for gap in gaps if gap.kind is GapKind.BRIDGE]
            assert Epoch(new - 1) in bridged
            assert records.keys() - written.keys() <= _unacknowledged(records, written)

    run(body())


def _unacknowledged(records: dict[Lsn, bytes], written: dict[Lsn, bytes]) -> set[Lsn]:
    return {lsn for lsn in records if lsn not in written}


async def _reached(log: Log, epoch: Epoch) -> bool:
    return epoch_of(await log.append(b"here")) >= epoch


async def _movable_sequencer(client: Client, log: Log) -> NodeId:
    """The sequencer, unless it shares its node with the metadata: that one stays."""
    record, _ = await client.directory.read_epochs(log.info.id)
    assert record is not None
    if record.sequencer == 1:
        pytest.fail("the sequencer of this log is on node 1: choose another number of nodes")
    return record.sequencer


RACKS = ["eu.dc.c.r.a", "eu.dc.c.r.a", "eu.dc.c.r.b", "eu.dc.c.r.b", "eu.dc.c.r.c", "eu.dc.c.r.c"]


def test_any_one_rack_may_vanish(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(6, locations=RACKS)

    async def body() -> None:
        async with connected(cluster) as client:
            log = await client.create_log(
                "racks", write_path="sequenced", replication={"rack": 2, "node": 3}
            )
            written = await fill(log, 20)
            await log.append(b"released")
            for rack in ((3, 4), (5, 6)):
                await kill(cluster, *rack)
                reader = log.reader(FIRST, Lsn(max(written) + 1))
                async with reader:
                    assert await read_all(reader) == (written, [])
                more = await append(log, [b"while rack %d is away" % rack[0]])
                assert isinstance(await log.get(min(more)), Record)
                await asyncio.to_thread(cluster.start, rack)

    run(body())
