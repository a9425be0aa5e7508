"""`barrier()`: all that was acknowledged to writers before has been handed out."""

import asyncio

from millrace.client.changes import ChangeConsumer
from tests.support.applied_changes import Following
from tests.support.change_sessions import ProducerSession
from tests.support.document_backend import keys_of
from tests.support.served_bucket import NODES, ServedBucket, until, with_bucket

FIRST = NODES[0]
NAME = "test:1"
EVEN_KEY = next(keys_of([0]))  # Of a partition of the first node.


def test_all_that_was_written_before_is_there_afterwards() -> None:
    async def work(served: ServedBucket) -> None:
        async with Following(served, ChangeConsumer(served.bucket, NAME)) as following:
            for turn in range(20):
                documents = {b"key-%d" % at: b"%d" % turn for at in range(30)}
                await served.bucket.set_many(documents)
                await following.consumer.barrier()
                assert following.application.values == documents

    with_bucket(work)


def test_a_barrier_is_passed_at_once_when_nothing_changes() -> None:
    async def work(served: ServedBucket) -> None:
        async with Following(served, ChangeConsumer(served.bucket, NAME)) as following:
            for _ in range(3):
                await following.consumer.barrier()

    with_bucket(work)


def test_several_barriers_may_wait() -> None:
    async def work(served: ServedBucket) -> None:
        await served.bucket.set_many({b"key-%d" % at: b"1" for at in range(300)})
        async with Following(served, ChangeConsumer(served.bucket, NAME)) as following:
            await asyncio.gather(*(following.consumer.barrier() for _ in range(10)))
            assert len(following.application.values) == 300

    with_bucket(work)


def sessions_of(served: ServedBucket) -> list[ProducerSession]:
    return [session for backend in served.backends.values() for session in backend.producers]


async def settle(served: ServedBucket) -> None:
    """What is on its way arrives meanwhile."""
    for _ in range(20):
        await served.bucket.get(b"nothing")


def test_a_barrier_waits_until_every_node_has_returned_it() -> None:
    async def work(served: ServedBucket) -> None:
        async with Following(served, ChangeConsumer(served.bucket, NAME)) as following:
            await following.consumer.barrier()
            first, second = sessions_of(served)
            first.hold()
            await served.bucket.set(EVEN_KEY, b"1")
            waiting = asyncio.create_task(following.consumer.barrier())
            await until(lambda: second.barriers_reached == 2)
            await settle(served)
            assert not waiting.done()
            first.release()
            await waiting
            assert following.application.values == {EVEN_KEY: b"1"}

    with_bucket(work)


def test_a_barrier_waits_for_the_acknowledgement() -> None:
    async def work(served: ServedBucket) -> None:
        await served.bucket.set(b"a", b"1")
        async with ChangeConsumer(served.bucket, NAME, is_automatic=False) as consumer:
            batch = await consumer.take()
            assert batch is not None
            waiting = asyncio.create_task(consumer.barrier())
            await until(lambda: all(s.barriers_reached for s in sessions_of(served)))
            await settle(served)
            assert not waiting.done()
            consumer.ack(batch)
            await waiting

    with_bucket(work)


def test_a_barrier_waits_for_a_node_that_is_away() -> None:
    async def work(served: ServedBucket) -> None:
        async with Following(served, ChangeConsumer(served.bucket, NAME)) as following:
            await following.consumer.barrier()
            await served.stop(FIRST)
            await until(lambda: "is streaming" not in _line_of(following, 0))
            waiting = asyncio.create_task(following.consumer.barrier())
            served.partition_of(EVEN_KEY).store(EVEN_KEY, b"1", 0, 0, 1)
            assert not waiting.done()
            await served.start(FIRST)
            await waiting
            assert following.application.values == {EVEN_KEY: b"1"}

    with_bucket(work)


def test_a_barrier_that_a_lost_connection_broke_is_tried_again() -> None:
    async def work(served: ServedBucket) -> None:
        async with Following(served, ChangeConsumer(served.bucket, NAME)) as following:
            await following.consumer.barrier()
            first, second = sessions_of(served)
            first.hold()
            waiting = asyncio.create_task(following.consumer.barrier())
            await until(lambda: second.barriers_reached == 2)
            await served.stop(FIRST)
            await served.start(FIRST)
            await waiting
            text = following.consumer.explain()
            assert text.count("is streaming") == 8

    with_bucket(work)


def _line_of(following: Following, number: int) -> str:
    return following.consumer.explain().splitlines()[1 + number]
