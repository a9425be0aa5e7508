"""Questions of a sequenced log that need the metadata repository, while that is away."""

import re

import pytest

from millrace.client import Log
from millrace.errors import MetadataUnavailable, TimedOut
from tests.support.clusters import MakeCluster, connected, kill, run

METADATA_NODE = 1
USERS_MS = 20_000  # Longer than the repository is asked.


@pytest.mark.parametrize("question", ["bounds", "read"])
def test_who_was_asked_how_often_and_how_long(make_cluster: MakeCluster, question: str) -> None:
    cluster = make_cluster(3)

    async def ask(log: Log) -> object:
        return await (log.bounds(timeout_ms=USERS_MS) if question == "bounds" else log.read())

    async def body() -> None:
        async with connected(cluster) as client:
            log = await client.create_log("events", replication=2)
            await log.append(b"one")
            await kill(cluster, METADATA_NODE)
            with pytest.raises(MetadataUnavailable) as raised:
                await ask(log)
        told = str(raised.value)
        address = re.escape(cluster.addresses[METADATA_NODE - 1])
        assert re.search(f"repository at {address} does not answer, asked \\d+ times", told), told
        assert "within 5000 ms: " in told
        assert "cannot be reached" in told, "why, and not that the last try was cut short"

    run(body())


def test_a_time_that_is_shorter_is_the_one_that_is_told(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(3)

    async def body() -> None:
        async with connected(cluster) as client:
            log = await client.create_log("events", replication=2)
            await kill(cluster, METADATA_NODE)
            with pytest.raises(TimedOut, match=r"the metadata repository .* within 700 ms"):
                await log.bounds(timeout_ms=700)

    run(body())
