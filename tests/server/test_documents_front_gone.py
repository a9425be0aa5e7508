"""Clients that are gone: what only waits for them ends, what they have asked for is done."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Iterator

import pytest

from millrace.codec.memcached.binary import Durability, DurabilityLevel, encode_request
from millrace.codec.memcached.observing import SeqWait, encode_seq_wait
from millrace.codec.memcached.opcodes import Feature, Opcode, Status
from millrace.core.documents import waits
from millrace.core.documents.document import PartitionId, Seq
from millrace.core.documents.map import BucketAttributes, BucketRecord, Seat
from millrace.core.documents.messages import MutationToken, WaitKind
from millrace.core.documents.operations import Command, Outcome
from millrace.core.documents.waits import WAIT_MS_MAX, WaitOutcome
from millrace.server.documents import connection
from millrace.server.documents.ordered_answers import PLACES_MAX
from millrace.server.partitions.front import BucketFront
from tests.support.clusters import soon
from tests.support.document_backend import (
    FAILOVER_ID,
    MemoryHost,
    ServedDocuments,
    default_backend,
    keys_of,
    two_backends,
)
from tests.support.memcached_wire import WireClient
from tests.support.partition_nodes import BUCKET, CAFE, NAME, NUMBER, TWO, two_nodes

CONNECTIONS_MAX = 4
FOR_EVER = encode_request(
    Opcode.SEQ_PERSISTENCE,
    extras=encode_seq_wait(SeqWait(Seq(2**40), FAILOVER_ID, WaitKind.PERSISTED, 2**32 - 1)),
)
HELLO = encode_request(Opcode.HELLO, value=struct.pack(">H", Feature.MAP_AWARE))
MAJORITY = Durability(DurabilityLevel.MAJORITY)
FLUSH = encode_request(Opcode.FLUSH)
SET = encode_request(Opcode.SET, b"k", b"v", bytes(8), durability=MAJORITY)


@pytest.fixture
def small() -> Iterator[ServedDocuments]:
    with ServedDocuments(default_backend(), CONNECTIONS_MAX) as served:
        served.default().is_everything_safe = False
        yield served


def vanish(client: WireClient) -> None:
    """As a process does that is killed with something unread, or a host that reboots."""
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.socket.close()


def fill(served: ServedDocuments, requests: bytes, waits_each: int = 1) -> list[WireClient]:
    """As many connections as there may be, each of which waits."""
    host, clients = served.default(), []
    for at in range(CONNECTIONS_MAX):
        clients.append(WireClient(served.port))
        clients[-1].send(requests)
        soon(lambda at=at: len(host.waits) == (at + 1) * waits_each)  # type: ignore[misc]
    return clients


def assert_free(served: ServedDocuments) -> None:
    soon(lambda: served.front_end.counts.connections_now == 0)
    assert all(future.cancelled() for _, _, future in served.default().waits)
    with WireClient(served.port) as client:
        assert client.ask(Opcode.NOOP).status == Status.SUCCESS


def test_waits_of_clients_that_vanish_keep_nobody_out(small: ServedDocuments) -> None:
    """4,096 of them locked everybody out, for 49 days."""
    for client in fill(small, 3 * FOR_EVER, waits_each=3):
        vanish(client)
    assert_free(small)


@pytest.mark.parametrize(
    ("requests", "waits"),
    [
        pytest.param(FOR_EVER, 1, id="alone"),
        pytest.param(FOR_EVER + FLUSH, 1, id="something is to come after it"),
        pytest.param((PLACES_MAX + 9) * FOR_EVER, PLACES_MAX, id="more than may be under way"),
    ],
)
@pytest.mark.parametrize(
    "leave", [vanish, lambda client: client.socket.close()], ids=["cut", "end"]
)
def test_nor_those_of_clients_that_end_or_are_not_read_from(
    small: ServedDocuments,
    monkeypatch: pytest.MonkeyPatch,
    requests: bytes,
    waits: int,
    leave: Callable[[WireClient], None],
) -> None:
    """One that ends looks like one that has said all and listens; of one that is not read from
    nothing is heard."""
    monkeypatch.setattr(connection, "ENDED_WAIT_S", 0.05)
    for client in fill(small, requests, waits):
        leave(client)
    assert_free(small)


def test_who_has_said_all_is_still_told(small: ServedDocuments) -> None:
    with WireClient(small.port) as client:
        client.send(FOR_EVER)
        client.socket.shutdown(socket.SHUT_WR)
        soon(lambda: bool(small.default().waits))
        _, _, future = small.default().waits[0]
        small.call(lambda: future.set_result(WaitOutcome.OK))
        assert client.response().status == Status.SUCCESS


@pytest.mark.parametrize("before", [b"", HELLO], ids=["plain", "knows the map"])
def test_a_change_is_kept_when_its_wait_ends(small: ServedDocuments, before: bytes) -> None:
    if before:
        partition = small.default().partition_of(b"k")
        request = encode_request(
            Opcode.SET, b"k", b"v", bytes(8), partition=partition, durability=MAJORITY
        )
    else:
        request = SET
    for client in fill(small, before + request):
        vanish(client)
    assert_free(small)
    with WireClient(small.port) as client:
        assert client.ask(Opcode.GET, b"k").value == b"v"


def test_what_a_client_asked_for_behind_a_wait_is_done_when_the_wait_ends(
    small: ServedDocuments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush, and all behind it: nobody saw that the client had ended."""
    monkeypatch.setattr(connection, "ENDED_WAIT_S", 0.05)
    with WireClient(small.port) as client:
        client.send(
            encode_request(Opcode.SET, b"before", b"v", bytes(8))
            + SET
            + FLUSH
            + encode_request(Opcode.SET, b"behind", b"v", bytes(8))
            + 2 * FOR_EVER
            + encode_request(Opcode.SET, b"last", b"v", bytes(8), durability=MAJORITY)
        )
        client.socket.shutdown(socket.SHUT_WR)
        assert client.response().opcode == Opcode.SET
        with contextlib.suppress(ConnectionResetError):
            assert client.socket.recv(1) == b"", "an answer in the place of another"
    assert_free(small)
    with WireClient(small.port) as client:
        found = [client.ask(Opcode.GET, key) for key in (b"before", b"k", b"behind", b"last")]
    missing, there = Status.NOT_FOUND, Status.SUCCESS
    assert [each.status for each in found] == [missing, missing, there, there]


