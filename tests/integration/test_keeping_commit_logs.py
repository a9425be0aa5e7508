"""Commit logs are looked after as others are: verified, and forgotten by size and by age."""

import time

from millrace.client import Client, Log
from millrace.core.commit.record import CommitRecord, stream_log_of
from millrace.core.messages import Describe, Described
from millrace.core.sequenced.verifying import Verdict, Wrong
from millrace.limits import KIB
from millrace.local import LocalCluster
from tests.support.clusters import MakeCluster, connected, eventually, run
from tests.support.retention import forget_by_size

SECOND_US = 1_000_000


async def record_of(log: Log) -> CommitRecord:
    await log.peek()
    standing = log.standing
    assert isinstance(standing, CommitRecord)
    return standing


async def bytes_of(client: Client, log: Log) -> int:
    """Of one copy, as the primaries hold it."""
    record = await record_of(log)
    size = 0
    for stream in record.streams:
        question = Describe(stream_log_of(record.log, stream.stream))
        told = await client.ask_node(stream.replicas[0], question, 1_000)
        assert isinstance(told, Described)
        size += told.bytes
    return size


async def log_of_a_mortal(client: Client, name: str) -> Log:
    """Node 1 has the metadata: a log whose committer is another node; its record is old soon."""
    for number in range(50):
        log = await client.create_log(f"{name}-{number}", write_path="commit", retention_ms=4_000)
        await log.append(b"x")
        if (await record_of(log)).committer != 1:
            return log
    raise AssertionError("node 1 is the committer of every log")


def test_a_sound_log_is_sound_whatever_goes_on(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await client.create_log("kept-sound", write_path="commit", streams=3)
            assert (await log.verify()).is_sound
            for number in range(30):
                await log.append_many([b"%d" % number] * 10)
                assert (await log.verify()).is_sound
            await log.trim(151)
            verdict = await log.verify()
            assert (verdict.is_sound, verdict.findings) == (True, [])
            assert verdict.records >= 150
            assert verdict.copies == 3 * verdict.blocks

    run(body())


def test_a_replica_that_is_away_is_found(make_cluster: MakeCluster) -> None:
    """With no node to spare: the stream goes on with two replicas."""
    cluster = make_cluster(3)

    async def body() -> None:
        async with connected(cluster) as client:
            log = await client.create_log("kept-few", write_path="commit")
            await log.append(b"x")
            cluster.kill(3)

            async def verdict() -> Verdict:
                await log.append(b"y")
                return await log.verify()

            def is_found(told: Verdict) -> bool:
                return set(told.counts) == {Wrong.TOO_FEW_COPIES}

            found = await eventually(verdict, is_found, what="the stream to be reformed")
            assert "stream 1: replicas on nodes" in found.findings[0].detail

    run(body())


def test_a_replica_that_does_not_answer_is_found(make_cluster: MakeCluster) -> None:
    """Silent, until its stream goes on without it: then there are too few."""
    cluster = make_cluster(3)

    async def body() -> None:
        async with connected(cluster) as client:
            log = await client.create_log("kept-silent", write_path="commit")
            await log.append(b"x")
            record = await record_of(log)
            victim = next(n for n in record.streams[0].replicas if n not in (1, record.committer))
            cluster.pause(victim)
            try:
                found = await log.verify(timeout_ms=60_000)
            finally:
                cluster.resume(victim)
            assert found.counts.keys() <= {Wrong.SILENT_NODE, Wrong.TOO_FEW_COPIES}
            assert not found.is_sound

    run(body())


def test_retention_by_size(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            kept = 200 * KIB
            log = await client.create_log(
                "kept-by-size",
                write_path="commit",
                streams=2,
                retention_bytes=kept,
                compression=False,
            )
            await forget_by_size(client, log, kept, bytes_of)
            start, end = await log.bounds()
            assert (start > 30, end) == (True, 51)
            assert (await log.verify()).is_sound

    run(body())


def test_retention_by_age(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await client.create_log(
                "kept-by-age", write_path="commit", streams=2, retention_ms=3_600_000
            )
            now_us = int(time.time() * SECOND_US)
            for hours in (5, 4, 3, 2):
                for _ in range(3):
                    await log.append(b"old", timestamp_us=now_us - hours * 3600 * SECOND_US)
            first = await log.append(b"young")
            await log.append(b"old again", timestamp_us=now_us - 7200 * SECOND_US)

            async def start() -> int:
                return (await log.bounds())[0]

            await eventually(start, lambda found: found == first, what="retention by age")

    run(body())


def test_an_idle_log_is_forgotten_though_its_committer_died(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(4)

    async def body() -> None:
        async with connected(cluster) as client:
            log = await log_of_a_mortal(client, "kept-idle")
            cluster.kill((await record_of(log)).committer)

            async def bounds() -> tuple[int, int]:
                return await log.bounds()

            await eventually(bounds, lambda found: found == (2, 2), what="the record to be old")

    run(body())
