"""The binary protocol for clients that know of partitions: the map, many documents in one request,
durability, and where a partition stands."""

import struct

import pytest

from millrace.codec.memcached.binary import Durability, encode_request
from millrace.codec.memcached.multi import (
    MultiGet,
    MultiSet,
    decode_multi_got,
    decode_multi_stored,
    encode_multi_get,
    encode_multi_set,
)
from millrace.codec.memcached.observing import SeqWait, encode_seq_wait
from millrace.codec.memcached.opcodes import DurabilityLevel, Feature, Opcode, Status
from millrace.core.documents import waits
from millrace.core.documents.document import FailoverId, PartitionState, Seq
from millrace.core.documents.map import partition_of
from millrace.core.documents.messages import WaitKind
from millrace.core.documents.waits import WaitOutcome
from tests.support.clusters import soon
from tests.support.document_backend import (
    FAILOVER_ID,
    PARTITIONS,
    MemoryHost,
    ServedDocuments,
)
from tests.support.memcached_wire import WireClient

NO_EXPIRY = struct.pack(">II", 7, 0)  # Flags 7.
KEY_PARTITION = partition_of(b"k", PARTITIONS)
ELSEWHERE = PARTITIONS + 1  # A partition that is on no node.
MAP_AWARE = struct.pack(">H", Feature.MAP_AWARE)


# -- Clients that know the map ----------------------------------------------------------------


def test_a_plain_client_need_not_know_the_partition(client: WireClient) -> None:
    client.ask(Opcode.SET, b"k", b"v", NO_EXPIRY, partition=ELSEWHERE)
    assert client.ask(Opcode.GET, b"k", partition=3).value == b"v"


def test_one_that_knows_the_map_gets_the_map_once_when_it_errs(client: WireClient) -> None:
    client.ask(Opcode.HELLO, b"", MAP_AWARE)
    assert client.ask(Opcode.GET, b"k", partition=KEY_PARTITION).status == Status.NOT_FOUND
    refused = client.ask(Opcode.GET, b"k", partition=ELSEWHERE)
    assert refused.status == Status.NOT_MY_PARTITION
    assert refused.value == client.ask(Opcode.GET_CLUSTER_CONFIG).value
    again = client.ask(Opcode.SET, b"k", b"v", NO_EXPIRY, partition=ELSEWHERE)
    assert (again.status, again.value) == (Status.NOT_MY_PARTITION, b"")


def test_a_congested_node_refuses_changes_alone(client: WireClient, host: MemoryHost) -> None:
    client.ask(Opcode.SET, b"k", b"v", NO_EXPIRY)
    host.is_congested = True
    assert client.ask(Opcode.DELETE, b"k").status == Status.TEMPORARY_FAILURE
    assert client.ask(Opcode.GET, b"k").value == b"v"


def test_a_node_whose_disk_is_full_lets_what_makes_room_through(
    client: WireClient, host: MemoryHost
) -> None:
    """Whoever followed the advice to delete documents was told to try again later, for ever."""
    client.ask(Opcode.SET, b"k", b"v", NO_EXPIRY)
    host.is_congested = host.operations.is_disk_full = True
    assert client.ask(Opcode.SET, b"k", b"w", NO_EXPIRY).status == Status.TEMPORARY_FAILURE
    assert client.ask(Opcode.APPEND, b"k", b"w").status == Status.TEMPORARY_FAILURE
    assert client.ask(Opcode.DELETE, b"k").status == Status.SUCCESS
    assert client.ask(Opcode.GET, b"k").status == Status.NOT_FOUND


def test_a_node_that_is_not_serving_answers_nothing(client: WireClient, host: MemoryHost) -> None:
    client.ask(Opcode.SET, b"k", b"v", NO_EXPIRY)
    host.is_serving = False
    assert client.ask(Opcode.GET, b"k").status == Status.TEMPORARY_FAILURE
    assert client.ask(Opcode.FLUSH).status == Status.TEMPORARY_FAILURE


# -- Many at once -----------------------------------------------------------------------------


def multi_set(keys: list[bytes], values: list[bytes], partitions: list[int] | None = None) -> bytes:
    zeros = [0] * len(keys)
    return encode_multi_set(MultiSet(partitions or zeros, keys, values, zeros, zeros))


