"""Where the nodes of tests come from: forked from one process that has loaded all their code.

A node that `millrace node run` starts spends a second of processor time on imports, and tests
start thousands.  A forked one is as much a process of its own, with its own session, files and
signals, and runs the same command; how a node starts from nothing is tested by the commands that
do (`tests/cli`, the demo, the printed sessions).  Others do not know it for a node by its command
line: `LocalCluster.open` needs one from `fresh_process`.

The nursery ends with the process that uses it, and takes what is left of its nodes along.
"""

import atexit
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import NoReturn

REQUEST_BYTES_MAX = 16 << 10
END_TIMEOUT_S = 10.0
FORKABLE = ("jemalloc_bg_thd",)  # Threads whose libraries know what to do in a fork.


class NurseryProcess:
    """A node that the nursery forked.  It is known by a descriptor, so that nobody who gets its
    number later is taken for it."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._is_over = False
        self._turn = threading.Lock()

    def poll(self) -> int | None:
        with self._turn:
            if not self._is_over:
                ended = select.poll()
                ended.register(self._pidfd, select.POLLIN)
                if ended.poll(0):
                    self._is_over = True
                    os.close(self._pidfd)
            return 0 if self._is_over else None


class Nursery:
    """The using side: starts the nursery with the first node."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._turn = threading.Lock()  # Tests start clusters in threads.

    def launch(self, file: Path, log: Path) -> NurseryProcess:
        with self._turn:
            used = self._socket or self._start()
            self._socket = None  # One that was interrupted would answer the next.
            used.sendall(f"{file}\0{log}\n".encode())
            told, descriptors, _, _ = socket.recv_fds(used, 64, 1)
            if not told:
                raise RuntimeError("the process that forks the nodes of tests is gone")
            self._socket = used
        return NurseryProcess(int(told), descriptors[0])

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.nursery", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=Path(__file__).parents[2],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        atexit.register(_end, ours, process)
        return ours


def _end(ours: socket.socket, process: subprocess.Popen[bytes]) -> None:
    ours.close()
    process.wait(END_TIMEOUT_S)


def serve(requests: socket.socket) -> None:
    """Fork a node for each request, and bury those that have ended, until the user is gone."""
    living: dict[int, int] = {}  # Their descriptors and numbers.
    received = b""
    try:
        while True:
            ready, _, _ = select.select([requests, *living], [], [])
            for pidfd in living.keys() & set(ready):
                os.waitpid(living.pop(pidfd), 0)
                os.close(pidfd)
            if requests not in ready:
                continue
            more = requests.recv(REQUEST_BYTES_MAX)
            if not more:
                return
            *lines, received = (received + more).split(b"\n")
            for line in lines:
                file, log = line.decode().split("\0")
                pid = os.fork()
                if not pid:
                    _become_node(requests, list(living), file, log)
                pidfd = os.pidfd_open(pid)
                living[pidfd] = pid
                socket.send_fds(requests, [str(pid).encode()], [pidfd])
    finally:
        for pid in living.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _become_node(requests: socket.socket, others: list[int], file: str, log: str) -> NoReturn:
    """As `millrace.local` starts a process for it; does not return."""
    from millrace.cli import main

    code = 1
    try:
        os.setsid()
        requests.close()
        for pidfd in others:
            os.close(pidfd)
        output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        sys.argv = ["millrace", "node", "run", file]
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _load() -> None:
    """Everything that a node loads, and no thread: it would be missing in what is forked."""
    import gc

    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # Else numpy starts some.
    import millrace.cli.node_process
    import millrace.server.run  # noqa: F401

    del os.environ["OPENBLAS_NUM_THREADS"]
    others = (each for each in Path("/proc/self/task").iterdir() if each.name != str(os.getpid()))
    threads = {(each / "comm").read_text().strip() for each in others} - set(FORKABLE)
    assert not threads, f"threads of {threads} before anything was forked"
    gc.collect()
    gc.freeze()  # Else each node would copy the pages of all objects when it looks for garbage.


if __name__ == "__main__":
    _load()
    serve(socket.socket(fileno=int(sys.argv[1])))
