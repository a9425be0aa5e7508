"""Answers of the binary protocol that several requests share."""

from millrace.codec.memcached.binary import Request, encode_error, encode_response
from millrace.codec.memcached.opcodes import Status
from millrace.server.documents.visitor import Visitor


def succeed(request: Request, value: bytes = b"") -> bytes:
    return encode_response(request.opcode, Status.SUCCESS, request.opaque, 0, value)


def fail(request: Request, status: int) -> bytes:
    return encode_error(request.opcode, status, request.opaque)


def refuse_partition(visitor: Visitor, request: Request) -> bytes:
    """With the map, unless the client has been sent this one already."""
    host = visitor.host()
    map_json = host.map_json() if host is not None else b""
    if map_json == visitor.map_told:
        map_json = b""
    else:
        visitor.map_told = map_json
    status = Status.NOT_MY_PARTITION
    return encode_response(request.opcode, status, request.opaque, value=map_json)
