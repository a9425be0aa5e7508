"""The demo, small: it proves its point, leaves a picture and nothing else, and can be run twice."""

import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clusters import soon

RECORDS = 60_000
TIMEOUT_S = 180
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where the demo puts its files.  A short path, as it is for users: Unix sockets fit in."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "millrace.demo", "--records", str(RECORDS), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"TMPDIR": str(folder), "COLUMNS": "120"},
        preexec_fn=hear_hangups,
    )


def hear_hangups() -> None:
    """The demo goes on when `nohup` started it; whoever started the tests is another matter."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def finish(demo: subprocess.Popen[str]) -> str:
    text, _ = demo.communicate(timeout=TIMEOUT_S)
    assert demo.returncode == 0, text
    assert "Nothing was lost" in text
    assert "SIGKILL node" in text
    assert re.search(r"appended and acknowledged on disk .*60,000 ", text), text
    assert re.search(r"read back .*60,000 \(equal\)", text), text
    assert re.search(r"missing / doubled / different .*0 / 0 / 0", text), text
    assert re.search(r"copies received per record .*1\.0", text), text
    return text


def programs(folder: Path) -> dict[int, str]:
    """The processes that were started with this folder for their files, whatever they are."""
    found: dict[int, str] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            has_folder = os.fsencode(folder) in (process / "environ").read_bytes()
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # It has ended, or is not ours.
        if has_folder and command:
            found[int(process.name)] = command
    return found


def assert_nothing_is_left(folder: Path) -> None:
    assert not programs(folder)
    assert not list(folder.iterdir())


def test_spark_counts_what_was_appended(folder: Path, tmp_path: Path) -> None:
    picture = tmp_path / "demo.png"
    text = finish(start(folder, "--picture", str(picture)))
    assert re.search(r"counted by Spark .*60,000 \(equal\)", text), text
    assert re.search(r"counts by key and second .*none different", text), text
    assert re.search(r"Spark's input rate .* records/s", text), text
    assert re.search(r"Spark's largest lag .*[1-9][0-9,]* records", text), text
    assert re.search(r"Spark's micro-batches .*[1-9]", text), text
    assert f"The picture: {picture}" in text
    assert "WARN" not in text, "Spark's log is not for the user"
    assert_nothing_is_left(folder)

    content = picture.read_bytes()
    width, height = struct.unpack_from(">II", content, 16)
    assert content.startswith(PNG)
    assert width >= 1_000 and height >= 600
    assert len(content) > 20_000, "nothing is drawn"


def test_without_spark_the_log_alone_is_shown_twice_over(folder: Path, tmp_path: Path) -> None:
    picture = tmp_path / "demo.png"
    for _ in range(2):
        text = finish(start(folder, "--without-spark", "--picture", str(picture)))
        assert "Spark" not in text
        assert not picture.exists()
        assert_nothing_is_left(folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_while_java_starts(folder: Path, number: signal.Signals) -> None:
    demo = start(folder)
    soon(
        lambda: [command for command in programs(folder).values() if "java" in command],
        what="a running Java",
    )
    interrupt(demo, number, folder)


def test_interrupted_while_spark_reads(tmp_path: Path) -> None:
    """With a path too long for Unix sockets."""
    folder = tmp_path / ("long" * 10)
    folder.mkdir()
    demo = start(folder, "--rate", "5000", "--picture", str(tmp_path / "demo.png"))
    assert demo.stdout is not None
    for line in demo.stdout:
        if "Spark follows the log" in line:
            break
    assert any("pyspark" in command for command in programs(folder).values())
    interrupt(demo, signal.SIGTERM, folder)
    assert not (tmp_path / "demo.png").exists()


def interrupt(demo: subprocess.Popen[str], number: signal.Signals, folder: Path) -> None:
    for _ in range(3):  # Impatience must not keep it from cleaning up.
        demo.send_signal(number)
    text, _ = demo.communicate(timeout=TIMEOUT_S)
    assert demo.returncode == 130, text
    assert "Stopped" in text
    assert "Traceback" not in text
    assert_nothing_is_left(folder)


@pytest.mark.parametrize("missing", ["pyspark", "matplotlib"])
def test_says_what_to_install(missing: str) -> None:
    code = (
        f"import runpy, sys; sys.argv = ['demo']; sys.modules[{missing!r}] = None;"
        "runpy.run_module('millrace.demo', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert f"{missing} not installed" in done.stderr
    assert "pip install '.[demo]'" in done.stderr
    assert "--without-spark" in done.stderr
