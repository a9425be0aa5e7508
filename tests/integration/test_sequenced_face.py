"""What users see of sequenced logs: conditions, the tail, sealing and descriptions."""

import asyncio
import time

import pytest

import millrace
from millrace.client import Client, Log, LogRecords, SequencedDescription
from millrace.core.epochs import EpochRecord
from millrace.core.messages import AskTail, Refusal, Refused
from millrace.errors import LogSealed, TailMoved, UsageError
from millrace.local import LocalCluster
from millrace.lsn import epoch_of, lsn_of, show
from millrace.types import Epoch, Gap, GapKind, Lsn, NodeId, Record
from tests.support.clusters import MakeCluster, connected, eventually, kill, run

FIRST = lsn_of(Epoch(1), 1)
SHORT_MS = 2_000
WAIT_MS = 20_000


async def make_log(client: Client, name: str, **options: object) -> Log:
    return await client.create_log(name, write_path="sequenced", **options)


async def epochs_of(client: Client, log: Log) -> EpochRecord:
    """As the repository has them."""
    record, _ = await client.directory.read_epochs(log.info.id)
    assert record is not None
    return record


async def another_epoch(client: Client, cluster: LocalCluster, log: Log) -> None:
    """Its sequencer dies; the log has another one, and is recovered."""
    before = await epochs_of(client, log)
    await kill(cluster, before.sequencer)

    def is_recovered(record: EpochRecord) -> bool:
        return record.epoch > before.epoch and record.clean + 1 == record.epoch

    await eventually(lambda: epochs_of(client, log), is_recovered, what="another epoch")


async def log_of_a_mortal(client: Client, name: str) -> Log:
    """Node 1 has the metadata: a log whose sequencer is another node."""
    for number in range(50):
        log = await make_log(client, f"{name}-{number}")
        if (await epochs_of(client, log)).sequencer != 1:
            return log
    raise AssertionError("node 1 sequences every log")


# -- Conditions and the tail ----------------------------------------------------------------------


