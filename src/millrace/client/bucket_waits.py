"""Waiting until a change is safe: on the master's disk, on replicas (R-H, U6).

A node is asked to answer when it is so, on a connection where nobody else waits; or is asked how
far it is (`observe`), by whoever would rather poll.

I1  Success means that every node which counts said so itself, under the failover id of the change.
I2  When the master has another id than the change, no more is waited for: HistoryChanged.
"""

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final

from millrace.client.bucket_asking import GRACE_MS, PAUSE_MS, PAUSE_MS_MAX, Asker
from millrace.client.bucket_results import status_word
from millrace.codec.memcached.binary import Response, encode_request
from millrace.codec.memcached.observing import (
    Observed,
    SeqWait,
    decode_observed,
    encode_observe,
    encode_seq_wait,
)
from millrace.codec.memcached.opcodes import Opcode, Status
from millrace.core.documents.messages import MutationToken, WaitKind
from millrace.errors import (
    DurabilityImpossible,
    DurabilityUnknown,
    HistoryChanged,
    PartitionUnavailable,
    ProtocolError,
    Unavailable,
    UsageError,
)

TIMEOUT_MS: Final = 30_000


async def wait(
    asker: Asker, token: MutationToken, persisted: bool, replicas: int, timeout_ms: int
) -> None:
    known = len(asker.map.record.seat(token.partition).replicas)
    if replicas < 0 or (not persisted and not replicas):
        raise UsageError("wait for persisted=True, for replicas=1 or more, or for both")
    if replicas > known:
        raise DurabilityImpossible(
            f"partition {token.partition} has {known} replicas, and {replicas} are waited for"
        )
    until_s = asyncio.get_running_loop().time() + timeout_ms / 1000
    kind = WaitKind.PERSISTED if persisted else WaitKind.ARRIVED
    waits: list[Coroutine[Any, Any, None]] = [_wait_master(asker, token, kind, timeout_ms)]
    if replicas:
        waits.append(_wait_replicas(asker, token, kind, replicas, until_s))
    tasks = [asyncio.create_task(each) for each in waits]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _wait_master(asker: Asker, token: MutationToken, kind: WaitKind, timeout_ms: int) -> None:
    try:
        response = await asker.ask(
            token.partition,
            partial(_encode_wait, token, kind, timeout_ms),
            timeout_ms + GRACE_MS,
            is_change=False,
            is_patient=True,
        )
    except PartitionUnavailable as error:
        raise DurabilityUnknown(f"the change is not known to be safe: {error}") from error
    if response.status == Status.WRONG_FAILOVER_ID:
        raise _history_changed(token)  # Keeps I2.
    if response.status != Status.SUCCESS:
        raise ProtocolError(f"a wait was answered with {status_word(response.status)}")


async def _wait_replicas(
    asker: Asker, token: MutationToken, kind: WaitKind, count: int, until_s: float
) -> None:
    """Until so many of them have it.  Whether the id still holds is the master's to say."""
    addresses = asker.map.replicas(token.partition)
    tasks = [asyncio.create_task(_wait_replica(asker, a, token, kind, until_s)) for a in addresses]
    having = 0
    try:
        for done in asyncio.as_completed(tasks):
            having += await done
            if having >= count:
                return
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    raise DurabilityUnknown(f"{having} of {count} replicas have the change so far")


async def _wait_replica(
    asker: Asker, address: str, token: MutationToken, kind: WaitKind, until_s: float
) -> bool:
    """Whether it has it in time.  A replica that is away, or has not heard of the failover id yet,
    is asked again."""
    loop = asyncio.get_running_loop()
    pause_ms = PAUSE_MS
    while (left_ms := int((until_s - loop.time()) * 1000)) > 0:
        encode = partial(_encode_wait, token, kind, left_ms)
        try:
            async with asyncio.timeout_at(until_s):
                link = await asker.patient.get(address)
                response = await link.ask(encode, left_ms + GRACE_MS)
        except (TimeoutError, Unavailable):
            pass
        else:
            if response.status == Status.SUCCESS:
                return True
        await asyncio.sleep(pause_ms / 1000)
        pause_ms = min(2 * pause_ms, PAUSE_MS_MAX)
    return False


def _encode_wait(token: MutationToken, kind: WaitKind, timeout_ms: int, opaque: int) -> bytes:
    return encode_request(
        Opcode.SEQ_PERSISTENCE,
        extras=encode_seq_wait(SeqWait(token.seq, token.id, kind, timeout_ms)),
        partition=token.partition,
        opaque=opaque,
    )


# -- Polling ----------------------------------------------------------------------------------


async def observe(asker: Asker, token: MutationToken, timeout_ms: int) -> tuple[Observed, ...]:
    response = await asker.ask(
        token.partition,
        partial(_encode_observe, token),
        timeout_ms,
        is_change=False,
    )
    of_master = _observed(response, token)
    replicas = asker.map.replicas(token.partition)
    asks = (_observe_replica(asker, address, token, timeout_ms) for address in replicas)
    of_replicas = await asyncio.gather(*asks)
    return of_master, *(each for each in of_replicas if each is not None)


def _observed(response: Response, token: MutationToken) -> Observed:
    if response.status == Status.NOT_FOUND:
        raise _history_changed(token)
    if response.status != Status.SUCCESS:
        raise ProtocolError(f"an observation was answered with {status_word(response.status)}")
    observed = decode_observed(response.value)
    if observed.old_id is not None and token.seq > observed.old_last:
        raise _history_changed(token)
    return observed


async def _observe_replica(
    asker: Asker, address: str, token: MutationToken, timeout_ms: int
) -> Observed | None:
    """None: it does not answer, or knows nothing of the id yet."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            link = await asker.quick.get(address)
            response = await link.ask(partial(_encode_observe, token), timeout_ms)
        return _observed(response, token)
    except (TimeoutError, Unavailable, ProtocolError):
        return None


def _encode_observe(token: MutationToken, opaque: int) -> bytes:
    return encode_request(
        Opcode.OBSERVE_SEQ,
        value=encode_observe(token.id),
        partition=token.partition,
        opaque=opaque,
    )


def _history_changed(token: MutationToken) -> HistoryChanged:
    return HistoryChanged(
        f"partition {token.partition} has got another master since failover id {token.id:016x}: "
        f"change {token.seq} may be lost; read the document"
    )
