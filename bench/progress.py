"""What a run says of itself while it goes on: lines on stderr, the table has stdout to itself."""

import sys


def progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
