"""Whatever bytes a client sends, the front end lives, and others are served."""

import logging
import socket
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.codec.memcached.binary import Durability, encode_request
from millrace.codec.memcached.multi import MultiGet, MultiSet, encode_multi_get, encode_multi_set
from millrace.codec.memcached.opcodes import DurabilityLevel, Opcode, Status
from millrace.codec.memcached.revisions import PlacedRevisions, encode_revisions
from millrace.core.documents.revisions import Revision
from tests.support.document_backend import ServedDocuments, two_backends
from tests.support.memcached_wire import WireClient

WITNESS = b"witness"
KEYS = [b"k%d" % at for at in range(6)]  # Some are here, some elsewhere.

keys = st.sampled_from(KEYS)
blobs = st.binary(max_size=40)
opcodes = st.one_of(st.sampled_from(Opcode), st.integers(0, 255))
well_sized = st.builds(
    encode_request,
    opcodes,
    st.one_of(st.just(b""), keys),
    blobs,
    st.sampled_from([bytes(size) for size in (0, 4, 8, 16, 17, 20, 24)]),
    partition=st.integers(0, 9),
    cas=st.integers(0, 2),
    durability=st.sampled_from([None, Durability(DurabilityLevel.MAJORITY, 10)]),
)
usual = st.one_of(
    st.builds(lambda key, value: encode_request(Opcode.SET, key, value, bytes(8)), keys, blobs),
    st.builds(lambda key: encode_request(Opcode.GETQ, key), keys),
    st.builds(lambda key: encode_request(Opcode.DELETEQ, key), keys),
    st.just(encode_request(Opcode.MULTI_GET, value=encode_multi_get(MultiGet([0, 9], KEYS[:2])))),
    st.just(
        encode_request(
            Opcode.MULTI_SET,
            value=encode_multi_set(MultiSet([0, 9], KEYS[:2], KEYS[2:4], [0, 0], [0, 5])),
        )
    ),
    st.builds(
        lambda revision: encode_request(
            Opcode.WRITE_REVISIONS,
            value=encode_revisions(PlacedRevisions([0, 1, 9], [revision] * 3)),
        ),
        st.builds(Revision, keys, st.none() | blobs, st.sampled_from([0, 1, 2, 2**64 - 1])),
    ),
    st.just(
        encode_request(Opcode.READ_REVISIONS, value=encode_multi_get(MultiGet([0, 9], KEYS[:2])))
    ),
)
words = st.sampled_from(
    [
        *(b"get", b"gets", b"gat", b"set", b"cas", b"append", b"incr", b"delete", b"touch"),
        *(b"stats", b"flush_all", b"verbosity", b"version", b"noreply"),
        *(b"0", b"1", b"-1", b"5", b"99999999999"),
        *KEYS,
    ]
)
lines = st.builds(lambda said: b" ".join(said) + b"\r\n", st.lists(words, max_size=7))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    frame = bytearray(draw(st.one_of(usual, well_sized, lines)))
    for _ in range(draw(st.integers(0, 3))):
        if frame:
            frame[draw(st.integers(0, len(frame) - 1))] = draw(st.integers(0, 255))
    return bytes(frame[: draw(st.integers(0, len(frame)))])


PARTS_MAX = 12
conversations = st.builds(
    lambda first, parts: first + b"".join(parts),
    st.sampled_from([b"", encode_request(Opcode.NOOP), b"version\r\n"]),
    st.lists(st.one_of(usual, well_sized, lines, damaged(), blobs), max_size=PARTS_MAX),
)


@pytest.fixture(scope="module")
def served() -> Iterator[ServedDocuments]:
    with ServedDocuments(two_backends()[0]) as served:
        yield served


@pytest.fixture(scope="module")
def witness(served: ServedDocuments) -> Iterator[WireClient]:
    """Somebody else, connected all the time."""
    with WireClient(served.port) as witness:
        yield witness


def is_served(witness: WireClient) -> bool:
    """Whether it finds what it has set.  A client that left may still have flushes on their way,
    one in each part of its conversation, and each may come between the two."""
    assert witness.ask(Opcode.SET, WITNESS, b"v", bytes(8)).status == Status.SUCCESS
    found = witness.ask(Opcode.GET, WITNESS)
    return found.status == Status.SUCCESS and found.value == b"v"


@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=conversations, is_patient=st.booleans())
def test_nothing_that_a_client_sends_hurts_anybody_else(
    served: ServedDocuments,
    witness: WireClient,
    caplog: pytest.LogCaptureFixture,
    data: bytes,
    is_patient: bool,
) -> None:
    with socket.create_connection((served.host, served.port), timeout=10) as peer:
        peer.sendall(data)
        if is_patient:  # It reads all answers; the other kind just leaves.
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(1 << 16):
                pass
    assert any(is_served(witness) for _ in range(PARTS_MAX + 1)), "the witness is not served"
    assert not [entry for entry in caplog.records if entry.levelno >= logging.WARNING]
