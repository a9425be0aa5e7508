"""How long a reader waits, what it may be asked for, and what it hears of a change of epoch."""

from collections.abc import AsyncIterator

import pyarrow as pa
import pytest

import millrace
from millrace.client import Client, Log
from millrace.errors import PositionBeyondTail, TimedOut, UsageError
from millrace.local import LocalCluster
from millrace.lsn import epoch_of, first_of
from millrace.types import Epoch, Gap, GapKind, Lsn, Record
from tests.support.clusters import MakeCluster, connected, kill, run

SHORT_MS = 150


async def made(client: Client, name: str, values: int = 3) -> Log:
    log = await client.create_log(name)
    for number in range(values):
        await log.append(b"%d" % number)
    return log


async def drained(parts: AsyncIterator[Record | pa.RecordBatch | Gap]) -> int:
    """How many came before the time was up."""
    count = 0

    async def take_all() -> None:
        nonlocal count
        async for part in parts:
            count += part.num_rows if isinstance(part, pa.RecordBatch) else 1

    with pytest.raises(TimedOut, match=f"within {SHORT_MS} ms: the reader waits for tail"):
        await take_all()
    return count


@pytest.mark.alone
def test_each_wait_of_an_iteration_is_bounded(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await made(client, "bounded")
            async with await log.read("start", None, timeout_ms=SHORT_MS) as reader:
                assert await drained(aiter(reader)) == 3
                await log.append(b"later")
                assert await drained(aiter(reader)) == 1, "it goes on where it was"
            async with await log.tail(2, timeout_ms=SHORT_MS) as reader:
                assert await drained(reader.batches()) == 2
            async with await log.read("start", None) as reader:
                assert await drained(reader.records(timeout_ms=SHORT_MS)) == 4
            async with log.reader(Lsn(1), None) as reader:
                gap_and_rows = await drained(reader.batches(timeout_ms=SHORT_MS))
                assert gap_and_rows == 1 + 4

    run(body())


def test_each_wait_is_bounded_without_await_too(calm_cluster: LocalCluster) -> None:
    with millrace.sync.connect(calm_cluster.addresses) as client:
        log = client.create_log("bounded-sync")
        log.append(b"one")
        for reader in (log.read("start", None, timeout_ms=SHORT_MS), log.tail(1, timeout_ms=50)):
            with reader, pytest.raises(TimedOut):
                assert [item.value for item in reader if isinstance(item, Record)] == [b"one"]
        with log.tail(1) as reader, pytest.raises(TimedOut):
            list(reader.records(timeout_ms=SHORT_MS))
        with log.tail(1) as reader, pytest.raises(TimedOut):
            list(reader.batches(timeout_ms=SHORT_MS))


@pytest.mark.parametrize(
    ("first", "until"),
    [("e1n3", "e1n1"), ("e2n1", "e1n1"), ("+2", "e1n1"), ("-1", "-3"), ("end", "start")],
)
def test_a_range_that_ends_before_it_begins_is_refused(
    calm_cluster: LocalCluster, first: str, until: str
) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await made(client, f"reversed{first}{until}".replace("+", "p"))
            with pytest.raises(UsageError, match="which lies before it"):
                await log.read(first, until)

    run(body())


def test_ranges_without_records_that_are_no_mistake(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await made(client, "no-mistake")
            for first, until in (("e1n2", "e1n2"), ("end", "end")):
                async with await log.read(first, until) as reader:
                    assert await reader.take() is None
            await log.trim("e1n3")
            async with await log.read("start", "e1n2") as reader:
                assert await reader.take() is None, "all that was asked for is trimmed"
            with pytest.raises(PositionBeyondTail):
                await log.read("e2n1")

    run(body())


async def sequencer_of(client: Client, log: Log) -> int:
    record, _ = await client.directory.read_epochs(log.info.id)
    assert record is not None
    return record.sequencer


async def made_elsewhere(client: Client) -> tuple[Log, int]:
    """A log whose sequencer is not on the node that has the metadata, and that sequencer."""
    for number in range(1, 20):
        log = await made(client, f"bridged-{number}")
        sequencer = await sequencer_of(client, log)
        if sequencer != 1:
            return log, sequencer
    raise AssertionError("all logs are sequenced by one node")


def test_a_change_of_epoch_is_one_bridge(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(4)

    async def body() -> None:
        async with connected(cluster) as client:
            log, sequencer = await made_elsewhere(client)
            await kill(cluster, sequencer)
            newest = epoch_of(await log.append(b"after"))
            async with await log.read() as reader:
                items = [item async for item in reader]
            bridges = [item for item in items if isinstance(item, Gap)]
            assert newest > 1
            assert {gap.kind for gap in bridges} == {GapKind.BRIDGE}
            assert [(epoch_of(gap.first), gap.last) for gap in bridges] == [
                (epoch, first_of(Epoch(epoch + 1))) for epoch in range(1, newest)
            ]
            values = [item.value for item in items if isinstance(item, Record)]
            assert values == [b"0", b"1", b"2", b"after"]

    run(body())
