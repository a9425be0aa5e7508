"""Whatever one peer does at the documents port, the others go on and memory stays bounded (G13)."""

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from struct import Struct

import pytest
from pymemcache.client.base import Client as TextClient
from pymemcache.exceptions import MemcacheServerError

from millrace.client import Client
from millrace.client.bucket import Bucket
from millrace.codec.memcached.binary import Response, encode_request
from millrace.codec.memcached.opcodes import Opcode, Status
from millrace.codec.memcached.streams import decode_answer, encode_message
from millrace.core.documents.document import FailoverId, PartitionId, Seq
from millrace.core.documents.messages import (
    Answered,
    Barrier,
    CloseStream,
    ConsumerRequest,
    Control,
    FailoverLogGot,
    Fetch,
    GetFailoverLog,
    Open,
    ProducerAnswer,
    Repair,
    StreamAnswered,
    StreamFlag,
    StreamRequest,
    StreamStatus,
)
from millrace.limits import MIB
from millrace.local import LocalCluster
from millrace.runtime.transport import parse_address
from tests.support.clusters import connected, eventually, resident_bytes, run
from tests.support.document_load import Follower
from tests.support.memcached_wire import WireClient

NAME = "peers"
PARTITIONS = 6
VALUE_BYTES_MAX = 256 * 1024
BUFFER_BYTES = 64 * 1024
DEAF_PEERS = 6  # Of each kind, for each partition.
WRITTEN_BYTES = 48 * MIB
GROWTH_BYTES_MAX = 100 * MIB  # Far below what all of the deaf ones together are sent.
SET = Struct(">II")  # Extras: flags, expiry.
WRONG_ID = FailoverId(0xBAD)


@contextlib.asynccontextmanager
async def peers_bucket(cluster: LocalCluster) -> AsyncIterator[tuple[Client, Bucket]]:
    async with connected(cluster) as client:
        if NAME not in {record.name for record in await client.buckets()}:
            await client.create_bucket(
                NAME, partitions=PARTITIONS, replicas=1, value_bytes_max=VALUE_BYTES_MAX
            )
        yield client, await client.bucket(NAME)


def master_port(bucket: Bucket, partition: int = 0) -> int:
    return parse_address(bucket.asker.map.masters[partition])[1]


class StreamPeer(WireClient):
    """Does not mind what is pushed."""

    def response(self) -> Response:
        while not self._responses:
            frames = self._decoder.feed(self._receive())
            self._responses += [frame for frame in frames if isinstance(frame, Response)]
        return self._responses.popleft()


@contextlib.contextmanager
def stream_peer(port: int, *, is_open: bool = True) -> Iterator[WireClient]:
    with StreamPeer(port) as peer:
        if is_open:
            assert asked(peer, Open("bad:1", NAME)) == Answered(StreamStatus.OK)
        yield peer


def asked(peer: WireClient, message: ConsumerRequest) -> ProducerAnswer:
    peer.send(encode_message(message, 7))
    return decode_answer(peer.response(), message)


# -- Streams that cannot be -------------------------------------------------------------------

P0 = PartitionId(0)
NEWEST = StreamFlag.NEWEST_ID
NOBODYS = PartitionId(1000)

REFUSED: dict[str, tuple[Callable[[FailoverId, Seq], ConsumerRequest], StreamStatus]] = {
    "wrong failover id": (
        lambda _, high: StreamRequest(P0, high, WRONG_ID, high, high, flags=NEWEST),
        StreamStatus.WRONG_FAILOVER_ID,
    ),
    "an id nobody knows, as the protocol has it": (
        lambda _, high: StreamRequest(P0, high, WRONG_ID, high, high),
        StreamStatus.ROLLBACK,
    ),
    "seq too high": (
        lambda id, high: StreamRequest(
            P0, Seq(high + 9), id, Seq(high + 9), Seq(high + 9), flags=NEWEST
        ),
        StreamStatus.RANGE,
    ),
    "start outside its snapshot": (
        lambda id, high: StreamRequest(P0, high, id, Seq(high + 1), Seq(high + 2)),
        StreamStatus.RANGE,
    ),
    "start above the end": (
        lambda id, high: StreamRequest(P0, high, id, high, high, end=Seq(high - 1)),
        StreamStatus.RANGE,
    ),
    "no such partition": (
        lambda id, _: StreamRequest(NOBODYS, Seq(0), id),
        StreamStatus.NOT_MY_PARTITION,
    ),
    "log of no such partition": (
        lambda *_: GetFailoverLog(NOBODYS),
        StreamStatus.NOT_MY_PARTITION,
    ),
    "end of a stream that is none": (lambda *_: CloseStream(P0), StreamStatus.NOT_FOUND),
    "opened twice": (lambda *_: Open("bad:2", NAME), StreamStatus.INVALID),
    "unknown setting": (lambda *_: Control("no_such", "1"), StreamStatus.INVALID),
    "buffer of a word": (
        lambda *_: Control("connection_buffer_size", "lots"),
        StreamStatus.INVALID,
    ),
    "fetch under another id": (
        lambda *_: Fetch(P0, WRONG_ID, (b"a",), Seq(0)),
        StreamStatus.WRONG_FAILOVER_ID,
    ),
    "repair under another id": (
        lambda _, high: Repair(P0, WRONG_ID, high, ()),
        StreamStatus.WRONG_FAILOVER_ID,
    ),
}


