"""A running pipeline as a person sees it: what it says, how fast it is, how far behind.

On a terminal one line is kept up to date below what the pipeline says.  Elsewhere there is a line
now and then, when something has changed.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from millrace.cli.main import DONE, FAILED, INTERRUPTED
from millrace.cli.output import Output, Tone
from millrace.cli.quantities import show_duration
from millrace.spark.pipelines import control
from millrace.spark.pipelines.control import State
from millrace.spark.pipelines.folder import Definition, EndKind, Folder, Progress
from millrace.spark.pipelines.running import process_of

POLL_S: Final = 0.25
PLAIN_INTERVAL_S: Final = 5.0
TONES: Final = {
    State.RUNNING: Tone.GOOD,
    State.FINISHED: Tone.PLAIN,
    State.STOPPED: Tone.FAINT,
    State.FAILED: Tone.BAD,
    State.KILLED: Tone.BAD,
}


def progress_text(progress: Progress | None) -> str:
    if progress is None:
        return "no batch yet"
    parts = [f"batch {progress.batch}", f"{progress.rows:,} rows"]
    if progress.batch_ms:
        parts.append(f"{progress.rows_per_s:,.0f} rows/s")
    if progress.lag is not None:
        parts.append(f"lag {progress.lag:,}")
    if progress.batch_ms:
        parts.append(f"batch time {show_duration(progress.batch_ms)}")
    return ", ".join([*parts, progress.note] if progress.note else parts)


def lag_text(progress: Progress) -> str:
    return "–" if progress.lag is None else f"{progress.lag:,}"


def start_and_attend(folder: Folder, wanted: Definition, output: Output) -> int:
    """Run a pipeline and show it until it ends; the exit code.  The first Ctrl-C stops it, the
    second kills it."""
    shown = Shown(folder, output, before=folder.progress())
    with (
        counted_interrupts() as interrupts,
        control.start(folder, wanted, is_leashed=True) as process,
    ):
        is_killed = _attend(folder, process, shown, interrupts)
    if is_killed:
        output.say("killed: run it again and it goes on from its last complete batch", Tone.BAD)
        return INTERRUPTED
    return conclude(folder, process.returncode, output)


def _attend(
    folder: Folder, process: subprocess.Popen[bytes], shown: "Shown", interrupts: list[int]
) -> bool:
    """Whether it was killed."""
    has_asked = False
    with shown:
        while process.poll() is None:
            if len(interrupts) > 1:
                control.kill(folder)
                return True
            if interrupts and not has_asked:
                has_asked = True
                shown.say("stopping after the current batch; Ctrl-C again kills it at once")
                process.terminate()
            shown.refresh()
            time.sleep(POLL_S)
    return False


@contextlib.contextmanager
def counted_interrupts() -> Iterator[list[int]]:
    """Ctrl-C is noted, whatever this process is doing: a pipeline may be starting."""
    noted: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def conclude(folder: Folder, code: int, output: Output) -> int:
    """Print how a run ended."""
    status = control.status(folder)
    if output.is_json:
        output.json(status)
    elif status.end and status.end.conclusion:
        output.line(status.end.conclusion.summary)
    if status.state is State.KILLED:
        output.say(
            f"error: the pipeline's process was killed: run it again and it goes on; "
            f"{folder.spark_log_file} may say more",
            Tone.BAD,
        )
        return FAILED
    if status.end and status.end.kind is EndKind.FAILED:
        output.say(f"error: {status.end.error}", Tone.BAD)
        output.say(f"more is in {folder.log_file} and {folder.spark_log_file}")
    return code


def watch(folder: Folder, output: Output) -> int:
    """Show a pipeline that runs, until it ends or the person has seen enough."""
    with contextlib.suppress(KeyboardInterrupt), Shown(folder, output, before=None) as shown:
        while process_of(folder) is not None:
            shown.refresh()
            time.sleep(POLL_S)
        return conclude(folder, DONE, output)
    return DONE


class Followed:
    """The whole lines that a file gets from now on.  One that was replaced is read from its
    beginning."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._number, self.size_bytes = 0, 0  # Of the file when it was last looked at.
        self._rest = b""
        with contextlib.suppress(FileNotFoundError):
            status = file.stat()
            self._number, self.size_bytes = status.st_ino, status.st_size

    def lines(self) -> list[str]:
        """Those that came since it was last asked."""
        with contextlib.suppress(FileNotFoundError), self._file.open("rb") as opened:
            number = os.fstat(opened.fileno()).st_ino
            if number != self._number:
                self._number, self.size_bytes, self._rest = number, 0, b""
            opened.seek(self.size_bytes)
            content = self._rest + opened.read()
            self.size_bytes = opened.tell()
            *whole, self._rest = content.split(b"\n")
            return [line.decode(errors="replace") for line in whole]
        return []


class Shown:
    """What is on the screen of a pipeline."""

    def __init__(self, folder: Folder, output: Output, before: Progress | None) -> None:
        """`before` is progress that need not be shown."""
        self._folder = folder
        self._said = Followed(folder.log_file)
        self._output = output
        self._progress = before
        self._printed_s = -PLAIN_INTERVAL_S
        self._live = output.live(lambda: progress_text(self._progress))

    def __enter__(self) -> "Shown":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.refresh(is_last=True)
        if self._live is not None:
            self._live.stop()

    def refresh(self, *, is_last: bool = False) -> None:
        for line in self._said.lines():
            self.say(line)
        progress = self._folder.progress()
        is_due = is_last or time.monotonic() - self._printed_s >= PLAIN_INTERVAL_S
        if progress != self._progress and (is_due or self._live is not None):
            self._progress = progress
            self._printed_s = time.monotonic()
            if self._live is None:
                self._output.say(progress_text(progress))

    def say(self, text: str) -> None:
        if self._live is None:
            self._output.say(text)
        else:
            self._live.console.print(text, soft_wrap=True, markup=False)
