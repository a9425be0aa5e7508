"""Every call of a log ends within the time it was given, with the error that is true."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest

from millrace.client import Log, UnknownAppend
from millrace.errors import TimedOut
from millrace.local import LocalCluster
from tests.support.clusters import connected, eventually, projection_of, run, whole_chain
from tests.support.load import read_all

SHORT_MS = 300
PATIENCE_S = 2.5  # Short, and time for a busy machine; far below what a node may take to answer.


@contextmanager
def paused(cluster: LocalCluster, *numbers: int) -> Iterator[None]:
    for number in numbers:
        cluster.pause(number)
    try:
        yield
    finally:
        for number in numbers:
            cluster.resume(number)


async def in_time(
    operation: Awaitable[object], error: type[Exception]
) -> pytest.ExceptionInfo[Exception]:
    began_s = time.monotonic()
    with pytest.raises(error) as raised:
        await operation
    assert time.monotonic() - began_s < PATIENCE_S
    return raised


async def blocks_in_flight(log: Log) -> int:
    return log._batcher.in_flight


def test_an_append_that_shares_a_block_keeps_its_own_time(three_nodes: LocalCluster) -> None:
    async def body() -> None:
        async with connected(three_nodes) as client:
            log = await client.create_log("limits-shared", write_path="chain")
            await log.append(b"before")
            with paused(three_nodes, log.projection.tail):
                patient = asyncio.create_task(log.append(b"patient"))
                raised = await in_time(log.append(b"hurried", timeout_ms=SHORT_MS), UnknownAppend)
                assert not patient.done()
            assert isinstance(raised.value, UnknownAppend)
            settled = await log.resume(raised.value)
            values = (await read_all(log)).values
            assert values[settled.first] == b"hurried"
            assert values[await patient] == b"patient"
            assert len(values) == 3
            await whole_chain(client, log.info.id)

    run(body())


def test_resuming_waits_for_a_block_that_is_under_way_no_longer_than_it_may(
    three_nodes: LocalCluster,
) -> None:
    async def body() -> None:
        async with connected(three_nodes) as client:
            log = await client.create_log("limits-resumed", write_path="chain")
            await log.append(b"before")
            with paused(three_nodes, log.projection.tail):
                patient = asyncio.create_task(log.append(b"patient"))
                raised = await in_time(log.append(b"hurried", timeout_ms=SHORT_MS), UnknownAppend)
                assert isinstance(raised.value, UnknownAppend)
                raised = await in_time(log.resume(raised.value, timeout_ms=SHORT_MS), UnknownAppend)
            assert isinstance(raised.value, UnknownAppend)
            first, second = await patient, (await log.resume(raised.value)).first
            assert {first, second} <= (await read_all(log)).values.keys()
            await whole_chain(client, log.info.id)

    run(body())


def test_an_append_behind_others_is_not_appended_once_its_time_is_up(
    three_nodes: LocalCluster,
) -> None:
    async def body() -> None:
        async with connected(three_nodes) as client:
            log = await client.create_log("limits-queued", write_path="chain")
            await log.append(b"before")
            with paused(three_nodes, log.projection.tail):
                patient = asyncio.create_task(log.append(b"patient"))
                await eventually(lambda: blocks_in_flight(log), what="a block under way")
                await in_time(log.append(b"hurried", timeout_ms=SHORT_MS), TimedOut)
            await patient
            assert sorted((await read_all(log)).values.values()) == [b"before", b"patient"]
            await whole_chain(client, log.info.id)

    run(body())


ASKED: dict[str, Callable[[Log], Awaitable[object]]] = {
    "peek": lambda log: log.peek(timeout_ms=SHORT_MS),
    "bounds": lambda log: log.bounds(timeout_ms=SHORT_MS),
    "resolve": lambda log: log.resolve("-1", timeout_ms=SHORT_MS),
    "resolve time": lambda log: log.resolve("@1", timeout_ms=SHORT_MS),
    "get": lambda log: log.get("end", timeout_ms=SHORT_MS),
}


@pytest.mark.parametrize("asked", ASKED)
def test_a_question_ends_in_its_time(three_nodes: LocalCluster, asked: str) -> None:
    async def body() -> None:
        async with connected(three_nodes) as client:
            log = await client.create_log(f"limits-{asked.replace(' ', '-')}", write_path="chain")
            await log.append(b"one")
            with paused(three_nodes, *(node.id for node in three_nodes.nodes)):
                await in_time(ASKED[asked](log), TimedOut)
            await whole_chain(client, log.info.id)

    run(body())


def test_a_description_only_looks(three_nodes: LocalCluster) -> None:
    """A node that does not answer is shown so, and stays in the chain."""

    async def body() -> None:
        async with connected(three_nodes) as client:
            log = await client.create_log("limits-described", write_path="chain")
            await log.append(b"one")
            before = await projection_of(client, log.info.id)
            whole = await log.describe()
            assert (whole.trim_end, whole.readable_end, whole.issued_last) == (1, 2, 1)
            assert all(member is not None for member in whole.members.values())
            silent = next(node for node in before.chain if node not in (1, before.sequencer))
            with paused(three_nodes, silent):
                described = await log.describe(timeout_ms=3 * SHORT_MS)
            assert [node for node, told in described.members.items() if told is None] == [silent]
            assert described.issued_last == 1
            is_tail = silent == before.tail
            assert described.readable_end == (None if is_tail else 2)
            assert await projection_of(client, log.info.id) == before

    run(body())


def test_a_description_follows_a_chain_that_has_changed(three_nodes: LocalCluster) -> None:
    async def body() -> None:
        async with connected(three_nodes) as one, connected(three_nodes) as two:
            log = await one.create_log("limits-followed", write_path="chain")
            await log.append(b"one")
            sealed = await (await two.log("limits-followed")).seal()
            described = await log.describe()
            assert described.projection == sealed
            assert described.readable_end == 2

    run(body())
