"""A data directory is opened by its owner or refused with words."""

import os
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from millrace.errors import BadConfiguration, CorruptStore, DirectoryInUse, WrongDataDirectory
from millrace.limits import MIB
from millrace.store.directory import Identity, open_directory
from millrace.types import NodeId

MAP_BYTES = 64 * MIB


def made(path: Path) -> Identity:
    directory = open_directory(path, "blue", NodeId(4), MAP_BYTES)
    directory.close()
    return directory.identity


def refuse(path: Path, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        open_directory(path, "blue", NodeId(4), MAP_BYTES)


def test_an_identity_is_drawn_once(tmp_path: Path) -> None:
    first = made(tmp_path / "a")
    assert (first.cluster, first.node) == ("blue", 4)
    assert made(tmp_path / "a") == first
    assert made(tmp_path / "b").instance != first.instance


@pytest.mark.parametrize(
    ("cluster", "node", "words"),
    [("red", 4, "belongs to cluster 'blue'"), ("blue", 5, "belongs to node 4")],
)
def test_the_directory_of_another(tmp_path: Path, cluster: str, node: int, words: str) -> None:
    identity = made(tmp_path)
    with pytest.raises(WrongDataDirectory, match=words):
        open_directory(tmp_path, cluster, NodeId(node), MAP_BYTES)
    assert made(tmp_path) == identity


@pytest.mark.parametrize(
    ("name", "value", "error", "words"),
    [
        (b"format", b"2", WrongDataDirectory, "newer version"),
        (b"format", b"", CorruptStore, "does not say whose"),
        (b"instance", b"", CorruptStore, "does not say whose"),
        (b"node", b"\xff", CorruptStore, "does not say whose"),
    ],
)
def test_an_identity_that_cannot_be_used(
    tmp_path: Path, name: bytes, value: bytes, error: type[Exception], words: str
) -> None:
    made(tmp_path)
    with (
        lmdb.open(os.fspath(tmp_path / "store"), max_dbs=8, map_size=MAP_BYTES) as environment,
        environment.begin(write=True, db=environment.open_db(b"identity")) as transaction,
    ):
        transaction.put(name, value)
    refuse(tmp_path, error, words)


@pytest.mark.parametrize("kept", [0, 1, 100, 4096, 8191, 8192, -4096, -1])
def test_a_file_cut_short(tmp_path: Path, kept: int) -> None:
    made(tmp_path)
    path = tmp_path / "store" / "data.mdb"
    size = path.stat().st_size
    os.truncate(path, kept if kept >= 0 else size + kept)
    refuse(tmp_path, CorruptStore, "Move the directory away")


@pytest.mark.parametrize("garbage", [b"", b"not a database\n" * 1000, bytes(100_000)])
def test_a_file_of_garbage(tmp_path: Path, garbage: bytes) -> None:
    made(tmp_path)
    (tmp_path / "store" / "data.mdb").write_bytes(garbage)
    refuse(tmp_path, CorruptStore, "garbage")


def test_a_missing_file(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / "store" / "data.mdb").unlink()
    refuse(tmp_path, CorruptStore, "is missing")


def test_a_crash_while_it_was_made(tmp_path: Path) -> None:
    (tmp_path / "store.new").mkdir(parents=True)
    (tmp_path / "store.new" / "data.mdb").write_bytes(b"half")
    assert made(tmp_path).cluster == "blue"


def test_a_path_that_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    refuse(tmp_path / "file", BadConfiguration, "cannot use data directory")


def test_a_directory_in_use_is_free_after_its_process_died(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from millrace.store.directory import *\n"
        f"d = open_directory(Path(sys.argv[1]), 'blue', 4, {MAP_BYTES})\n"
        "print('open', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, os.fspath(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"open\n"
        refuse(tmp_path, DirectoryInUse, f"in use by process {child.pid}")
        child.kill()
    assert made(tmp_path).cluster == "blue"
