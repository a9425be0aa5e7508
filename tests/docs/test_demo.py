"""The demo, small: it proves its point, cleans up after itself, and can be run twice."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TIMEOUT_S = 120


def leftovers(folder: Path) -> list[Path]:
    return list(folder.glob("millrace-demo-*"))


def start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "millrace.demo", "--records", "60000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"TMPDIR": str(folder), "COLUMNS": "120"},
    )


def test_nothing_is_lost_twice_over(tmp_path: Path) -> None:
    for _ in range(2):
        demo = start(tmp_path)
        text, _ = demo.communicate(timeout=TIMEOUT_S)
        assert demo.returncode == 0, text
        assert "Nothing was lost" in text
        assert re.search(r"read back .*60,000 \(equal\)", text), text
        assert re.search(r"missing / doubled / different .*0 / 0 / 0", text), text
        assert re.search(r"copies received per record .*1\.0", text), text
        assert "SIGKILL node" in text
        assert not leftovers(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    demo = start(tmp_path)
    assert demo.stdout is not None
    assert "Starting" in demo.stdout.readline()
    assert "Log 'demo'" in demo.stdout.readline()
    demo.send_signal(number)
    demo.communicate(timeout=TIMEOUT_S)
    assert demo.returncode == 130
    assert not leftovers(tmp_path)
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert str(tmp_path) not in listed.stdout, "a node still runs"