@pytest.mark.parametrize(("make", "status"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_streamed_is_refused_and_the_connection_goes_on(
    calm_cluster: LocalCluster,
    make: Callable[[FailoverId, Seq], ConsumerRequest],
    status: StreamStatus,
) -> None:
    async def body() -> None:
        async with peers_bucket(calm_cluster) as (_, bucket):
            key = next(key_of(bucket, P0))
            token = (await bucket.set(key, b"v")).token
            with stream_peer(master_port(bucket)) as peer:
                answer = asked(peer, make(token.id, token.seq))
                assert isinstance(answer, Answered | StreamAnswered)
                assert answer.status is status, answer
                assert isinstance(asked(peer, GetFailoverLog(P0)), FailoverLogGot)

    run(body())


def test_a_cookie_is_taken_once(calm_cluster: LocalCluster) -> None:
    """As long as it has not come back: streams keep the connection busy, and nobody reads them."""

    async def body() -> None:
        async with peers_bucket(calm_cluster) as (_, bucket):
            key = next(key_of(bucket, P0))
            token = (await bucket.set(key, bytes(VALUE_BYTES_MAX))).token
            with stream_peer(master_port(bucket)) as peer:
                assert asked(peer, Control("connection_buffer_size", "1"))
                requests = [
                    StreamRequest(P0, Seq(0), token.id),
                    Barrier("cookie"),
                    Barrier("cookie"),
                    Barrier("x" * 129),
                ]
                peer.send(b"".join(encode_message(each, at) for at, each in enumerate(requests)))
                statuses = [peer.response().status for _ in requests]
                assert statuses == [
                    Status.SUCCESS,
                    Status.SUCCESS,
                    Status.KEY_EXISTS,
                    Status.INVALID_ARGUMENTS,
                ]

    run(body())


MALFORMED = {
    "stream request without extras": encode_request(Opcode.DCP_STREAM_REQUEST, opaque=7),
    "stream request with unknown flags": encode_request(
        Opcode.DCP_STREAM_REQUEST, extras=b"\xff" * 48, opaque=7
    ),
    "acknowledgement of nothing": encode_request(Opcode.DCP_BUFFER_ACK, opaque=7),
    "seq acknowledgement cut off": encode_request(Opcode.SEQ_ACK, extras=b"\0" * 5, opaque=7),
    "fetch of garbage": encode_request(Opcode.FETCH, value=b"garbage", extras=b"\0" * 8, opaque=7),
    "repair with garbage": encode_request(
        Opcode.REPAIR, value=b"\xff" * 99, extras=b"\0" * 16, opaque=7
    ),
    "name of no text": encode_request(
        Opcode.DCP_OPEN, b"\xff\xfe", extras=b"\0\0\0\0\0\0\0\1", opaque=7
    ),
}


@pytest.mark.parametrize("frame", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_message_is_answered_and_the_connection_goes_on(
    calm_cluster: LocalCluster, frame: bytes
) -> None:
    async def body() -> None:
        async with peers_bucket(calm_cluster) as (_, bucket):
            with stream_peer(master_port(bucket)) as peer:
                peer.send(frame)
                assert peer.response().status == Status.INVALID_ARGUMENTS
                assert asked(peer, Control("enable_noop", "false")) == Answered(StreamStatus.OK)

    run(body())


def test_a_stream_before_its_opening_is_refused(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with peers_bucket(calm_cluster) as (_, bucket):
            with stream_peer(master_port(bucket), is_open=False) as peer:
                answer = asked(peer, GetFailoverLog(P0))
                assert isinstance(answer, Answered)
                assert answer.status is StreamStatus.INVALID
                answer = asked(peer, Open("bad:1", "no-such-bucket"))
                assert isinstance(answer, Answered)
                assert answer.status is StreamStatus.NO_BUCKET
                assert asked(peer, Open("bad:1", NAME)) == Answered(StreamStatus.OK)

    run(body())


def test_garbage_costs_a_peer_its_own_connection(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with peers_bucket(calm_cluster) as (_, bucket):
            with stream_peer(master_port(bucket)) as peer, stream_peer(master_port(bucket)) as good:
                with contextlib.suppress(ConnectionError):
                    peer.send(random.Random(1).randbytes(300_000))
                    peer.rest()
                assert asked(good, Control("enable_noop", "false")) == Answered(StreamStatus.OK)
            await bucket.set(b"after", b"garbage")

    run(body())


# -- Consumers that take nothing --------------------------------------------------------------


def test_consumers_that_acknowledge_nothing_harm_nobody(calm_cluster: LocalCluster) -> None:
    """Half of them do not even read what is sent; the others are sent a buffer's worth."""

    async def body() -> None:
        async with peers_bucket(calm_cluster) as (client, bucket):
            before = {node.id: resident_bytes(calm_cluster, node.id) for node in calm_cluster.nodes}
            record, _ = await client.directory.read_bucket(NAME)
            assert record is not None
            with contextlib.ExitStack() as peers:
                deaf = [
                    peers.enter_context(deaf_peer(bucket, record.seats[number].id, number, is_fed))
                    for number in range(PARTITIONS)
                    for is_fed in (True, False) * DEAF_PEERS
                ]
                async with Follower(bucket, "good:1") as follower:
                    written = await write_much(bucket)
                    await follower.holds_all_of(written)
                for peer, is_fed in deaf:
                    if is_fed:
                        assert 0 < received_bytes(peer) < 2 * BUFFER_BYTES + VALUE_BYTES_MAX
            for node, were_bytes in before.items():
                assert resident_bytes(calm_cluster, node) - were_bytes < GROWTH_BYTES_MAX

    run(body())


@contextlib.contextmanager
def deaf_peer(
    bucket: Bucket, id: FailoverId, number: int, is_fed: bool
) -> Iterator[tuple[socket.socket, bool]]:
    """With `is_fed` flow control stops the node, otherwise a socket that nobody reads does."""
    with stream_peer(master_port(bucket, number)) as peer:
        if is_fed:
            asked(peer, Control("connection_buffer_size", str(BUFFER_BYTES)))
        peer.send(encode_message(StreamRequest(PartitionId(number), Seq(0), id)))
        yield peer.socket, is_fed


def received_bytes(peer: socket.socket) -> int:
    peer.setblocking(False)
    size_bytes = 0
    with contextlib.suppress(BlockingIOError):
        while data := peer.recv(1 << 20):
            size_bytes += len(data)
    return size_bytes


async def write_much(bucket: Bucket) -> dict[bytes, bytes]:
    choices = random.Random(2)
    value = choices.randbytes(64 * 1024)
    written = {b"much-%d" % at: value[at:] for at in range(WRITTEN_BYTES // len(value))}
    for first in range(0, len(written), 16):
        await bucket.set_many(list(written.items())[first : first + 16])
    return written


# -- Clients of memcached ---------------------------------------------------------------------


def test_a_plain_client_may_ask_any_node(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with peers_bucket(calm_cluster) as (client, bucket):
            view = await client.directory.view()
            ports = [parse_address(node.documents)[1] for node in view.nodes]
            for at, port in enumerate(ports):
                await asyncio.to_thread(write_as_plain_client, port, b"plain-%d" % at)
            for at in range(len(ports)):
                for partition in range(PARTITIONS):
                    key = plain_key(b"plain-%d" % at, partition)
                    found = await bucket.get(key)
                    assert found is not None and found.value == b"v more", key

    run(body())


def test_a_large_document_is_passed_on_too(calm_cluster: LocalCluster) -> None:
    large = bytes(10 << 20)

    def write(port: int) -> None:
        with plain_client(port, "large") as peer:
            assert peer.ask(Opcode.SET, b"large", large, SET.pack(0, 0)).status == Status.SUCCESS
            assert peer.ask(Opcode.GET, b"large").value == large
            assert peer.ask(Opcode.DELETE, b"large").status == Status.SUCCESS

    async def body() -> None:
        async with connected(calm_cluster) as client:
            view = await client.directory.view()
            await client.create_bucket("large", partitions=8, replicas=0)
            for node in view.nodes:
                await asyncio.to_thread(write, parse_address(node.documents)[1])
            await client.delete_bucket("large")

    run(body())


def plain_key(prefix: bytes, partition: int) -> bytes:
    return b"%s-%d" % (prefix, partition)


def write_as_plain_client(port: int, prefix: bytes) -> None:
    with plain_client(port) as peer:
        for partition in range(PARTITIONS):  # Keys of all of them, more or less.
            key = plain_key(prefix, partition)
            assert peer.ask(Opcode.SET, key, b"v", SET.pack(0, 0)).status == Status.SUCCESS
            assert peer.ask(Opcode.APPEND, key, b" more").status == Status.SUCCESS
            assert peer.ask(Opcode.GET, key).value == b"v more"


def test_a_text_client_may_ask_any_node(calm_cluster: LocalCluster) -> None:
    """The text protocol names no bucket: it is the one called default."""

    async def body() -> None:
        async with connected(calm_cluster) as client:
            if "default" not in {record.name for record in await client.buckets()}:
                await client.create_bucket("default", partitions=PARTITIONS, replicas=1)
            view = await client.directory.view()
            ports = [parse_address(node.documents)[1] for node in view.nodes]
            for port in ports:
                await eventually(
                    lambda port=port: asyncio.to_thread(knows_default, port),
                    what=f"port {port} knows the bucket",
                )
                await asyncio.to_thread(write_as_text_client, port)

    run(body())


def knows_default(port: int) -> bool:
    client = TextClient(("127.0.0.1", port), timeout=10)
    try:
        return client.get("nothing") is None
    except MemcacheServerError:  # There is no bucket called default, as far as it knows.
        return False
    finally:
        client.close()


def write_as_text_client(port: int) -> None:
    client = TextClient(("127.0.0.1", port), timeout=10)
    try:
        for at in range(3 * PARTITIONS):
            assert client.set(f"text-{at}", f"{port}", noreply=False)
        wanted = {f"text-{at}": str(port).encode() for at in range(3 * PARTITIONS)}
        assert client.get_many(list(wanted)) == wanted
    finally:
        client.close()


def test_a_value_over_the_limit_is_refused_by_every_node(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with peers_bucket(calm_cluster) as (_, bucket):
            for address in set(bucket.asker.map.masters):
                with plain_client(parse_address(address)[1]) as peer:
                    refused = peer.ask(Opcode.SET, b"k", bytes(VALUE_BYTES_MAX + 1), SET.pack(0, 0))
                    assert refused.status == Status.TOO_LARGE
                    stored = peer.ask(Opcode.SET, b"k", bytes(VALUE_BYTES_MAX), SET.pack(0, 0))
                    assert stored.status == Status.SUCCESS

    run(body())


@pytest.mark.parametrize("key", [b"k" * 251, b""], ids=["too long", "empty"])
def test_a_key_that_is_none_ends_the_connection_as_memcached_does(
    calm_cluster: LocalCluster, key: bytes
) -> None:
    async def body() -> None:
        async with peers_bucket(calm_cluster) as (_, bucket):
            with plain_client(master_port(bucket)) as peer:
                refused = peer.ask(Opcode.SET, key, b"v", SET.pack(0, 0))
                assert refused.status == Status.INVALID_ARGUMENTS
                assert peer.rest() == b""

    run(body())


@contextlib.contextmanager
def plain_client(port: int, bucket: str = NAME) -> Iterator[WireClient]:
    """One that does not know the map."""
    with WireClient(port) as peer:
        assert peer.ask(Opcode.SELECT_BUCKET, bucket.encode()).status == Status.SUCCESS
        yield peer


def key_of(bucket: Bucket, number: PartitionId) -> Iterator[bytes]:
    for at in range(10_000):
        if bucket.partition_of(b"of-%d" % at) == number:
            yield b"of-%d" % at
