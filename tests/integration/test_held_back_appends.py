"""Appends wait for nodes when too few are alive, and go on when those are back."""

import asyncio

import pytest

from millrace.client import UnknownAppend
from millrace.core.epochs import EpochRecord
from millrace.local import LocalCluster
from millrace.types import Record
from tests.support.clusters import MakeCluster, connected, kill, run, start

pytestmark = pytest.mark.alone

HELD_BACK_MS = 12_000  # By then the sequencer tries again every eight seconds, or less often.
SOON_S = 4.0


def test_an_append_goes_on_soon_after_a_node_is_back(make_cluster: MakeCluster) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await client.create_log("events")
            await log.append(b"before")
            assert isinstance(log.standing, EpochRecord)
            needed = {1, log.standing.sequencer}
            dead = [node.id for node in cluster.nodes if node.id not in needed][:3]
            await kill(cluster, *dead)
            with pytest.raises(UnknownAppend) as held_back:
                await log.append(b"held back", timeout_ms=HELD_BACK_MS)
            await start(cluster, dead[0])
            async with asyncio.timeout(SOON_S):
                await log.resume(held_back.value)
            async with await log.read() as reader:
                values = [item.value async for item in reader if isinstance(item, Record)]
            assert values == [b"before", b"held back"]

    run(body(make_cluster(5)))
