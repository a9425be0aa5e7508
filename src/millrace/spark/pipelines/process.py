"""The process of a pipeline: `python -m millrace.spark.pipelines.process FOLDER`.

It is started by `control.py`, which has written what to do into the folder and hands over its lock.
SIGTERM asks it to stop after the current batch.  So does the end of its stdin if it is on a leash:
a pipeline in the foreground does not outlive the command that shows it.

I1  However the run ends, short of a kill, `end.json` says so before the process is gone.
I2  What goes wrong is told in one line in the log; the traceback is in spark.log.
"""

import argparse
import logging
import os
import re
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, Final

import msgspec

from millrace.errors import MillraceError, UsageError
from millrace.spark.pipelines.context import Context
from millrace.spark.pipelines.folder import Definition, End, EndKind, Folder, now_ms
from millrace.spark.pipelines.kinds import kind_named
from millrace.spark.pipelines.running import sign

DONE: Final = 0
FAILED: Final = 1
WRONG: Final = 2
# A task's or a planner's error arrives here as text: `millrace.errors.UnknownLog: ...`.
OURS: Final = re.compile(r"^(?:.*\s)?millrace\.errors\.(\w+): (.+)$", re.M)
ERROR_CHARS_MAX: Final = 2_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m millrace.spark.pipelines.process")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lock", type=int, required=True, help="the handle that holds the folder")
    parser.add_argument("--leash", action="store_true", help="stop when stdin ends")
    arguments = parser.parse_args()
    os.set_inheritable(arguments.lock, False)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    if arguments.leash:
        threading.Thread(target=_wait_for_end_of_stdin, args=[stopping], daemon=True).start()
    return run(Folder(arguments.folder), stopping)


def run(folder: Folder, stopping: threading.Event) -> int:
    definition = folder.definition()
    assert definition is not None, f"{folder.home} has no pipeline.json"
    sign(folder)
    context = Context(
        folder, master=definition.master, spark_settings=definition.spark, stopping=stopping
    )
    _log_to(context)
    context.say(f"{definition.kind} {definition.name} begins, process {os.getpid()}")
    end = _run(definition, context)
    folder.ended(end)  # Keeps I1: also if Spark cannot be stopped any more.
    context.close()
    return exit_code(end)


def _run(definition: Definition, context: Context) -> End:
    try:
        kind = kind_named(definition.kind)
        settings = msgspec.convert(definition.settings, kind.settings)
        kind.run(settings, context)
    except Exception as error:
        traceback.print_exc()
        code, message = told(error)
        context.say(f"failed: {message}")
        return End(kind=EndKind.FAILED, at_ms=now_ms(), error=message, error_code=code)
    conclusion = context.conclusion
    is_finished = conclusion is not None or not context.is_stopping
    kind_of_end = EndKind.FINISHED if is_finished else EndKind.STOPPED
    context.say(kind_of_end.value)
    return End(kind=kind_of_end, at_ms=now_ms(), conclusion=conclusion)


def exit_code(end: End) -> int:
    if end.kind is EndKind.FAILED:
        return WRONG if end.error_code == UsageError.code else FAILED
    is_good = end.conclusion is None or end.conclusion.is_good
    return DONE if is_good else FAILED


def told(error: BaseException) -> tuple[str, str]:
    """The code of an error, and what to tell people.  Of an error of ours that came through Spark
    its own words, not the frames around it."""
    if isinstance(error, MillraceError):
        return error.code, str(error)
    text = str(error)
    found = OURS.findall(text)
    if found:
        name, words = found[-1]
        return _code(name), words.strip()
    first = text.strip().partition("\n")[0][:ERROR_CHARS_MAX]
    return "", f"{type(error).__name__}: {first}" if first else type(error).__name__


def _code(name: str) -> str:
    from millrace import errors

    kind: Any = getattr(errors, name, MillraceError)
    return str(kind.code)


def _log_to(context: Context) -> None:
    """Warnings of the package, which people are to see, go to the pipeline's log as well."""

    class Said(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            context.say(f"{record.levelname.lower()}: {record.getMessage()}")

    logging.getLogger("millrace").addHandler(Said(logging.WARNING))


def _wait_for_end_of_stdin(stopping: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    stopping.set()


if __name__ == "__main__":
    sys.exit(main())
