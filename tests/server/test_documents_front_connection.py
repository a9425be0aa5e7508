"""A client's connection: order, passing on, bounds, and its end."""

import asyncio
import struct
from collections.abc import Iterator
from itertools import islice

import pytest

from millrace.codec.memcached.binary import encode_request, encode_response
from millrace.codec.memcached.multi import (
    MultiGet,
    MultiSet,
    decode_multi_got,
    decode_multi_stored,
    encode_multi_get,
    encode_multi_set,
)
from millrace.codec.memcached.opcodes import Opcode, Status
from millrace.core.documents.operations import Command, Outcome, Verb
from millrace.core.documents.waits import WaitOutcome
from millrace.errors import AddressInUse
from millrace.server.documents import connection
from millrace.server.documents.connection import TURN_REQUESTS_MAX
from millrace.server.documents.front_end import DocumentFrontEnd
from millrace.server.documents.ordered_answers import PLACES_MAX
from tests.support.clusters import soon
from tests.support.document_backend import (
    MemoryBackend,
    ServedDocuments,
    default_backend,
    keys_of,
    two_backends,
)
from tests.support.memcached_wire import WireClient

NO_EXPIRY = bytes(8)
SET_K = encode_request(Opcode.SET, b"k", b"v", NO_EXPIRY)
HERE, THERE = (0, 2, 4, 6), (1, 3, 5, 7)  # Partitions of the first and of the second node.


@pytest.fixture
def one_of_two() -> Iterator[ServedDocuments]:
    """A node that has half of the partitions; `.default().others` has the rest."""
    with ServedDocuments(two_backends()[0]) as served:
        yield served


# -- Order ------------------------------------------------------------------------------------


def test_a_long_pipeline_is_answered_whole_and_in_order(client: WireClient) -> None:
    count = 20 * TURN_REQUESTS_MAX
    client.send(b"".join(encode_request(Opcode.NOOP, opaque=at) for at in range(count)))
    assert [client.response().opaque for _ in range(count)] == list(range(count))


def test_a_request_may_arrive_byte_by_byte(client: WireClient) -> None:
    for at in range(len(SET_K)):
        client.send(SET_K[at : at + 1])
    assert client.response().status == Status.SUCCESS


def test_a_long_pipeline_is_performed_in_turns(served: ServedDocuments, client: WireClient) -> None:
    """What arrives at once is not performed at once: others are served in between."""
    client.ask(Opcode.NOOP)
    (connection_there,) = served.front_end.connections
    stored = served.front_end.counts.successes
    pipeline = encode_request(Opcode.SETQ, b"k", b"v", NO_EXPIRY) * 3 * TURN_REQUESTS_MAX

    def receive() -> int:
        connection_there.data_received(pipeline)
        return stored[Verb.SET]

    assert served.call(receive) == TURN_REQUESTS_MAX
    client.ask(Opcode.NOOP)
    assert stored[Verb.SET] == 3 * TURN_REQUESTS_MAX


def test_the_first_byte_decides_which_protocol_is_spoken(served: ServedDocuments) -> None:
    with WireClient(served.port) as binary, WireClient(served.port) as text:
        binary.ask(Opcode.SET, b"k", b"v", NO_EXPIRY)
        assert text.say(b"get k\r\n", b"END\r\n") == b"VALUE k 0 1\r\nv\r\nEND\r\n"


# -- Passing on -------------------------------------------------------------------------------


def test_a_plain_client_reaches_every_partition(one_of_two: ServedDocuments) -> None:
    with WireClient(one_of_two.port) as client:
        for key in (next(keys_of(HERE)), next(keys_of(THERE))):
            assert client.ask(Opcode.SET, key, key, NO_EXPIRY).status == Status.SUCCESS
            assert client.ask(Opcode.GET, key).value == key
    there = one_of_two.default().others[0]
    assert sum(partition.high for partition in there.copies()) == 1


def test_answers_from_elsewhere_stand_in_their_order(one_of_two: ServedDocuments) -> None:
    pairs = islice(zip(keys_of(HERE), keys_of(THERE), strict=False), 100)
    mixed = [key for pair in pairs for key in pair]
    with WireClient(one_of_two.port) as client:
        frames = [
            encode_request(Opcode.SET, key, key, NO_EXPIRY, opaque=at)
            + encode_request(Opcode.GETK, key, opaque=at)
            for at, key in enumerate(mixed)
        ]
        client.send(b"".join(frames))
        for at, key in enumerate(mixed):
            assert client.response().opaque == at
            got = client.response()
            assert (got.opaque, got.key, got.value) == (at, key, key)


def test_more_requests_elsewhere_than_may_be_under_way(one_of_two: ServedDocuments) -> None:
    key = next(keys_of(THERE))
    count = 3 * PLACES_MAX
    with WireClient(one_of_two.port) as client:
        frame = encode_request(Opcode.INCREMENT, key, extras=struct.pack(">QQI", 1, 0, 0))
        client.send(frame * count)
        numbers = [struct.unpack(">Q", client.response().value)[0] for _ in range(count)]
    assert numbers == list(range(count))


