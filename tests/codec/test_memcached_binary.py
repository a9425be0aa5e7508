"""Frames: bytes written by hand from the protocol's own pages, and what is refused how."""

import struct

import pytest

from millrace.codec.memcached import binary
from millrace.codec.memcached.binary import (
    Durability,
    Frame,
    FrameDecoder,
    Refused,
    Request,
    Response,
    encode_error,
    encode_got,
    encode_refused,
    encode_request,
    encode_response,
)
from millrace.codec.memcached.opcodes import DurabilityLevel, Opcode, Status
from millrace.limits import DOCUMENT_SKIP_BYTES_MAX

GET_HELLO = bytes.fromhex("80 00 0005 00 00 0000 00000005 00000000 0000000000000000") + b"Hello"
GOT_WORLD = (
    bytes.fromhex("81 00 0000 04 00 0000 00000009 00000000 0000000000000001 deadbeef") + b"World"
)
GOT_WORLD_BY_KEY = (
    bytes.fromhex("81 00 0005 04 00 0000 0000000e 00000000 0000000000000001 deadbeef")
    + b"HelloWorld"
)
ADD_HELLO = (
    bytes.fromhex("80 02 0005 08 00 0000 00000012 00000000 0000000000000000 deadbeef 00000e10")
    + b"HelloWorld"
)
NOT_FOUND = bytes.fromhex("81 00 0000 00 00 0001 00000009 00000000 0000000000000000") + b"Not found"
DURABLE_DELETE = bytes.fromhex("08 04 04 01 00 00 0007 00000005 00000009 0000000000000000") + (
    b"\x13\x02\x01\xf4" + b"k"
)


def decoded(data: bytes, *, takes_answers: bool = False) -> list[Frame]:
    return FrameDecoder(takes_answers=takes_answers).feed(data)


def header(
    magic: int = 0x80, opcode: int = 0, key: int = 0, extras: int = 0, body: int = 0
) -> bytes:
    return struct.pack(">BBHBBHIIQ", magic, opcode, key, extras, 0, 0, body, 77, 0)


@pytest.mark.parametrize(
    ("made", "golden"),
    [
        pytest.param(encode_request(Opcode.GET, b"Hello"), GET_HELLO, id="get"),
        pytest.param(
            encode_request(Opcode.ADD, b"Hello", b"World", struct.pack(">II", 0xDEADBEEF, 3600)),
            ADD_HELLO,
            id="add",
        ),
        pytest.param(encode_got(0, 0, 1, 0xDEADBEEF, b"World"), GOT_WORLD, id="got"),
        pytest.param(
            encode_got(0, 0, 1, 0xDEADBEEF, b"World", b"Hello"), GOT_WORLD_BY_KEY, id="got-by-key"
        ),
        pytest.param(
            encode_response(0, 0, 0, 1, b"World", b"\xde\xad\xbe\xef"), GOT_WORLD, id="response"
        ),
        pytest.param(encode_error(0, Status.NOT_FOUND, 0), NOT_FOUND, id="error"),
        pytest.param(
            encode_request(
                Opcode.DELETE,
                b"k",
                partition=7,
                opaque=9,
                durability=Durability(DurabilityLevel.MAJORITY_AND_PERSIST_ON_MASTER, 500),
            ),
            DURABLE_DELETE,
            id="durable",
        ),
    ],
)
def test_frames_are_as_the_protocol_draws_them(made: bytes, golden: bytes) -> None:
    assert made == golden


def test_requests_are_decoded_in_order() -> None:
    assert decoded(GET_HELLO + ADD_HELLO + DURABLE_DELETE) == [
        Request(0, 0, 0, 0, b"", b"Hello", b""),
        Request(2, 0, 0, 0, b"\xde\xad\xbe\xef\x00\x00\x0e\x10", b"Hello", b"World"),
        Request(
            *(4, 7, 9, 0, b"", b"k", b"", 0),
            Durability(DurabilityLevel.MAJORITY_AND_PERSIST_ON_MASTER, 500),
        ),
    ]


