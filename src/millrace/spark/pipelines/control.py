"""Starting, stopping and looking at pipelines, from another process.

Pipelines have names.  The folder of one is `<name>` in the user's data folder
(`$XDG_DATA_HOME/millrace/pipelines`), or a link of that name to the folder that it was given.

I1  A folder is run with what it was first asked to do: other settings are refused, each named with
    both values.  Where Spark and the clusters are may change: checkpoints know a cluster by its id.
    So may how much is done at a time, and what becomes of rows that cannot be taken (TUNING).
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final

import msgspec

from millrace.errors import TimedOut, UsageError
from millrace.spark.pipelines.folder import Definition, End, EndKind, Folder, Progress
from millrace.spark.pipelines.running import MARK, Process, end_remains, process_of, taken

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
CLUSTER_SUFFIX: Final = "cluster"  # Of settings that are addresses of nodes.
# Of settings that say how it is done, not what: no state depends on them.
TUNING: Final = frozenset({"changes_per_batch", "interval_ms", "on_error", "until_caught_up"})
POLL_S: Final = 0.05
START_TIMEOUT_S: Final = 60.0
KILL_TIMEOUT_S: Final = 10.0


class State(Enum):
    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    KILLED = "killed"  # It is not there any more and could not say why.


class Status(msgspec.Struct, frozen=True):
    """A pipeline as it is now."""

    name: str
    kind: str
    state: State
    pid: int | None
    home: str
    settings: dict[str, Any]
    master: str | None
    progress: Progress | None
    end: End | None


_STATES: Final = {
    EndKind.FINISHED: State.FINISHED,
    EndKind.STOPPED: State.STOPPED,
    EndKind.FAILED: State.FAILED,
}


# -- Names ----------------------------------------------------------------------------------------


def root(environ: Mapping[str, str] = os.environ) -> Path:
    given = environ.get("XDG_DATA_HOME", "")
    data = Path(given) if os.path.isabs(given) else Path.home() / ".local" / "share"
    return data / "millrace" / "pipelines"


def folder_named(name: str) -> Folder:
    """The folder of a pipeline that exists."""
    folder = Folder((root() / _checked(name)).resolve())
    if folder.definition() is None:
        known = ", ".join(sorted(each.home.name for each in folders())) or "none"
        raise UsageError(f"there is no pipeline {name!r}; there are: {known}")
    return folder


def folder_for(name: str, home: Path | None) -> Folder:
    """The folder in which the pipeline of this name is run, or would be."""
    place = root() / _checked(name)
    if home is None or home.resolve() == place.resolve():
        return Folder(place.resolve())
    if place.exists():
        raise UsageError(
            f"the pipeline {name!r} has the folder {place.resolve()}: leave --home out, or give "
            "another name"
        )
    return Folder(home.resolve())


def folders() -> Iterator[Folder]:
    """Those of all pipelines that were run by name."""
    if root().is_dir():
        for entry in sorted(root().iterdir()):
            if (entry / "pipeline.json").exists():
                yield Folder(entry.resolve())


def _checked(name: str) -> str:
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be a pipeline's name: letters, digits, `.`, `_` and `-`, at most 100"
        )
    return name


# -- Looking --------------------------------------------------------------------------------------


def status(folder: Folder) -> Status:
    definition = folder.definition()
    assert definition is not None
    process, end = process_of(folder), folder.end()
    if process is not None:
        state = State.RUNNING
    else:
        state = _STATES[end.kind] if end else State.KILLED
    return Status(
        definition.name,
        definition.kind,
        state,
        process.pid if process else None,
        str(folder.home),
        definition.settings,
        definition.master,
        folder.progress(),
        end if process is None else None,
    )


# -- Starting -------------------------------------------------------------------------------------


def start(folder: Folder, wanted: Definition, *, is_leashed: bool) -> subprocess.Popen[bytes]:
    """Start the pipeline's process; on a leash it stops when its stdin is closed."""
    _make(folder, wanted.name)
    with taken(folder) as lock:
        known = folder.definition()
        if known is not None:
            check_same(known, wanted)
        end_remains(folder)
        folder.define(wanted)
        folder.begun()
        command = [sys.executable, "-m", "millrace.spark.pipelines.process", str(folder.home)]
        command += ["--lock", str(lock), *(["--leash"] if is_leashed else [])]
        with folder.spark_log_file.open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if is_leashed else subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(folder),
                start_new_session=True,  # Ctrl-C is for the command that shows it.
                pass_fds=[lock],
            )
    _wait_until_signed(folder, process)
    return process


def _make(folder: Folder, name: str) -> None:
    folder.home.mkdir(parents=True, exist_ok=True)
    place = root() / name
    if place.resolve() != folder.home:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)  # A link to a folder that is gone.
        place.symlink_to(folder.home)


def check_same(known: Definition, wanted: Definition) -> None:
    """Keeps I1."""
    differences = [
        f"{name} is {_shown(known.settings.get(name))}, not {_shown(wanted.settings.get(name))}"
        for name in sorted(known.settings.keys() | wanted.settings.keys())
        if known.settings.get(name) != wanted.settings.get(name)
        and not name.endswith(CLUSTER_SUFFIX)
        and name not in TUNING
    ]
    if known.kind != wanted.kind:
        differences.insert(0, f"its kind is {known.kind}, not {wanted.kind}")
    if differences:
        raise UsageError(
            f"the pipeline {known.name!r} was made with other settings: {'; '.join(differences)}. "
            "Give another name, or remove its folder to begin anew"
        )


def _shown(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _environment(folder: Folder) -> dict[str, str]:
    """Spark's own files lie in the pipeline's folder, where the next start removes them."""
    return {"SPARK_LOCAL_DIRS": str(folder.scratch), **os.environ, MARK: str(folder.home)}


def _wait_until_signed(folder: Folder, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None:
        running = process_of(folder)
        if running is not None and running.pid == process.pid:
            return
        if time.monotonic() > deadline_s:
            process.kill()
            raise TimedOut(f"the pipeline's process did not begin; see {folder.spark_log_file}")
        time.sleep(POLL_S)


# -- Stopping -------------------------------------------------------------------------------------


def ask_to_stop(folder: Folder) -> Process:
    """It ends when its current batch is done."""
    process = process_of(folder)
    if process is None:
        definition = folder.definition()
        name = definition.name if definition else folder.home.name
        raise UsageError(f"the pipeline {name!r} does not run")
    process.signal(signal.SIGTERM)
    return process


def kill(folder: Folder) -> None:
    """At once, with all that it started.  What it was at is done again by the next run."""
    process = process_of(folder)
    if process is not None:
        process.signal(signal.SIGKILL)
        deadline_s = time.monotonic() + KILL_TIMEOUT_S
        while process_of(folder) is not None and time.monotonic() < deadline_s:
            time.sleep(POLL_S)  # The system takes a moment to end it.
    end_remains(folder)
