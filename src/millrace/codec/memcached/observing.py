"""The small bodies around seqs: mutation tokens, waits for durability, seqs of all partitions,
and the features of HELLO.

Numbers are big-endian, as in the frames that carry them.  Bodies of a wrong size raise
BadMessage, which names the status to answer with.
"""

from collections.abc import Iterable, Sequence
from struct import Struct, iter_unpack
from typing import Final

import msgspec

from millrace.codec.memcached.pushes import BadMessage, seq_of
from millrace.core.documents.document import (
    NO_SEQ,
    FailoverId,
    PartitionId,
    PartitionState,
    Seq,
)
from millrace.core.documents.messages import WaitKind

TOKEN: Final = Struct(">QQ")  # Failover id, seq: extras of an answer to a mutation.

_ID: Final = Struct(">Q")
_SEQ: Final = Struct(">Q")
_WAIT: Final = Struct(">QQBI")  # Seq, failover id, kind, timeout.
_STATE: Final = Struct(">I")
_OBSERVED: Final = Struct(">BHQQQ")  # Format, partition, id, persisted, high.
_OBSERVED_AFTER: Final = Struct(">QQ")  # The id that was asked for, and its last seq.
_PARTITION_SEQ: Final = ">HQ"
_PARTITION_SEQ_BYTES: Final = 10

STATE_NUMBERS: Final = {
    PartitionState.ACTIVE: 1,
    PartitionState.REPLICA: 2,
    PartitionState.PENDING: 3,
    PartitionState.DEAD: 4,
}
STATES: Final = {number: state for state, number in STATE_NUMBERS.items()}
_WAIT_NUMBERS: Final = {WaitKind.ARRIVED: 0, WaitKind.PERSISTED: 1}
_WAITS: Final = {number: kind for kind, number in _WAIT_NUMBERS.items()}


class Observed(msgspec.Struct, frozen=True):
    """The answer to OBSERVE_SEQ.  If there was a failover since `old_id`, which is the id that
    was asked for, `old_last` is the last seq of its time."""

    partition: PartitionId
    id: FailoverId
    persisted: Seq
    high: Seq
    old_id: FailoverId | None = None
    old_last: Seq = NO_SEQ


class SeqWait(msgspec.Struct, frozen=True):
    """What SEQ_PERSISTENCE asks: answer when `seq` is there.  DCP's clients give the seq alone;
    the rest is an extension.  `id` None: any; no timeout: the server's own, which also bounds the
    longest."""

    seq: Seq
    id: FailoverId | None = None
    kind: WaitKind = WaitKind.PERSISTED
    timeout_ms: int | None = None


def encode_observe(id: FailoverId) -> bytes:
    """The value of OBSERVE_SEQ; the partition is in the header."""
    return _ID.pack(id)


def decode_observe(value: bytes) -> FailoverId:
    if len(value) != _ID.size:
        raise BadMessage(f"a failover id of {len(value)} bytes")
    return FailoverId(int.from_bytes(value, "big"))


def encode_observed(observed: Observed) -> bytes:
    after = b""
    if observed.old_id is not None:
        after = _OBSERVED_AFTER.pack(observed.old_id, observed.old_last)
    numbers = (observed.partition, observed.id, observed.persisted, observed.high)
    return _OBSERVED.pack(bool(after), *numbers) + after


def decode_observed(value: bytes) -> Observed:
    has_failover = len(value) == _OBSERVED.size + _OBSERVED_AFTER.size
    if (len(value) != _OBSERVED.size and not has_failover) or value[0] != has_failover:
        raise BadMessage(f"an observation of {len(value)} bytes")
    _, partition, id, persisted, high = _OBSERVED.unpack_from(value)
    old_id, old_last = None, 0
    if has_failover:
        old_id, old_last = _OBSERVED_AFTER.unpack_from(value, _OBSERVED.size)
    return Observed(
        PartitionId(partition),
        FailoverId(id),
        seq_of(persisted),
        seq_of(high),
        old_id,
        seq_of(old_last),
    )


def encode_seq_wait(wait: SeqWait) -> bytes:
    """The extras of SEQ_PERSISTENCE."""
    if wait == SeqWait(wait.seq):
        return _SEQ.pack(wait.seq)
    return _WAIT.pack(wait.seq, wait.id or 0, _WAIT_NUMBERS[wait.kind], wait.timeout_ms or 0)


def decode_seq_wait(extras: bytes) -> SeqWait:
    if len(extras) == _SEQ.size:
        return SeqWait(seq_of(int.from_bytes(extras, "big")))
    if len(extras) != _WAIT.size:
        raise BadMessage(f"a wait of {len(extras)} bytes")
    seq, id, number, timeout_ms = _WAIT.unpack(extras)
    kind = _WAITS.get(number)
    if kind is None:
        raise BadMessage(f"{number} is no kind of wait")
    return SeqWait(seq_of(seq), FailoverId(id) if id else None, kind, timeout_ms or None)


def decode_state_wanted(extras: bytes) -> PartitionState | None:
    """The extras of GET_ALL_PARTITION_SEQS; None: of all that are alive."""
    if not extras:
        return None
    state = STATES.get(int.from_bytes(extras, "big")) if len(extras) == _STATE.size else None
    if state is None:
        raise BadMessage(f"{extras.hex()} is no state of a partition")
    return state


def encode_partition_seqs(seqs: Iterable[tuple[PartitionId, Seq]]) -> bytes:
    """The answer to GET_ALL_PARTITION_SEQS."""
    pack = Struct(_PARTITION_SEQ).pack
    return b"".join(pack(partition, seq) for partition, seq in seqs)


def decode_partition_seqs(value: bytes) -> list[tuple[PartitionId, Seq]]:
    if len(value) % _PARTITION_SEQ_BYTES:
        raise BadMessage(f"seqs of partitions in {len(value)} bytes")
    found = iter_unpack(_PARTITION_SEQ, value)
    return [(PartitionId(partition), seq_of(seq)) for partition, seq in found]


def encode_features(features: Sequence[int]) -> bytes:
    """The value of HELLO, and of its answer."""
    return b"".join(feature.to_bytes(2, "big") for feature in features)


def decode_features(value: bytes) -> list[int]:
    if len(value) % 2:
        raise BadMessage(f"features in {len(value)} bytes")
    return [feature for (feature,) in iter_unpack(">H", value)]
