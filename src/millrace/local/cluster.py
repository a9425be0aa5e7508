"""Starts, kills and restarts node processes on loopback.

Everything lives in one folder: a configuration, a data directory and a log file for each node,
and `cluster.json`, so that another process (the command line) can take the cluster over.
"""

import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import msgspec

from millrace.config import (
    ClusterSettings,
    Configuration,
    KeeperSettings,
    NodeSettings,
    StoreSettings,
    load,
    to_toml,
    validate,
)
from millrace.errors import Unavailable, UsageError
from millrace.types import Role

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
POLL_S = 0.02
SLOW_S = 5.0  # A node that takes longer to start is worth a word.
LOG_LINES_SHOWN = 5
NODES_MAX = 64
STATE_FILE = "cluster.json"
HEALTH_BYTES_MAX = 16_384  # As far as an answer is read.
PORTS = range(20_000, 32_000)
PORT_RUNS_MAX = 64
_port_runs = itertools.count(random.randrange(len(PORTS)), 200)  # 200: three for each node.


class NodeProcess(Protocol):
    """What a cluster has to know of a process that it started."""

    pid: int

    def poll(self) -> int | None:
        """None while it runs."""


def fresh_process(file: Path, log: Path) -> NodeProcess:
    """The node of a configuration file, as `millrace node run` starts it."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "millrace", "node", "run", str(file)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C in a terminal must not reach the nodes.
        )


class LocalNode(msgspec.Struct):
    """One node: where it is and, while it runs, which process it is."""

    id: int
    address: str
    admin: str
    folder: str
    pid: int = 0
    documents: str = ""


class _State(msgspec.Struct):
    name: str
    nodes: list[LocalNode]


class _Health(msgspec.Struct):
    process: int = 0


class LocalCluster:
    launch: Callable[[Path, Path], NodeProcess] = staticmethod(fresh_process)

    def __init__(self, folder: Path, state: _State) -> None:
        self.folder = folder
        self._state = state
        self._processes: dict[int, NodeProcess] = {}

    @classmethod
    def create(
        cls,
        folder: Path,
        nodes: int = 5,
        *,
        name: str = "local",
        etcd: Iterable[str] = (),
        locations: Iterable[str] = (),
        store: StoreSettings | None = None,
        keeper: KeeperSettings | None = None,
        lease_ttl_ms: int = 2_000,
        first_port: int | None = None,
    ) -> "LocalCluster":
        """Lay out a cluster; `start` runs it.  Ports are `first_port` and the following, 100 above
        them for the admin ports and 200 for documents, if all are free; else any that are."""
        if (folder / STATE_FILE).exists():
            raise UsageError(
                f"{folder} holds a cluster already: `millrace dev down --wipe` removes it"
            )
        if folder.exists() and any(folder.iterdir()):
            # Whoever removes the cluster removes its folder.
            raise UsageError(f"{folder} is not empty: give the cluster a folder of its own")
        if not 1 <= nodes <= NODES_MAX:
            raise UsageError(f"{nodes} nodes: choose between 1 and {NODES_MAX}")
        ports = _node_ports(nodes, first_port)
        places = [*locations, *([""] * nodes)][:nodes]
        members = [
            LocalNode(
                number,
                f"127.0.0.1:{ports[number - 1]}",
                f"127.0.0.1:{ports[nodes + number - 1]}",
                str(folder / f"node-{number}"),
                documents=f"127.0.0.1:{ports[2 * nodes + number - 1]}",
            )
            for number in range(1, nodes + 1)
        ]
        settings = ClusterSettings(
            name=name,
            metadata="etcd" if etcd else "embedded",
            metadata_address="" if etcd else members[0].address,
            etcd=tuple(etcd),
            lease_ttl_ms=lease_ttl_ms,
        )
        configurations = [  # All are checked before anything is written.
            validate(
                Configuration(
                    _node_settings(node, location, hosts_metadata=not etcd and node.id == 1),
                    settings,
                    store or StoreSettings(),
                    keeper or KeeperSettings(),
                ),
                f"node {node.id}",
            )
            for node, location in zip(members, places, strict=True)
        ]
        cluster = cls(folder, _State(name, members))
        for node, configuration in zip(members, configurations, strict=True):
            cluster._write(node, configuration)
        cluster._save()
        return cluster

    @classmethod
    def open(cls, folder: Path) -> "LocalCluster":
        try:
            text = (folder / STATE_FILE).read_bytes()
            return cls(folder, msgspec.json.decode(text, type=_State))
        except FileNotFoundError:
            raise UsageError(
                f"there is no local cluster in {folder}: `millrace dev up` starts one"
            ) from None
        except msgspec.DecodeError as error:
            raise UsageError(f"{folder / STATE_FILE} cannot be read: {error}") from error

    def add_node(self, location: str = "") -> LocalNode:
        """Lay out one more node with the settings of the others; `start` runs it."""
        if len(self.nodes) >= NODES_MAX:
            raise UsageError(f"the cluster has {NODES_MAX} nodes, and cannot have more")
        number = max(node.id for node in self.nodes) + 1
        port, admin_port, documents_port = free_ports(3)
        node = LocalNode(
            number,
            f"127.0.0.1:{port}",
            f"127.0.0.1:{admin_port}",
            str(self.folder / f"node-{number}"),
            documents=f"127.0.0.1:{documents_port}",
        )
        settings = _node_settings(node, location, hosts_metadata=False)
        like = load(self._file(self.nodes[0]))
        configuration = msgspec.structs.replace(like, node=settings)
        self._write(node, validate(configuration, f"node {number}"))
        self._state.nodes.append(node)
        self._save()
        return node

    @property
    def name(self) -> str:
        return self._state.name

    @property
    def nodes(self) -> list[LocalNode]:
        return self._state.nodes

    @property
    def addresses(self) -> list[str]:
        return [node.address for node in self.nodes]

    # -- Processes ----------------------------------------------------------------------------

    def start(
        self, numbers: Iterable[int] | None = None, say: Callable[[str], None] = lambda _: None
    ) -> None:
        """Start nodes that do not run and wait until each serves; `say` is told of one that takes
        long."""
        chosen = [self.node(number) for number in dict.fromkeys(numbers)] if numbers else self.nodes
        started = [node for node in chosen if not self.is_running(node.id)]
        for node in started:
            self._spawn(node)
            self._save()  # Whoever is interrupted here leaves no node that nobody knows.
        for node in started:
            self._wait_ready(node, say)

    def check_startable(self, numbers: Iterable[int]) -> None:
        """A node serves only when it has reached the metadata repository: raises Unavailable if
        that is on a node which does not run and is not to be started with these."""
        chosen = [self.node(number) for number in numbers]
        for node in chosen:
            host = self._metadata_host(node)
            if host is not None and host not in chosen and not self.is_running(host.id):
                raise Unavailable(
                    f"node {node.id} cannot start: node {host.id}, which hosts the metadata "
                    f"repository, does not run. Start both: `millrace dev start {host.id} "
                    f"{node.id}`"
                )

    def kill(self, number: int) -> None:
        """SIGKILL: no goodbye, nothing flushed."""
        self._signal(number, signal.SIGKILL)

    def pause(self, number: int) -> None:
        os.kill(self.node(number).pid, signal.SIGSTOP)

    def resume(self, number: int) -> None:
        os.kill(self.node(number).pid, signal.SIGCONT)

    def stop(self, number: int) -> None:
        self._signal(number, signal.SIGTERM)

    def stop_all(self) -> None:
        running = [node.id for node in self.nodes if self.is_running(node.id)]
        # The node with the metadata last: the others say goodbye through it.
        for number in sorted(running, reverse=True):
            self.stop(number)

    def destroy(self) -> None:
        """Kill everything and remove the folder."""
        for node in self.nodes:
            if self.is_running(node.id):
                self.kill(node.id)
        shutil.rmtree(self.folder, ignore_errors=True)

    def wipe(self, number: int) -> None:
        """Remove a stopped node's data, as if its disk had been replaced."""
        if self.is_running(number):
            raise UsageError(f"node {number} runs: kill it before its disk is wiped")
        shutil.rmtree(Path(self.node(number).folder) / "data", ignore_errors=True)

    def is_running(self, number: int) -> bool:
        node = self.node(number)
        if not node.pid:
            return False
        process = self._processes.get(number)
        if process is not None:
            return process.poll() is None
        return _is_alive(node.pid, self._file(node))

    def node(self, number: int) -> LocalNode:
        for node in self.nodes:
            if node.id == number:
                return node
        known = ", ".join(str(node.id) for node in self.nodes)
        raise UsageError(f"there is no node {number}: the cluster has {known}")

    def log_text(self, number: int) -> str:
        path = self._log_file(self.node(number))
        return path.read_text(errors="replace") if path.exists() else ""

    def __enter__(self) -> "LocalCluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()

    # -- Inner workings -----------------------------------------------------------------------

    def _write(self, node: LocalNode, configuration: Configuration) -> None:
        Path(node.folder).mkdir(parents=True)
        self._file(node).write_text(to_toml(configuration))

    def _save(self) -> None:
        temporary = self.folder / f"{STATE_FILE}.new"
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(self._state)))
        temporary.replace(self.folder / STATE_FILE)

    def _spawn(self, node: LocalNode) -> None:
        process = self.launch(self._file(node), self._log_file(node))
        node.pid = process.pid
        self._processes[node.id] = process

    def _metadata_host(self, node: LocalNode) -> LocalNode | None:
        """None: it is no node of ours."""
        settings = load(self._file(node)).cluster
        if settings.metadata != "embedded":
            return None
        return next(
            (each for each in self.nodes if each.address == settings.metadata_address), None
        )

    def _wait_ready(self, node: LocalNode, say: Callable[[str], None]) -> None:
        began_s = time.monotonic()
        is_told = False
        while (waited_s := time.monotonic() - began_s) < START_TIMEOUT_S:
            if is_healthy(node.admin, node.pid):
                return
            if not self.is_running(node.id):
                raise self._not_started(node, "stopped while starting")
            if waited_s > SLOW_S and not is_told:
                is_told = True
                say(f"node {node.id} does not serve yet; its log is {self._log_file(node)}")
            time.sleep(POLL_S)
        raise self._not_started(node, f"did not start within {START_TIMEOUT_S:.0f} s")

    def _not_started(self, node: LocalNode, what: str) -> Unavailable:
        last = "\n".join(self.log_text(node.id).splitlines()[-LOG_LINES_SHOWN:])
        return Unavailable(f"node {node.id} {what}; the end of {self._log_file(node)}:\n{last}")

    def _file(self, node: LocalNode) -> Path:
        return Path(node.folder) / "node.toml"

    def _log_file(self, node: LocalNode) -> Path:
        return Path(node.folder) / "node.log"

    def _signal(self, number: int, what: signal.Signals) -> None:
        node = self.node(number)
        if not self.is_running(number):
            raise Unavailable(f"node {number} does not run")
        os.kill(node.pid, what)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while self.is_running(number):
            if time.monotonic() > deadline:
                os.kill(node.pid, signal.SIGKILL)
                deadline = time.monotonic() + STOP_TIMEOUT_S
            time.sleep(POLL_S)
        node.pid = 0
        self._save()


