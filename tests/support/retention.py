"""Filling a log that forgets by size."""

import random
from collections.abc import Awaitable, Callable

from millrace.client import Client, Log
from millrace.limits import KIB
from tests.support.clusters import eventually

RECORDS = 50
RECORD_BYTES = 20 * KIB


async def forget_by_size(
    client: Client, log: Log, kept: int, bytes_of: Callable[[Client, Log], Awaitable[int]]
) -> None:
    """Append RECORDS until little more than `kept` bytes are left, and no less."""
    choices = random.Random(1)
    for _ in range(RECORDS):
        await log.append(choices.randbytes(RECORD_BYTES))
    size = await eventually(
        lambda: bytes_of(client, log),
        lambda size: size < kept + 3 * RECORD_BYTES,
        what="retention by size",
    )
    assert size >= kept