def test_what_is_being_passed_on_is_done_although_the_client_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ServedDocuments(two_backends()[0], CONNECTIONS_MAX) as served:
        host, key = served.default(), next(keys_of([1]))
        gate, forward = asyncio.Event(), host.forward
        begun: list[Command] = []

        async def forward_later(number: PartitionId, command: Command) -> Outcome:
            begun.append(command)
            await gate.wait()
            return await forward(number, command)

        monkeypatch.setattr(host, "forward", forward_later)
        client = WireClient(served.port)
        client.send(encode_request(Opcode.SET, key, b"v", bytes(8), durability=MAJORITY))
        soon(lambda: bool(begun))
        vanish(client)
        served.call(gate.set)
        soon(lambda: served.front_end.counts.connections_now == 0)
        monkeypatch.undo()
        with WireClient(served.port) as another:
            assert another.ask(Opcode.GET, key).value == b"v"


def test_a_wait_is_no_longer_than_that(small: ServedDocuments) -> None:
    host: MemoryHost = small.default()
    with WireClient(small.port) as client:
        client.send(FOR_EVER)
        soon(lambda: bool(host.waits))
        assert host.timeouts_ms == [WAIT_MS_MAX]


def test_a_partition_forgets_the_waits_that_nobody_wants_any_more() -> None:
    async def scenario() -> None:
        _, master, _ = two_nodes()
        seats = (Seat(1, CAFE, master.id, (TWO,)),)
        record = BucketRecord(BUCKET, NAME, BucketAttributes(1, 1), seats)

        async def nobody(*_: object) -> None:
            raise AssertionError("nobody is asked")

        front = BucketFront(record, master.store, master.around, nobody, lambda _: "")  # type: ignore[arg-type]
        front.here = master.bucket
        document = master.put(b"k")
        token = MutationToken(NUMBER, CAFE, Seq(document.seq + 1), document.cas)
        futures = [front.wait(NUMBER, token, waits.Durability.PERSISTED, 60_000) for _ in range(3)]
        assert len(master.bucket.held[NUMBER].waits) == 3
        for future in futures[1:]:
            future.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await future
        await asyncio.sleep(0)
        assert len(master.bucket.held[NUMBER].waits) == 1

    asyncio.run(scenario())
