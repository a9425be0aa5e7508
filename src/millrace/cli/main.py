"""The command line's root: gathers the nouns, turns errors into messages and exit codes."""

import sys
from pathlib import Path

from millrace import config
from millrace.errors import MillraceError


def main() -> None:
    arguments = sys.argv[1:]
    try:
        if arguments[:2] == ["node", "run"]:
            from millrace.server.run import run

            run(config.load(Path(arguments[2])))
    except MillraceError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
