"""Versions with the CAS they have elsewhere, over a real socket, against partitions in memory."""

import struct
from collections.abc import Iterator, Sequence

import pytest

from millrace.codec.memcached.binary import Durability, Response, encode_request
from millrace.codec.memcached.multi import MultiGet, decode_multi_stored, encode_multi_get
from millrace.codec.memcached.opcodes import DurabilityLevel, Feature, Opcode, Status
from millrace.codec.memcached.revisions import (
    PlacedRevisions,
    decode_revisions_read,
    encode_revisions,
)
from millrace.core.documents.document import Cas, Document
from millrace.core.documents.map import partition_of
from millrace.core.documents.partition import Partition
from millrace.core.documents.revisions import Revision
from millrace.core.documents.waits import WaitOutcome
from millrace.limits import MIB
from millrace.server.documents.carrying_out import ANSWER_BYTES_MAX
from tests.support.clusters import soon
from tests.support.document_backend import (
    FAILOVER_ID,
    PARTITIONS,
    MemoryHost,
    ServedDocuments,
    two_backends,
)
from tests.support.memcached_wire import WireClient

K = b"k"
HERE = partition_of(K, PARTITIONS)
ELSEWHERE = PARTITIONS + 1  # A partition that is on no node.
FEATURES = struct.pack(">HH", Feature.MAP_AWARE, Feature.MUTATION_SEQ)
MAJORITY = Durability(DurabilityLevel.MAJORITY, 500)


def meta(cas: int, flags: int = 7, expiry_s: int = 0) -> bytes:
    return struct.pack(">IIQQ", flags, expiry_s, 99, cas)


@pytest.fixture
def client(served: ServedDocuments) -> Iterator[WireClient]:
    with WireClient(served.port) as client:
        client.ask(Opcode.HELLO, b"", FEATURES)
        yield client


def written(response: Response) -> list[int]:
    assert response.status == Status.SUCCESS
    return list(decode_multi_stored(response.value).statuses)


def body(revisions: Sequence[Revision], partitions: Sequence[int] | None = None) -> bytes:
    places = partitions or [partition_of(each.key, PARTITIONS) for each in revisions]
    return encode_revisions(PlacedRevisions(places, revisions))


def read(client: WireClient, *keys: bytes) -> list[Revision | None]:
    asked = MultiGet([partition_of(key, PARTITIONS) for key in keys], keys)
    response = client.ask(Opcode.READ_REVISIONS, value=encode_multi_get(asked))
    return list(decode_revisions_read(response.value, keys).revisions)


# -- One at a time ----------------------------------------------------------------------------


def test_a_document_keeps_the_cas_it_comes_with(client: WireClient) -> None:
    stored = client.ask(Opcode.SET_WITH_META, K, b"value", meta(50), partition=HERE)
    assert (stored.status, stored.cas) == (Status.SUCCESS, 50)
    assert stored.extras == struct.pack(">QQ", FAILOVER_ID, 1), "its seq is the master's own"
    got = client.ask(Opcode.GET, K, partition=HERE)
    assert (got.value, got.cas, got.extras) == (b"value", 50, struct.pack(">I", 7))


@pytest.mark.parametrize(
    ("opcode", "cas", "status"),
    [
        pytest.param(Opcode.SET_WITH_META, 49, Status.KEY_EXISTS, id="older"),
        pytest.param(Opcode.SET_WITH_META, 50, Status.KEY_EXISTS, id="the same"),
        pytest.param(Opcode.SET_WITH_META, 51, Status.SUCCESS, id="newer"),
        pytest.param(Opcode.DELETE_WITH_META, 49, Status.KEY_EXISTS, id="older deletion"),
        pytest.param(Opcode.DELETE_WITH_META, 50, Status.SUCCESS, id="deletion of the same cas"),
        pytest.param(Opcode.SET_WITH_META, 0, Status.INVALID_ARGUMENTS, id="no cas"),
        pytest.param(Opcode.SET_WITH_META, 2**64 - 1, Status.INVALID_ARGUMENTS, id="far ahead"),
    ],
)
def test_the_higher_revision_stays(
    client: WireClient, opcode: Opcode, cas: int, status: Status
) -> None:
    client.ask(Opcode.SET_WITH_META, K, b"value", meta(50), partition=HERE)
    value = b"" if opcode is Opcode.DELETE_WITH_META else b"value"
    assert client.ask(opcode, K, value, meta(cas), partition=HERE).status == status


