"""An LMDB store with its owner's loop in the test's own thread."""

import fcntl
import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from millrace.limits import RUNS_HELD_MAX, TAIL_BUFFER_BYTES, UNSYNCED_BYTES_MAX
from millrace.store.contract import StoreFailed
from millrace.store.lmdb_store import LmdbStore, open_store
from millrace.types import Ack, Block, LogId, NodeId

CLUSTER = "test"
NODE = NodeId(1)
WAIT_S = 20.0
REPOSITORY = Path(__file__).parents[2]


class LmdbRig:
    def __init__(
        self,
        path: Path,
        map_bytes: int,
        tail_bytes: int = TAIL_BUFFER_BYTES,
        unsynced_bytes_max: int = UNSYNCED_BYTES_MAX,
        runs_held_max: int = RUNS_HELD_MAX,
    ) -> None:
        self.path = path
        self.calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.dirty: list[LogId] = []
        self.is_loop_closed = threading.Event()
        self.is_call_refused = threading.Event()
        self._map_bytes = map_bytes
        self._tail_bytes = tail_bytes
        self._unsynced_bytes_max = unsynced_bytes_max
        self._runs_held_max = runs_held_max
        self.store = self.open()

    def open(self) -> LmdbStore:
        self.calls = queue.SimpleQueue()
        return open_store(
            self.path,
            CLUSTER,
            NODE,
            self._call_soon,
            map_bytes=self._map_bytes,
            tail_bytes=self._tail_bytes,
            unsynced_bytes_max=self._unsynced_bytes_max,
            runs_held_max=self._runs_held_max,
            on_dirty=self.dirty.append,
        )

    def _call_soon(self, call: Callable[[], None]) -> None:
        if self.is_loop_closed.is_set():
            self.is_call_refused.set()
            raise RuntimeError("Event loop is closed")
        self.calls.put(call)

    @property
    def data_file(self) -> Path:
        return self.store.directory.data_file

    def run_until(self, is_enough: Callable[[], bool]) -> None:
        while not is_enough():
            self.calls.get(timeout=WAIT_S)()

    def settle(self, ack: Ack = Ack.DISK) -> StoreFailed | None:
        answers: list[StoreFailed | None] = []
        self.store.barrier(ack, answers.append)
        self.run_until(lambda: bool(answers))
        return answers[0]

    def crash(self) -> None:
        self.store.abandon()
        self.store = self.open()

    def reopen(self) -> None:
        self.store.close()
        self.store = self.open()

    def damage(self, block: Block) -> None:
        """Flips a bit where the block's bytes lie in the file."""
        self.store.close()
        whole = self.data_file.read_bytes()
        at = whole.index(bytes(block.data))
        assert whole.find(bytes(block.data), at + 1) < 0
        with self.data_file.open("r+b") as file:
            file.seek(at + block.size - 1)
            file.write(bytes([whole[at + block.size - 1] ^ 1]))
        self.store = self.open()

    @contextmanager
    def failing_writes(self, device: str, *, only_meta: bool = False) -> Iterator[None]:
        """Put another file in the place of the data file LMDB has open: its writes then fail as
        they do on that device.  The map is not touched.  Meta pages have a descriptor of their
        own, which writes through."""
        places = [
            int(number)
            for number in os.listdir("/proc/self/fd")
            if os.path.realpath(f"/proc/self/fd/{number}") == os.path.realpath(self.data_file)
        ]
        if only_meta:
            places = [one for one in places if fcntl.fcntl(one, fcntl.F_GETFL) & os.O_DSYNC]
        assert places
        copies = [os.dup(place) for place in places]
        other = os.open(device, os.O_RDONLY if device == "/dev/null" else os.O_WRONLY)
        for place in places:
            os.dup2(other, place, inheritable=False)
        try:
            yield
        finally:
            for place, copy in zip(places, copies, strict=True):
                os.dup2(copy, place, inheritable=False)
                os.close(copy)
            os.close(other)
