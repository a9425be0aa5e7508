"""`millrace pipeline`: commands, processes and folders, with a pipeline that needs no Spark."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from millrace.cli.main import run
from millrace.spark.pipelines import control
from millrace.spark.pipelines.control import State
from millrace.spark.pipelines.running import MARK
from tests.cli.commands import Command, start_process
from tests.spark.pipelines.pipeline_commands import ROOT, WAIT_S, kill_process, millrace, status
from tests.support.clusters import soon

STEPS = "tests.spark.pipelines.own_kinds:steps"
ENDLESS = ("--steps", "1000000", "--pause-ms", "5")

__all__ = ["millrace"]


def takes_steps(name: str, above: int = 0) -> int:
    """Waits until a pipeline has taken more steps than that."""

    def batch() -> int:
        progress = status(name).progress
        return progress.batch if progress else 0

    return soon(batch, lambda seen: seen > above, what="progress", timeout_s=WAIT_S)


# -- In the foreground ----------------------------------------------------------------------------


def test_a_run_shows_progress_and_prints_what_it_found(millrace: Command) -> None:
    ran = millrace("run", STEPS, "one", "--steps", "3", "--words", "hello", "--words", "you")
    assert (ran.code, ran.out) == (0, "3 steps\n")
    assert "hello" in ran.err and "you" in ran.err
    assert "batch 3, 30 rows, 10 rows/s, lag 5, batch time 1ms" in ran.err
    assert status("one").state is State.FINISHED


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        pytest.param(("--steps", "2", "--no-good"), 1, "2 steps", id="a finding that is not good"),
        pytest.param(
            ("--steps", "2", "--fails-at", "1"), 2, "error: step 1 cannot be taken", id="an error"
        ),
    ],
)
def test_the_exit_code_says_how_it_ended(
    millrace: Command, options: tuple[str, ...], code: int, words: str
) -> None:
    ran = millrace("run", STEPS, "one", *options)
    assert ran.code == code
    assert words in ran.out + ran.err
    assert "Traceback" not in ran.err


def test_json_is_the_pipeline_as_it_ended(millrace: Command) -> None:
    ran = millrace("run", STEPS, "one", "--steps", "2", "--format", "json")
    assert ran.json["state"] == "finished"
    assert ran.json["end"]["conclusion"]["details"] == {"steps": 2}
    assert millrace("status", "one", "--format", "json").json == ran.json


@pytest.mark.parametrize(
    ("cause", "code", "words"),
    [
        pytest.param(signal.SIGINT, 0, b"stopping after the current batch", id="Ctrl-C"),
        pytest.param(signal.SIGKILL, -signal.SIGKILL, b"", id="the command is killed"),
    ],
)
def test_a_pipeline_in_the_foreground_stops_with_its_command(
    millrace: Command, cause: signal.Signals, code: int, words: bytes
) -> None:
    command = start_process("pipeline", "run", STEPS, "one", *ENDLESS, cwd=ROOT)
    soon(lambda: list(control.folders()), what="the pipeline", timeout_s=WAIT_S)
    takes_steps("one")
    command.send_signal(cause)
    _, said = command.communicate(timeout=WAIT_S)
    assert command.returncode == code
    assert words in said
    soon(lambda: status("one").state, lambda state: state is State.STOPPED, timeout_s=WAIT_S)


def test_a_second_interrupt_kills_it(millrace: Command) -> None:
    slow = ("--steps", "9", "--pause-ms", "3600000", "--deaf")
    command = start_process("pipeline", "run", STEPS, "one", *slow, cwd=ROOT)
    soon(lambda: list(control.folders()), what="the pipeline", timeout_s=WAIT_S)
    assert command.stderr is not None
    heard = iter(command.stderr.readline, b"")
    assert any(b"from step 0" in line for line in heard)
    command.send_signal(signal.SIGINT)
    assert any(b"stopping after" in line for line in heard)
    command.send_signal(signal.SIGINT)
    command.communicate(timeout=WAIT_S)
    assert command.returncode == 130
    assert status("one").state is State.KILLED


# -- In the background ----------------------------------------------------------------------------


def test_a_detached_run_goes_on_until_it_is_stopped_and_then_from_there(millrace: Command) -> None:
    assert millrace("run", STEPS, "one", *ENDLESS, "--detach").code == 0
    taken = takes_steps("one")
    assert "running" in millrace("ls").out
    assert millrace("stop", "one").code == 0
    assert status("one").state is State.STOPPED
    assert millrace("run", STEPS, "one", "--detach").code == 0  # Its settings are known.
    takes_steps("one", above=taken)
    starts = [
        line.split()[-1] for line in millrace("logs", "one").out.splitlines() if "from" in line
    ]
    assert starts[0] == "0" and int(starts[1]) >= taken


def test_a_killed_pipeline_is_known_to_be_and_goes_on(millrace: Command) -> None:
    millrace("run", STEPS, "one", *ENDLESS, "--detach")
    taken = takes_steps("one")
    kill_process("one")
    assert "killed" in millrace("ls").out
    assert millrace("status", "one").code == 1
    assert millrace("run", STEPS, "one", "--detach").code == 0
    assert takes_steps("one", above=taken) > taken


def test_what_a_killed_pipeline_left_running_is_ended_before_the_next(millrace: Command) -> None:
    millrace("run", STEPS, "one", "--steps", "1")
    home = control.folder_named("one").home
    with subprocess.Popen(["sleep", "3600"], env={**os.environ, MARK: str(home)}) as left:
        millrace("run", STEPS, "one")
        is_left = left.poll() is None
        left.kill()
    assert not is_left


def test_stop_by_force_does_not_wait(millrace: Command) -> None:
    millrace("run", STEPS, "one", "--steps", "9", "--pause-ms", "3600000", "--detach")
    assert millrace("stop", "one", "--force").code == 0
    assert status("one").pid is None


def test_watching_ends_with_the_pipeline(millrace: Command) -> None:
    millrace("run", STEPS, "one", *ENDLESS, "--detach")
    watching = start_process("pipeline", "status", "one", "--watch", cwd=ROOT)
    assert watching.stderr is not None
    assert b"batch" in watching.stderr.readline()
    millrace("stop", "one")
    watching.communicate(timeout=WAIT_S)
    assert watching.returncode == 0


# -- Folders --------------------------------------------------------------------------------------


def test_a_pipeline_in_another_folder_is_found_by_its_name(
    millrace: Command, tmp_path: Path
) -> None:
    home = tmp_path / "elsewhere"
    millrace("run", STEPS, "one", "--steps", "1", "--home", str(home))
    assert (home / "pipeline.json").exists()
    assert millrace("status", "one", "--format", "json").json["home"] == str(home)
    assert millrace("status", "any", "--home", str(home)).code == 0


def test_a_half_written_line_of_progress_is_passed_over(millrace: Command) -> None:
    millrace("run", STEPS, "one", "--steps", "2")
    with (control.folder_named("one").home / "progress.jsonl").open("a") as file:
        file.write('{"batch": 3, "ro')
    assert millrace("status", "one", "--format", "json").json["progress"]["batch"] == 2


def test_a_number_that_another_process_has_is_not_taken_for_the_pipeline(millrace: Command) -> None:
    millrace("run", STEPS, "one", "--steps", "1")
    file = control.folder_named("one").pid_file
    told = json.loads(file.read_text())
    file.write_text(json.dumps({**told, "pid": os.getpid()}))
    assert status("one").pid is None
    millrace("stop", "one", "--force").refused_with("does not run")


# -- Refusals -------------------------------------------------------------------------------------


def test_a_second_run_of_a_running_pipeline_is_refused(millrace: Command) -> None:
    millrace("run", STEPS, "one", *ENDLESS, "--detach")
    millrace("run", STEPS, "one").failed_with(f"process {status('one').pid} runs the pipeline")
    assert status("one").state is State.RUNNING


def test_other_settings_than_those_of_the_folder_are_refused_with_the_difference(
    millrace: Command,
) -> None:
    millrace("run", STEPS, "one", "--steps", "2")
    ran = millrace("run", STEPS, "one", "--steps", "3", "--pause-ms", "0", "--words", "x")
    ran.refused_with("steps is 2, not 3", 'words is [], not ["x"]')
    assert "pause" not in ran.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(("run", "nothing", "one"), ("view, search", "module:name"), id="no such kind"),
        pytest.param(("run", "no.where:it", "one"), ("no module no.where",), id="no such module"),
        pytest.param(
            ("run", STEPS.replace("steps", "leaps"), "one"), ("has no run_leaps",), id="no function"
        ),
        pytest.param(("run", STEPS, "one"), ("--steps must be given",), id="a setting left out"),
        pytest.param(
            ("run", STEPS, "one", "--steps", "x"), ("--steps: Expected `int`",), id="a wrong value"
        ),
        pytest.param(("run", STEPS, "a/b", "--steps", "1"), ("cannot be",), id="a wrong name"),
        pytest.param(
            ("run", STEPS, "one", "--steps", "1", "--conf", "x=1"), ("spark.name=value",), id="conf"
        ),
        pytest.param(("status", "none"), ("there is no pipeline 'none'",), id="unknown name"),
        pytest.param(("logs", "x", "--home", "/"), ("not the folder of a pipeline",), id="folder"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing(
    millrace: Command, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    millrace(*arguments).refused_with(*words)
    assert not control.root().exists()


def test_a_folder_that_holds_something_else_is_refused(millrace: Command, tmp_path: Path) -> None:
    (tmp_path / "pipeline.json").write_text("[]")
    ran = millrace("run", STEPS, "one", "--steps", "1", "--home", str(tmp_path))
    ran.refused_with("pipeline.json is not what a pipeline writes there")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(("backup",), "--folder must be given", id="a setting left out"),
        pytest.param(("restore", "--folder", "x", "--run", "y"), "--run: Expected", id="no number"),
        pytest.param(("audit", "--logs"), "--logs", id="an option without its value"),
    ],
)
def test_short_forms_are_checked_alike(
    millrace: Command,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    words: str,
) -> None:
    monkeypatch.setenv("MILLRACE_CLUSTER", "127.0.0.1:1")
    assert run(arguments) == 2
    assert words in capfd.readouterr().err
    assert not control.root().exists()
