"""Small bodies about seqs, and the features of HELLO."""

from collections.abc import Callable

import pytest

from millrace.codec.memcached import observing
from millrace.codec.memcached.observing import Observed, SeqWait
from millrace.codec.memcached.opcodes import Feature
from millrace.codec.memcached.pushes import BadMessage
from millrace.core.documents.document import FailoverId, PartitionId, PartitionState, Seq
from millrace.core.documents.messages import WaitKind

PARTITION = PartitionId(0x0102)


@pytest.mark.parametrize(
    ("observed", "golden"),
    [
        pytest.param(
            Observed(PARTITION, FailoverId(3), Seq(4), Seq(5)),
            "00 0102 0000000000000003 0000000000000004 0000000000000005",
            id="same-master",
        ),
        pytest.param(
            Observed(PARTITION, FailoverId(3), Seq(4), Seq(5), FailoverId(6), Seq(7)),
            "01 0102 0000000000000003 0000000000000004 0000000000000005"
            "0000000000000006 0000000000000007",
            id="failed-over",
        ),
    ],
)
def test_an_observation_is_as_couchbase_draws_it(observed: Observed, golden: str) -> None:
    assert observing.encode_observed(observed) == bytes.fromhex(golden)
    assert observing.decode_observed(bytes.fromhex(golden)) == observed


@pytest.mark.parametrize(
    ("wait", "size"),
    [
        pytest.param(SeqWait(Seq(9)), 8, id="couchbases"),
        pytest.param(SeqWait(Seq(9), FailoverId(3)), 21, id="with-id"),
        pytest.param(SeqWait(Seq(9), None, WaitKind.ARRIVED, 250), 21, id="of-a-replica"),
    ],
)
def test_a_wait_arrives(wait: SeqWait, size: int) -> None:
    extras = observing.encode_seq_wait(wait)
    assert len(extras) == size
    assert observing.decode_seq_wait(extras) == wait


def test_the_id_that_is_observed_arrives() -> None:
    id = FailoverId(2**64 - 1)
    assert observing.decode_observe(observing.encode_observe(id)) == id


def test_seqs_of_partitions_arrive() -> None:
    seqs = [(PartitionId(0), Seq(7)), (PARTITION, Seq(2**63 - 1))]
    assert observing.decode_partition_seqs(observing.encode_partition_seqs(seqs)) == seqs


@pytest.mark.parametrize(
    ("extras", "state"),
    [
        (b"", None),
        (b"\0\0\0\1", PartitionState.ACTIVE),
        (b"\0\0\0\2", PartitionState.REPLICA),
        (b"\0\0\0\3", PartitionState.PENDING),
        (b"\0\0\0\4", PartitionState.DEAD),
    ],
    ids=["any", "active", "replica", "pending", "dead"],
)
def test_states_have_couchbases_numbers(extras: bytes, state: PartitionState | None) -> None:
    assert observing.decode_state_wanted(extras) is state


def test_features_arrive() -> None:
    features = [Feature.MUTATION_SEQ, Feature.MAP_AWARE, 0x0102]
    assert observing.encode_features(features) == bytes.fromhex("0004 8001 0102")
    assert observing.decode_features(bytes.fromhex("0004 8001 0102")) == features


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        pytest.param(observing.decode_observe, bytes(7), id="short-id"),
        pytest.param(observing.decode_observed, b"", id="no-observation"),
        pytest.param(observing.decode_observed, b"\1" + bytes(26), id="half-a-failover"),
        pytest.param(observing.decode_observed, b"\0" + bytes(42), id="failover-denied"),
        pytest.param(observing.decode_observed, b"\0" + b"\xff" * 26, id="seq-too-high"),
        pytest.param(observing.decode_seq_wait, bytes(9), id="odd-wait"),
        pytest.param(observing.decode_seq_wait, bytes(16) + b"\2" + bytes(4), id="unknown-wait"),
        pytest.param(observing.decode_seq_wait, b"\xff" * 8, id="wait-too-high"),
        pytest.param(observing.decode_state_wanted, b"\0\0\0\5", id="unknown-state"),
        pytest.param(observing.decode_state_wanted, b"\1", id="short-state"),
        pytest.param(observing.decode_partition_seqs, bytes(11), id="odd-seqs"),
        pytest.param(observing.decode_features, bytes(3), id="half-a-feature"),
    ],
)
def test_a_bad_body_is_refused(decode: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(BadMessage):
        decode(data)
