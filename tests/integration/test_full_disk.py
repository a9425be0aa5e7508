"""Full disks: writes are refused with words, reads go on, trimming makes room."""

import random
from pathlib import Path

import pytest

from millrace.client import Log
from millrace.config import StoreSettings
from millrace.errors import DiskFull
from millrace.limits import KIB, MIB
from millrace.local import LocalCluster
from millrace.types import Lsn, Record
from tests.support.clusters import (
    MakeCluster,
    assert_members_equal,
    connected,
    eventually,
    metrics_of,
    run,
    whole_chain,
)
from tests.support.load import read_all

VALUE_BYTES = 200 * KIB


def test_when_all_are_full_writes_are_refused_and_trimming_makes_room(
    make_cluster: MakeCluster,
) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await client.create_log("events", compression=False, write_path="chain")
            taken = await fill(log)
            assert (await read_all(log)).values == taken
            found = await log.get(1)
            assert isinstance(found, Record)
            assert found.value == taken[Lsn(1)]
            status = await client.status()
            assert any(node.description and node.description.is_full for node in status.nodes)
            last_three = list(taken.items())[-3:]
            await log.trim(last_three[0][0])
            await appendable(log)
            assert list((await read_all(log)).values.items())[:3] == last_three
            # The nodes that left because they were full have room again: they return.
            await whole_chain(client, log.info.id)
            await assert_members_equal(client, log)

    run(body(make_cluster(3, store=StoreSettings(map_bytes=8 * MIB))))


def test_a_full_node_leaves_the_chain_to_others(make_cluster: MakeCluster) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await client.create_log("events", compression=False, write_path="chain")
            assert log.projection.chain == (1, 2, 3)
            choices = random.Random(3)
            values = [choices.randbytes(VALUE_BYTES) for _ in range(80)]
            for value in values:
                await log.append(value)
            projection = await whole_chain(client, log.info.id)
            assert set(projection.chain) == {1, 2, 4}
            assert list((await read_all(log)).values.values()) == values
            assert metrics_of(cluster, 3)["millrace_store_full"] == 1
            assert metrics_of(cluster, 4)["millrace_store_full"] == 0

    cluster = make_cluster(4, is_started=False)
    configuration = Path(cluster.node(3).folder) / "node.toml"
    configuration.write_text(configuration.read_text() + f"[store]\nmap_bytes = {8 * MIB}\n")
    cluster.start()
    run(body(cluster))


async def fill(log: Log) -> dict[Lsn, bytes]:
    """Append until the log refuses; what it took, and where."""
    choices = random.Random(2)
    taken: dict[Lsn, bytes] = {}
    while True:
        value = choices.randbytes(VALUE_BYTES)
        try:
            taken[await log.append(value)] = value
        except DiskFull as full:
            check_words(full)
            return taken
        assert len(taken) < 200, "a store of 8 MiB took 40 MiB"


def check_words(full: DiskFull) -> None:
    assert full.is_definite
    with pytest.raises(DiskFull, match="trim"):
        raise full


async def appendable(log: Log) -> None:
    """Space is given back in the background."""

    async def try_append() -> bool:
        try:
            await log.append(b"room again")
        except DiskFull:
            return False
        return True

    await eventually(try_append, what="room after trimming")
