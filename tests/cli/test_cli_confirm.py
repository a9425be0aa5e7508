"""Being asked for confirmation: Ctrl-C is an answer."""

import os
import pty
import signal
import subprocess
import sys

ASKING = """
import asyncio
from millrace.cli.output import confirm
async def main():
    confirm("Sure?", yes=False)
    print("went ahead")
asyncio.run(main())
"""


def test_one_interrupt_is_enough() -> None:
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", ASKING],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        assert process.stderr.read(len("Sure? [y/N] ")) == "Sure? [y/N] "
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=30)
        assert process.returncode != 0
        assert "went ahead" not in output
    finally:
        os.close(ours)
        os.close(theirs)