def test_many_are_set_and_got_in_one_request(client: WireClient) -> None:
    keys = [b"k%d" % at for at in range(100)]
    stored = client.ask(Opcode.MULTI_SET, value=multi_set(keys, keys))
    statuses, cas = decode_multi_stored(stored.value)
    assert set(statuses) == {Status.SUCCESS}
    asked = MultiGet([0] * 101, [*keys, b"missing"])
    got = decode_multi_got(client.ask(Opcode.MULTI_GET, value=encode_multi_get(asked)).value)
    assert list(got.statuses) == [Status.SUCCESS] * 100 + [Status.NOT_FOUND]
    assert list(got.values) == [*keys, b""]
    assert list(got.cas) == [*cas, 0]


def test_of_two_rows_with_one_key_the_later_stays(client: WireClient) -> None:
    client.ask(Opcode.MULTI_SET, value=multi_set([b"k", b"k"], [b"first", b"second"]))
    assert client.ask(Opcode.GET, b"k").value == b"second"


def test_a_row_that_cannot_be_stored_costs_itself_alone(client: WireClient) -> None:
    client.ask(Opcode.HELLO, b"", MAP_AWARE)
    keys = [b"k", b"k", b"k"]
    values = [b"v", bytes((1 << 20) + 1), b"w"]
    body = multi_set(keys, values, [KEY_PARTITION, KEY_PARTITION, ELSEWHERE])
    statuses = decode_multi_stored(client.ask(Opcode.MULTI_SET, value=body).value).statuses
    assert list(statuses) == [Status.SUCCESS, Status.TOO_LARGE, Status.NOT_MY_PARTITION]
    assert client.ask(Opcode.GET, b"k", partition=KEY_PARTITION).value == b"v"


def test_more_values_than_fit_in_one_answer_are_to_be_asked_for_in_parts(
    client: WireClient,
) -> None:
    client.ask(Opcode.SET, b"k", bytes(1 << 20), NO_EXPIRY)
    asked = encode_multi_get(MultiGet([0] * 40, [b"k"] * 40))
    assert client.ask(Opcode.MULTI_GET, value=asked).status == Status.TOO_LARGE
    asked = encode_multi_get(MultiGet([0] * 20, [b"k"] * 20))
    assert client.ask(Opcode.MULTI_GET, value=asked).status == Status.SUCCESS


@pytest.mark.parametrize("opcode", [Opcode.MULTI_GET, Opcode.MULTI_SET], ids=lambda each: each.name)
def test_a_damaged_body_is_refused(client: WireClient, opcode: Opcode) -> None:
    assert client.ask(opcode, value=b"nonsense").status == Status.INVALID_ARGUMENTS


# -- Durability -------------------------------------------------------------------------------


def test_a_durable_change_is_answered_when_it_is_safe(
    served: ServedDocuments, client: WireClient, host: MemoryHost
) -> None:
    host.is_everything_safe = False
    level = DurabilityLevel.PERSIST_TO_MAJORITY
    request = encode_request(Opcode.SET, b"k", b"v", NO_EXPIRY, durability=Durability(level, 500))
    client.send(request)
    with WireClient(served.port) as other:  # Everybody sees it meanwhile.
        soon(lambda: other.ask(Opcode.GET, b"k").status == Status.SUCCESS)
    token, condition, future = served.call(lambda: host.waits[0])
    assert condition is waits.Durability.PERSIST_TO_MAJORITY
    served.call(lambda: future.set_result(WaitOutcome.OK))
    stored = client.response()
    assert (stored.status, stored.cas) == (Status.SUCCESS, token.cas)


@pytest.mark.parametrize(
    "ended",
    [WaitOutcome.TIMED_OUT, WaitOutcome.WRONG_ID, WaitOutcome.NOT_MY_PARTITION],
    ids=lambda ended: ended.value,
)
def test_a_change_that_may_be_lost_is_ambiguous(
    client: WireClient, host: MemoryHost, ended: WaitOutcome
) -> None:
    host.wait_outcome = ended
    durability = Durability(DurabilityLevel.MAJORITY)
    stored = client.ask(Opcode.SET, b"k", b"v", NO_EXPIRY, durability=durability)
    assert stored.status == Status.SYNC_WRITE_AMBIGUOUS
    body = multi_set([b"k", b"j"], [b"v", b"w"])
    many = client.ask(Opcode.MULTI_SET, value=body, durability=durability)
    assert set(decode_multi_stored(many.value).statuses) == {Status.SYNC_WRITE_AMBIGUOUS}


def test_a_refused_change_is_not_waited_for(client: WireClient, host: MemoryHost) -> None:
    host.is_everything_safe = False
    durability = Durability(DurabilityLevel.MAJORITY)
    assert client.ask(Opcode.DELETE, b"k", durability=durability).status == Status.NOT_FOUND