def test_an_append_on_the_condition_that_nobody_was_faster(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await make_log(client, "face-if")
            one = await log.append(b"one", if_tail=0)
            two = await log.append(b"two", if_tail=one)
            for wrong in (0, one, two + 1):
                with pytest.raises(TailMoved, match=f"last record is at {show(two)}"):
                    await log.append(b"three", if_tail=wrong)
            assert await log.tail_lsn() == two

    run(body())


def test_a_condition_as_text(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await make_log(client, "face-if-text")
            one = await log.append(b"one", if_tail="0")
            two = await log.append(b"two", if_tail=log.show(one))
            for wrong in ("end", "-1", "sideways", 4.5):
                with pytest.raises(UsageError, match="position"):
                    await log.append(b"three", if_tail=wrong)  # type: ignore[arg-type]
            assert await log.tail_lsn() == two

    run(body())


def test_of_many_writers_with_one_condition_one_wins(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as one, connected(calm_cluster) as two:
            log = await make_log(one, "face-race")
            logs = [log, await two.log("face-race")]
            tail = await log.append(b"first")
            tries = (logs[at % 2].append(b"%d" % at, if_tail=tail) for at in range(20))
            outcomes = await asyncio.gather(*tries, return_exceptions=True)
            assert sum(not isinstance(outcome, TailMoved) for outcome in outcomes) == 1
            assert await log.tail_lsn() == tail + 1

    run(body())


def test_a_condition_shares_its_block_with_nobody(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await make_log(client, "face-alone")
            await log.append(b"first")
            usual = [log.append(b"%d" % at) for at in range(50)]
            wrong = log.append(b"never", if_tail=7)
            *lsns, moved = await asyncio.gather(*usual, wrong, return_exceptions=True)
            assert isinstance(moved, TailMoved)
            assert sorted(lsns) == list(range(FIRST + 1, FIRST + 51))

    run(body())


def test_chain_logs_take_no_conditions(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await client.create_log("face-chain-if", write_path="chain")
            with pytest.raises(UsageError, match="sequenced"):
                await log.append(b"x", if_tail=0)

    run(body())


@pytest.mark.parametrize("write_path", ["sequenced", "chain"])
def test_the_tail_and_whether_there_is_anything(
    calm_cluster: LocalCluster, write_path: str
) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await client.create_log(f"face-tail-{write_path}", write_path=write_path)
            assert (await log.tail_lsn(), await log.is_empty()) == (0, True)
            for _ in range(5):
                lsn = await log.append(b"x")
                assert (await log.tail_lsn(), await log.is_empty()) == (lsn, False)
                assert isinstance(await log.get(lsn), Record)
            await log.trim(Lsn(lsn + 1))
            assert (await log.tail_lsn(), await log.is_empty()) == (lsn, True)

    run(body())


def test_the_tail_is_known_when_the_sequencer_has_died(make_cluster: MakeCluster) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await log_of_a_mortal(client, "face")
            last = await log.append(b"x")
            await kill(cluster, (await epochs_of(client, log)).sequencer)
            assert await log.tail_lsn() == last
            assert epoch_of(await log.append(b"y", if_tail=last)) == 2

    run(body(make_cluster(4)))


def test_so_many_records_from_the_end_also_over_epochs(make_cluster: MakeCluster) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await log_of_a_mortal(client, "face")
            await log.append_many([b"%d" % number for number in range(5)])
            await another_epoch(client, cluster, log)
            await log.append_many([b"5", b"6"])
            for count, expected in ((1, "e2n2"), (2, "e2n1"), (4, "e1n4"), (99, "e1n1")):
                assert show(await log.resolve(f"-{count}")) == expected
            async with await log.read("-4") as reader:
                items = [item async for item in reader]
            values = [item.value for item in items if isinstance(item, Record)]
            assert values == [b"3", b"4", b"5", b"6"]
            assert {item.kind for item in items if isinstance(item, Gap)} == {GapKind.BRIDGE}

    run(body(make_cluster(4)))


def test_the_rest_of_an_epoch_is_a_bridge_wherever_reading_begins(
    make_cluster: MakeCluster,
) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await log_of_a_mortal(client, "face")
            await log.append_many([b"%d" % number for number in range(5)])
            await another_epoch(client, cluster, log)
            await log.append(b"5")
            for offset in (6, 7, 1 << 20):
                first, end = lsn_of(Epoch(1), offset), lsn_of(Epoch(1), 1 << 21)
                async with await log.read(first, end) as reader:
                    items = [item async for item in reader]
                assert items == [Gap(GapKind.BRIDGE, first, Lsn(end - 1))]
                assert await log.get(first) == Gap(GapKind.BRIDGE, first, first)

    run(body(make_cluster(4)))


# -- Sealing --------------------------------------------------------------------------------------


def test_a_sealed_log_takes_no_more_and_keeps_what_it_has(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as one, connected(calm_cluster) as two:
            log = await make_log(one, "face-sealed")
            assert await log.sealed_end() is None
            writing = [asyncio.create_task(log.append(b"%d" % at)) for at in range(500)]
            await writing[0]
            sealed = await (await two.log("face-sealed")).seal()
            outcomes = await asyncio.gather(*writing, return_exceptions=True)
            appended = [each for each in outcomes if isinstance(each, int)]
            refused = [each for each in outcomes if not isinstance(each, int)]
            assert all(isinstance(each, LogSealed) for each in refused)
            assert isinstance(sealed, EpochRecord)
            assert (sealed.is_sealed, sealed.tail) == (True, max(appended))
            assert await log.sealed_end() == max(appended) + 1
            with pytest.raises(LogSealed):
                await log.append(b"too late")
            async with await log.read() as reader:
                lsns = [item.lsn async for item in reader if isinstance(item, Record)]
            assert lsns == sorted(appended)
            assert (await log.seal()) == sealed

    run(body())


@pytest.mark.parametrize("write_path", ["sequenced", "chain"])
def test_whoever_follows_a_log_ends_with_it(calm_cluster: LocalCluster, write_path: str) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client, connected(calm_cluster) as other:
            name = f"face-followed-{write_path}"
            log = await client.create_log(name, write_path=write_path)
            await log.append(b"one")
            async with await log.read("start", None) as reader:
                values = []
                async for item in reader:
                    assert isinstance(item, Record)
                    values.append(item.value)
                    if item.value == b"one":
                        same = await other.log(name)
                        await same.append(b"two")
                        await same.seal()
            assert values == [b"one", b"two"]
            async with await log.tail() as reader:
                assert await reader.take(WAIT_MS) is None

    run(body())


def test_an_empty_log_can_be_sealed(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await make_log(client, "face-sealed-empty")
            assert (await log.seal()).is_sealed
            async with await log.read("start", None) as reader:
                assert await reader.take(WAIT_MS) is None

    run(body())


def test_a_sealed_log_stays_sealed_when_its_sequencer_dies(make_cluster: MakeCluster) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await log_of_a_mortal(client, "face")
            last = await log.append(b"last words")
            await log.seal()
            await another_epoch(client, cluster, log)
            with pytest.raises(LogSealed):
                await log.append(b"too late")
            assert await log.tail_lsn() == last
            async with await log.read("start", None) as reader:
                first = await reader.take(WAIT_MS)
                assert first is not None
                assert not isinstance(first, Gap)
                while (part := await reader.take(WAIT_MS)) is not None:
                    assert isinstance(part, Gap)

    run(body(make_cluster(4)))


# -- Descriptions ---------------------------------------------------------------------------------


def test_a_description_of_a_sequenced_log(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await make_log(client, "face-described")
            last = await log.append(b"one")

            async def look() -> SequencedDescription:
                described = await log.describe()
                assert isinstance(described, SequencedDescription)
                return described

            described = await eventually(
                look, lambda seen: seen.tail is not None and seen.tail.released == last
            )
            assert described.record == await epochs_of(client, log)
            assert described.trim_end == 1
            members = described.members.values()
            assert sorted(described.members) == [1, 2, 3]
            assert [member.blocks for member in members if member is not None] == [1, 1, 1]

    run(body())


@pytest.mark.alone
def test_a_description_in_time_with_what_is_known(make_cluster: MakeCluster) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await log_of_a_mortal(client, "face")
            await log.append(b"one")
            before = await epochs_of(client, log)
            cluster.pause(before.sequencer)
            try:
                began_s = time.monotonic()
                described = await log.describe(timeout_ms=SHORT_MS)
                assert time.monotonic() - began_s < 2 * SHORT_MS / 1000
                assert isinstance(described, SequencedDescription)
                assert described.tail is None
                assert described.members[before.sequencer] is None
                assert sum(member is not None for member in described.members.values()) == 3
                assert described.record.epoch == before.epoch
            finally:
                cluster.resume(before.sequencer)

    run(body(make_cluster(4, lease_ttl_ms=20_000)))


def test_a_glance_makes_nobody_a_sequencer(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await make_log(client, "face-glance")
            await log.append(b"one")
            before = await epochs_of(client, log)
            for node in map(NodeId, (1, 2, 3)):
                answer = await client.ask_node(node, AskTail(log.info.id, is_glance=True), SHORT_MS)
                if node != before.sequencer:
                    assert isinstance(answer, Refused)
                    assert answer.reason is Refusal.NOT_READY
            assert await epochs_of(client, log) == before

    run(body())


# -- Without await --------------------------------------------------------------------------------


def test_all_of_it_without_await(calm_cluster: LocalCluster) -> None:
    with millrace.sync.connect(calm_cluster.addresses) as client:
        log = client.create_log("face-sync", write_path="sequenced", replication=3)
        assert log.is_empty()
        one = log.append(b"one", if_tail=0)
        assert (log.show(one), log.tail_lsn()) == ("e1n1", one)
        with pytest.raises(TailMoved):
            log.append(b"two", if_tail=0)
        assert isinstance(log.standing, EpochRecord)
        assert isinstance(log.describe(), SequencedDescription)
        log.seal()
        assert log.sealed_end() == one + 1
        with log.read("start", None) as reader:
            assert [record.value for record in reader if isinstance(record, Record)] == [b"one"]
        with client.reader(no_payload=True) as several:
            several.start_reading("face-sync")
            found = several.read(timeout_ms=WAIT_MS)
            assert isinstance(found, LogRecords)
            assert several.read(timeout_ms=WAIT_MS) is None
            assert not several.is_reading("face-sync")
