"""memcached's binary protocol over a real socket, against partitions in memory."""

import asyncio
import struct
from itertools import islice

import pytest

from millrace.codec.memcached.binary import encode_request
from millrace.codec.memcached.opcodes import Feature, Opcode, Status
from millrace.core.documents.map import partition_of
from millrace.server.documents.flushing import TURN_DOCUMENTS, flush
from tests.support.document_backend import (
    FAILOVER_ID,
    PARTITIONS,
    MemoryHost,
    ServedDocuments,
    default_backend,
    keys_of,
)
from tests.support.memcached_wire import WireClient

NO_EXPIRY = struct.pack(">II", 7, 0)  # Flags 7.
KEY_PARTITION = partition_of(b"k", PARTITIONS)
MAP_AWARE = struct.pack(">H", Feature.MAP_AWARE)


def counter(delta: int, initial: int, expiry: int = 0) -> bytes:
    return struct.pack(">QQI", delta, initial, expiry)


# -- Documents --------------------------------------------------------------------------------


def test_what_was_set_is_got_with_flags_and_cas(client: WireClient) -> None:
    stored = client.ask(Opcode.SET, b"k", b"value", NO_EXPIRY, opaque=5)
    assert (stored.status, stored.opaque, stored.value) == (Status.SUCCESS, 5, b"")
    got = client.ask(Opcode.GET, b"k", opaque=6)
    assert (got.status, got.opaque, got.key, got.value) == (Status.SUCCESS, 6, b"", b"value")
    assert (got.extras, got.cas) == (struct.pack(">I", 7), stored.cas)


@pytest.mark.parametrize("opcode", [Opcode.GETK, Opcode.GATK], ids=lambda opcode: opcode.name)
def test_some_gets_tell_the_key(client: WireClient, opcode: Opcode) -> None:
    client.ask(Opcode.SET, b"k", b"value", NO_EXPIRY)
    extras = b"" if opcode is Opcode.GETK else bytes(4)
    assert client.ask(opcode, b"k", extras=extras).key == b"k"
    missing = client.ask(opcode, b"missing", extras=extras)
    assert (missing.status, missing.key) == (Status.NOT_FOUND, b"missing")


@pytest.mark.parametrize(
    ("opcode", "extras", "status"),
    [
        pytest.param(Opcode.GET, b"", Status.NOT_FOUND, id="get"),
        pytest.param(Opcode.ADD, NO_EXPIRY, Status.SUCCESS, id="add"),
        pytest.param(Opcode.REPLACE, NO_EXPIRY, Status.NOT_FOUND, id="replace"),
        pytest.param(Opcode.APPEND, b"", Status.NOT_STORED, id="append"),
        pytest.param(Opcode.PREPEND, b"", Status.NOT_STORED, id="prepend"),
        pytest.param(Opcode.DELETE, b"", Status.NOT_FOUND, id="delete"),
        pytest.param(Opcode.TOUCH, bytes(4), Status.NOT_FOUND, id="touch"),
        pytest.param(Opcode.GAT, bytes(4), Status.NOT_FOUND, id="get and touch"),
        pytest.param(Opcode.INCREMENT, counter(1, 10), Status.SUCCESS, id="increment"),
        pytest.param(
            Opcode.DECREMENT, counter(1, 10, 0xFFFFFFFF), Status.NOT_FOUND, id="decrement no new"
        ),
    ],
)
def test_on_a_missing_document(
    client: WireClient, opcode: Opcode, extras: bytes, status: Status
) -> None:
    assert client.ask(opcode, b"k", extras=extras).status == status


def test_a_counter_answers_with_its_number(client: WireClient) -> None:
    assert client.ask(Opcode.INCREMENT, b"n", extras=counter(5, 10)).value == struct.pack(">Q", 10)
    assert client.ask(Opcode.INCREMENT, b"n", extras=counter(5, 10)).value == struct.pack(">Q", 15)
    assert client.ask(Opcode.DECREMENT, b"n", extras=counter(99, 0)).value == struct.pack(">Q", 0)
    assert client.ask(Opcode.GET, b"n").value == b"0"


