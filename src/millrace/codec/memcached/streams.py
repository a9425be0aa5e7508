"""What a consumer asks and a producer answers (`core/documents/messages.py`) as frames, and back.

DCP's frames are used where the meaning is the same (U10), so that its clients can stream from
here.  What they may notice: the answer to GET_FAILOVER_LOG has extras (high seq, purge seq,
state).  What a producer pushes is in `pushes.py`.

  I1  A frame that is no such message raises BadMessage, nothing else; it names the status that
      its sender is answered with.
  I2  Decoding gives what was encoded; Answered's detail is cut to DETAIL_BYTES_MAX.
  I3  An answer names no partition: who asked knows it, so decoding takes what was asked.
"""

from collections.abc import Callable
from struct import Struct
from typing import Final

from millrace.codec.memcached.binary import Request, Response, encode_request, encode_response
from millrace.codec.memcached.columns import (
    decode_documents,
    decode_keys,
    encode_documents,
    encode_keys,
)
from millrace.codec.memcached.observing import STATE_NUMBERS, STATES
from millrace.codec.memcached.opcodes import Opcode, Status
from millrace.codec.memcached.pushes import SEQ, BadMessage, seq_of, text_of, unpack
from millrace.core.documents.document import SEQ_MAX, FailoverId, PartitionId
from millrace.core.documents.failover_log import FailoverLog, parse_failover_log
from millrace.core.documents.messages import (
    COOKIE_BYTES_MAX,
    NAME_BYTES_MAX,
    Answered,
    Barrier,
    BufferAck,
    CloseStream,
    ConsumerNotice,
    ConsumerRequest,
    Control,
    FailoverLogGot,
    Fetch,
    Fetched,
    GetFailoverLog,
    Open,
    ProducerAnswer,
    Repair,
    Repaired,
    SeqAck,
    StreamAnswered,
    StreamFlag,
    StreamRequest,
    StreamStatus,
)
from millrace.errors import ProtocolError

OPEN: Final = Struct(">II")  # Reserved, flags.
OPEN_OF_ID: Final = Struct(">IIQ")  # Reserved, flags, bucket's id.
STREAM_REQUEST: Final = Struct(">IIQQQQQ")  # Flags, reserved, start, end, id, snapshot first, last.
BUFFER_ACK: Final = Struct(">I")
SEQ_ACK: Final = Struct(">QQQ")  # Id, complete, persisted.
FETCH: Final = Struct(">QQ")  # Id, start.
REPAIR: Final = Struct(">QQ")  # Id, rollback.
LOG_ENTRY: Final = Struct(">QQ")  # Id, seq.
LOG_EXTRAS: Final = Struct(">QQB")  # High, purged, state.

OPEN_PRODUCER: Final = 0x01  # The side that is connected to is to send changes.
CONTROL_BYTES_MAX: Final = 1024
DETAIL_BYTES_MAX: Final = 1024

_NO_END: Final = 2**64 - 1  # How DCP says that a stream goes on.
_STREAM_FLAGS: Final = sum(StreamFlag)
_STATUSES: Final = {int(status): status for status in StreamStatus}
_BUFFER_ACK_MAX: Final = 2**32 - 1


# -- What a consumer says ---------------------------------------------------------------------


def encode_message(message: ConsumerRequest | ConsumerNotice, opaque: int = 0) -> bytes:
    """The opaque of a StreamRequest comes back with every push of the stream."""
    opcode, partition, key, value, extras = _encode_parts(message)
    return encode_request(opcode, key, value, extras, partition=partition, opaque=opaque)


def _encode_parts(
    message: ConsumerRequest | ConsumerNotice,
) -> tuple[Opcode, int, bytes, bytes, bytes]:
    """Opcode, partition, key, value, extras."""
    match message:
        case SeqAck(partition, id, complete, persisted):
            return Opcode.SEQ_ACK, partition, b"", b"", SEQ_ACK.pack(id, complete, persisted)
        case BufferAck(size):
            return Opcode.DCP_BUFFER_ACK, 0, b"", b"", BUFFER_ACK.pack(min(size, _BUFFER_ACK_MAX))
        case StreamRequest(partition):
            return Opcode.DCP_STREAM_REQUEST, partition, b"", b"", _encode_stream(message)
        case GetFailoverLog(partition):
            return Opcode.DCP_GET_FAILOVER_LOG, partition, b"", b"", b""
        case CloseStream(partition):
            return Opcode.DCP_CLOSE_STREAM, partition, b"", b"", b""
        case Open(name, bucket, id):
            extras = OPEN_OF_ID.pack(0, OPEN_PRODUCER, id) if id else OPEN.pack(0, OPEN_PRODUCER)
            return Opcode.DCP_OPEN, 0, name.encode(), bucket.encode(), extras
        case Control(name, setting):
            return Opcode.DCP_CONTROL, 0, name.encode(), setting.encode(), b""
        case Barrier(cookie):
            return Opcode.BARRIER, 0, cookie.encode(), b"", b""
        case Fetch(partition, id, keys, start):
            return Opcode.FETCH, partition, b"", encode_keys(keys), FETCH.pack(id, start)
        case Repair(partition, id, rollback, documents):
            body = encode_documents(documents)
            return Opcode.REPAIR, partition, b"", body, REPAIR.pack(id, rollback)


