"""A small real run of the benchmark of documents, and what it does with servers that fail."""

import asyncio
import os
import socket
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.documents import lanes, memcached, run
from bench.documents.lanes import Lane, Portion, drive, responses
from bench.documents.profile import DocumentsProfile
from bench.documents.requests import (
    VALUE_BYTES,
    Operation,
    Route,
    check,
    lane,
    make_documents,
)
from bench.documents.results import BACKFILL, BUCKET_SETS, LIVE, LOOPBACK, MILLRACE
from bench.documents.servers import MillraceServer
from bench.peer import PeerFailure
from millrace.codec.memcached.binary import encode_error, encode_got, encode_response
from millrace.codec.memcached.multi import MultiStored, encode_multi_stored
from millrace.codec.memcached.opcodes import Opcode, Status

TINY = DocumentsProfile("tiny", 2, 1_500, 3_000, (100,))


@pytest.fixture(autouse=True)
def temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return tmp_path / "temporary"


@contextmanager
def server_that_says(answers: bytes) -> Iterator[str]:
    """Its address.  It says this to the first byte of one client, and then no more."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1)
                connection.sendall(answers)
                while connection.recv(65_536):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


class AbsentServer(MillraceServer):
    async def start(self, directory: Path) -> None:
        raise PeerFailure("not installed")


# -- A run ----------------------------------------------------------------------------------------


def test_every_workload_is_measured_on_real_nodes(temporary_files: Path) -> None:
    servers = [MillraceServer(MILLRACE, 1, 0), MillraceServer("pair", 2, 1)]
    absent = AbsentServer("absent", 1, 0)
    found = asyncio.run(run.measure(TINY, [*servers, absent]))
    assert found.failures == {"absent": "not installed"}
    both, streamed = [MILLRACE, "pair"], [MILLRACE, LOOPBACK]
    peers = {operation.value: both for operation in Operation} | {BUCKET_SETS: both}
    peers |= {BACKFILL: streamed, LIVE: streamed}
    assert [(each.workload, each.peer) for each in found.measured] == [
        (workload, peer) for workload, names in peers.items() for peer in names
    ]
    for each in found.measured:
        assert len(each.rounds) == TINY.rounds, each
        assert all(0 < played.seconds <= played.settled_seconds for played in each.rounds)
    assert [cost.documents for cost in found.snapshots] == [100]
    assert list(temporary_files.iterdir()) == []


def test_processes_end_with_the_run() -> None:
    server = MillraceServer(MILLRACE, 1, 0)
    seen: list[int] = []

    class Cancelling(AbsentServer):
        async def start(self, directory: Path) -> None:
            seen.extend(server.process_ids())
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run.measure(TINY, [server, Cancelling("cancelling", 1, 0)]))
    assert len(seen) == 1
    assert not Path(f"/proc/{seen[0]}").exists()


def test_without_memcached_it_is_said_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(PeerFailure, match="apt-get install memcached"):
        memcached.find_memcached()


# -- Its client -----------------------------------------------------------------------------------


def stored() -> bytes:
    return encode_response(Opcode.SET, 0, 0, 7)


def test_a_lane_takes_an_answer_for_every_request() -> None:
    documents = make_documents(300)
    with server_that_says(stored() * 300) as address:
        route = Route(address, documents)
        made = lane(Operation.SET, route)
        assert drive([made]) > 0
        check(Operation.SET, route, made)
    assert len(responses(made)) == made.documents == 300


def test_answers_in_pieces_are_put_together() -> None:
    made = Lane("", b"", [], 1, answers=[stored()[:10], stored()[10:] + stored()])
    assert len(responses(made)) == 2


@pytest.mark.parametrize(
    ("answers", "complaint"),
    [
        ([encode_error(Opcode.SET, Status.TEMPORARY_FAILURE, 0)], "0x86"),
        ([b"\x80" + bytes(23)], "answered with"),
        ([encode_response(Opcode.SET, 0, 0)], "1 answers to 2"),
    ],
    ids=["an error", "no answer at all", "too few"],
)
def test_answers_to_sets_are_checked(answers: Sequence[bytes], complaint: str) -> None:
    documents = make_documents(2)
    made = Lane("", b"", [], 1, answers=list(answers))
    with pytest.raises(PeerFailure, match=complaint):
        check(Operation.SET, Route("", documents), made)


def test_values_are_checked() -> None:
    documents = make_documents(2)
    right, wrong = documents.values
    route = Route("", documents)
    got = [encode_got(Opcode.GET, 0, 7, 0, value) for value in (right, wrong)]
    check(Operation.GET, route, Lane("", b"", [], 1, answers=got))
    with pytest.raises(PeerFailure, match="not stored"):
        check(Operation.GET, route, Lane("", b"", [], 1, answers=got[::-1]))


def test_documents_that_were_not_stored_are_told() -> None:
    route = Route("here:1", make_documents(2), has_multi_set=True)
    body = encode_multi_stored(MultiStored([0, Status.TEMPORARY_FAILURE], [7, 0]))
    answer = encode_response(Opcode.MULTI_SET, 0, 0, 0, body)
    with pytest.raises(PeerFailure, match="here:1 answered with status 0x86"):
        check(Operation.MULTI_SET, route, Lane("here:1", b"", [], 1, answers=[answer]))


def test_silence_after_an_error_is_told_as_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error is shorter than the value that was counted on."""
    monkeypatch.setattr(lanes, "SILENCE_SECONDS_MAX", 0.1)
    missing = encode_error(Opcode.GET, Status.NOT_FOUND, 0)
    with server_that_says(missing) as address, pytest.raises(PeerFailure, match="0x1: b'Not"):
        drive([lane(Operation.GET, Route(address, make_documents(1)))])


def test_a_server_that_closes_the_connection_has_failed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        closing = threading.Thread(target=lambda: listening.accept()[0].close())
        closing.start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(PeerFailure):
            drive([Lane(address, b"", [Portion(b"x", 24, 1)], 1)])
        closing.join()


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(PeerFailure, match="refused"):
        drive([Lane(f"127.0.0.1:{port}", b"", [Portion(b"x", 24, 1)], 1)])


def test_a_window_bounds_what_is_under_way() -> None:
    """The second portion leaves only when the first is answered."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                for _ in range(2):
                    heard.append(connection.recv(100))
                    connection.sendall(stored())

        thread = threading.Thread(target=serve)
        thread.start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        drive([Lane(address, b"", [Portion(b"a", 24, 1), Portion(b"b", 24, 1)], 1)])
        thread.join()
    assert heard == [b"a", b"b"]


@pytest.mark.parametrize("has_multi_set", [True, False], ids=["millrace", "memcached"])
def test_many_documents_have_one_answer_of_known_size(has_multi_set: bool) -> None:
    made = lane(Operation.MULTI_SET, Route("", make_documents(2_500), has_multi_set=has_multi_set))
    assert [portion.documents for portion in made.portions] == [1_000, 1_000, 500]
    assert made.documents * VALUE_BYTES < sum(len(each.requests) for each in made.portions)
