"""What a producer pushes (`core/documents/messages.py`) as frames, and back.

Every push of a stream has the opaque of the request that began it.  Changes go one by one, in
DCP's frames, or many in one columnar CHANGES frame when the consumer asked for it by the control
`changes_in_batches`.

  I1  A frame that is no push raises BadMessage, nothing else.
  I2  Decoding gives what was encoded, with two exceptions: changes may come as several messages
      in the same order, and a tombstone's flags travel in batches alone.
  I3  No frame is larger than DOCUMENT_FRAME_BYTES_MAX, unless a single document is.
"""

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final

from millrace.codec.memcached.binary import HEADER_BYTES, Request, encode_request
from millrace.codec.memcached.columns import decode_documents, encode_documents
from millrace.codec.memcached.opcodes import Opcode, Status
from millrace.core.documents.document import (
    SEQ_MAX,
    Cas,
    ChangeKind,
    Document,
    PartitionId,
    Seq,
)
from millrace.core.documents.messages import (
    COOKIE_BYTES_MAX,
    AllPartitions,
    BarrierReached,
    Changes,
    EndReason,
    MarkerFlag,
    Noop,
    ProducerPush,
    SeqAdvanced,
    SnapshotMarker,
    StreamEnd,
)
from millrace.errors import ProtocolError
from millrace.limits import DOCUMENT_BATCH_MAX, DOCUMENT_FRAME_BYTES_MAX

MARKER: Final = Struct(">QQI")  # First, last, flags.
MUTATION: Final = Struct(">QQIIIHB")  # Seq, revision, flags, expiry, lock, meta size, nru.
DELETION: Final = Struct(">QQIB")  # Seq, revision, when, unused.
EXPIRATION: Final = Struct(">QQI")  # Seq, revision, when.
DELETION_UNTIMED: Final = Struct(">QQH")  # Seq, revision, meta size: DCP's version 1.
SEQ: Final = Struct(">Q")
REASON: Final = Struct(">I")

_MARKER_FLAGS: Final = MarkerFlag.MEMORY | MarkerFlag.DISK
_NO_LOCK: Final = (0, 0, 0)


class BadMessage(ProtocolError):
    """A frame that cannot be understood; its sender is answered with `status`."""

    def __init__(self, detail: str, status: Status = Status.INVALID_ARGUMENTS) -> None:
        super().__init__(detail)
        self.status = status


def unpack(layout: Struct, request: Request) -> tuple[int, ...]:
    """The extras of a frame."""
    if len(request.extras) != layout.size:
        raise BadMessage(
            f"opcode {request.opcode:#04x} with {len(request.extras)} bytes of extras, "
            f"not {layout.size}"
        )
    return layout.unpack(request.extras)


def seq_of(number: int) -> Seq:
    if number > SEQ_MAX:
        raise BadMessage(f"{number} is no seq", Status.RANGE)
    return Seq(number)


def text_of(data: bytes, what: str, bytes_max: int) -> str:
    if len(data) > bytes_max:
        raise BadMessage(f"a {what} of {len(data)} bytes; {bytes_max} are allowed")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadMessage(f"a {what} that is not UTF-8") from error


def encode_push(message: ProducerPush, opaque: int = 0, *, is_batched: bool = False) -> list[bytes]:
    """`opaque` is the stream's; of what belongs to no stream it is the producer's own."""
    match message:
        case Changes(partition, documents):
            if is_batched:
                return _encode_batches(partition, documents, opaque)
            return [_encode_change(partition, document, opaque) for document in documents]
        case SnapshotMarker(partition, first, last, flags):
            return [_frame(_MARKER, MARKER.pack(first, last, flags), partition, opaque)]
        case SeqAdvanced(partition, seq):
            return [_frame(Opcode.DCP_SEQ_ADVANCED, SEQ.pack(seq), partition, opaque)]
        case StreamEnd(partition, reason):
            return [_frame(Opcode.DCP_STREAM_END, REASON.pack(reason), partition, opaque)]
        case AllPartitions(cycle):
            return [_frame(Opcode.ALL_PARTITIONS, SEQ.pack(cycle), 0, opaque)]
        case BarrierReached(cookie):
            return [encode_request(Opcode.BARRIER_REACHED, cookie.encode(), opaque=opaque)]
        case Noop():
            return [encode_request(Opcode.DCP_NOOP, opaque=opaque)]


_MARKER: Final = Opcode.DCP_SNAPSHOT_MARKER


def _frame(opcode: Opcode, extras: bytes, partition: int, opaque: int) -> bytes:
    return encode_request(opcode, extras=extras, partition=partition, opaque=opaque)


def _encode_batches(partition: int, documents: Sequence[Document], opaque: int) -> list[bytes]:
    """Halves keep I3: batches are rarely too large, so sizes are not summed up beforehand."""
    if len(documents) <= DOCUMENT_BATCH_MAX:
        body = encode_documents(documents)
        if HEADER_BYTES + len(body) <= DOCUMENT_FRAME_BYTES_MAX or len(documents) == 1:
            return [encode_request(Opcode.CHANGES, value=body, partition=partition, opaque=opaque)]
    half = len(documents) // 2
    return [
        *_encode_batches(partition, documents[:half], opaque),
        *_encode_batches(partition, documents[half:], opaque),
    ]