def _encode_stream(message: StreamRequest) -> bytes:
    end = _NO_END if message.end == SEQ_MAX else message.end
    return STREAM_REQUEST.pack(
        message.flags,
        0,
        message.start,
        end,
        message.id,
        message.snapshot_first,
        message.snapshot_last,
    )


def is_stream_opcode(opcode: int) -> bool:
    """Whether `decode_message` knows it: such a frame goes to the connection's producer."""
    return opcode in _DECODERS


def decode_message(frame: Request) -> ConsumerRequest | ConsumerNotice:
    """Raises BadMessage; its status is UNKNOWN_COMMAND if the frame is nothing of the kind."""
    decode = _DECODERS.get(frame.opcode)
    if decode is None:
        raise BadMessage(f"opcode {frame.opcode:#04x} is not asked here", Status.UNKNOWN_COMMAND)
    try:
        return decode(frame)
    except BadMessage:
        raise
    except ProtocolError as error:  # Of a columnar body.
        raise BadMessage(str(error)) from error


def _decode_open(frame: Request) -> Open:
    """DCP's clients name no id."""
    layout = OPEN_OF_ID if len(frame.extras) == OPEN_OF_ID.size else OPEN
    _, flags, *ids = unpack(layout, frame)
    if not flags & OPEN_PRODUCER:
        raise BadMessage("only producers of changes can be opened here")
    name = text_of(frame.key, "name", NAME_BYTES_MAX)
    if not name:
        raise BadMessage("a connection without a name")
    return Open(name, text_of(frame.value, "bucket's name", NAME_BYTES_MAX), *ids)


def _decode_control(frame: Request) -> Control:
    key = text_of(frame.key, "control", CONTROL_BYTES_MAX)
    return Control(key, text_of(frame.value, "control's value", CONTROL_BYTES_MAX))


def _decode_get_log(frame: Request) -> GetFailoverLog:
    return GetFailoverLog(PartitionId(frame.partition))


def _decode_stream(frame: Request) -> StreamRequest:
    flags, _, start, end, id, first, last = unpack(STREAM_REQUEST, frame)
    if flags & ~_STREAM_FLAGS:
        raise BadMessage(f"unknown flags {flags & ~_STREAM_FLAGS:#x} of a stream request")
    return StreamRequest(
        PartitionId(frame.partition),
        seq_of(start),
        FailoverId(id),
        seq_of(first),
        seq_of(last),
        seq_of(min(end, SEQ_MAX)),
        StreamFlag(flags),
    )


def _decode_close(frame: Request) -> CloseStream:
    return CloseStream(PartitionId(frame.partition))


def _decode_buffer_ack(frame: Request) -> BufferAck:
    (size,) = unpack(BUFFER_ACK, frame)
    return BufferAck(size)


def _decode_barrier(frame: Request) -> Barrier:
    return Barrier(text_of(frame.key, "cookie", COOKIE_BYTES_MAX))


def _decode_seq_ack(frame: Request) -> SeqAck:
    id, complete, persisted = unpack(SEQ_ACK, frame)
    partition = PartitionId(frame.partition)
    return SeqAck(partition, FailoverId(id), seq_of(complete), seq_of(persisted))


def _decode_fetch(frame: Request) -> Fetch:
    id, start = unpack(FETCH, frame)
    keys = tuple(decode_keys(frame.value))
    return Fetch(PartitionId(frame.partition), FailoverId(id), keys, seq_of(start))


def _decode_repair(frame: Request) -> Repair:
    id, rollback = unpack(REPAIR, frame)
    documents = tuple(decode_documents(frame.value))
    return Repair(PartitionId(frame.partition), FailoverId(id), seq_of(rollback), documents)


