"""The requests of the workloads, encoded, and the check of what was answered.

Plain sets and gets are the same bytes for every server that takes them in memcached's own protocol.
Many documents in one request is Millrace's MULTI_SET; what memcached has for the purpose is as
many quiet sets and one NOOP, whose answer says that they were carried out.

1. Values are random bytes and as long as one another, so that sizes tell answers apart.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from bench.documents.lanes import Lane, Portion, responses
from bench.peer import PeerFailure
from bench.workloads import payloads
from millrace.codec.memcached.binary import FLAGS_AND_EXPIRY, HEADER_BYTES, encode_request
from millrace.codec.memcached.multi import (
    MultiSet,
    MultiStored,
    decode_multi_stored,
    encode_multi_set,
    encode_multi_stored,
)
from millrace.codec.memcached.opcodes import Opcode

VALUE_BYTES: Final = 256
PORTION_REQUESTS: Final = 128
WINDOW_PORTIONS: Final = 8  # So 1,024 requests are under way.
MULTI_DOCUMENTS: Final = 1_000
MULTI_WINDOW: Final = 4
_EXTRAS: Final = FLAGS_AND_EXPIRY.pack(0, 0)
_FLAGS_BYTES: Final = 4  # Extras of an answer to get.


class Operation(Enum):
    SET = "set"
    GET = "get"
    MULTI_SET = "multi-set"


@dataclass(frozen=True, slots=True)
class Documents:
    """Keys, values, and the partition of each key where there are any."""

    keys: Sequence[bytes]
    values: Sequence[bytes]
    partitions: Sequence[int]

    def __len__(self) -> int:
        return len(self.keys)

    def parts(self, size: int) -> "Iterator[Documents]":
        for at in range(0, len(self), size):
            part = slice(at, at + size)
            yield Documents(self.keys[part], self.values[part], self.partitions[part])

    def rows(self) -> Iterator[tuple[bytes, bytes, int]]:
        return zip(self.keys, self.values, self.partitions, strict=True)


@dataclass(frozen=True, slots=True)
class Route:
    """Where some of the documents go."""

    address: str
    documents: Documents
    greeting: bytes = b""
    has_multi_set: bool = False


def make_documents(count: int, value_bytes: int = VALUE_BYTES) -> Documents:
    keys = [b"document-%07d" % number for number in range(count)]
    return Documents(keys, payloads(value_bytes, count), [0] * count)


def lane(operation: Operation, route: Route) -> Lane:
    if operation is Operation.MULTI_SET:
        portion = _multi_set if route.has_multi_set else _quiet_sets
        return _lane(route, portion, MULTI_DOCUMENTS, MULTI_WINDOW)
    portion = _sets if operation is Operation.SET else _gets
    return _lane(route, portion, PORTION_REQUESTS, WINDOW_PORTIONS)


def _lane(route: Route, encode: Callable[[Documents], Portion], size: int, window: int) -> Lane:
    portions = [encode(part) for part in route.documents.parts(size)]
    return Lane(route.address, route.greeting, portions, window)


def _sets(documents: Documents) -> Portion:
    requests = [
        encode_request(Opcode.SET, key, value, _EXTRAS, partition=partition)
        for key, value, partition in documents.rows()
    ]
    return Portion(b"".join(requests), HEADER_BYTES * len(requests), len(requests))


def _gets(documents: Documents) -> Portion:
    requests = [
        encode_request(Opcode.GET, key, partition=partition)
        for key, _, partition in documents.rows()
    ]
    overhead_bytes = (HEADER_BYTES + _FLAGS_BYTES) * len(requests)
    value_bytes = sum(map(len, documents.values))
    return Portion(b"".join(requests), overhead_bytes + value_bytes, len(requests))


def _multi_set(documents: Documents) -> Portion:
    count = len(documents)
    zeros = [0] * count
    body = encode_multi_set(
        MultiSet(documents.partitions, documents.keys, documents.values, zeros, zeros)
    )
    answer = encode_multi_stored(MultiStored(zeros, zeros))
    request = encode_request(Opcode.MULTI_SET, value=body)
    return Portion(request, HEADER_BYTES + len(answer), count)


def _quiet_sets(documents: Documents) -> Portion:
    requests = [
        encode_request(Opcode.SETQ, key, value, _EXTRAS) for key, value, _ in documents.rows()
    ]
    noop = encode_request(Opcode.NOOP)
    return Portion(b"".join([*requests, noop]), HEADER_BYTES, len(requests))


# -- Afterwards --------------------------------------------------------------------------------


def check(operation: Operation, route: Route, lane: Lane) -> None:
    """Raises PeerFailure unless everything was answered as it should be."""
    if operation is Operation.GET:
        values = [response.value for response in responses(lane)]
        if values != list(route.documents.values):
            raise PeerFailure(f"{lane.address} gave values that were not stored")
        return
    answered = 0
    for response in responses(lane):
        answered += 1
        if response.value and any(statuses := decode_multi_stored(response.value).statuses):
            raise PeerFailure(f"{lane.address} answered with status {max(statuses):#x}")
    singles = operation is Operation.SET
    expected = len(route.documents) if singles else len(lane.portions)
    if answered != expected:
        raise PeerFailure(f"{lane.address} gave {answered} answers to {expected} requests")
