"""Who runs a pipeline: one process at a time, known by its number and when it began.

The folder itself is locked.  Whoever starts a pipeline takes the lock and hands it to the process
that it starts, which holds it until it ends, however it ends.

I1  Between the look at a folder and the start of its process nobody else can start one.
I2  A number that another process has got meanwhile is never taken for the pipeline's, and never
    signalled: a process is known by its number, its start and the boot of the machine.
I3  What a killed process left running (Java, Python workers) is ended before the next one begins:
    the processes of a pipeline have its folder in their environment, and none of them is in use
    while the lock is free.
"""

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from millrace.errors import DirectoryInUse, TimedOut
from millrace.spark.pipelines.folder import Folder
from millrace.spark.pipelines.whole_files import write_whole

MARK: Final = "MILLRACE_PIPELINE_HOME"
KILL_TIMEOUT_S: Final = 30.0
POLL_S: Final = 0.05
START_FIELD: Final = 19  # Of /proc/<pid>/stat behind the name: when it began, in ticks since boot.
ENDED_STATES: Final = "ZX"


class Process(msgspec.Struct, frozen=True):
    pid: int
    started_ticks: int
    boot: str

    @classmethod
    def this(cls) -> "Process":
        started_ticks = _started_ticks(os.getpid())
        assert started_ticks is not None
        return cls(os.getpid(), started_ticks, _boot())

    @property
    def is_alive(self) -> bool:
        return self.boot == _boot() and _started_ticks(self.pid) == self.started_ticks

    def signal(self, what: signal.Signals) -> None:
        """Keeps I2: the handle stands for one process, and which one is looked at afterwards."""
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(self.pid)
            try:
                if self.is_alive:
                    signal.pidfd_send_signal(handle, what)
            finally:
                os.close(handle)


def process_of(folder: Folder) -> Process | None:
    """The process that runs the pipeline now."""
    try:
        process = msgspec.json.decode(folder.pid_file.read_bytes(), type=Process)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return process if process.is_alive else None


def sign(folder: Folder) -> None:
    """This process runs the pipeline."""
    write_whole(folder.pid_file, msgspec.json.encode(Process.this()) + b"\n")


@contextlib.contextmanager
def taken(folder: Folder) -> Iterator[int]:
    """Keeps I1: a handle that holds the folder, for this process and those that inherit it."""
    handle = os.open(folder.home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DirectoryInUse(_refusal(folder)) from None
        yield handle
    finally:
        os.close(handle)


def end_remains(folder: Folder) -> None:
    """Keeps I3; only for whoever holds the folder, or has ended the process that did."""
    deadline_s = time.monotonic() + KILL_TIMEOUT_S
    while remains := list(_marked(folder)):
        for number in remains:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        if time.monotonic() > deadline_s:
            raise TimedOut(f"processes {remains} of the run before do not end, though killed")
        time.sleep(POLL_S)


def _refusal(folder: Folder) -> str:
    process = process_of(folder)
    who = f"process {process.pid}" if process else "a process that starts now"
    return f"{who} runs the pipeline in {folder.home}: `millrace pipeline stop` ends it"


def _marked(folder: Folder) -> Iterator[int]:
    mark = f"{MARK}={folder.home}".encode()
    for environ in Path("/proc").glob("[0-9]*/environ"):
        number = int(environ.parent.name)
        with contextlib.suppress(OSError):
            if mark in environ.read_bytes().split(b"\0") and number != os.getpid():
                yield number


def _started_ticks(pid: int) -> int | None:
    """None if it has ended, also if nobody has asked yet how."""
    try:
        # `pid (name) state parent ...`, and a name may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in ENDED_STATES else int(fields[START_FIELD])


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