def _encode_change(partition: int, document: Document, opaque: int) -> bytes:
    seq, value = document.seq, document.value
    assert value is not None, "it is to be loaded before it is sent"
    match document.kind:
        case ChangeKind.MUTATION:
            opcode = Opcode.DCP_MUTATION
            extras = MUTATION.pack(seq, seq, document.flags, document.expiry_s, *_NO_LOCK)
        case ChangeKind.DELETION:
            opcode = Opcode.DCP_DELETION
            extras = DELETION.pack(seq, seq, document.expiry_s, 0)
        case ChangeKind.EXPIRATION:
            opcode = Opcode.DCP_EXPIRATION
            extras = EXPIRATION.pack(seq, seq, document.expiry_s)
    return encode_request(
        opcode,
        document.key,
        value,
        extras,
        partition=partition,
        opaque=opaque,
        cas=document.cas,
        datatype=document.datatype,
    )


def decode_push(frame: Request) -> ProducerPush:
    """Raises BadMessage; its status is UNKNOWN_COMMAND if the frame is no push at all."""
    decode = _DECODERS.get(frame.opcode)
    if decode is None:
        raise BadMessage(f"opcode {frame.opcode:#04x} is no push", Status.UNKNOWN_COMMAND)
    return decode(frame)


def _decode_batch(frame: Request) -> Changes:
    try:
        documents = decode_documents(frame.value)
    except ProtocolError as error:
        raise BadMessage(str(error)) from error
    return Changes(PartitionId(frame.partition), tuple(documents))


def _decode_mutation(frame: Request) -> Changes:
    seq, _, flags, expiry_s, *_ = unpack(MUTATION, frame)
    return _one(frame, seq, flags, expiry_s, ChangeKind.MUTATION)


def _decode_deletion(frame: Request) -> Changes:
    if len(frame.extras) == DELETION_UNTIMED.size:
        seq, _, _ = unpack(DELETION_UNTIMED, frame)
        return _one(frame, seq, 0, 0, ChangeKind.DELETION)
    seq, _, when_s, _ = unpack(DELETION, frame)
    return _one(frame, seq, 0, when_s, ChangeKind.DELETION)


def _decode_expiration(frame: Request) -> Changes:
    seq, _, when_s = unpack(EXPIRATION, frame)
    return _one(frame, seq, 0, when_s, ChangeKind.EXPIRATION)


def _one(frame: Request, seq: int, flags: int, expiry_s: int, kind: ChangeKind) -> Changes:
    document = Document(
        frame.key,
        frame.value,
        seq_of(seq),
        Cas(frame.cas),
        flags,
        expiry_s,
        kind,
        frame.datatype,
    )
    return Changes(PartitionId(frame.partition), (document,))


def _decode_marker(frame: Request) -> SnapshotMarker:
    first, last, flags = unpack(MARKER, frame)
    known = MarkerFlag(flags & _MARKER_FLAGS)  # DCP has more, for purposes of its own.
    return SnapshotMarker(PartitionId(frame.partition), seq_of(first), seq_of(last), known)


def _decode_seq_advanced(frame: Request) -> SeqAdvanced:
    (seq,) = unpack(SEQ, frame)
    return SeqAdvanced(PartitionId(frame.partition), seq_of(seq))


def _decode_end(frame: Request) -> StreamEnd:
    (number,) = unpack(REASON, frame)
    try:
        reason = EndReason(number)
    except ValueError as error:
        raise BadMessage(f"{number} is no reason for a stream's end") from error
    return StreamEnd(PartitionId(frame.partition), reason)


def _decode_all_partitions(frame: Request) -> AllPartitions:
    (cycle,) = unpack(SEQ, frame)
    return AllPartitions(cycle)


def _decode_barrier_reached(frame: Request) -> BarrierReached:
    return BarrierReached(text_of(frame.key, "cookie", COOKIE_BYTES_MAX))


def _decode_noop(_: Request) -> Noop:
    return Noop()


_DECODERS: Final[dict[int, Callable[[Request], ProducerPush]]] = {
    Opcode.CHANGES: _decode_batch,
    Opcode.DCP_MUTATION: _decode_mutation,
    Opcode.DCP_DELETION: _decode_deletion,
    Opcode.DCP_EXPIRATION: _decode_expiration,
    _MARKER: _decode_marker,
    Opcode.DCP_SEQ_ADVANCED: _decode_seq_advanced,
    Opcode.DCP_STREAM_END: _decode_end,
    Opcode.ALL_PARTITIONS: _decode_all_partitions,
    Opcode.BARRIER_REACHED: _decode_barrier_reached,
    Opcode.DCP_NOOP: _decode_noop,
}
