"""The folder of a pipeline: what it was asked to do, how far it is, how it ended.

    pipeline.json      the kind and its settings, as given when it was first run
    pid                the process that runs it
    progress.jsonl     a line for each report, the newest last; progress.1.jsonl has older ones
    log                what it says, for people
    spark.log          what Spark and Java say; spark.1.log has older lines
    scratch/           what Spark writes while it runs
    end.json           how the last run ended
    checkpoint/ state/ what the pipeline itself remembers

I1  Of a file that is written anew a reader sees the old or the new (`whole_files.py`).
I2  progress.jsonl, log and spark.log are bounded: when one is full it becomes the one and only
    older part.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from millrace.errors import UsageError
from millrace.spark.pipelines.whole_files import write_whole

PROGRESS_BYTES_MAX: Final = 1024 * 1024
LOG_BYTES_MAX: Final = 4 * 1024 * 1024
SPARK_LOG_BYTES_MAX: Final = 64 * 1024 * 1024
LINE_BYTES_MAX: Final = 64 * 1024  # More than any line of progress: enough to find the last one.
T = TypeVar("T", bound=msgspec.Struct)


class Progress(msgspec.Struct, omit_defaults=False):
    """How far a pipeline is."""

    batch: int = 0
    rows: int = 0  # In total, over all runs.
    rows_per_s: float = 0
    lag: int | None = None  # Rows yet to come, if that is known.
    batch_ms: int = 0
    note: str = ""
    at_ms: int = 0  # When it was reported: set by `report`.


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for."""

    kind: str
    name: str
    settings: dict[str, Any]
    master: str | None = None
    spark: dict[str, str] = {}  # Settings of Spark.


class Conclusion(msgspec.Struct, frozen=True, kw_only=True):
    """What a pipeline that came to its end has found."""

    is_good: bool = True
    summary: str = ""
    details: dict[str, Any] = {}


class EndKind(Enum):
    FINISHED = "finished"  # It came to its end.
    STOPPED = "stopped"  # It was asked to stop, and did.
    FAILED = "failed"


class End(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended, if it could still say so."""

    kind: EndKind
    at_ms: int
    error: str = ""  # For people.
    error_code: str = ""
    conclusion: Conclusion | None = None


class Folder:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.pid_file = home / "pid"
        self.log_file = home / "log"
        self.spark_log_file = home / "spark.log"
        self.scratch = home / "scratch"
        self._definition_file = home / "pipeline.json"
        self._progress_file = home / "progress.jsonl"
        self._end_file = home / "end.json"

    @classmethod
    def made(cls, home: Path) -> "Folder":
        home.mkdir(parents=True, exist_ok=True)
        return cls(home.absolute())

    # -- What was asked for -----------------------------------------------------------------------

    def definition(self) -> Definition | None:
        return self._read(self._definition_file, Definition)

    def define(self, definition: Definition) -> None:
        write_whole(self._definition_file, _pretty(definition))

    # -- How far it is ----------------------------------------------------------------------------

    def report(self, progress: Progress) -> None:
        progress.at_ms = now_ms()
        _append(self._progress_file, msgspec.json.encode(progress) + b"\n", PROGRESS_BYTES_MAX)
        self._bound_spark_log()

    def progress(self) -> Progress | None:
        """The last report.  A process that was killed may have left half a line behind it."""
        for file in (self._progress_file, older(self._progress_file)):
            for line in _last_lines(file):
                with contextlib.suppress(msgspec.DecodeError):
                    return msgspec.json.decode(line, type=Progress)
        return None

    def say(self, text: str) -> None:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        _append(self.log_file, f"{stamp} {text}\n".encode(errors="replace"), LOG_BYTES_MAX)

    # -- How it ended -----------------------------------------------------------------------------

    def end(self) -> End | None:
        return self._read(self._end_file, End)

    def ended(self, end: End) -> None:
        write_whole(self._end_file, _pretty(end))

    def begun(self) -> None:
        """A run begins: how the one before ended says nothing any more, and what Spark left of it
        is of no use."""
        self._end_file.unlink(missing_ok=True)
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _bound_spark_log(self) -> None:
        """Whoever writes it only ever appends, so it can be emptied under their hands."""
        with contextlib.suppress(FileNotFoundError):
            if self.spark_log_file.stat().st_size > SPARK_LOG_BYTES_MAX:
                shutil.copyfile(self.spark_log_file, older(self.spark_log_file))
                os.truncate(self.spark_log_file, 0)

    def _read(self, file: Path, kind: type[T]) -> T | None:
        try:
            return msgspec.json.decode(file.read_bytes(), type=kind)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise UsageError(
                f"{file} is not what a pipeline writes there ({error}): "
                "is this the folder of a pipeline?"
            ) from None


def older(file: Path) -> Path:
    return file.with_name(f"{file.stem}.1{file.suffix}")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _append(file: Path, line: bytes, size_bytes_max: int) -> None:
    """Keeps I2."""
    with file.open("ab") as opened:
        opened.write(line)
        is_full = opened.tell() > size_bytes_max
    if is_full:
        file.replace(older(file))


def _last_lines(file: Path) -> Iterator[bytes]:
    """The last lines, newest first."""
    with contextlib.suppress(FileNotFoundError), file.open("rb") as opened:
        size_bytes = opened.seek(0, 2)
        opened.seek(max(0, size_bytes - LINE_BYTES_MAX))
        yield from reversed(opened.read().splitlines())


def _pretty(value: msgspec.Struct) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
