"""The command line's root: runs a command and turns whatever happens into an exit code.

  0    done, or the answer is "healthy"
  1    the command failed, or the answer is "not healthy"
  2    what was given is wrong: the command line, its input or a configuration
  130  Ctrl-C

`node run FILE` does not go through Typer: nodes start without loading it.

  I1  An error that the package raises on purpose is one line on stderr, never a traceback.
  I2  A reader that goes away (`| head`) ends the command quietly.
"""

import contextlib
import os
import sys
from collections.abc import Sequence

from millrace.errors import (
    BucketExists,
    CasMismatch,
    DocumentExists,
    DocumentMissing,
    LogExists,
    LogSealed,
    MillraceError,
    OperationRuns,
    PositionBeyondTail,
    PositionTrimmed,
    TooFewNodes,
    UnknownBucket,
    UnknownLog,
    UsageError,
    WrongDataDirectory,
)

DONE = 0
FAILED = 1
WRONG = 2
INTERRUPTED = 130
# The same command may do tomorrow: what it met is in another state than it needs.
STATE_ERRORS = (
    BucketExists,
    CasMismatch,
    DocumentExists,
    DocumentMissing,
    LogExists,
    LogSealed,
    OperationRuns,
    PositionBeyondTail,
    PositionTrimmed,
    TooFewNodes,
    UnknownBucket,
    UnknownLog,
    WrongDataDirectory,
)
# Options that mean the same for every command may stand anywhere on the line.
GLOBAL_OPTIONS = ("--cluster", "--timeout")
GLOBAL_WITH_VALUE = tuple((option, "=") for option in GLOBAL_OPTIONS)
GLOBAL_FLAGS = ("--no-color",)


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    try:
        code = _run_node(arguments) if _is_plain_node_run(arguments) else _run_command(arguments)
        sys.stdout.flush()
        return code
    except MillraceError as error:
        return _complain(str(error), code_of(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return FAILED
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _complain(f"{where}{error.strerror or error}")


def _is_plain_node_run(arguments: Sequence[str]) -> bool:
    return (
        len(arguments) == 3
        and list(arguments[:2]) == ["node", "run"]
        and not arguments[2].startswith("-")
    )


def _run_node(arguments: Sequence[str]) -> int:
    from millrace.cli.node_process import run_node

    run_node(arguments[2])
    return DONE


def _run_command(arguments: Sequence[str]) -> int:
    from millrace.cli.app import run_app

    return run_app(hoist(arguments))


def hoist(arguments: Sequence[str]) -> list[str]:
    """Global options to the front, where Typer wants them; what follows `--` is left alone."""
    front: list[str] = []
    rest: list[str] = []
    waiting = list(arguments)
    while waiting and waiting[0] != "--":
        word = waiting.pop(0)
        if word in GLOBAL_OPTIONS and waiting:
            front += [word, waiting.pop(0)]
        elif word in GLOBAL_FLAGS or word.partition("=")[:2] in GLOBAL_WITH_VALUE:
            front.append(word)
        else:
            rest.append(word)
    return front + rest + waiting


def code_of(error: MillraceError) -> int:
    is_wrong = isinstance(error, UsageError) and not isinstance(error, STATE_ERRORS)
    return WRONG if is_wrong else FAILED


def _complain(message: str, code: int = FAILED) -> int:
    with contextlib.suppress(BrokenPipeError):
        print(f"error: {message}", file=sys.stderr, flush=True)
    return code


def _silence_stdout() -> None:
    """What is still buffered has nowhere to go; Python would complain about it at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