_DECODERS: Final[dict[int, Callable[[Request], ConsumerRequest | ConsumerNotice]]] = {
    Opcode.DCP_OPEN: _decode_open,
    Opcode.DCP_CONTROL: _decode_control,
    Opcode.DCP_GET_FAILOVER_LOG: _decode_get_log,
    Opcode.DCP_STREAM_REQUEST: _decode_stream,
    Opcode.DCP_CLOSE_STREAM: _decode_close,
    Opcode.DCP_BUFFER_ACK: _decode_buffer_ack,
    Opcode.BARRIER: _decode_barrier,
    Opcode.SEQ_ACK: _decode_seq_ack,
    Opcode.FETCH: _decode_fetch,
    Opcode.REPAIR: _decode_repair,
}


# -- What a producer answers ------------------------------------------------------------------


def encode_answer(message: ProducerAnswer, opcode: int, opaque: int) -> bytes:
    """`opcode` and `opaque` are those of the request."""
    status = StreamStatus.OK
    value = extras = b""
    match message:
        case Answered(status, detail):
            value = _cut(detail)
        case FailoverLogGot(_, log, high, purged, state):
            value = encode_log(log)
            extras = LOG_EXTRAS.pack(high, purged, STATE_NUMBERS[state])
        case StreamAnswered(_, StreamStatus.OK, log):
            value = encode_log(log)
        case StreamAnswered(_, StreamStatus.ROLLBACK as status, _, rollback):
            value = SEQ.pack(rollback)
        case StreamAnswered(_, status, _, _, detail):
            value = _cut(detail)
        case Fetched(documents):
            value = encode_documents(documents)
        case Repaired(keys):
            value = encode_keys(keys)
    return encode_response(opcode, status, opaque, 0, value, extras)


def _cut(detail: str) -> bytes:
    return detail.encode()[:DETAIL_BYTES_MAX]


def encode_log(log: FailoverLog) -> bytes:
    return b"".join(LOG_ENTRY.pack(entry.id, entry.seq) for entry in log.entries)


def decode_log(data: bytes) -> FailoverLog:
    if len(data) % LOG_ENTRY.size:
        raise BadMessage(f"a failover log of {len(data)} bytes")
    try:
        return parse_failover_log(list(LOG_ENTRY.iter_unpack(data)))
    except ValueError as error:
        raise BadMessage(f"a failover log: {error}") from error


def decode_answer(response: Response, asked: ConsumerRequest) -> ProducerAnswer:
    """Raises BadMessage: then nothing on this connection can be believed."""
    status = _STATUSES.get(response.status)
    if status is None:
        raise BadMessage(f"an answer with status {response.status:#x}")
    detail = "" if status in _HAS_BODY else response.value.decode(errors="replace")
    if status is not StreamStatus.OK:
        if not isinstance(asked, StreamRequest):
            return Answered(status, detail)
        if status is not StreamStatus.ROLLBACK:
            return StreamAnswered(asked.partition, status, detail=detail)
        return StreamAnswered(asked.partition, status, rollback=seq_of(_number(response.value)))
    try:
        return _decode_success(response, asked)
    except BadMessage:
        raise
    except ProtocolError as error:
        raise BadMessage(str(error)) from error


_HAS_BODY: Final = (StreamStatus.OK, StreamStatus.ROLLBACK)


def _number(value: bytes) -> int:
    if len(value) != SEQ.size:
        raise BadMessage(f"a rollback seq of {len(value)} bytes")
    return int.from_bytes(value, "big")


def _decode_success(response: Response, asked: ConsumerRequest) -> ProducerAnswer:
    match asked:
        case StreamRequest(partition):
            return StreamAnswered(partition, StreamStatus.OK, decode_log(response.value))
        case GetFailoverLog(partition):
            return _decode_log_got(response, partition)
        case Fetch():
            return Fetched(tuple(decode_documents(response.value)))
        case Repair():
            return Repaired(tuple(decode_keys(response.value)))
        case _:
            return Answered(StreamStatus.OK, response.value.decode(errors="replace"))


def _decode_log_got(response: Response, partition: PartitionId) -> FailoverLogGot:
    if len(response.extras) != LOG_EXTRAS.size:
        raise BadMessage(f"a failover log with {len(response.extras)} bytes of extras")
    high, purged, number = LOG_EXTRAS.unpack(response.extras)
    state = STATES.get(number)
    if state is None:
        raise BadMessage(f"{number} is no state of a partition")
    log = decode_log(response.value)
    return FailoverLogGot(partition, log, seq_of(high), seq_of(purged), state)
