"""Following changes: what comes, in which order, and how it goes on after whatever stopped it."""

import asyncio

import pytest

from millrace.client.changes import (
    BatchCause,
    ChangeBatch,
    ChangeConsumer,
    MemoryConsumerState,
)
from millrace.codec.memcached.pushes import encode_push
from millrace.core.documents.document import (
    Cas,
    ChangeKind,
    Document,
    PartitionId,
    PartitionState,
    Seq,
)
from millrace.core.documents.messages import BufferAck, Changes, SnapshotMarker
from millrace.errors import UnknownBucket, UsageError
from tests.support.applied_changes import Following
from tests.support.document_backend import keys_of
from tests.support.served_bucket import NODES, ServedBucket, until, with_bucket

FIRST, SECOND = NODES
NAME = "test:1"


def some(count: int, value: bytes = b"1") -> dict[bytes, bytes]:
    keys = keys_of(range(8))
    return {next(keys): value for _ in range(count)}


async def all_of(consumer: ChangeConsumer) -> list[ChangeBatch]:
    return [batch async for batch in consumer]


def test_a_finite_consumer_takes_all_there_is_and_ends() -> None:
    async def work(served: ServedBucket) -> None:
        documents = some(500)
        await served.bucket.set_many(documents)
        async with ChangeConsumer(served.bucket, NAME, is_finite=True) as consumer:
            batches = await all_of(consumer)
        taken = {d.key: d.value for batch in batches for d in batch.documents}
        assert taken == documents

    with_bucket(work)


def test_an_empty_bucket_ends_a_finite_consumer_at_once() -> None:
    async def work(served: ServedBucket) -> None:
        async with ChangeConsumer(served.bucket, NAME, is_finite=True) as consumer:
            assert await all_of(consumer) == []

    with_bucket(work)


def test_what_changes_later_comes_too() -> None:
    async def work(served: ServedBucket) -> None:
        await served.bucket.set(b"a", b"1")
        async with Following(served, ChangeConsumer(served.bucket, NAME)) as following:
            await following.holds({b"a": b"1"})
            await served.bucket.set(b"b", b"2")
            await served.bucket.delete(b"a")
            await following.holds({b"b": b"2"})

    with_bucket(work)


def test_documents_say_what_was_done() -> None:
    async def work(served: ServedBucket) -> None:
        await served.bucket.set(b"a", b"1", flags=5, expiry_s=100)
        changed = await served.bucket.set(b"b", b"1")
        async with Following(served, ChangeConsumer(served.bucket, NAME)) as following:
            await following.holds({b"a": b"1", b"b": b"1"})
            assert following.application.documents[b"b"].cas == changed.cas
            assert following.application.documents[b"a"].flags == 5
            served.host_of(b"a").now_offset_us = 200 * 1_000_000
            assert await served.bucket.get(b"a") is None
            await following.holds({b"b": b"1"})
            last = following.application.batches[-1].documents[-1]
            assert last.kind is ChangeKind.EXPIRATION

    with_bucket(work)


def test_seqs_of_a_partition_rise() -> None:
    async def work(served: ServedBucket) -> None:
        await served.bucket.set_many(some(300))
        async with ChangeConsumer(served.bucket, NAME, is_finite=True) as consumer:
            batches = await all_of(consumer)
        for number in range(8):
            seqs = [d.seq for b in batches if b.partition == number for d in b.documents]
            assert seqs == sorted(set(seqs))

    with_bucket(work)


def test_batches_are_arrow_columns() -> None:
    async def work(served: ServedBucket) -> None:
        await served.bucket.set_many(some(100, b"value"))
        async with ChangeConsumer(served.bucket, NAME, is_finite=True) as consumer:
            async for batch in consumer:
                columns = batch.to_arrow()
                assert columns.column("key").to_pylist() == [d.key for d in batch.documents]
                assert columns.column("seq").to_pylist() == [d.seq for d in batch.documents]
                assert set(columns.column("value").to_pylist()) == {b"value"}

    with_bucket(work)