@pytest.mark.parametrize(
    ("extras", "status", "condition"),
    [
        pytest.param(struct.pack(">Q", 1), 0, waits.Durability.PERSISTED, id="seq"),
        pytest.param(
            encode_seq_wait(SeqWait(Seq(1), FAILOVER_ID, WaitKind.PERSISTED, 5)),
            0,
            waits.Durability.PERSISTED,
            id="seq and id",
        ),
        pytest.param(
            encode_seq_wait(SeqWait(Seq(1), FAILOVER_ID, WaitKind.ARRIVED)),
            0,
            waits.Durability.ARRIVED,
            id="arrived",
        ),
        pytest.param(
            encode_seq_wait(SeqWait(Seq(1), FailoverId(5))),
            Status.WRONG_FAILOVER_ID,
            None,
            id="wrong id",
        ),
        pytest.param(b"short", Status.INVALID_ARGUMENTS, None, id="malformed"),
    ],
)
def test_waiting_for_a_seq(
    client: WireClient,
    host: MemoryHost,
    extras: bytes,
    status: int,
    condition: waits.Durability | None,
) -> None:
    assert client.ask(Opcode.SEQ_PERSISTENCE, extras=extras).status == status
    assert host.conditions == ([] if condition is None else [condition])


def test_waiting_for_a_seq_of_a_partition_that_is_not_here(client: WireClient) -> None:
    extras = struct.pack(">Q", 1)
    refused = client.ask(Opcode.SEQ_PERSISTENCE, extras=extras, partition=ELSEWHERE)
    assert refused.status == Status.NOT_MY_PARTITION


# -- Where partitions stand -------------------------------------------------------------------


def test_polling_tells_what_is_persisted(
    served: ServedDocuments, client: WireClient, host: MemoryHost
) -> None:
    client.ask(Opcode.SET, b"k", b"1", NO_EXPIRY)
    served.call(host.evict_everything)
    client.ask(Opcode.SET, b"k", b"2", NO_EXPIRY)
    id = struct.pack(">Q", FAILOVER_ID)
    observed = client.ask(Opcode.OBSERVE_SEQ, value=id, partition=KEY_PARTITION)
    assert observed.value == struct.pack(">BHQQQ", 0, KEY_PARTITION, FAILOVER_ID, 1, 2)


def test_polling_with_an_id_of_before_the_failover_tells_where_it_ended(
    served: ServedDocuments, client: WireClient, host: MemoryHost
) -> None:
    client.ask(Opcode.SET, b"k", b"1", NO_EXPIRY)
    partition = host.copy(KEY_PARTITION)
    assert partition is not None
    served.call(lambda: partition.promote(2, FailoverId(0xDEAD), is_takeover=False))
    id = struct.pack(">Q", FAILOVER_ID)
    observed = client.ask(Opcode.OBSERVE_SEQ, value=id, partition=KEY_PARTITION)
    told = struct.unpack(">BHQQQQQ", observed.value)
    assert told == (1, KEY_PARTITION, 0xDEAD, 0, 1, FAILOVER_ID, 1)
    log = client.ask(Opcode.GET_FAILOVER_LOG, partition=KEY_PARTITION)
    assert struct.unpack(">4Q", log.value) == (0xDEAD, 1, FAILOVER_ID, 0)


def test_polling_with_an_id_that_never_was(client: WireClient) -> None:
    unknown = client.ask(Opcode.OBSERVE_SEQ, value=struct.pack(">Q", 5))
    assert unknown.status == Status.NOT_FOUND
    assert client.ask(Opcode.OBSERVE_SEQ, value=b"").status == Status.INVALID_ARGUMENTS


def test_all_seqs_are_told_by_state(
    served: ServedDocuments, client: WireClient, host: MemoryHost
) -> None:
    client.ask(Opcode.SET, b"k", b"1", NO_EXPIRY)
    partition = host.copy(KEY_PARTITION)
    assert partition is not None
    served.call(lambda: partition.set_state(PartitionState.REPLICA, 2))
    everything = client.ask(Opcode.GET_ALL_PARTITION_SEQS).value
    assert len(everything) == 10 * PARTITIONS
    replicas = client.ask(Opcode.GET_ALL_PARTITION_SEQS, extras=struct.pack(">I", 2))
    assert replicas.value == struct.pack(">HQ", KEY_PARTITION, 1)
    unknown = client.ask(Opcode.GET_ALL_PARTITION_SEQS, extras=struct.pack(">I", 9))
    assert unknown.status == Status.INVALID_ARGUMENTS