def test_it_is_passed_on_for_a_client_that_does_not_know_the_map() -> None:
    one, other = two_backends()
    with ServedDocuments(one) as served, WireClient(served.port) as client:
        for key in (b"a", b"b", b"c", b"d"):
            assert client.ask(Opcode.SET_WITH_META, key, b"v", meta(50)).cas == 50
            assert client.ask(Opcode.GET, key).cas == 50
        hosts = [backend.bucket("default") for backend in (one, other)]
        counts = [sum(len(copy.table) for copy in host.copies()) for host in hosts if host]
        assert all(counts) and sum(counts) == 4


# -- Many at once -----------------------------------------------------------------------------


def test_each_row_wins_or_loses_by_itself(client: WireClient) -> None:
    client.ask(Opcode.WRITE_REVISIONS, value=body([Revision(K, b"v", Cas(50))]))
    revisions = [
        Revision(b"new", b"n", Cas(1), 3, 2**32 - 1),
        Revision(K, b"w", Cas(49)),
        Revision(b"gone", None, Cas(9)),
        Revision(b"large", bytes((1 << 20) + 1), Cas(1)),
        Revision(b"nowhere", b"", Cas(1)),
        Revision(b"ahead", b"", Cas(2**63)),
    ]
    places = [partition_of(each.key, PARTITIONS) for each in revisions]
    places[4] = ELSEWHERE
    answer = client.ask(Opcode.WRITE_REVISIONS, value=body(revisions, places))
    assert written(answer) == [
        Status.SUCCESS,
        Status.KEY_EXISTS,
        Status.SUCCESS,
        Status.TOO_LARGE,
        Status.NOT_MY_PARTITION,
        Status.INVALID_ARGUMENTS,
    ]
    found = read(client, b"new", K, b"gone", b"large")
    assert found == [revisions[0], Revision(K, b"v", Cas(50)), revisions[2], None]


def test_of_one_key_the_highest_stays_wherever_it_stands(client: WireClient) -> None:
    rows = [Revision(K, b"%d" % cas, Cas(cas)) for cas in (5, 9, 7)]
    answer = client.ask(Opcode.WRITE_REVISIONS, value=body(rows))
    assert written(answer) == [Status.SUCCESS, Status.SUCCESS, Status.KEY_EXISTS]
    assert read(client, K) == [rows[1]]


def test_a_tombstone_on_disk_counts(
    served: ServedDocuments, client: WireClient, host: MemoryHost
) -> None:
    client.ask(Opcode.WRITE_REVISIONS, value=body([Revision(K, None, Cas(50))]))
    served.call(host.evict_everything)
    partition = host.copy(HERE)
    assert partition is not None and K not in partition.table
    answer = client.ask(Opcode.WRITE_REVISIONS, value=body([Revision(K, b"old", Cas(49))]))
    assert written(answer) == [Status.KEY_EXISTS]
    assert read(client, K) == [Revision(K, None, Cas(50))]


def test_a_value_on_disk_is_read(
    served: ServedDocuments, client: WireClient, host: MemoryHost
) -> None:
    held = Revision(K, b"value", Cas(50), 3)
    client.ask(Opcode.WRITE_REVISIONS, value=body([held]))
    served.call(host.evict_everything)
    assert read(client, K) == [held]
    answer = client.ask(Opcode.WRITE_REVISIONS, value=body([Revision(K, b"wider", Cas(50))]))
    assert written(answer) == [Status.SUCCESS], "of the same cas the bytes decide"


@pytest.mark.parametrize("opcode", [Opcode.WRITE_REVISIONS, Opcode.READ_REVISIONS])
def test_nonsense_is_refused(client: WireClient, opcode: Opcode) -> None:
    assert client.ask(opcode, value=b"nonsense").status == Status.INVALID_ARGUMENTS