def test_from_now_leaves_out_what_was_there() -> None:
    async def work(served: ServedBucket) -> None:
        await served.bucket.set_many(some(50))
        consumer = ChangeConsumer(served.bucket, NAME, is_from_now=True)
        async with Following(served, consumer) as following:
            await consumer.barrier()
            await served.bucket.set(b"new", b"1")
            await following.holds({b"new": b"1"})

    with_bucket(work)


def test_a_partition_that_was_begun_goes_on_whatever_the_next_life_wishes() -> None:
    """A life that ended as soon as it had something had no place in the other partitions."""

    async def work(served: ServedBucket) -> None:
        state = MemoryConsumerState()
        async with ChangeConsumer(served.bucket, NAME, state) as consumer:
            assert len(consumer.not_begun) == 8
            await consumer.begun()
            assert not consumer.not_begun
            await consumer.commit()
        documents = some(50)
        await served.bucket.set_many(documents)
        consumer = ChangeConsumer(served.bucket, NAME, state, is_from_now=True)
        async with Following(served, consumer) as following:
            await following.holds(documents)

    with_bucket(work)


def test_keys_alone_come_without_values() -> None:
    async def work(served: ServedBucket) -> None:
        await served.bucket.set_many(some(50, b"value"))
        options = ChangeConsumer(served.bucket, NAME, is_finite=True, is_keys_only=True)
        async with options as consumer:
            batches = await all_of(consumer)
        assert {d.value for batch in batches for d in batch.documents} == {b""}
        assert sum(len(batch) for batch in batches) == 50

    with_bucket(work)


def test_a_prefix_selects_keys_and_the_place_moves_all_the_same() -> None:
    async def work(served: ServedBucket) -> None:
        await served.bucket.set_many({**some(50), b"user:1": b"1", b"user:2": b"2"})
        options = ChangeConsumer(served.bucket, NAME, is_finite=True, key_prefix=b"user:")
        async with options as consumer:
            batches = await all_of(consumer)
            lag = await consumer.lag()
        assert {d.key for batch in batches for d in batch.documents} == {b"user:1", b"user:2"}
        assert {each.changes for each in lag.values()} == {0}

    with_bucket(work)


def test_only_the_chosen_partitions_are_followed() -> None:
    async def work(served: ServedBucket) -> None:
        documents = some(100)
        await served.bucket.set_many(documents)
        options = ChangeConsumer(served.bucket, NAME, is_finite=True, partitions=[1, 2])
        async with options as consumer:
            batches = await all_of(consumer)
        wanted = {key for key in documents if served.bucket.partition_of(key) in (1, 2)}
        assert {d.key for batch in batches for d in batch.documents} == wanted

    with_bucket(work)


# -- Places -----------------------------------------------------------------------------------


def test_the_next_life_begins_where_the_last_one_acknowledged() -> None:
    async def work(served: ServedBucket) -> None:
        state = MemoryConsumerState()
        before = some(100)
        await served.bucket.set_many(before)
        async with ChangeConsumer(served.bucket, NAME, state, is_finite=True) as consumer:
            await all_of(consumer)
        await served.bucket.set(b"new", b"1")
        async with ChangeConsumer(served.bucket, NAME, state, is_finite=True) as consumer:
            batches = await all_of(consumer)
        assert [d.key for batch in batches for d in batch.documents] == [b"new"]

    with_bucket(work)


def test_what_was_not_acknowledged_comes_again() -> None:
    async def work(served: ServedBucket) -> None:
        state = MemoryConsumerState()
        await served.bucket.set_many(some(100))
        options = ChangeConsumer(served.bucket, NAME, state, is_finite=True, is_automatic=False)
        async with options as consumer:
            first = await consumer.take()
            second = await consumer.take()
            assert first is not None and second is not None
            consumer.ack(second)
            await consumer.commit()
        async with ChangeConsumer(served.bucket, NAME, state, is_finite=True) as consumer:
            again = await all_of(consumer)
        taken = {batch.partition for batch in again}
        assert first.partition in taken and second.partition not in taken

    with_bucket(work)


