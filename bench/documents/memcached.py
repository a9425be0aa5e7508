"""memcached, of the system's package, as the one beside whom keys and values are measured."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.documents.requests import Documents, Route
from bench.documents.servers import MEMORY_BYTES, pin, until
from bench.peer import PeerFailure
from bench.processes import ServerProcess, free_ports
from millrace.limits import MIB

INSTALL_SECONDS_MAX: Final = 180.0
PACKAGE: Final = "memcached"


class MemcachedServer:
    name = "memcached"

    def __init__(self) -> None:
        self._process: ServerProcess | None = None
        self._address = ""
        self._version = ""

    def describe(self) -> str:
        return f"{self._version}, one thread, in memory alone"

    async def start(self, directory: Path) -> None:
        program = find_memcached()
        self._version = _version_of(program)
        (port,) = free_ports(1)
        self._address = f"127.0.0.1:{port}"
        megabytes = str(MEMORY_BYTES // MIB)
        command = [program, "-l", "127.0.0.1", "-p", str(port), "-t", "1", "-m", megabytes]
        if os.geteuid() == 0:
            command += ["-u", "root"]  # It refuses to run as root without being told.
        self._process = ServerProcess(command, directory / "memcached.log", directory)
        await until(lambda: _listens(port), f"memcached does not listen on port {port}")
        pin(self.process_ids())

    async def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None

    def process_ids(self) -> Sequence[int]:
        return () if self._process is None else (self._process.process_id,)

    def routes(self, documents: Documents) -> list[Route]:
        return [Route(self._address, documents)]

    async def settle(self) -> None:
        """It has nothing to do but answer."""


def find_memcached() -> str:
    """The program; the system's package is installed if that is allowed.  Raises PeerFailure."""
    found = shutil.which(PACKAGE)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get") is not None:
        _install()
        found = shutil.which(PACKAGE)
    if found is None:
        raise PeerFailure(
            f"there is no {PACKAGE} here, and only root can install it: `apt-get install "
            f"{PACKAGE}`; without it Millrace is measured beside nobody"
        )
    return found


def _version_of(program: str) -> str:
    asked = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return asked.stdout.strip()


def _install() -> None:
    print(f"installing {PACKAGE} with apt-get", file=sys.stderr)
    command = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", PACKAGE]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        subprocess.run(
            command,
            check=True,
            timeout=INSTALL_SECONDS_MAX,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            env=environment,
        )
    except (subprocess.SubprocessError, OSError) as error:
        raise PeerFailure(f"cannot install {PACKAGE}: {error}") from error


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
