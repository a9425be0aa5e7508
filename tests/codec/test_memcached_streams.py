"""Change streams on the wire: DCP's bytes where it has them, and every message there and back."""

import struct

import pytest
from memcached_samples import ANSWERS, DOCUMENTS, ID, LOG, MESSAGES, PARTITION, PUSHES, name_of

from millrace.codec.memcached import pushes, streams
from millrace.codec.memcached.binary import FrameDecoder, Request, Response
from millrace.codec.memcached.opcodes import Opcode, Status
from millrace.codec.memcached.pushes import BadMessage, decode_push, encode_push
from millrace.codec.memcached.streams import (
    decode_answer,
    decode_message,
    encode_answer,
    encode_message,
)
from millrace.core.documents.document import SEQ_MAX, Cas, Document, Seq
from millrace.core.documents.messages import (
    Answered,
    Barrier,
    Changes,
    ConsumerNotice,
    ConsumerRequest,
    Control,
    GetFailoverLog,
    Open,
    ProducerAnswer,
    ProducerPush,
    SnapshotMarker,
    StreamAnswered,
    StreamEnd,
    StreamRequest,
    StreamStatus,
)
from millrace.limits import DOCUMENT_FRAME_BYTES_MAX


def request_of(frame: bytes) -> Request:
    (request,) = FrameDecoder().feed(frame)
    assert isinstance(request, Request)
    return request


def response_of(frame: bytes) -> Response:
    (response,) = FrameDecoder(takes_answers=True).feed(frame)
    assert isinstance(response, Response)
    return response


@pytest.mark.parametrize("message", MESSAGES, ids=name_of)
def test_what_a_consumer_says_arrives(message: ConsumerRequest | ConsumerNotice) -> None:
    request = request_of(encode_message(message, opaque=41))
    assert request.opaque == 41
    assert streams.is_stream_opcode(request.opcode)
    assert decode_message(request) == message


@pytest.mark.parametrize(("asked", "answer"), ANSWERS, ids=name_of)
def test_what_a_producer_answers_arrives(asked: ConsumerRequest, answer: ProducerAnswer) -> None:
    opcode = request_of(encode_message(asked)).opcode
    response = response_of(encode_answer(answer, opcode, 41))
    assert (response.opcode, response.opaque) == (opcode, 41)
    assert decode_answer(response, asked) == answer


@pytest.mark.parametrize("push", PUSHES, ids=name_of)
def test_what_a_producer_pushes_arrives(push: ProducerPush) -> None:
    (frame,) = encode_push(push, 41, is_batched=True)
    request = request_of(frame)
    assert request.opaque == 41
    assert decode_push(request) == push


def test_changes_one_by_one_are_the_same_changes() -> None:
    frames = encode_push(Changes(PARTITION, DOCUMENTS), 41)
    found = [decode_push(request_of(frame)) for frame in frames]
    assert found == [Changes(PARTITION, (document,)) for document in DOCUMENTS]


def test_a_stream_without_an_end_ends_where_dcp_says_never() -> None:
    request = request_of(encode_message(StreamRequest(PARTITION, Seq(0), ID)))
    assert request.extras[16:24] == b"\xff" * 8
    message = decode_message(request)
    assert isinstance(message, StreamRequest)
    assert message.end == SEQ_MAX


MUTATION = (
    bytes.fromhex(
        "80 57 0005 1f 00 0210 00000029 00001210 0000000000000007"
        "0000000000000004 0000000000000001 00000005 00000006 00000000 0000 00"
    )
    + b"helloworld"
)
STREAM_REQUEST = bytes.fromhex(
    "80 53 0000 30 00 0210 00000030 00001000 0000000000000000"
    "00000000 00000000 0000000000000005 ffffffffffffffff fedcba9876543210"
    "0000000000000004 0000000000000009"
)
OPEN = bytes.fromhex(
    "80 50 0006 08 00 0000 00000015 00001000 0000000000000000 00000000 00000001"
) + (b"eu-1:7" + b"default")
OPEN_OF_ID = bytes.fromhex(
    "80 50 0009 10 00 0000 00000020 00001000 0000000000000000 00000000 00000001 0000000000000005"
) + (b"replica:3" + b"default")
ROLLBACK = bytes.fromhex(
    "81 53 0000 00 00 0023 00000008 00001000 0000000000000000 0000000000000003"
)
STREAMING = bytes.fromhex(
    "81 53 0000 00 00 0000 00000020 00001000 0000000000000000"
    "fedcba9876543210 0000000000000008 0000000000000007 0000000000000000"
)
MARKER = bytes.fromhex(
    "80 56 0000 14 00 0210 00000014 00001000 0000000000000000"
    "0000000000000005 0000000000000008 00000001"
)
DELETION_UNTIMED = (
    bytes.fromhex(
        "80 58 0005 12 00 0210 00000017 00001210 0000000000000007"
        "0000000000000005 0000000000000001 0000"
    )
    + b"hello"
)