def test_an_offset_does_not_pass_a_batch_that_is_not_acknowledged() -> None:
    async def work(served: ServedBucket) -> None:
        await served.bucket.set(b"a", b"1")
        number = served.bucket.partition_of(b"a")
        options = ChangeConsumer(served.bucket, NAME, partitions=[number], is_automatic=False)
        async with options as consumer:
            first = await consumer.take()
            await served.bucket.set(b"a", b"2")
            second = await consumer.take()
            assert first is not None and second is not None
            consumer.ack(second)
            assert consumer.offsets[number].seq == 0
            consumer.ack(first)
            assert consumer.offsets[number].seq == 2

    with_bucket(work)


def test_lag_counts_changes_and_tells_how_old_the_last_one_is() -> None:
    async def work(served: ServedBucket) -> None:
        await served.bucket.set(b"a", b"1")
        number = served.bucket.partition_of(b"a")
        options = ChangeConsumer(served.bucket, NAME, partitions=[number], is_automatic=False)
        async with options as consumer:
            batch = await consumer.take()
            assert batch is not None
            lag = (await consumer.lag())[number]
            assert (lag.changes, lag.seconds) == (1, None)
            consumer.ack(batch)
            lag = (await consumer.lag())[number]
            assert (lag.changes, lag.seconds) == (0, 0.0)
            await served.bucket.set(b"a", b"2")
            lag = (await consumer.lag())[number]
            assert lag.changes == 1 and lag.seconds is not None and 0 <= lag.seconds < 20

    with_bucket(work)


# -- Whatever stops a stream --------------------------------------------------------------------


def test_a_lost_connection_is_made_again() -> None:
    async def work(served: ServedBucket) -> None:
        documents = some(100)
        await served.bucket.set_many(documents)
        async with Following(served, ChangeConsumer(served.bucket, NAME)) as following:
            await following.holds(documents)
            await served.stop(FIRST)
            await served.start(FIRST)
            later = some(100, b"2")
            await served.bucket.set_many(later)
            await following.holds(later)
            assert set(following.application.causes) == {BatchCause.STREAM}

    with_bucket(work)


def test_a_partition_that_moved_is_followed_at_its_new_master() -> None:
    async def work(served: ServedBucket) -> None:
        documents = some(100)
        await served.bucket.set_many(documents)
        async with Following(served, ChangeConsumer(served.bucket, NAME)) as following:
            await following.holds(documents)
            number = PartitionId(0)
            served.move(number, SECOND)
            for session in served.backends[FIRST].producers:
                session.changed(number)
            key = next(keys_of([number]))
            await served.bucket.set(key, b"after")
            await following.holds({**documents, key: b"after"})

    with_bucket(work)


def test_a_stream_that_ends_because_its_master_stopped_is_tried_until_there_is_one() -> None:
    async def work(served: ServedBucket) -> None:
        key = next(keys_of([0]))
        await served.bucket.set(key, b"1")
        async with Following(served, ChangeConsumer(served.bucket, NAME)) as following:
            await following.holds({key: b"1"})
            partition = served.partition_of(key)
            partition.set_state(PartitionState.DEAD, 2)
            await until(lambda: "partition 0 is waiting" in following.consumer.explain())
            partition.set_state(PartitionState.ACTIVE, 3)
            partition.store(key, b"2", 0, 0, 1)
            await following.holds({key: b"2"})

    with_bucket(work)


def test_what_belongs_to_another_stream_is_dropped() -> None:
    async def work(served: ServedBucket) -> None:
        async with Following(served, ChangeConsumer(served.bucket, NAME)) as following:
            await following.consumer.barrier()
            number = PartitionId(0)
            stray = Document(b"stray", b"1", Seq(1), Cas(1))
            (session,) = served.backends[FIRST].producers
            for push in (SnapshotMarker(number, Seq(0), Seq(1)), Changes(number, (stray,))):
                for frame in encode_push(push, 0x7FFF_FFFF, is_batched=True):
                    session.outlet.write(frame)
            key = next(keys_of([number]))
            await served.bucket.set(key, b"1")
            await following.holds({key: b"1"})

    with_bucket(work)


