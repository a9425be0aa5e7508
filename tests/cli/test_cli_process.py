"""The command line as a process: pipes, signals, a terminal, start-up."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.local import LocalCluster
from tests.cli.commands import SOURCES, Command, start_process

pytestmark = pytest.mark.alone

WAIT_S = 30


@pytest.fixture(scope="module")
def filled(cluster: LocalCluster) -> str:
    from millrace.client.sync import connect

    with connect(cluster.addresses) as client:
        client.create_log("filled").append_many([b"%d" % n + b"x" * 100 for n in range(50_000)])
    return "filled"


def test_from_one_log_into_another(cluster: LocalCluster, filled: str, millrace: Command) -> None:
    millrace("log", "create", "copy", "--write-path", "chain")
    reading = start_process("log", "read", filled, "--format", "raw", cluster=cluster)
    writing = start_process("log", "append", "copy", cluster=cluster, stdin=reading.stdout)
    reading.stdout.close()
    _, problem = writing.communicate(timeout=WAIT_S)
    assert (writing.returncode, problem) == (0, b"")
    assert reading.wait(WAIT_S) == 0
    reading.stdin.close()
    reading.stderr.close()
    told = millrace("log", "info", "copy", "--format", "json").json
    assert told["readable_end"] == 50_001


def test_a_reader_that_goes_away(cluster: LocalCluster, filled: str) -> None:
    reading = start_process("log", "read", filled, cluster=cluster)
    assert reading.stdout.readline()
    reading.stdout.close()
    reading.stdout = None
    _, problem = reading.communicate(timeout=WAIT_S)
    assert problem == b""
    assert reading.returncode in (0, 1)


def test_a_slow_pipe_is_appended_line_by_line(cluster: LocalCluster, millrace: Command) -> None:
    millrace("log", "create", "slow", "--write-path", "chain")
    writing = start_process("log", "append", "slow", cluster=cluster)
    for number in (b"1", b"2"):
        writing.stdin.write(b"line\n")
        writing.stdin.flush()
        assert writing.stdout.readline().strip() == number
    writing.send_signal(signal.SIGINT)
    assert writing.wait(WAIT_S) == 130  # Although stdin is still open.
    assert writing.communicate()[1] == b""


def test_following_until_control_c(cluster: LocalCluster, millrace: Command) -> None:
    millrace("log", "create", "followed", "--write-path", "chain")
    millrace("log", "append", "followed", "old")
    tail = start_process("log", "tail", "followed", "-f", "--format", "%l %v", cluster=cluster)
    assert tail.stdout.readline() == b"1 old\n"
    millrace("log", "append", "followed", "new")
    assert tail.stdout.readline() == b"2 new\n"
    tail.send_signal(signal.SIGINT)
    assert tail.communicate(timeout=WAIT_S) == (b"", b"")
    assert tail.returncode == 130


def test_following_until_the_log_is_sealed(cluster: LocalCluster, millrace: Command) -> None:
    millrace("log", "create", "ending", "--write-path", "chain")
    millrace("log", "append", "ending", "old")
    tail = start_process("log", "tail", "ending", "--format", "raw", cluster=cluster)
    assert tail.stdout.readline() == b"old\n"
    millrace("log", "append", "ending", "last")
    millrace("log", "seal", "ending", "--yes")
    said = b"log ending is sealed: nothing comes after 2\n"
    assert tail.communicate(timeout=WAIT_S) == (b"last\n", said)
    assert tail.returncode == 0


def test_control_c_while_a_cluster_starts_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    process = start_process("dev", "up", "--nodes", "3", "--folder", str(folder))
    deadline_s = time.monotonic() + WAIT_S
    while not (folder / "node-2" / "node.log").exists():
        assert time.monotonic() < deadline_s
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=WAIT_S) == (b"", b"")
    assert process.returncode == 130
    assert not folder.exists()
    assert not [command for command in _commands() if os.fsencode(folder) in command]


def _commands() -> Iterator[bytes]:
    """Of all processes; some end while they are looked at."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            yield path.read_bytes()


@pytest.mark.parametrize(("answer", "is_gone"), [("y", True), ("n", False)])
def test_a_terminal_is_asked(
    cluster: LocalCluster, millrace: Command, answer: str, is_gone: bool
) -> None:
    millrace("log", "create", "asked")
    controller, terminal = pty.openpty()
    process = start_process(
        "log", "rm", "asked", cluster=cluster, stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    os.write(controller, f"{answer}\n".encode())
    assert process.wait(WAIT_S) == (0 if is_gone else 1)
    said = os.read(controller, 65_536)
    os.close(controller)
    assert b"Delete log asked" in said
    assert (millrace("log", "info", "asked").code == 1) == is_gone
    if not is_gone:
        millrace("log", "rm", "asked", "--yes")


@pytest.mark.parametrize("flag", [(), ("--no-color",)])
def test_colour_is_for_terminals(cluster: LocalCluster, flag: tuple[str, ...]) -> None:
    controller, terminal = pty.openpty()
    process = start_process(
        "node", "ls", *flag, cluster=cluster, stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    process.wait(WAIT_S)
    said = os.read(controller, 65_536)
    os.close(controller)
    assert b"live" in said
    assert (b"\x1b[32m" in said) == (not flag)


def test_a_node_loads_only_what_it_needs() -> None:
    """`node run` is how local clusters start their nodes: it has to be quick."""
    probe = (
        "import sys; from millrace.cli.main import run; "
        "run(['node', 'run', '/nowhere.toml']); "
        "import millrace.server.run; "
        "print([name for name in ('typer', 'rich', 'pyspark') if name in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", probe],
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        capture_output=True,
        timeout=WAIT_S,
        check=True,
    )
    assert ran.stdout.decode().strip() == "[]"
    assert ran.stderr.startswith(b"error: /nowhere.toml: cannot be read")