def _node_settings(node: LocalNode, location: str, *, hosts_metadata: bool) -> NodeSettings:
    roles = (Role.STORAGE, Role.SEQUENCER, Role.DOCUMENTS)
    return NodeSettings(
        node.id,
        str(Path(node.folder) / "data"),
        node.address,
        documents=node.documents,
        admin=node.admin,
        location=location,
        roles=(*roles, Role.METADATA) if hosts_metadata else roles,
    )


def _is_alive(pid: int, file: Path) -> bool:
    """Whether process `pid` runs the node of `file`: a process that has ended but was not waited
    for does not count, nor does a stranger that got the number after a reboot."""
    try:
        return os.fsencode(file) in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_healthy(admin: str, process: int | None = None) -> bool:
    """Whether `/healthz` answers 200, and is of this process if one is named: somebody else's node
    may have the port."""
    host, _, port = admin.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1) as connection:
            connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            with connection.makefile("rb") as stream:
                head, _, body = stream.read(HEALTH_BYTES_MAX).partition(b"\r\n\r\n")
        is_ours = process is None or msgspec.json.decode(body, type=_Health).process == process
    except (OSError, msgspec.DecodeError):
        return False
    return b" 200 " in head and is_ours


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now, all different; below those that the system gives to outgoing
    connections, so that a node which restarts finds its own still free.  Neighbours, and each time
    the next ones: whoever else looks for some at the same time has others."""
    for _ in range(PORT_RUNS_MAX):
        first = next(_port_runs) % (len(PORTS) - count) + PORTS[0]
        found = _bind_all(list(range(first, first + count)))
        if found is not None:
            return found
    found = _bind_all([0] * count)
    assert found is not None
    return found


def _node_ports(nodes: int, first: int | None) -> list[int]:
    """One for each node, then one more for each, and one more."""
    if first is None:
        return free_ports(3 * nodes)
    starts = (first, first + 100, first + 200)
    wanted = [start + number for start in starts for number in range(nodes)]
    return _bind_all(wanted) or free_ports(3 * nodes)


def _bind_all(ports: list[int]) -> list[int] | None:
    """The ports that could be bound, all of them or none; 0 is any."""
    sockets = [socket.socket() for _ in ports]
    try:
        for each, port in zip(sockets, ports, strict=True):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("127.0.0.1", port))
        return [each.getsockname()[1] for each in sockets]
    except OSError:
        return None
    finally:
        for each in sockets:
            each.close()
