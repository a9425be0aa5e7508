"""Whatever one peer does to a node, the others go on and the node's memory stays bounded (G13)."""

import contextlib
import random
import socket
import struct
from collections.abc import Iterator

import pytest

from millrace.client import Log
from millrace.codec import frames
from millrace.core.messages import Hello, Message, Ping, Start
from millrace.limits import MIB
from millrace.local import LocalCluster
from millrace.runtime.transport import parse_address
from millrace.types import LSN_MAX, Epoch, LogId, Lsn, Record
from tests.support.clusters import (
    MakeCluster,
    connected,
    eventually,
    metrics_of,
    resident_bytes,
    run,
)
from tests.support.load import read_all

HELLO = Hello(frames.PROTOCOL_VERSION)
STREAMS = 6
LOG_BYTES = 48 * MIB
GROWTH_BYTES_MAX = 160 * MIB  # Far below what all of those streams together would carry.


def frame(message: Message, request_id: int = 0) -> bytes:
    return b"".join(bytes(part) for part in frames.encode(message, request_id))


def huge_frame() -> bytes:
    ping = frame(Ping())
    return ping[:20] + struct.pack("<I", 2**31) + ping[24:]


MISDEEDS = {
    "garbage": random.Random(1).randbytes(300_000),
    "http": b"GET / HTTP/1.1\r\nHost: example\r\n\r\n",
    "huge-frame": frame(HELLO) + huge_frame(),
    "half-a-frame": frame(HELLO)[:-3],
    "nothing": b"",
    "answer-nobody-asked-for": frame(HELLO)
    + b"".join(bytes(part) for part in frames.encode(Ping(), 9, True)),
}


@contextlib.contextmanager
def raw_peer(address: str) -> Iterator[socket.socket]:
    with socket.create_connection(parse_address(address), timeout=20) as peer:
        yield peer


@pytest.mark.parametrize("data", MISDEEDS.values(), ids=MISDEEDS.keys())
def test_others_do_not_notice_a_bad_peer(calm_cluster: LocalCluster, data: bytes) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            name = "bad-peers"
            known = {info.name for info in await client.logs()}
            log = await (
                client.log(name) if name in known else client.create_log(name, write_path="chain")
            )
            with contextlib.ExitStack() as peers:
                for address in calm_cluster.addresses * 5:
                    peer = peers.enter_context(raw_peer(address))
                    with contextlib.suppress(ConnectionError):  # Sent away already.
                        peer.sendall(data)
                await works(log)
            assert all(calm_cluster.is_running(node.id) for node in calm_cluster.nodes)

    run(body())


def test_a_peer_that_says_nothing_is_sent_away(calm_cluster: LocalCluster) -> None:
    with raw_peer(calm_cluster.addresses[0]) as peer:
        while peer.recv(65_536):  # Hello, Goodbye; then the end.
            pass


def test_readers_that_never_read_cost_bounded_memory(make_cluster: MakeCluster) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await client.create_log("events", compression=False, write_path="chain")
            choices = random.Random(4)
            values = [choices.randbytes(MIB) for _ in range(LOG_BYTES // MIB)]
            await log.append_many(values)
            tail = log.projection.tail
            before = resident_bytes(cluster, tail)
            with contextlib.ExitStack() as peers:
                for number in range(STREAMS):
                    peer = peers.enter_context(raw_peer(cluster.node(tail).address))
                    start = greedy_start(log.info.id, log.projection.epoch, number)
                    peer.sendall(frame(HELLO) + frame(start, 1))
                await eventually(
                    lambda: streams_started(cluster, tail), what="all streams have started"
                )
                await works(log)
                tape = await read_all(log)
                assert list(tape.values.values())[: len(values)] == values
                grown = resident_bytes(cluster, tail) - before
                assert grown < GROWTH_BYTES_MAX, f"{grown / MIB:.0f} MiB more"
            await works(log)

    run(body(make_cluster(3)))


def greedy_start(log: LogId, epoch: Epoch, number: int) -> Start:
    return Start(log, epoch, number + 1, 1, Lsn(1), LSN_MAX, 1 << 40)


async def streams_started(cluster: LocalCluster, number: int) -> bool:
    """The node has sent as much as the sockets take of every stream."""
    sent = metrics_of(cluster, number)["millrace_sent_bytes_total"]
    return sent >= STREAMS * MIB


async def works(log: Log) -> None:
    value = random.randbytes(50)
    lsn = await log.append(value, timeout_ms=10_000)
    found = await log.get(lsn)
    assert isinstance(found, Record)
    assert found.value == value