def test_more_than_fits_in_one_answer_is_to_be_asked_for_in_parts(client: WireClient) -> None:
    client.ask(Opcode.WRITE_REVISIONS, value=body([Revision(K, bytes(1 << 20), Cas(1))]))
    asked = encode_multi_get(MultiGet([HERE] * 40, [K] * 40))
    assert client.ask(Opcode.READ_REVISIONS, value=asked).status == Status.TOO_LARGE


def test_a_node_that_does_not_serve_neither_takes_nor_tells(
    client: WireClient, host: MemoryHost
) -> None:
    host.is_serving = False
    answer = client.ask(Opcode.WRITE_REVISIONS, value=body([Revision(K, b"v", Cas(1))]))
    assert written(answer) == [Status.TEMPORARY_FAILURE]
    asked = encode_multi_get(MultiGet([HERE], [K]))
    response = client.ask(Opcode.READ_REVISIONS, value=asked)
    statuses = decode_revisions_read(response.value, [K]).statuses
    assert list(statuses) == [Status.TEMPORARY_FAILURE]


def test_a_node_that_stops_serving_half_way_takes_no_more(
    client: WireClient, host: MemoryHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease may end between two partitions of one request."""
    there = b"l"
    assert partition_of(there, PARTITIONS) != HERE
    take_revisions = host.operations.take_revisions

    def take_the_last(
        partition: Partition, revisions: Sequence[Revision], now_us: int
    ) -> list[Document | None]:
        host.is_serving = False
        return take_revisions(partition, revisions, now_us)

    monkeypatch.setattr(host.operations, "take_revisions", take_the_last)
    offers = [Revision(K, b"v", Cas(1)), Revision(there, b"v", Cas(1))]
    answer = client.ask(Opcode.WRITE_REVISIONS, value=body(offers))
    assert written(answer) == [Status.SUCCESS, Status.TEMPORARY_FAILURE]


# -- Durability -------------------------------------------------------------------------------


def test_what_outdoes_an_offer_is_waited_for_too(
    served: ServedDocuments, client: WireClient, host: MemoryHost
) -> None:
    client.ask(Opcode.WRITE_REVISIONS, value=body([Revision(K, b"v", Cas(50))]))
    host.is_everything_safe = False
    offer = body([Revision(K, b"old", Cas(49))])
    client.send(encode_request(Opcode.WRITE_REVISIONS, value=offer, durability=MAJORITY))
    soon(lambda: served.call(lambda: len(host.waits)) == 1)
    token, _, future = served.call(lambda: host.waits[0])
    assert (token.partition, token.seq) == (HERE, 1)
    served.call(lambda: future.set_result(WaitOutcome.OK))
    assert written(client.response()) == [Status.KEY_EXISTS]


def test_an_offer_whose_history_ends_is_ambiguous(client: WireClient, host: MemoryHost) -> None:
    host.wait_outcome = WaitOutcome.WRONG_ID
    offer = body([Revision(K, b"v", Cas(50)), Revision(K, b"old", Cas(49))])
    answer = client.ask(Opcode.WRITE_REVISIONS, value=offer, durability=MAJORITY)
    assert set(written(answer)) == {Status.SYNC_WRITE_AMBIGUOUS}


def test_what_is_too_much_for_one_answer_is_not_read_beyond_that(
    served: ServedDocuments, client: WireClient, host: MemoryHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4,096 documents of a megabyte were four gigabytes, in one step of the loop."""
    keys = [b"%d" % at for at in range(4_096)]
    places = [partition_of(key, PARTITIONS) for key in keys]
    value = bytes(MIB)

    def store() -> None:
        for place, key in zip(places, keys, strict=True):
            partition = host.active(place)
            assert partition is not None
            partition.store(key, value, 0, 0, host.now_us())
        host.evict_everything()

    served.call(store)
    loaded: list[bytes] = []
    load = host._load

    def counted(document: Document) -> Document:
        loaded.append(document.key)
        return load(document)

    monkeypatch.setattr(host.operations, "_load", counted)
    asked = encode_multi_get(MultiGet(places, keys))
    assert client.ask(Opcode.READ_REVISIONS, value=asked).status == Status.TOO_LARGE
    assert len(loaded) <= ANSWER_BYTES_MAX // MIB + 1