def test_text_reaches_every_partition(one_of_two: ServedDocuments) -> None:
    here, there = next(keys_of(HERE)), next(keys_of(THERE))
    with WireClient(one_of_two.port) as client:
        for key in (here, there):
            assert client.say(b"set %b 0 0 1\r\nx\r\n" % key) == b"STORED\r\n"
        assert client.say(b"get %b\r\n" % there, b"END\r\n").startswith(b"VALUE " + there)
        found = client.say(b"get %b %b\r\n" % (there, here), b"END\r\n")
        assert found == b"VALUE %b 0 1\r\nx\r\nVALUE %b 0 1\r\nx\r\nEND\r\n" % (there, here)


def test_many_documents_reach_every_partition(one_of_two: ServedDocuments) -> None:
    keys = [next(keys_of([number])) for number in (*HERE, *THERE)]
    zeros = [0] * len(keys)
    with WireClient(one_of_two.port) as client:
        body = encode_multi_set(MultiSet(zeros, keys, keys, zeros, zeros))
        stored = decode_multi_stored(client.ask(Opcode.MULTI_SET, value=body).value)
        body = encode_multi_get(MultiGet(zeros, keys))
        got = decode_multi_got(client.ask(Opcode.MULTI_GET, value=body).value)
    assert set(stored.statuses) == {Status.SUCCESS}
    assert (list(got.values), list(got.cas)) == (keys, list(stored.cas))


def test_a_flush_goes_everywhere(one_of_two: ServedDocuments) -> None:
    with WireClient(one_of_two.port) as client:
        keys = (next(keys_of(HERE)), next(keys_of(THERE)))
        for key in keys:
            client.ask(Opcode.SET, key, key, NO_EXPIRY)
        assert client.ask(Opcode.FLUSH).status == Status.SUCCESS
        assert [client.ask(Opcode.GET, key).status for key in keys] == [Status.NOT_FOUND] * 2


# -- Bounds -----------------------------------------------------------------------------------


def test_answers_that_are_not_taken_stop_the_requests(
    served: ServedDocuments, client: WireClient
) -> None:
    """The other end reads nothing: what waits for it is bounded, however much it asks for."""
    value = bytes(1 << 20)
    client.ask(Opcode.SET, b"k", value, NO_EXPIRY)
    asked = 500
    client.send(encode_request(Opcode.GET, b"k") * asked)
    counts = served.front_end.counts
    soon(lambda: counts.written_bytes > 1 << 20)
    with WireClient(served.port) as other:
        for _ in range(100):
            other.ask(Opcode.NOOP)  # Others are served meanwhile.
    assert counts.written_bytes < 32 << 20, "half a gigabyte was asked for"
    for _ in range(asked):
        assert client.response().value == value


def test_no_more_is_begun_than_may_be_under_way(
    served: ServedDocuments, client: WireClient
) -> None:
    host = served.default()
    host.is_everything_safe = False
    count = 2 * PLACES_MAX + 1
    client.send(encode_request(Opcode.SEQ_PERSISTENCE, extras=struct.pack(">Q", 9)) * count)
    soon(lambda: len(host.waits) >= PLACES_MAX)
    with WireClient(served.port) as other:
        for _ in range(100):
            other.ask(Opcode.NOOP)
    assert len(host.waits) == PLACES_MAX

    def end_waits() -> None:
        host.is_everything_safe = True
        for _, _, future in host.waits:
            future.set_result(WaitOutcome.OK)

    served.call(end_waits)
    assert [client.response().status for _ in range(count)] == [Status.SUCCESS] * count


def test_requests_that_are_not_whole_are_bounded_together(
    served: ServedDocuments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HELD_BYTES_MAX", 1 << 20)
    half = encode_request(Opcode.SET, b"k", bytes(800_000), NO_EXPIRY)[:700_000]
    with WireClient(served.port) as first, WireClient(served.port) as second:
        first.send(half)
        soon(lambda: served.front_end.counts.held_bytes >= len(half))
        second.send(half[:350_000])
        with pytest.raises(ConnectionError):
            second.response()
        first.send(encode_request(Opcode.SET, b"k", bytes(800_000), NO_EXPIRY)[700_000:])
        assert first.response().status == Status.SUCCESS
    assert served.call(lambda: served.front_end.counts.held_bytes) == 0


def test_one_connection_too_many_is_closed() -> None:
    with ServedDocuments(default_backend(), connections_max=2) as served:
        with WireClient(served.port) as first, WireClient(served.port) as second:
            first.ask(Opcode.NOOP)
            second.ask(Opcode.NOOP)
            with WireClient(served.port) as third:
                assert third.rest() == b""
            assert first.ask(Opcode.NOOP).status == Status.SUCCESS
        assert served.front_end.counts.connections_refused == 1


# -- The end ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        pytest.param(
            encode_request(Opcode.QUIT), encode_response(Opcode.QUIT, 0, 0), id="binary quit"
        ),
        pytest.param(encode_request(Opcode.QUITQ), b"", id="binary quiet quit"),
        pytest.param(b"quit\r\n", b"", id="text quit"),
    ],
)
def test_nothing_is_performed_after_quit(
    served: ServedDocuments, client: WireClient, said: bytes, answer: bytes
) -> None:
    client.send(said + said)
    assert client.rest() == answer