def test_a_wrong_cas_is_refused_and_the_right_one_taken(client: WireClient) -> None:
    stored = client.ask(Opcode.SET, b"k", b"1", NO_EXPIRY)
    wrong = client.ask(Opcode.SET, b"k", b"2", NO_EXPIRY, cas=stored.cas + 1)
    assert wrong.status == Status.KEY_EXISTS
    assert client.ask(Opcode.SET, b"k", b"3", NO_EXPIRY, cas=stored.cas).status == Status.SUCCESS
    assert client.ask(Opcode.GET, b"k").value == b"3"


def test_a_deletion_has_no_cas_for_those_who_do_not_ask_for_its_seq(client: WireClient) -> None:
    client.ask(Opcode.SET, b"k", b"1", NO_EXPIRY)
    deleted = client.ask(Opcode.DELETE, b"k")
    assert (deleted.status, deleted.cas) == (Status.SUCCESS, 0)


def test_a_value_over_the_limit_is_too_large_and_the_old_one_stays(client: WireClient) -> None:
    client.ask(Opcode.SET, b"k", b"old", NO_EXPIRY)
    too_large = client.ask(Opcode.SET, b"k", bytes((1 << 20) + 1), NO_EXPIRY)
    assert too_large.status == Status.TOO_LARGE
    assert client.ask(Opcode.GET, b"k").value == b"old"


def test_a_document_expires(client: WireClient, host: MemoryHost) -> None:
    client.ask(Opcode.SET, b"k", b"v", struct.pack(">II", 0, 100))
    host.now_offset_us = 99_000_000
    assert client.ask(Opcode.GAT, b"k", extras=struct.pack(">I", 50)).value == b"v"
    host.now_offset_us += 49_000_000
    assert client.ask(Opcode.GET, b"k").status == Status.SUCCESS
    host.now_offset_us += 2_000_000
    assert client.ask(Opcode.GET, b"k").status == Status.NOT_FOUND


def test_an_evicted_value_is_read_from_disk(
    served: ServedDocuments, client: WireClient, host: MemoryHost
) -> None:
    client.ask(Opcode.SET, b"k", b"v", NO_EXPIRY)
    served.call(host.evict_everything)
    assert client.ask(Opcode.GET, b"k").value == b"v"
    host.disk.clear()
    assert client.ask(Opcode.GET, b"k").status == Status.TEMPORARY_FAILURE


@pytest.mark.parametrize(
    ("opcode", "extras", "has_answer"),
    [
        pytest.param(Opcode.GETQ, b"", True, id="getq"),
        pytest.param(Opcode.GETKQ, b"", True, id="getkq"),
        pytest.param(Opcode.GATQ, bytes(4), True, id="gatq"),
        pytest.param(Opcode.SETQ, NO_EXPIRY, False, id="setq"),
        pytest.param(Opcode.ADDQ, NO_EXPIRY, True, id="addq"),
        pytest.param(Opcode.REPLACEQ, NO_EXPIRY, False, id="replaceq"),
        pytest.param(Opcode.APPENDQ, b"", False, id="appendq"),
        pytest.param(Opcode.INCREMENTQ, counter(1, 0), True, id="incrementq of text"),
        pytest.param(Opcode.DELETEQ, b"", False, id="deleteq"),
        pytest.param(Opcode.FLUSHQ, b"", False, id="flushq"),
    ],
)
def test_quiet_requests_on_a_document_that_exists(
    client: WireClient, opcode: Opcode, extras: bytes, has_answer: bool
) -> None:
    client.ask(Opcode.SET, b"k", b"text", NO_EXPIRY)
    key = b"" if opcode is Opcode.FLUSHQ else b"k"
    client.send(encode_request(opcode, key, extras=extras))
    assert len(client.said_before_noop()) == has_answer


