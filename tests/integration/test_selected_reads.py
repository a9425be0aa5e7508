"""What a reader did not ask for does not travel: counted in bytes, compared row by row."""

import random
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import millrace
from millrace import Selection
from millrace.client import Log
from millrace.codec.arrow import SCHEMA
from millrace.core.messages import Describe, Described, Next
from millrace.core.read_stream import Deliver, ReadSettings
from millrace.errors import UsageError
from millrace.limits import KIB, WEIGH_PIECES_MAX
from millrace.local import LocalCluster
from millrace.runtime.conditions import TransportCounters
from millrace.types import LSN_MAX, Gap, GapKind, Lsn, Record
from tests.support.clusters import MakeCluster, connected, kill, run

ROWS = 40_000
KEYS = 100
NOON_US = 1_700_000_000_000_000
SMALL_WINDOW = ReadSettings(window_bytes=64 * KIB)


def rows(count: int = ROWS) -> pa.Table:
    """Values of 200 bytes that compress to about half, small keys, timestamps that grow."""
    choices = random.Random(5)
    return pa.table(
        {
            "value": pa.array([choices.randbytes(100).hex().encode() for _ in range(count)]),
            "key": pa.array([b"key-%d" % (at % KEYS) for at in range(count)]),
            "timestamp": pa.array(range(NOON_US, NOON_US + count), pa.timestamp("us", "UTC")),
        }
    )


async def read(log: Log, select: Selection | None) -> pa.Table:
    async with await log.read(select=select) as reader:
        return joined([one async for one in reader.batches()], select)


def joined(parts: Iterable[pa.RecordBatch | Gap], select: Selection | None) -> pa.Table:
    names = SCHEMA.names if select is None else ["lsn", *select.columns]
    batches = [part for part in parts if not isinstance(part, Gap)]
    schema = pa.schema([SCHEMA.field(name) for name in names])
    return pa.Table.from_batches(batches, schema).combine_chunks()


def filtered(everything: pa.Table, select: Selection) -> pa.Table:
    """The same, done by a client that was sent everything."""
    mask = pa.array([True] * len(everything))
    stamps = everything["timestamp"].cast(pa.int64())
    if select.time_first_us is not None:
        mask = pc.and_(mask, pc.greater_equal(stamps, select.time_first_us))
    if select.time_end_us is not None:
        mask = pc.and_(mask, pc.less(stamps, select.time_end_us))
    if select.keys is not None:
        wanted = pa.array(select.keys, pa.binary())
        mask = pc.and_(mask, pc.is_in(everything["key"], value_set=wanted))
    chosen = everything.filter(mask).select(["lsn", *select.columns])
    return chosen.combine_chunks()


# How many times fewer bytes must arrive than without a selection.
SAVINGS = {
    "keys alone": (Selection(columns=("key",)), 4),
    "one key": (Selection(keys=(b"key-7",)), 25),
    "values of two keys": (Selection(columns=("value",), keys=(b"key-7", b"key-99")), 20),
    "a short time": (Selection(("key", "value"), NOON_US + 500, NOON_US + 700), 30),
    "a key that nobody has": (Selection(keys=(b"nobody",)), 1_000),
    "headers of blocks": (Selection(columns=()), 1_000),
}


@pytest.mark.parametrize("compression", [False, True], ids=["plain", "compressed"])
def test_fewer_bytes_arrive_and_the_same_rows(
    calm_cluster: LocalCluster, compression: bool
) -> None:
    async def body() -> None:
        counters = TransportCounters()
        async with connected(calm_cluster, counters=counters) as client:
            log = await client.create_log(
                f"selected-{compression}", compression=compression, write_path="chain"
            )
            await log.append_table(rows())
            before = counters.bytes_in
            everything = await read(log, None)
            whole_bytes = counters.bytes_in - before
            assert len(everything) == ROWS
            for name, (select, factor) in SAVINGS.items():
                before = counters.bytes_in
                found = await read(log, select)
                assert found.equals(filtered(everything, select)), name
                arrived = counters.bytes_in - before
                assert arrived * factor < whole_bytes, f"{name}: {arrived} of {whole_bytes}"

    run(body())


@pytest.mark.parametrize(
    "select",
    [Selection(columns=("key", "timestamp")), Selection(keys=(b"key-3", b"key-4"))],
    ids=["columns", "keys"],
)
@pytest.mark.parametrize("compression", [False, True], ids=["plain", "compressed"])
def test_the_tail_is_killed_in_the_middle(
    make_cluster: MakeCluster, select: Selection, compression: bool
) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await client.create_log("events", compression=compression, write_path="chain")
            for _ in range(4):
                await log.append_table(rows())
            everything = await read(log, None)
            tail = log.projection.tail
            parts: list[pa.RecordBatch | Gap] = []
            async with await log.read(select=select, settings=SMALL_WINDOW) as reader:
                async for part in reader.batches():
                    parts.append(part)
                    if len(parts) == 3:
                        await kill(cluster, tail)
                assert sum(reader.stream.rewinds.values()) > 0
            assert joined(parts, select).equals(filtered(everything, select))
            assert tail not in log.projection.chain

    run(body(make_cluster(4)))


