"""The command line of pipelines, called in this process; what it starts are real processes."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.cli.main import run
from millrace.spark.pipelines import control
from millrace.spark.pipelines.control import Status
from millrace.spark.pipelines.running import process_of
from tests.cli.commands import Command, Ran
from tests.support.clusters import soon

ROOT = Path(__file__).resolve().parents[3]
WAIT_S = 120.0


@pytest.fixture
def millrace(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Command]:
    """The command line, with no pipelines yet; those that are left running are killed."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))

    def call(*arguments: str) -> Ran:
        capfd.readouterr()
        return Ran(run(["pipeline", *arguments]), *capfd.readouterr())

    yield call
    for folder in control.folders():
        control.kill(folder)


def status(name: str) -> Status:
    return control.status(control.folder_named(name))


def kill_process(name: str) -> None:
    """SIGKILL, by whoever it may be."""
    process = process_of(control.folder_named(name))
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    soon(lambda: not process.is_alive, what="its end", timeout_s=WAIT_S)
