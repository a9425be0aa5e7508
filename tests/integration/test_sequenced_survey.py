"""Where the records of a sequenced log lie and how heavy they are, over real processes."""

from itertools import pairwise

import pytest

from millrace.client import Client, Log
from millrace.core.messages import DescribeSequenced, SequencedDescribed
from millrace.errors import UsageError
from millrace.limits import WEIGH_PIECES_MAX
from millrace.local import LocalCluster
from millrace.lsn import epoch_of, lsn_of
from millrace.types import LSN_MAX, Epoch, Lsn
from tests.support.clusters import MakeCluster, connected, kill, run
from tests.support.epochs import next_epoch, record_of

FIRST = lsn_of(Epoch(1), 1)
VALUE = b"v" * 1_000
EPOCHS = (400, 100, 300)  # Records of each that has any.
BLOCK = 50


async def fill(client: Client, log: Log) -> dict[Epoch, list[Lsn]]:
    """The positions of each epoch."""
    written: dict[Epoch, list[Lsn]] = {}
    for number, count in enumerate(EPOCHS):
        epoch = await next_epoch(client, log) if number else Epoch(1)
        written[epoch] = []
        for _ in range(count // BLOCK):
            for appended in await log.append_many([VALUE] * BLOCK):
                written[epoch] += range(appended.first, appended.last + 1)
    return written


async def make_log(client: Client, name: str) -> Log:
    return await client.create_log(name, write_path="sequenced", compression=False)


async def stored_bytes(client: Client, log: Log) -> int:
    """Of one copy."""
    record = await record_of(client, log.info.id)
    total = 0
    for node in record.nodeset:
        described = await client.ask_node(node, DescribeSequenced(log.info.id), 5_000)
        assert isinstance(described, SequencedDescribed)
        total += described.bytes
    return total // record.replication.copies


def test_records_are_counted_over_epochs(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await make_log(client, "survey-runs")
            written = await fill(client, log)
            _, end = await log.readable_bounds()
            runs = await log.runs(FIRST, end)
            assert runs.count == sum(EPOCHS)
            lsns = [lsn for each in written.values() for lsn in each]
            assert [runs.lsn(runs.begin + n) for n in range(1, 800)] == [
                lsn + 1 for lsn in lsns[:-1]
            ]
            first, second = list(written)[:2]
            assert (await log.runs(lsn_of(first, 301), lsn_of(second, 11))).count == 110
            assert (await log.runs(lsn_of(first, 401), lsn_of(second, 1))).count == 0
            assert (await log.runs(lsn_of(second, 1), LSN_MAX)).count == 400

    run(body())


def test_pieces_weigh_one_copy_of_what_the_log_holds(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await make_log(client, "survey-weights")
            await fill(client, log)
            _, end = await log.readable_bounds()
            pieces = await log.weigh(Lsn(1), end, 8)
            assert [piece.end for piece in pieces[:-1]] == [piece.first for piece in pieces[1:]]
            assert (pieces[0].first, pieces[-1].end) == (FIRST, end)
            size = await stored_bytes(client, log)
            assert sum(piece.bytes for piece in pieces) == pytest.approx(size, rel=0.02)
            assert all(piece.bytes == pytest.approx(size / 8, rel=0.3) for piece in pieces)
            runs = await log.runs(FIRST, end)
            assert {runs.within(piece.first, piece.end) for piece in pieces} == {sum(EPOCHS) // 8}
            assert await log.weigh(end, LSN_MAX) == []
            with pytest.raises(UsageError, match=f"1 to {WEIGH_PIECES_MAX}"):
                await log.weigh(Lsn(1), end, pieces=0)

    run(body())


def test_an_empty_log_weighs_nothing(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await make_log(client, "survey-empty")
            _, end = await log.readable_bounds()
            assert await log.weigh(Lsn(1), end) == []
            assert (await log.runs(Lsn(1), end)).count == 0

    run(body())


def test_nodes_that_are_silent_are_passed_over(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(5)

    async def body() -> None:
        async with connected(cluster) as client:
            log = await make_log(client, "survey-silent")
            written = await fill(client, log)
            size = await stored_bytes(client, log)
            sequencer = (await record_of(client, log.info.id)).sequencer
            victim = next(node.id for node in cluster.nodes if node.id not in (1, sequencer))
            await kill(cluster, victim)
            _, end = await log.readable_bounds()
            assert (await log.runs(FIRST, end)).count == sum(EPOCHS)
            pieces = await log.weigh(FIRST, end)
            assert all(before.end == after.first for before, after in pairwise(pieces))
            assert sum(piece.bytes for piece in pieces) == pytest.approx(size, rel=0.5)
            assert epoch_of(pieces[-1].first) == max(written)

    run(body())


def test_what_was_trimmed_weighs_nothing(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await make_log(client, "survey-trimmed")
            written = await fill(client, log)
            await log.trim(lsn_of(Epoch(1), 351))
            _, end = await log.readable_bounds()
            assert (await log.runs(FIRST, end)).count == 450
            assert (await log.weigh(FIRST, end, 1))[0].first == lsn_of(Epoch(1), 351)
            await log.trim(lsn_of(max(written), 0))
            assert (await log.runs(FIRST, end)).count == 300

    run(body())
