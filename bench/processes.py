"""Server processes of a benchmark: started in a session of their own, always ended.

1. A process started here is killed when its `ServerProcess` is stopped and, failing that, when
   the interpreter exits: Ctrl-C reaches only this process, which then tidies up.
"""

import atexit
import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

STOP_SECONDS_MAX: Final = 10.0


class ServerProcess:
    """One running server and its output file."""

    def __init__(self, command: Sequence[str], output: Path, working_directory: Path) -> None:
        with output.open("ab") as stream:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                cwd=working_directory,
                start_new_session=True,
            )
        atexit.register(self.kill)

    @property
    def process_id(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """End the server and everything it started, at once, and wait for it."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(STOP_SECONDS_MAX)
        atexit.unregister(self.kill)


def kill_all(servers: Sequence[ServerProcess]) -> None:
    for server in servers:
        server.kill()


def free_ports(count: int) -> list[int]:
    """Ports nobody listened on a moment ago; all held together, so that they differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(listening.getsockname()[1]) for listening in sockets]
    finally:
        for listening in sockets:
            listening.close()
