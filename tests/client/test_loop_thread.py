"""The loop behind sync calls ends with its process, and before the interpreter does."""

import subprocess
import sys

# The C library calls `sleep` with the exit code as its first argument: so long the process lives
# on after its interpreter, and a timer that falls due then calls into that.
SLOW_END = """
import asyncio, ctypes, sys
from millrace.client import loop_thread

async def set_timer():
    asyncio.get_running_loop().call_later(1, print)

loop_thread.run(set_timer())
libc = ctypes.CDLL(None)
libc.on_exit(libc.sleep, None)
sys.exit(3)
"""


def test_nothing_of_it_runs_when_the_interpreter_is_gone() -> None:
    done = subprocess.run([sys.executable, "-c", SLOW_END], timeout=60)
    assert done.returncode == 3
