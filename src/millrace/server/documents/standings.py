"""Where partitions stand: failover logs, seqs, the map, and waiting until a change is safe (R-H).

These go to the copy that this node has of a partition, replica or master, and are never passed on:
who asks wants to know about this node.

I1  What is told of a replica is of complete snapshots alone: a seq inside of one may have been
    written again further on, and not have arrived yet (U6).
"""

from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import Final

from msgspec.structs import replace

from millrace.codec.memcached.binary import Request
from millrace.codec.memcached.observing import (
    Observed,
    decode_observe,
    decode_seq_wait,
    decode_state_wanted,
    encode_observed,
    encode_partition_seqs,
)
from millrace.codec.memcached.opcodes import Opcode, Status
from millrace.codec.memcached.pushes import BadMessage
from millrace.core.documents.document import NO_CAS, PartitionId, PartitionState
from millrace.core.documents.messages import MutationToken, WaitKind
from millrace.core.documents.partition import Partition
from millrace.core.documents.waits import WAIT_MS_MAX, Durability, WaitOutcome
from millrace.server.documents.binary_answers import fail, refuse_partition, succeed
from millrace.server.documents.visitor import Answer, Pending, Visitor

_ENTRY: Final = Struct(">QQ")  # Of a failover log.
_CONDITIONS: Final = {
    WaitKind.ARRIVED: Durability.ARRIVED,
    WaitKind.PERSISTED: Durability.PERSISTED,
}
_WAIT_STATUS: Final = {
    WaitOutcome.OK: Status.SUCCESS,
    WaitOutcome.WRONG_ID: Status.WRONG_FAILOVER_ID,
    WaitOutcome.NOT_MY_PARTITION: Status.NOT_MY_PARTITION,
    WaitOutcome.TIMED_OUT: Status.TEMPORARY_FAILURE,
}


def _copy(visitor: Visitor, request: Request) -> Partition | None:
    host = visitor.host()
    copy = host.copy(PartitionId(request.partition)) if host is not None else None
    return None if copy is None or copy.state is PartitionState.DEAD else copy


def observe_seq(visitor: Visitor, request: Request) -> Answer:
    """Polling, the third kind of wait."""
    partition = _copy(visitor, request)
    if partition is None:
        return refuse_partition(visitor, request)
    id = decode_observe(request.value)
    at = partition.log.position_of(id)
    if at is None:
        return fail(request, Status.NOT_FOUND)
    observed = Observed(
        partition.number, partition.log.newest, partition.persisted_complete, partition.complete
    )
    if at:  # Where the next one went on, that one's time ended.
        last = partition.log.entries[at - 1].seq
        observed = replace(observed, old_id=id, old_last=last)
    return succeed(request, encode_observed(observed))


def wait_for_seq(visitor: Visitor, request: Request) -> Answer:
    """The second kind of wait: answered when it is so."""
    host, partition = visitor.host(), _copy(visitor, request)
    if host is None or partition is None:
        return refuse_partition(visitor, request)
    asked = decode_seq_wait(request.extras)
    id = partition.log.newest if asked.id is None else asked.id
    token = MutationToken(partition.number, id, asked.seq, NO_CAS)
    condition = _CONDITIONS[asked.kind]
    timeout_ms = min(asked.timeout_ms or 0, WAIT_MS_MAX)
    wait = host.wait(partition.number, token, condition, timeout_ms)
    return Pending(wait, partial(_word_wait, visitor, request), is_wait=True)


def _word_wait(visitor: Visitor, request: Request, outcome: WaitOutcome) -> bytes:
    status = _WAIT_STATUS[outcome]
    if status is Status.SUCCESS:
        return succeed(request)
    if status is Status.NOT_MY_PARTITION:
        return refuse_partition(visitor, request)
    return fail(request, status)


def get_failover_log(visitor: Visitor, request: Request) -> Answer:
    partition = _copy(visitor, request)
    if partition is None:
        return refuse_partition(visitor, request)
    pairs = (_ENTRY.pack(entry.id, entry.seq) for entry in partition.log.entries)
    return succeed(request, b"".join(pairs))


def get_all_seqs(visitor: Visitor, request: Request) -> Answer:
    """Of the live ones, or of those in the state asked for."""
    host = visitor.host()
    if host is None:
        return fail(request, Status.NO_BUCKET)
    state = decode_state_wanted(request.extras)
    wanted = set(PartitionState) - {PartitionState.DEAD} if state is None else {state}
    seqs = ((p.number, p.complete) for p in host.copies() if p.state in wanted)
    return succeed(request, encode_partition_seqs(seqs))


def get_map(visitor: Visitor, request: Request) -> Answer:
    host = visitor.host()
    return fail(request, Status.NO_BUCKET) if host is None else succeed(request, host.map_json())


def _checked(
    answer: Callable[[Visitor, Request], Answer], visitor: Visitor, request: Request
) -> Answer:
    try:
        return answer(visitor, request)
    except BadMessage as bad:
        return fail(request, bad.status)


STANDING_REQUESTS: Final[dict[int, Callable[[Visitor, Request], Answer]]] = {
    Opcode.OBSERVE_SEQ: partial(_checked, observe_seq),
    Opcode.SEQ_PERSISTENCE: partial(_checked, wait_for_seq),
    Opcode.GET_FAILOVER_LOG: get_failover_log,
    Opcode.GET_ALL_PARTITION_SEQS: partial(_checked, get_all_seqs),
    Opcode.GET_CLUSTER_CONFIG: get_map,
}
