"""The bodies of MULTI_GET and MULTI_SET, and of their answers: one row for each document.

Rows of an answer are in the order of the request's.  Each row has a status of its own, so that a
partition which has moved costs its own rows alone.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from millrace.codec.memcached.columns import Layout, LayoutId, checked_keys, encode_body, read_body

_MULTI_GET: Final = Layout(LayoutId.MULTI_GET, ("H",), 1)
_MULTI_GET_ANSWER: Final = Layout(LayoutId.MULTI_GET_ANSWER, ("H", "Q", "I"), 1)
_MULTI_SET: Final = Layout(LayoutId.MULTI_SET, ("H", "I", "I"), 2)
_MULTI_SET_ANSWER: Final = Layout(LayoutId.MULTI_SET_ANSWER, ("H", "Q"), 0)


class MultiGet(NamedTuple):
    partitions: Sequence[int]
    keys: Sequence[bytes]


class MultiGot(NamedTuple):
    """Rows whose status is not SUCCESS have an empty value, and zeros."""

    statuses: Sequence[int]
    cas: Sequence[int]
    flags: Sequence[int]
    values: Sequence[bytes]


class MultiSet(NamedTuple):
    """`expiries` are as in a set: 0, seconds from now, or a date."""

    partitions: Sequence[int]
    keys: Sequence[bytes]
    values: Sequence[bytes]
    flags: Sequence[int]
    expiries: Sequence[int]


class MultiStored(NamedTuple):
    statuses: Sequence[int]
    cas: Sequence[int]


def encode_multi_get(request: MultiGet) -> bytes:
    return encode_body(_MULTI_GET, len(request.keys), (request.partitions,), (request.keys,))


def decode_multi_get(data: bytes) -> MultiGet:
    body = read_body(_MULTI_GET, data)
    return MultiGet(body.numbers(0), checked_keys(body.binary(0)))


def encode_multi_got(answer: MultiGot) -> bytes:
    numbers = (answer.statuses, answer.cas, answer.flags)
    return encode_body(_MULTI_GET_ANSWER, len(answer.statuses), numbers, (answer.values,))


def decode_multi_got(data: bytes) -> MultiGot:
    body = read_body(_MULTI_GET_ANSWER, data)
    return MultiGot(body.numbers(0), body.numbers(1), body.numbers(2), body.binary(0))


def encode_multi_set(request: MultiSet) -> bytes:
    numbers = (request.partitions, request.flags, request.expiries)
    return encode_body(_MULTI_SET, len(request.keys), numbers, (request.keys, request.values))


def decode_multi_set(data: bytes) -> MultiSet:
    body = read_body(_MULTI_SET, data)
    keys = checked_keys(body.binary(0))
    return MultiSet(body.numbers(0), keys, body.binary(1), body.numbers(1), body.numbers(2))


def encode_multi_stored(answer: MultiStored) -> bytes:
    return encode_body(_MULTI_SET_ANSWER, len(answer.cas), (answer.statuses, answer.cas))


def decode_multi_stored(data: bytes) -> MultiStored:
    body = read_body(_MULTI_SET_ANSWER, data)
    return MultiStored(body.numbers(0), body.numbers(1))
