"""Changes that a failover took back: what a consumer hands out, and what it keeps when (U1, U2)."""

import random
from collections.abc import Sequence

import pytest

from millrace.client.changes import BatchCause, ChangeConsumer, MemoryConsumerState
from millrace.client.changes.states import StateChange
from millrace.core.documents.document import Document, FailoverId, PartitionId, Seq
from millrace.core.documents.partition import Partition
from millrace.core.documents.ring_buffer import RING_ENTRIES_DEFAULT
from tests.support.applied_changes import Following
from tests.support.document_backend import FAILOVER_ID, keys_of
from tests.support.served_bucket import ServedBucket, until, with_bucket

NAME = "test:1"
NUMBER = PartitionId(0)
NEXT_ID = FailoverId(0xBEEF)
_keys = keys_of([NUMBER])
KEYS = [next(_keys) for _ in range(20)]


def consumer_of(served: ServedBucket, state: MemoryConsumerState, **more: bool) -> ChangeConsumer:
    return ChangeConsumer(served.bucket, NAME, state, partitions=[NUMBER], **more)


async def write(served: ServedBucket, keys: Sequence[bytes], value: bytes = b"1") -> None:
    for key in keys:
        await served.bucket.set(key, value)


def test_what_the_new_master_does_not_have_is_taken_back() -> None:
    async def work(served: ServedBucket) -> None:
        await write(served, KEYS[:5])
        consumer = consumer_of(served, MemoryConsumerState())
        async with Following(served, consumer) as following:
            await following.holds(dict.fromkeys(KEYS[:5], b"1"))
            served.fail_over(NUMBER, Seq(3), NEXT_ID)
            await write(served, KEYS[5:6], b"2")
            await following.holds({**dict.fromkeys(KEYS[:3], b"1"), KEYS[5]: b"2"})
            assert following.application.causes.count(BatchCause.ROLLBACK) == 1
            assert BatchCause.WIPE not in following.application.causes

    with_bucket(work)


def test_what_the_new_master_has_in_another_version_comes_in_that_version() -> None:
    async def work(served: ServedBucket) -> None:
        await write(served, KEYS[:5])
        consumer = consumer_of(served, MemoryConsumerState())
        async with Following(served, consumer) as following:
            await following.holds(dict.fromkeys(KEYS[:5], b"1"))
            copy = served.fail_over(NUMBER, Seq(3), NEXT_ID)
            copy.store(KEYS[4], b"other", 0, 0, 1)
            await following.holds({**dict.fromkeys(KEYS[:3], b"1"), KEYS[4]: b"other"})

    with_bucket(work)


def test_the_offset_names_the_new_history_afterwards() -> None:
    async def work(served: ServedBucket) -> None:
        await write(served, KEYS[:5])
        state = MemoryConsumerState()
        consumer = consumer_of(served, state)
        async with Following(served, consumer) as following:
            await following.holds(dict.fromkeys(KEYS[:5], b"1"))
            served.fail_over(NUMBER, Seq(3), NEXT_ID)
            await following.holds(dict.fromkeys(KEYS[:3], b"1"))
            await until(lambda: state.load(NUMBER).state.log.newest == NEXT_ID)
            assert consumer.offsets[NUMBER].seq == 3
            assert consumer.offsets[NUMBER].log == (
                (f"{NEXT_ID:016x}", 3),
                (f"{FAILOVER_ID:016x}", 0),
            )

    with_bucket(work)


@pytest.mark.parametrize(
    ("entries_max", "start"),
    [
        pytest.param(2, 2, id="below-the-ring-buffer"),
        pytest.param(RING_ENTRIES_DEFAULT, 0, id="to-the-beginning"),
    ],
)
def test_what_cannot_be_undone_is_forgotten_and_comes_again(entries_max: int, start: int) -> None:
    async def work(served: ServedBucket) -> None:
        await write(served, KEYS[:5])
        consumer = consumer_of(served, MemoryConsumerState(entries_max))
        async with Following(served, consumer) as following:
            await following.holds(dict.fromkeys(KEYS[:5], b"1"))
            served.fail_over(NUMBER, Seq(start), NEXT_ID)
            await write(served, KEYS[7:8], b"2")
            await following.holds({**dict.fromkeys(KEYS[:start], b"1"), KEYS[7]: b"2"})
            assert BatchCause.WIPE in following.application.causes
            assert BatchCause.ROLLBACK not in following.application.causes

    with_bucket(work)


def test_rollbacks_go_to_their_callback() -> None:
    async def work(served: ServedBucket) -> None:
        await write(served, KEYS[:2])
        causes: list[BatchCause] = []
        streamed: list[bytes] = []
        async with consumer_of(served, MemoryConsumerState(), is_finite=True) as consumer:
            await consumer.run(lambda batch: streamed.extend(d.key for d in batch.documents))
        assert streamed == KEYS[:2]
        state = MemoryConsumerState()
        async with consumer_of(served, state, is_finite=True) as consumer:
            await consumer.run(lambda _: None)
        served.fail_over(NUMBER, Seq(1), NEXT_ID)
        async with consumer_of(served, state, is_finite=True) as consumer:
            await consumer.run(lambda _: None, on_rollback=lambda batch: causes.append(batch.cause))
        assert causes == [BatchCause.ROLLBACK]

    with_bucket(work)


# -- What is durable before what --------------------------------------------------------------