def test_a_bucket_that_is_deleted_ends_the_consumer_with_an_error() -> None:
    async def work(served: ServedBucket) -> None:
        async with ChangeConsumer(served.bucket, NAME) as consumer:
            taking = asyncio.create_task(consumer.take())
            await consumer.barrier()
            served.is_deleted = True
            await served.stop(FIRST)
            with pytest.raises(UnknownBucket):
                await taking

    with_bucket(work)


# -- Bounds -----------------------------------------------------------------------------------


def test_a_node_sends_no_more_than_the_buffer_before_it_is_acknowledged() -> None:
    async def work(served: ServedBucket) -> None:
        buffer_bytes = 64 * 1024
        value = bytes(4_000)
        await served.bucket.set_many(some(400, value))
        options = ChangeConsumer(served.bucket, NAME, is_automatic=False, buffer_bytes=buffer_bytes)
        async with options as consumer:
            await until(lambda: _unacknowledged(served) >= 2 * buffer_bytes)
            assert _unacknowledged(served) < 2 * (buffer_bytes + 300 * 1024)
            taken = 0
            while taken < 400:
                batch = await consumer.take()
                assert batch is not None
                taken += len(batch)
                consumer.ack(batch)
        received = [m for s in served.backends[FIRST].producers for m in s.received]
        assert any(isinstance(message, BufferAck) for message in received)

    with_bucket(work)


def _unacknowledged(served: ServedBucket) -> int:
    return sum(
        session.producer.stats()[f"unacknowledged_bytes:all:{NAME}"]
        for backend in served.backends.values()
        for session in backend.producers
        if session.producer.name
    )


def test_keep_alives_are_answered_on_both_sides() -> None:
    async def work(served: ServedBucket) -> None:
        consumer = ChangeConsumer(served.bucket, NAME, noop_interval_s=0.02)
        async with Following(served, consumer) as following:
            await consumer.barrier()
            sessions = [s for b in served.backends.values() for s in b.producers]
            await until(lambda: all(s.noops_answered >= 5 for s in sessions))
            assert not any(session.producer.is_lost for session in sessions)
            assert not following.task.done()
            assert len(served.backends[FIRST].producers) == 1, "no connection was given up"

    with_bucket(work)


# -- Usage ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"name": ""}, id="no-name"),
        pytest.param({"partitions": [8]}, id="no-such-partition"),
        pytest.param({"partitions": []}, id="no-partition"),
        pytest.param({"key_prefix": b"\xff"}, id="prefix-not-text"),
        pytest.param({"key_prefix": bytes(251)}, id="prefix-too-long"),
        pytest.param({"buffer_bytes": 1}, id="tiny-buffer"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, object]) -> None:
    async def work(served: ServedBucket) -> None:
        with pytest.raises(UsageError):
            ChangeConsumer(served.bucket, **{"name": NAME, **options})  # type: ignore[arg-type]

    with_bucket(work)


def test_callbacks_are_told_of_snapshots() -> None:
    async def work(served: ServedBucket) -> None:
        await served.bucket.set_many(some(100))
        batches: list[ChangeBatch] = []
        whole: list[ChangeBatch] = []
        async with ChangeConsumer(served.bucket, NAME, is_finite=True) as consumer:
            await consumer.run(batches.append, on_snapshot=whole.append)
        assert {batch.partition for batch in whole} == set(range(8))
        assert all(batch.is_whole for batch in whole)

    with_bucket(work)


def test_explain_names_every_partition_and_what_it_does() -> None:
    async def work(served: ServedBucket) -> None:
        async with Following(served, ChangeConsumer(served.bucket, NAME)) as following:
            await following.consumer.barrier()
            text = following.consumer.explain()
        assert text.count("is streaming at seq 0") == 8

    with_bucket(work)