@pytest.mark.parametrize(
    ("opcode", "extras", "has_answer"),
    [
        pytest.param(Opcode.GETQ, b"", False, id="getq"),
        pytest.param(Opcode.GATKQ, bytes(4), False, id="gatkq"),
        pytest.param(Opcode.ADDQ, NO_EXPIRY, False, id="addq"),
        pytest.param(Opcode.REPLACEQ, NO_EXPIRY, True, id="replaceq"),
        pytest.param(Opcode.PREPENDQ, b"", True, id="prependq"),
        pytest.param(Opcode.DELETEQ, b"", True, id="deleteq"),
        pytest.param(Opcode.DECREMENTQ, counter(1, 0), False, id="decrementq"),
    ],
)
def test_quiet_requests_on_a_document_that_does_not(
    client: WireClient, opcode: Opcode, extras: bytes, has_answer: bool
) -> None:
    client.send(encode_request(opcode, b"k", extras=extras))
    assert len(client.said_before_noop()) == has_answer


# -- The connection ---------------------------------------------------------------------------


def test_hello_grants_what_there_is(client: WireClient) -> None:
    asked = struct.pack(">4H", 0x02, Feature.MUTATION_SEQ, 0x4444, Feature.MAP_AWARE)
    granted = client.ask(Opcode.HELLO, b"client", asked)
    assert granted.value == struct.pack(">2H", Feature.MUTATION_SEQ, Feature.MAP_AWARE)


def test_half_a_feature_is_refused(client: WireClient) -> None:
    assert client.ask(Opcode.HELLO, b"client", b"odd").status == Status.INVALID_ARGUMENTS


def test_changes_are_named_if_asked(client: WireClient, host: MemoryHost) -> None:
    client.ask(Opcode.HELLO, b"", struct.pack(">H", Feature.MUTATION_SEQ))
    for opcode, extras in ((Opcode.SET, NO_EXPIRY), (Opcode.APPEND, b""), (Opcode.DELETE, b"")):
        changed = client.ask(opcode, b"k", extras=extras)
        partition = host.copy(KEY_PARTITION)
        assert partition is not None
        assert changed.extras == struct.pack(">QQ", FAILOVER_ID, partition.high)
        assert changed.cas == partition.last_cas


def test_a_bucket_is_selected(client: WireClient) -> None:
    client.ask(Opcode.SET, b"k", b"v", NO_EXPIRY)
    assert client.ask(Opcode.SELECT_BUCKET, b"other").status == Status.SUCCESS
    assert client.ask(Opcode.GET, b"k").status == Status.NOT_FOUND
    assert client.ask(Opcode.SELECT_BUCKET, b"none").status == Status.NOT_FOUND
    assert client.ask(Opcode.SET, b"k", bytes(101), NO_EXPIRY).status == Status.TOO_LARGE


@pytest.mark.parametrize(
    "opcode", [Opcode.GET, Opcode.FLUSH, Opcode.GET_CLUSTER_CONFIG], ids=lambda opcode: opcode.name
)
def test_without_a_bucket_nothing_is_served(opcode: Opcode) -> None:
    backend = default_backend()
    backend.drop("default")
    with ServedDocuments(backend) as served, WireClient(served.port) as client:
        key = b"k" if opcode is Opcode.GET else b""
        assert client.ask(opcode, key).status == Status.NO_BUCKET


def test_sasl_lets_everybody_in(client: WireClient) -> None:
    assert client.ask(Opcode.SASL_LIST).value == b"PLAIN"
    assert client.ask(Opcode.SASL_AUTH, b"PLAIN", b"\0me\0secret").status == Status.SUCCESS
    assert client.ask(Opcode.SASL_AUTH, b"SCRAM", b"x").status == Status.AUTH_ERROR


def test_version_noop_and_verbosity(client: WireClient) -> None:
    assert client.ask(Opcode.VERSION).value == b"0.1.0"
    assert client.ask(Opcode.NOOP).status == Status.SUCCESS
    assert client.ask(Opcode.VERBOSITY, extras=bytes(4)).status == Status.SUCCESS


