"""The same API without `await`, for scripts, notebooks and Spark workers.

A loop runs in a thread of its own, shared by all connections of the process; calls hand their
coroutine to it and wait.  Works where a loop is already running (notebooks), after a fork (the
child makes its own loop), and from several threads at once.  Readers fetch blocks, not records,
across the thread boundary.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import uvloop

from millrace.client import cluster as cluster_module
from millrace.client.cluster import Addresses, Client, ClusterStatus
from millrace.client.describe import LogDescription
from millrace.client.log import Log
from millrace.client.many import Headers
from millrace.client.outcomes import UnknownAppend
from millrace.client.positions import Position
from millrace.client.questions import TIMEOUT_MS
from millrace.client.reader import Reader
from millrace.core.append import Appended
from millrace.core.projection import Projection
from millrace.core.read_stream import Deliver
from millrace.errors import UsageError
from millrace.types import Ack, Gap, LogInfo, Lsn, Record, Selection, Weight

T = TypeVar("T")


class _LoopThread:
    """The process's loop for sync calls; made on first use, and anew after a fork."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """In a forked child the thread is gone, and the lock may be held by nobody who lives."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._running_loop()).result()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = uvloop.new_event_loop()
                thread = threading.Thread(
                    target=loop.run_forever, name="millrace-sync", daemon=True
                )
                thread.start()
                self._loop = loop
            return self._loop


_thread = _LoopThread()
os.register_at_fork(after_in_child=_thread.forget)


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, on the process's loop for sync calls."""
    return _thread.run(work)


class _Connected:
    """Whatever rests on a connection.  It belongs to the process that made it: a forked child
    would speak in the middle of its parent's sentences."""

    def __init__(self) -> None:
        self._process = os.getpid()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._process != os.getpid():
            work.close()
            raise UsageError(
                "this connection was made before a fork and belongs to the parent process: "
                "connect again in the child"
            )
        return _thread.run(work)


def connect(addresses: Addresses, *, timeout_ms: int = 10_000) -> "SyncClient":
    """As `millrace.connect`, without `await`."""
    return SyncClient(_thread.run(cluster_module.connect(addresses, timeout_ms=timeout_ms)))


class SyncClient(_Connected):
    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client

    def __enter__(self) -> "SyncClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        return self._client.name

    def create_log(self, name: str, **attributes: Any) -> "SyncLog":
        return SyncLog(self._run(self._client.create_log(name, **attributes)))

    def log(self, name: str) -> "SyncLog":
        return SyncLog(self._run(self._client.log(name)))

    def logs(self) -> list[LogInfo]:
        return self._run(self._client.logs())

    def delete_log(self, name: str) -> None:
        self._run(self._client.delete_log(name))

    def status(self) -> ClusterStatus:
        return self._run(self._client.status())

    def close(self) -> None:
        self._run(self._client.close())


class SyncLog(_Connected):
    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    @property
    def name(self) -> str:
        return self._log.name

    @property
    def info(self) -> LogInfo:
        return self._log.info

    @property
    def projection(self) -> Projection:
        return self._log.projection

    def append(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        timestamp_us: int | None = None,
        headers: Headers = (),
        ack: Ack | str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Lsn:
        return self._run(
            self._log.append(
                value,
                key=key,
                timestamp_us=timestamp_us,
                headers=headers,
                ack=ack,
                timeout_ms=timeout_ms,
            )
        )

    def append_many(
        self,
        values: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        timestamps_us: Sequence[int] | int | None = None,
        headers: Sequence[Headers] | None = None,
        ack: Ack | str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> list[Appended]:
        return self._run(
            self._log.append_many(
                values,
                keys=keys,
                timestamps_us=timestamps_us,
                headers=headers,
                ack=ack,
                timeout_ms=timeout_ms,
            )
        )

    def append_table(
        self,
        table: pa.Table | pa.RecordBatch,
        *,
        ack: Ack | str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> list[Appended]:
        return self._run(self._log.append_table(table, ack=ack, timeout_ms=timeout_ms))

    def resume(self, unknown: UnknownAppend, *, timeout_ms: int = TIMEOUT_MS) -> Appended:
        return self._run(self._log.resume(unknown, timeout_ms=timeout_ms))

    def read(
        self,
        first: Position = "start",
        until: Position | None = "end",
        *,
        fill_after_ms: int | None = 1_000,
        select: Selection | None = None,
    ) -> "SyncReader":
        work = self._log.read(first, until, fill_after_ms=fill_after_ms, select=select)
        return SyncReader(self._run(work))

    def tail(
        self,
        back: int = 0,
        *,
        fill_after_ms: int | None = 1_000,
        select: Selection | None = None,
    ) -> "SyncReader":
        work = self._log.tail(back, fill_after_ms=fill_after_ms, select=select)
        return SyncReader(self._run(work))

    def get(self, position: Position, *, timeout_ms: int = TIMEOUT_MS) -> Record | Gap:
        return self._run(self._log.get(position, timeout_ms=timeout_ms))

    def resolve(self, position: Position, *, timeout_ms: int = TIMEOUT_MS) -> Lsn:
        return self._run(self._log.resolve(position, timeout_ms=timeout_ms))

    def peek(self, *, timeout_ms: int = TIMEOUT_MS) -> Lsn:
        return self._run(self._log.peek(timeout_ms=timeout_ms))

    def bounds(self, *, timeout_ms: int = TIMEOUT_MS) -> tuple[Lsn, Lsn]:
        return self._run(self._log.bounds(timeout_ms=timeout_ms))

    def readable_bounds(self) -> tuple[Lsn, Lsn]:
        return self._run(self._log.readable_bounds())

    def find_time(self, timestamp_us: int) -> Lsn:
        return self._run(self._log.find_time(timestamp_us))

    def weigh(self, first: Lsn, end: Lsn, pieces: int = 64) -> list[Weight]:
        return self._run(self._log.weigh(first, end, pieces))

    def trim(self, before: Position, *, timeout_ms: int = TIMEOUT_MS) -> Lsn:
        return self._run(self._log.trim(before, timeout_ms=timeout_ms))

    def seal(self) -> Projection:
        return self._run(self._log.seal())

    def describe(self, *, timeout_ms: int = TIMEOUT_MS) -> LogDescription:
        return self._run(self._log.describe(timeout_ms=timeout_ms))

    def flush(self) -> None:
        self._run(self._log.flush())


class SyncReader(_Connected):
    """Iterate it for records and gaps, or take `batches()`."""

    def __init__(self, reader: Reader) -> None:
        super().__init__()
        self._reader = reader

    def __enter__(self) -> "SyncReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take(self, timeout_ms: int | None = None) -> Deliver | Gap | None:
        return self._run(self._reader.take(timeout_ms))

    def __iter__(self) -> Iterator[Record | Gap]:
        while (part := self.take()) is not None:
            if isinstance(part, Gap):
                yield part
            else:
                yield from self._reader.part_records(part)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch | Gap]:
        while (part := self.take()) is not None:
            if isinstance(part, Gap):
                yield part
            elif (batch := self._reader.batch(part, columns)).num_rows:
                yield batch

    def batch(self, part: Deliver, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        return self._reader.batch(part, columns)

    def explain(self) -> dict[str, object]:
        return self._reader.explain()

    def close(self) -> None:
        self._run(self._reader.close())