def test_a_fatal_error_is_answered_before_the_connection_ends(client: WireClient) -> None:
    """Even when the peer has sent more than is ever read."""
    key_too_long = encode_request(Opcode.GET, b"k" * 251)
    client.send(SET_K + key_too_long + bytes(1 << 20))
    assert client.response().status == Status.SUCCESS
    assert client.response().status == Status.INVALID_ARGUMENTS
    assert client.rest() == b""


def test_a_peer_that_says_no_more_still_gets_its_answers(
    one_of_two: ServedDocuments,
) -> None:
    key = next(keys_of(THERE))
    with WireClient(one_of_two.port) as client:
        client.send(b"set %b 0 0 1\r\nx\r\nget %b\r\n" % (key, key))
        client.socket.shutdown(1)
        assert client.rest() == b"STORED\r\nVALUE %b 0 1\r\nx\r\nEND\r\n" % key


def test_quiet_changes_are_made_though_the_client_has_gone(one_of_two: ServedDocuments) -> None:
    keys = list(islice(keys_of(THERE), 100))
    with WireClient(one_of_two.port) as client:
        client.send(b"".join(encode_request(Opcode.SETQ, key, b"v", NO_EXPIRY) for key in keys))
    with WireClient(one_of_two.port) as other:
        soon(lambda: other.ask(Opcode.GET, keys[-1]).status == Status.SUCCESS)
        assert [other.ask(Opcode.GET, key).value for key in keys] == [b"v"] * len(keys)


def test_an_error_in_here_costs_its_own_connection_alone(
    one_of_two: ServedDocuments, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(number: int, command: Command) -> Outcome:
        raise RuntimeError("a defect")

    monkeypatch.setattr(one_of_two.default(), "forward", fail)
    with WireClient(one_of_two.port) as unlucky, WireClient(one_of_two.port) as other:
        other.ask(Opcode.NOOP)
        unlucky.send(encode_request(Opcode.GET, next(keys_of(THERE))))
        with pytest.raises(ConnectionError):
            unlucky.response()
        assert other.ask(Opcode.NOOP).status == Status.SUCCESS


def test_connections_that_are_over_are_forgotten(served: ServedDocuments) -> None:
    for _ in range(10):
        with WireClient(served.port) as client:
            client.ask(Opcode.NOOP)
    counts = served.front_end.counts
    soon(lambda: counts.connections_now == 0 and counts.connections_total == 10)


def test_closing_the_front_end_ends_what_is_under_way() -> None:
    backend = default_backend()
    with ServedDocuments(backend) as served:
        served.default().is_everything_safe = False
        client = WireClient(served.port)
        client.send(encode_request(Opcode.SEQ_PERSISTENCE, extras=struct.pack(">Q", 9)))
        soon(lambda: bool(served.default().waits))
    with client, pytest.raises(ConnectionError):
        client.response()


def test_an_address_in_use_is_said() -> None:
    async def listen_twice() -> None:
        first, second = (DocumentFrontEnd(MemoryBackend()) for _ in range(2))
        await first.start("127.0.0.1", 0)
        try:
            await second.start("127.0.0.1", int(first.address.rpartition(":")[2]))
        finally:
            await first.close()

    with pytest.raises(AddressInUse):
        asyncio.run(listen_twice())


# -- Change streams ---------------------------------------------------------------------------


def test_what_a_change_stream_says_goes_to_its_session(
    served: ServedDocuments, client: WireClient
) -> None:
    client.send(encode_request(Opcode.DCP_OPEN, b"indexer:1", extras=bytes(8)))
    assert client.text_until(b"got 50 ") == b"got 50 "
    client.send(encode_response(Opcode.DCP_NOOP, 0, 7))
    assert client.text_until(b"got 5c ") == b"got 5c "
    (session,) = served.backend.sessions
    assert [frame.opcode for frame in session.frames] == [Opcode.DCP_OPEN, Opcode.DCP_NOOP]
    client.socket.close()
    soon(lambda: session.is_closed)


def test_an_answer_that_nobody_asked_for_ends_the_connection(client: WireClient) -> None:
    client.ask(Opcode.NOOP)
    client.send(encode_response(Opcode.DCP_NOOP, 0, 7))
    assert client.rest() == b""