def test_unknown_commands_are_refused_and_the_connection_goes_on(client: WireClient) -> None:
    assert client.ask(0xDD, b"k", b"v", b"e").status == Status.UNKNOWN_COMMAND
    assert client.ask(Opcode.NOOP).status == Status.SUCCESS


def stats(client: WireClient, group: bytes = b"") -> dict[bytes, bytes]:
    found = {}
    response = client.ask(Opcode.STAT, group)
    while response.key:
        found[response.key] = response.value
        response = client.response()
    assert response.status == Status.SUCCESS
    return found


def test_stats_count_hits_and_misses(client: WireClient) -> None:
    client.ask(Opcode.SET, b"k", b"v", NO_EXPIRY)
    client.ask(Opcode.GET, b"k")
    client.ask(Opcode.GET, b"missing")
    found = stats(client)
    assert (found[b"cmd_get"], found[b"get_hits"], found[b"get_misses"]) == (b"2", b"1", b"1")
    assert (found[b"cmd_set"], found[b"curr_items"]) == (b"1", b"1")
    assert found[b"curr_connections"] == b"1"


def test_stats_have_groups(client: WireClient) -> None:
    assert len(stats(client, b"partitions")) == PARTITIONS
    assert client.ask(Opcode.STAT, b"nonsense").status == Status.NOT_FOUND


def test_stats_are_reset(client: WireClient) -> None:
    client.ask(Opcode.GET, b"k")
    assert stats(client, b"reset") == {}
    assert stats(client)[b"cmd_get"] == b"0"


# -- Flush ------------------------------------------------------------------------------------


def test_a_flush_is_a_deletion_of_each_document(client: WireClient, host: MemoryHost) -> None:
    for at in range(2_000):
        client.send(encode_request(Opcode.SETQ, b"%d" % at, b"v", NO_EXPIRY))
    client.said_before_noop()
    seqs = sum(partition.high for partition in host.copies())
    assert client.ask(Opcode.FLUSH).status == Status.SUCCESS
    assert sum(partition.high for partition in host.copies()) == 2 * seqs == 4_000
    assert client.ask(Opcode.GET, b"7").status == Status.NOT_FOUND


def test_what_is_pipelined_behind_a_flush_is_stored_after_it(client: WireClient) -> None:
    before = encode_request(Opcode.SETQ, b"k", b"before", NO_EXPIRY)
    after = encode_request(Opcode.ADDQ, b"k", b"after", NO_EXPIRY)
    client.send(before + encode_request(Opcode.FLUSHQ) + after)
    assert client.ask(Opcode.GET, b"k").value == b"after"


def test_what_others_store_while_a_flush_goes_on_is_left_alone(
    served: ServedDocuments, host: MemoryHost
) -> None:
    """It is done in turns; between two of them somebody else stores a document again."""
    partition = host.copy(KEY_PARTITION)
    assert partition is not None
    keys = list(islice(keys_of([KEY_PARTITION]), 2 * TURN_DOCUMENTS))

    async def flush_and_store() -> bool:
        partition.store_many([(key, b"old", 0, 0) for key in keys], 1)
        flushing = asyncio.create_task(flush(host))
        await asyncio.sleep(0)
        assert partition.peek(keys[0]) is None and partition.peek(keys[-1]) is not None
        partition.store(keys[-1], b"new", 0, 0, 1)
        return await flushing

    assert served.run(flush_and_store())
    assert [key for key in keys if partition.peek(key) is not None] == keys[-1:]


def test_a_flush_can_be_for_later(client: WireClient) -> None:
    client.ask(Opcode.SET, b"k", b"v", NO_EXPIRY)
    assert client.ask(Opcode.FLUSH, extras=struct.pack(">I", 3600)).status == Status.SUCCESS
    assert client.ask(Opcode.GET, b"k").value == b"v"