class GatedState(MemoryConsumerState):
    """Writes wait while it is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open = True
        self.written: list[StateChange] = []

    async def write(self, changes: Sequence[StateChange]) -> None:
        await until(lambda: self.is_open)
        self.written += changes
        await super().write(changes)


def test_no_document_is_handed_out_before_its_key_is_kept() -> None:
    async def work(served: ServedBucket) -> None:
        state = GatedState()
        async with Following(served, consumer_of(served, state)) as following:
            await following.consumer.barrier()
            state.is_open = False
            await write(served, KEYS[:1])
            lines = following.consumer.explain
            await until(lambda: "1 batches are not acknowledged" in lines())
            assert following.application.batches == []
            state.is_open = True
            await following.holds({KEYS[0]: b"1"})
            assert [entry.key for entry in state.load(NUMBER).entries] == KEYS[:1]

    with_bucket(work)


def test_a_rollback_waits_until_what_was_handed_out_is_acknowledged() -> None:
    async def work(served: ServedBucket) -> None:
        await write(served, KEYS[:5])
        state = MemoryConsumerState()
        async with consumer_of(served, state, is_automatic=False) as consumer:
            first = await consumer.take()
            assert first is not None
            served.fail_over(NUMBER, Seq(3), NEXT_ID)
            await until(lambda: "a rollback waits for that" in consumer.explain())
            assert state.load(NUMBER).state.undo is None
            consumer.ack(first)
            undone = await consumer.take()
            assert undone is not None and undone.cause is BatchCause.ROLLBACK
            assert state.load(NUMBER).state.undo == 3

    with_bucket(work)


def test_the_new_history_is_kept_only_after_the_undo_is_acknowledged() -> None:
    async def work(served: ServedBucket) -> None:
        await write(served, KEYS[:5])
        state = MemoryConsumerState()
        async with consumer_of(served, state, is_automatic=False) as consumer:
            first = await consumer.take()
            assert first is not None
            consumer.ack(first)
            served.fail_over(NUMBER, Seq(3), NEXT_ID)
            undone = await consumer.take()
            assert undone is not None and undone.cause is BatchCause.ROLLBACK
            await consumer.commit()
            assert state.load(NUMBER).state.log.newest == FAILOVER_ID
            consumer.ack(undone)
            await until(lambda: state.load(NUMBER).state.log.newest == NEXT_ID)
            assert state.load(NUMBER).state.undo is None

    with_bucket(work)


def test_an_undo_that_was_broken_off_is_done_again() -> None:
    async def work(served: ServedBucket) -> None:
        await write(served, KEYS[:5])
        state = MemoryConsumerState()
        async with consumer_of(served, state, is_automatic=False) as consumer:
            first = await consumer.take()
            assert first is not None
            consumer.ack(first)
            served.fail_over(NUMBER, Seq(3), NEXT_ID)
            assert await consumer.take() is not None
        async with consumer_of(served, state) as consumer:
            again = await consumer.take()
            assert again is not None and again.cause is BatchCause.ROLLBACK
            assert {d.key for d in again.documents if d.is_deleted} == set(KEYS[3:5])

    with_bucket(work)


def test_a_state_that_cannot_be_written_is_told_to_whoever_takes() -> None:
    class Broken(MemoryConsumerState):
        async def write(self, changes: Sequence[StateChange]) -> None:
            raise OSError("the disk is gone")

    async def work(served: ServedBucket) -> None:
        await write(served, KEYS[:1])
        async with consumer_of(served, Broken()) as consumer:
            with pytest.raises(OSError, match="the disk is gone"):
                await consumer.take()

    with_bucket(work)


# -- Convergence ------------------------------------------------------------------------------


class RandomLife:
    """A master that changes, fails over and loses its connections, followed by a consumer that is
    started anew from what it kept."""

    def __init__(self, served: ServedBucket, seed: int) -> None:
        self.served = served
        self.random = random.Random(seed)
        self.history: list[Document] = []
        self.last_id = NEXT_ID
        self.state = MemoryConsumerState(self.random.choice((3, 8, RING_ENTRIES_DEFAULT)))

    def master(self) -> Partition:
        found = self.served.host(self.served.owner(NUMBER)).active(NUMBER)
        assert found is not None
        return found

    def change(self) -> None:
        key = self.random.choice(KEYS)
        if self.random.random() < 0.2:
            deleted = self.master().delete(key, 1)
            self.history += [deleted] if deleted is not None else []
        else:
            value = b"%d" % self.random.randrange(1_000_000)
            self.history.append(self.master().store(key, value, 0, 0, 1))

    def fail_over(self) -> None:
        seq = Seq(self.random.randint(0, self.master().high))
        self.last_id = FailoverId(self.last_id + 1)
        self.served.fail_over(NUMBER, seq, self.last_id, self.history)
        self.history = [document for document in self.history if document.seq <= seq]

    def wanted(self) -> dict[bytes, bytes | None]:
        live = {d.key: d for d in self.master().table.values() if not d.is_deleted}
        return {key: document.value for key, document in live.items()}


@pytest.mark.parametrize("seed", range(30))
def test_in_the_end_the_application_has_what_the_master_has(seed: int) -> None:
    async def work(served: ServedBucket) -> None:
        life = RandomLife(served, seed)
        kept: dict[bytes, Document] = {}
        for _ in range(4):
            async with Following(served, consumer_of(served, life.state)) as following:
                following.application.documents = kept
                for _ in range(life.random.randint(1, 15)):
                    step = life.random.random()
                    if step < 0.15:
                        life.fail_over()
                    else:
                        life.change()
                    if step > 0.7:
                        await until(lambda: following.application.values == life.wanted())
        async with Following(served, consumer_of(served, life.state)) as following:
            following.application.documents = kept
            await until(lambda: following.application.values == life.wanted())

    with_bucket(work)