def test_records_of_a_key_with_gaps_in_their_places(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await client.create_log("selected-gaps", write_path="chain")
            await log.append(b"one", key=b"a", headers=(("trace", b"1"),))
            await log.append(b"two", key=b"b")
            projection = log.projection
            issue = Next(projection.log, projection.epoch, 2)
            await client.ask_node(projection.sequencer, issue, 3_000)  # And nobody writes there.
            await log.append(b"three", key=b"a")
            select = Selection(keys=(b"a",))
            async with await log.read(select=select, fill_after_ms=0) as reader:
                seen = [one async for one in reader]
            assert [one if isinstance(one, Gap) else (one.lsn, one.value) for one in seen] == [
                (1, b"one"),
                Gap(GapKind.HOLE, Lsn(3), Lsn(4)),
                (5, b"three"),
            ]
            assert isinstance(seen[0], Record)
            assert seen[0].headers == (("trace", b"1"),)

    run(body())


def test_a_reader_without_columns_watches_the_end(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        counters = TransportCounters()
        async with connected(calm_cluster, counters=counters) as client:
            log = await client.create_log("selected-end", compression=False, write_path="chain")
            await log.append_table(rows(10))
            assert await log.readable_bounds() == (1, 11)
            async with log.reader(Lsn(11), None, select=Selection(columns=())) as watcher:
                await log.append_table(rows())
                before = counters.bytes_in
                end = Lsn(11)
                while end < ROWS + 11:
                    part = await watcher.take(10_000)
                    assert isinstance(part, Deliver)
                    assert part.first == end
                    end = part.end
                    assert watcher.batch(part).num_rows == part.end - part.first
                assert counters.bytes_in - before < 10 * KIB
            assert (await log.readable_bounds())[1] == end
            await log.trim(5)
            assert await log.readable_bounds() == (5, end)

    run(body())


def test_the_readable_end_stops_before_a_hole(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await client.create_log("selected-hole", write_path="chain")
            await log.append(b"one")
            projection = log.projection
            issue = Next(projection.log, projection.epoch, 1)
            await client.ask_node(projection.sequencer, issue, 3_000)
            await log.append(b"three")
            assert await log.readable_bounds() == (1, 2)
            assert await log.bounds() == (1, 4)

    run(body())


def test_pieces_weigh_what_the_log_holds(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await client.create_log("selected-weights", compression=False, write_path="chain")
            await log.append_table(rows())
            described = await client.ask_node(log.projection.tail, Describe(log.info.id), 3_000)
            assert isinstance(described, Described)
            pieces = await log.weigh(Lsn(1), LSN_MAX)
            assert len(pieces) == 64
            assert [piece.first for piece in pieces[1:]] == [piece.end for piece in pieces[:-1]]
            assert (pieces[0].first, pieces[-1].end) == (1, ROWS + 1)
            assert sum(piece.bytes for piece in pieces) == pytest.approx(described.bytes, rel=0.01)
            assert await log.weigh(Lsn(ROWS + 1), LSN_MAX) == []
            (whole,) = await log.weigh(Lsn(1), Lsn(ROWS + 1), pieces=1)
            assert whole.bytes == described.bytes
            with pytest.raises(UsageError, match=f"1 to {WEIGH_PIECES_MAX}"):
                await log.weigh(Lsn(1), LSN_MAX, pieces=0)

    run(body())


def test_what_cannot_be_selected_is_the_callers_error(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await client.create_log("selected-wrong", write_path="chain")
            await log.append(b"one", key=b"a")
            with pytest.raises(UsageError, match="no column colour; there are key, value"):
                await log.read(select=Selection(columns=("colour",)))
            with pytest.raises(UsageError, match="cannot be read from 0 to 5"):
                log.reader(Lsn(0), Lsn(5))
            async with await log.read(select=Selection(columns=("key",))) as reader:
                with pytest.raises(UsageError, match="the selection gives lsn, key alone"):
                    await anext(reader.batches(columns=("value",)))
            async with await log.read(select=Selection(columns=("key",))) as reader:
                with pytest.raises(UsageError, match="no column value, timestamp, headers"):
                    await anext(reader.records())

    run(body())


def test_without_await(calm_cluster: LocalCluster) -> None:
    client = millrace.sync.connect(calm_cluster.addresses)
    try:
        log = client.create_log("selected-sync", write_path="chain")
        log.append_table(rows(1_000))
        select = Selection(columns=("key",), keys=(b"key-5",))
        with log.read(select=select) as reader:
            found = joined(reader.batches(), select)
        assert found["lsn"].to_pylist() == list(range(6, 1_000, KEYS))
        with log.read(select=Selection(keys=(b"key-5",))) as reader:
            assert [one.lsn for one in reader if isinstance(one, Record)] == found[
                "lsn"
            ].to_pylist()
        assert log.readable_bounds() == (1, 1_001)
        assert log.weigh(Lsn(1), Lsn(501), 2)[0].end == 251
        assert log.find_time(NOON_US) == 1
        with log.tail(select=Selection(columns=())) as reader:
            log.append(b"news")
            part = reader.take(10_000)
        assert isinstance(part, Deliver)
        assert part.end == 1_002
    finally:
        client.close()