def test_responses_are_decoded_where_they_are_awaited() -> None:
    assert decoded(GOT_WORLD + NOT_FOUND, takes_answers=True) == [
        Response(0, 0, 0, 1, b"\xde\xad\xbe\xef", b"", b"World"),
        Response(0, 1, 0, 0, b"", b"", b"Not found"),
    ]


def test_a_framed_response_is_read_past_its_frame_infos() -> None:
    framed = bytes.fromhex("18 00 03 00 00 00 0000 00000008 00000000 0000000000000000")
    (response,) = decoded(framed + b"\x02\x00\x10World", takes_answers=True)
    assert isinstance(response, Response)
    assert response.value == b"World"


def test_the_size_of_a_request_is_what_it_takes_on_the_wire() -> None:
    (request,) = decoded(ADD_HELLO)
    assert isinstance(request, Request)
    assert request.size == len(ADD_HELLO)


@pytest.mark.parametrize("step", [1, 7, 24, 30])
def test_frames_may_arrive_in_pieces(step: int) -> None:
    data = GET_HELLO + ADD_HELLO + DURABLE_DELETE + GET_HELLO
    decoder = FrameDecoder()
    found = [
        frame for at in range(0, len(data), step) for frame in decoder.feed(data[at : at + step])
    ]
    assert found == decoded(data)
    assert decoder.held_bytes == 0


@pytest.mark.parametrize(
    ("data", "status", "is_fatal"),
    [
        pytest.param(header(0x47), Status.INVALID_ARGUMENTS, True, id="magic"),
        pytest.param(header(0x81), Status.INVALID_ARGUMENTS, True, id="answer-to-nothing"),
        pytest.param(header(key=6, body=5), Status.UNKNOWN_COMMAND, True, id="key-past-body"),
        pytest.param(header(extras=6, body=5), Status.UNKNOWN_COMMAND, True, id="extras-past-body"),
        pytest.param(
            header(0x08, 4, key=0x0501, body=5),
            Status.UNKNOWN_COMMAND,
            True,
            id="framing-past-body",
        ),
        pytest.param(header(key=251, body=251), Status.INVALID_ARGUMENTS, True, id="long-key"),
        pytest.param(header(opcode=1, key=1, body=9), Status.INVALID_ARGUMENTS, True, id="shape"),
        pytest.param(
            header(0x08, 1, key=0x0001, body=9), Status.INVALID_ARGUMENTS, True, id="framed-shape"
        ),
        pytest.param(
            header(opcode=1, key=1, extras=8, body=2**20), Status.TOO_LARGE, False, id="too-large"
        ),
        pytest.param(
            header(opcode=1, key=1, extras=8, body=DOCUMENT_SKIP_BYTES_MAX + 1),
            Status.TOO_LARGE,
            True,
            id="too-large-to-skip",
        ),
    ],
)
def test_a_bad_header_is_refused_before_its_body_arrives(
    data: bytes, status: Status, is_fatal: bool
) -> None:
    (refused,) = FrameDecoder(body_bytes_max=1000).feed(data)
    assert isinstance(refused, Refused)
    assert (refused.status, refused.is_fatal) == (status, is_fatal)