def test_a_mutation_of_dcp_is_understood() -> None:
    document = Document(b"hello", b"world", Seq(4), Cas(7), 5, 6)
    assert decode_push(request_of(MUTATION)) == Changes(PARTITION, (document,))


def test_a_deletion_without_its_time_is_understood() -> None:
    changes = decode_push(request_of(DELETION_UNTIMED))
    assert isinstance(changes, Changes)
    (document,) = changes.documents
    assert (document.key, document.seq, document.expiry_s) == (b"hello", 5, 0)
    assert document.is_deleted


def test_a_mutation_is_as_dcp_draws_it() -> None:
    document = Document(b"hello", b"world", Seq(4), Cas(7), 5, 6)
    (frame,) = encode_push(Changes(PARTITION, (document,)), 0x1210)
    revision = slice(32, 40)  # There are no revisions here: the seq stands for it.
    assert frame[revision] == struct.pack(">Q", 4)
    assert frame[:32] + frame[40:] == MUTATION[:32] + MUTATION[40:]


@pytest.mark.parametrize(
    ("made", "golden"),
    [
        pytest.param(encode_message(Open("eu-1:7", "default"), 0x1000), OPEN, id="open"),
        pytest.param(
            encode_message(Open("replica:3", "default", 5), 0x1000), OPEN_OF_ID, id="open-of-id"
        ),
        pytest.param(
            encode_message(StreamRequest(PARTITION, Seq(5), ID, Seq(4), Seq(9)), 0x1000),
            STREAM_REQUEST,
            id="stream-request",
        ),
        pytest.param(
            encode_answer(
                StreamAnswered(PARTITION, StreamStatus.ROLLBACK, rollback=Seq(3)), 0x53, 0x1000
            ),
            ROLLBACK,
            id="rollback",
        ),
        pytest.param(
            encode_answer(StreamAnswered(PARTITION, StreamStatus.OK, LOG), 0x53, 0x1000),
            STREAMING,
            id="streaming",
        ),
        pytest.param(
            encode_push(SnapshotMarker(PARTITION, Seq(5), Seq(8)), 0x1000)[0], MARKER, id="marker"
        ),
    ],
)
def test_frames_are_as_dcp_draws_them(made: bytes, golden: bytes) -> None:
    assert made == golden


def push_frame(opcode: int, extras: bytes = b"", key: bytes = b"", value: bytes = b"") -> Request:
    return Request(opcode, PARTITION, 1, 0, extras, key, value)


@pytest.mark.parametrize(
    ("frame", "status"),
    [
        (push_frame(0x00, key=b"k"), Status.UNKNOWN_COMMAND),
        (push_frame(Opcode.DCP_ADD_STREAM), Status.UNKNOWN_COMMAND),
        (push_frame(Opcode.DCP_STREAM_REQUEST, bytes(47)), Status.INVALID_ARGUMENTS),
        (push_frame(Opcode.DCP_STREAM_REQUEST, b"\x80" + bytes(47)), Status.INVALID_ARGUMENTS),
        (push_frame(Opcode.DCP_STREAM_REQUEST, bytes(8) + b"\xff" * 40), Status.RANGE),
        (push_frame(Opcode.DCP_OPEN, bytes(8), b"name"), Status.INVALID_ARGUMENTS),
        (push_frame(Opcode.DCP_OPEN, bytes(7) + b"\1"), Status.INVALID_ARGUMENTS),
        (push_frame(Opcode.DCP_OPEN, bytes(7) + b"\1\5", b"name"), Status.INVALID_ARGUMENTS),
        (push_frame(Opcode.DCP_OPEN, bytes(7) + b"\1", b"n" * 201), Status.INVALID_ARGUMENTS),
        (push_frame(Opcode.DCP_OPEN, bytes(7) + b"\1", b"\xff"), Status.INVALID_ARGUMENTS),
        (push_frame(Opcode.DCP_CONTROL, key=b"k", value=bytes(1025)), Status.INVALID_ARGUMENTS),
        (push_frame(Opcode.BARRIER, key=b"c" * 129), Status.INVALID_ARGUMENTS),
        (push_frame(Opcode.SEQ_ACK, bytes(16)), Status.INVALID_ARGUMENTS),
        (push_frame(Opcode.FETCH, bytes(8), value=b"not columns"), Status.INVALID_ARGUMENTS),
        (push_frame(Opcode.REPAIR, bytes(16)), Status.INVALID_ARGUMENTS),
        (push_frame(Opcode.DCP_BUFFER_ACK), Status.INVALID_ARGUMENTS),
    ],
    ids=[
        *("get", "add-stream", "short-request", "unknown-flag", "seq-too-high", "not-a-producer"),
        *(
            "no-name",
            "half-an-id",
            "long-name",
            "name-not-utf8",
            "long-control",
            "long-cookie",
            "short-ack",
        ),
        *("keys-not-columns", "no-documents", "no-size"),
    ],
)
def test_a_bad_request_names_its_status(frame: Request, status: Status) -> None:
    with pytest.raises(BadMessage) as raised:
        decode_message(frame)
    assert raised.value.status is status


