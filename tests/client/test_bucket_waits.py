"""Waiting with a token, and asking how far copies are."""

import asyncio

import pytest

from millrace.core.documents.document import FailoverId, PartitionState
from millrace.core.documents.failover_log import NO_LOG
from millrace.core.documents.map import Seat
from millrace.core.documents.messages import MutationToken
from millrace.core.documents.partition import Partition
from millrace.core.documents.waits import Durability, WaitOutcome
from millrace.errors import (
    DurabilityImpossible,
    DurabilityUnknown,
    HistoryChanged,
    UsageError,
)
from millrace.types import NodeId
from tests.support.document_backend import MemoryHost
from tests.support.served_bucket import NODES, ServedBucket, until, with_bucket

KEY = b"ann"
SHORT_MS = 150


async def changed(served: ServedBucket) -> MutationToken:
    return (await served.bucket.set(KEY, b"1")).token


def test_it_ends_when_the_node_says_it_is_persisted() -> None:
    async def work(served: ServedBucket) -> None:
        token = await changed(served)
        host = served.host_of(KEY)
        host.is_everything_safe = False
        waiting = asyncio.create_task(served.bucket.wait(token))
        await until(lambda: bool(host.waits))
        asked, condition, future = host.waits[0]
        assert (asked.seq, asked.id, condition) == (token.seq, token.id, Durability.PERSISTED)
        assert not waiting.done()
        future.set_result(WaitOutcome.OK)
        await waiting

    with_bucket(work)


def test_another_history_is_told() -> None:
    async def work(served: ServedBucket) -> None:
        token = await changed(served)
        stale = MutationToken(token.partition, FailoverId(0xDEAD), token.seq, token.cas)
        with pytest.raises(HistoryChanged) as raised:
            await served.bucket.wait(stale)
        assert not raised.value.is_definite
        with pytest.raises(HistoryChanged):
            await served.bucket.observe(stale)

    with_bucket(work)


def test_what_is_not_safe_in_time_is_not_known_to_be() -> None:
    async def work(served: ServedBucket) -> None:
        token = await changed(served)
        served.host_of(KEY).is_everything_safe = False
        with pytest.raises(DurabilityUnknown):
            await served.bucket.wait(token, timeout_ms=SHORT_MS)

    with_bucket(work)


@pytest.mark.parametrize(
    ("persisted", "replicas", "error"),
    [
        pytest.param(False, 0, UsageError, id="for-nothing"),
        pytest.param(True, -1, UsageError, id="fewer-than-none"),
        pytest.param(True, 1, DurabilityImpossible, id="more-than-there-are"),
    ],
)
def test_what_cannot_be_waited_for(persisted: bool, replicas: int, error: type[Exception]) -> None:
    async def work(served: ServedBucket) -> None:
        token = await changed(served)
        with pytest.raises(error):
            await served.bucket.wait(token, persisted=persisted, replicas=replicas)

    with_bucket(work)


def test_observing_tells_where_the_master_stands() -> None:
    async def work(served: ServedBucket) -> None:
        token = await changed(served)
        (observed,) = await served.bucket.observe(token)
        assert (observed.partition, observed.id) == (token.partition, token.id)
        assert (observed.high, observed.persisted) == (1, 0)

    with_bucket(work)


# -- Replicas ---------------------------------------------------------------------------------


async def changed_with_replica(
    served: ServedBucket,
) -> tuple[MutationToken, MemoryHost, MemoryHost]:
    """A change, its master, and another node that has a copy of the partition."""
    token = await changed(served)
    master = served.owner(token.partition)
    (replica,) = (node for node in NODES if node != master)
    copy = Partition(token.partition)
    copy.finish_undo(served.partition_of(KEY).log)
    copy.set_state(PartitionState.REPLICA, 1)
    hosts = served.host(master), served.host(replica)
    hosts[1]._partitions[token.partition] = copy
    seats = list(served.record.seats)
    before = seats[token.partition]
    seats[token.partition] = Seat(before.term + 1, before.id, master, (replica,))
    served.replace(seats)
    await served.bucket.asker.map.reload()
    return token, *hosts


def _other(served: ServedBucket, token: MutationToken) -> NodeId:
    """The node of the replica."""
    (node,) = served.record.seat(token.partition).replicas
    return node


@pytest.mark.parametrize(
    ("persisted", "condition"),
    [
        pytest.param(True, Durability.PERSISTED, id="persisted"),
        pytest.param(False, Durability.ARRIVED, id="arrived"),
    ],
)
def test_master_and_replica_have_to_say_so(persisted: bool, condition: Durability) -> None:
    async def work(served: ServedBucket) -> None:
        token, master, replica = await changed_with_replica(served)
        replica.is_everything_safe = False
        waiting = asyncio.create_task(served.bucket.wait(token, persisted=persisted, replicas=1))
        await until(lambda: bool(replica.waits))
        asked, wanted, future = replica.waits[0]
        assert (asked.seq, asked.id, wanted) == (token.seq, token.id, condition)
        assert not waiting.done()
        future.set_result(WaitOutcome.OK)
        await waiting
        assert not master.waits

    with_bucket(work)


def test_a_replica_that_has_not_heard_of_the_id_yet_is_asked_again() -> None:
    async def work(served: ServedBucket) -> None:
        token, _, replica = await changed_with_replica(served)
        copy = replica._partitions[token.partition]
        log, copy.log = copy.log, NO_LOG
        waiting = asyncio.create_task(served.bucket.wait(token, replicas=1))
        address = served.fronts[_other(served, token)].address
        await until(lambda: served.bucket.asker.patient.current(address) is not None)
        assert not waiting.done()
        copy.log = log
        await waiting

    with_bucket(work)


def test_a_replica_that_is_away_leaves_it_unknown() -> None:
    async def work(served: ServedBucket) -> None:
        token, _, _ = await changed_with_replica(served)
        await served.stop(_other(served, token))
        with pytest.raises(DurabilityUnknown, match="0 of 1 replicas"):
            await served.bucket.wait(token, replicas=1, timeout_ms=SHORT_MS)

    with_bucket(work)


def test_observing_tells_where_replicas_stand() -> None:
    async def work(served: ServedBucket) -> None:
        token, _, _ = await changed_with_replica(served)
        of_master, of_replica = await served.bucket.observe(token)
        assert (of_master.high, of_replica.high) == (1, 0)

    with_bucket(work)