@pytest.mark.parametrize(
    ("framing", "status"),
    [
        pytest.param("10", Status.INVALID_ARGUMENTS, id="durability-of-nothing"),
        pytest.param("12 01 00", Status.INVALID_ARGUMENTS, id="half-a-timeout"),
        pytest.param("11", Status.INVALID_ARGUMENTS, id="cut"),
        pytest.param("1f", Status.INVALID_ARGUMENTS, id="cut-escape"),
        pytest.param("f1 00", Status.INVALID_ARGUMENTS, id="cut-escaped-id"),
        pytest.param("11 00", Status.DURABILITY_INVALID_LEVEL, id="level-0"),
        pytest.param("11 04", Status.DURABILITY_INVALID_LEVEL, id="level-4"),
        pytest.param("22 0001", Status.UNKNOWN_FRAME_INFO, id="stream-id"),
        pytest.param("f0 00", Status.UNKNOWN_FRAME_INFO, id="escaped-id"),
    ],
)
def test_bad_framing_extras_cost_one_request(framing: str, status: Status) -> None:
    extras = bytes.fromhex(framing)
    data = header(0x08, 4, key=len(extras) << 8 | 1, body=len(extras) + 1) + extras + b"k"
    refused, following = decoded(data + GET_HELLO)
    assert isinstance(refused, Refused)
    assert (refused.status, refused.is_fatal) == (status, False)
    assert isinstance(following, Request)


@pytest.mark.parametrize(
    ("framing", "durability"),
    [
        pytest.param("00", None, id="barrier"),
        pytest.param("11 01", Durability(DurabilityLevel.MAJORITY), id="majority"),
        pytest.param("13 03 0000", Durability(DurabilityLevel.PERSIST_TO_MAJORITY), id="default"),
        pytest.param(
            "00 13 03 ffff", Durability(DurabilityLevel.PERSIST_TO_MAJORITY, 65_535), id="two"
        ),
    ],
)
def test_framing_extras_say_what_a_mutation_waits_for(
    framing: str, durability: Durability | None
) -> None:
    extras = bytes.fromhex(framing)
    data = header(0x08, 4, key=len(extras) << 8 | 1, body=len(extras) + 1) + extras + b"k"
    (request,) = decoded(data)
    assert isinstance(request, Request)
    assert request.durability == durability
    assert request.key == b"k"


@pytest.mark.parametrize("step", [10, 24, 1000, 5000])
def test_a_body_that_is_too_large_is_read_past(step: int) -> None:
    large = encode_request(Opcode.SET, b"k", bytes(2000), bytes(8), opaque=5)
    decoder = FrameDecoder(body_bytes_max=1000)
    data = GET_HELLO + large + ADD_HELLO
    frames: list[Frame] = []
    for at in range(0, len(data), step):
        frames += decoder.feed(data[at : at + step])
        assert decoder.held_bytes <= 1024
    before, refused, after = frames
    assert isinstance(refused, Refused)
    assert (refused.opcode, refused.opaque, refused.is_fatal) == (Opcode.SET, 5, False)
    assert [before, after] == decoded(GET_HELLO + ADD_HELLO)


def test_requests_before_a_fatal_one_are_served_and_those_behind_it_are_not() -> None:
    decoder = FrameDecoder()
    request, refused = decoder.feed(GET_HELLO + b"G" * 24 + GET_HELLO)
    assert isinstance(request, Request)
    assert isinstance(refused, Refused)
    assert decoder.is_over
    assert decoder.feed(GET_HELLO) == []


def test_who_speaks_another_protocol_is_not_answered() -> None:
    (refused,) = decoded(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
    assert isinstance(refused, Refused)
    assert encode_refused(refused) == b""


def test_a_refusal_goes_back_with_the_opaque_of_the_request() -> None:
    (refused,) = decoded(header(opcode=1, key=1, body=9))
    assert isinstance(refused, Refused)
    (answer,) = decoded(encode_refused(refused), takes_answers=True)
    expected = Response(1, Status.INVALID_ARGUMENTS, 77, 0, b"", b"", b"Invalid arguments")
    assert answer == expected


def test_unknown_opcodes_are_left_to_who_serves() -> None:
    assert decoded(header(opcode=0xFA, key=1, extras=1, body=3) + b"ekv") == [
        Request(0xFA, 0, 77, 0, b"e", b"k", b"v")
    ]


def test_nothing_is_allocated_for_a_claimed_size() -> None:
    decoder = FrameDecoder()
    assert decoder.feed(header(opcode=1, key=1, extras=8, body=30_000_000)) == []
    assert decoder.held_bytes == binary.HEADER_BYTES