@pytest.mark.parametrize(
    "frame",
    [
        push_frame(Opcode.GET, key=b"k"),
        push_frame(Opcode.CHANGES, value=b"x"),
        push_frame(Opcode.DCP_MUTATION, bytes(30), b"k"),
        push_frame(Opcode.DCP_MUTATION, b"\xff" * 31, b"k"),
        push_frame(Opcode.DCP_DELETION, bytes(19), b"k"),
        push_frame(Opcode.DCP_EXPIRATION, bytes(18), b"k"),
        push_frame(Opcode.DCP_SNAPSHOT_MARKER, bytes(21)),
        push_frame(Opcode.DCP_STREAM_END, b"\0\0\0\x63"),
        push_frame(Opcode.BARRIER_REACHED, key=b"\xff"),
    ],
    ids=[
        *("get", "no-columns", "short-mutation", "seq-too-high", "long-deletion"),
        *("short-expiration", "marker-of-version-2", "unknown-reason", "cookie-not-utf8"),
    ],
)
def test_a_bad_push_is_refused(frame: Request) -> None:
    with pytest.raises(BadMessage):
        decode_push(frame)


def answer(status: int, value: bytes = b"", extras: bytes = b"") -> Response:
    return Response(0, status, 1, 0, extras, b"", value)


@pytest.mark.parametrize(
    ("response", "asked"),
    [
        (answer(0x7777), Control("a", "b")),
        (answer(0, bytes(15)), StreamRequest(PARTITION, Seq(0), ID)),
        (answer(0, bytes(16)), StreamRequest(PARTITION, Seq(0), ID)),
        (answer(0x23, bytes(7)), StreamRequest(PARTITION, Seq(0), ID)),
        (answer(0x23, b"\xff" * 8), StreamRequest(PARTITION, Seq(0), ID)),
        (answer(0), GetFailoverLog(PARTITION)),
        (answer(0, extras=bytes(16) + b"\x09"), GetFailoverLog(PARTITION)),
    ],
    ids=[
        *("status", "log-cut", "id-0", "rollback-cut", "rollback-too-high", "no-extras"),
        "unknown-state",
    ],
)
def test_a_bad_answer_is_refused(response: Response, asked: ConsumerRequest) -> None:
    with pytest.raises(BadMessage):
        decode_answer(response, asked)


def test_a_long_detail_is_cut() -> None:
    response = response_of(encode_answer(Answered(StreamStatus.INVALID, "x" * 5000), 0xE3, 1))
    found = decode_answer(response, Barrier("c"))
    assert found == Answered(StreamStatus.INVALID, "x" * streams.DETAIL_BYTES_MAX)


def test_a_batch_too_large_for_a_frame_goes_in_several() -> None:
    value = bytes(DOCUMENT_FRAME_BYTES_MAX // 5)
    documents = tuple(Document(b"k", value, Seq(seq), Cas(seq)) for seq in range(1, 9))
    frames = encode_push(Changes(PARTITION, documents), is_batched=True)
    assert len(frames) > 1
    assert max(map(len, frames)) <= DOCUMENT_FRAME_BYTES_MAX
    found = [decode_push(request_of(frame)) for frame in frames]
    assert [doc for push in found if isinstance(push, Changes) for doc in push.documents] == list(
        documents
    )


def test_unknown_flags_of_a_marker_are_dcps_own() -> None:
    extras = pushes.MARKER.pack(1, 2, 0x0D)
    marker = decode_push(push_frame(Opcode.DCP_SNAPSHOT_MARKER, extras))
    assert marker == SnapshotMarker(PARTITION, Seq(1), Seq(2))


def test_no_push_is_taken_for_a_request() -> None:
    """NOOP apart, a frame belongs to one direction."""
    asked = {request_of(encode_message(message)).opcode for message in MESSAGES}
    pushed = {request_of(encode_push(push)[0]).opcode for push in PUSHES}
    assert not asked & pushed


def test_every_reason_of_a_streams_end_arrives() -> None:
    for reason in pushes.EndReason:
        (frame,) = encode_push(StreamEnd(PARTITION, reason))
        assert decode_push(request_of(frame)) == StreamEnd(PARTITION, reason)
