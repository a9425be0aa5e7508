"""A bucket in memory, served on the loop behind sync calls, as tasks of Spark use it."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack

import pytest

from millrace.client.loop_thread import run
from millrace.core.documents.waits import WaitOutcome
from tests.support.document_backend import MemoryHost
from tests.support.served_bucket import ServedBucket, end_waits, served_bucket


@pytest.fixture
def served() -> Iterator[ServedBucket]:
    stack = AsyncExitStack()
    yield run(stack.enter_async_context(served_bucket()))
    run(stack.aclose())


def ending_waits(host: MemoryHost, outcomes: Iterable[WaitOutcome]) -> "asyncio.Task[None]":
    """Nothing is safe before these waits of durability have ended, which the caller goes on to."""
    host.is_everything_safe = False

    async def begin() -> "asyncio.Task[None]":
        return asyncio.create_task(end_waits(host, outcomes))

    return run(begin())
