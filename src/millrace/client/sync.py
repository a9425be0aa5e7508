"""The same API without `await`, for scripts, notebooks and Spark workers.

A loop runs in a thread of its own, shared by all connections of the process; calls hand their
coroutine to it and wait.  Works where a loop is already running (notebooks), after a fork (the
child makes its own loop), and from several threads at once.  Readers fetch blocks, not records,
across the thread boundary.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from millrace.client import cluster as cluster_module
from millrace.client.any_description import AnyDescription
from millrace.client.cluster import Addresses, Client, ClusterStatus
from millrace.client.log import CLOSE_TIMEOUT_MS, VERIFY_TIMEOUT_MS, Log
from millrace.client.log_standing import LogStanding
from millrace.client.loop_thread import Connected, HandedOver
from millrace.client.loop_thread import run as run
from millrace.client.many import Headers
from millrace.client.multi_reader import RECORDS_MAX, LogGap, LogRecords, MultiReader
from millrace.client.outcomes import UnknownAppend
from millrace.client.positions import Position
from millrace.client.questions import TIMEOUT_MS
from millrace.client.reader import Reader
from millrace.client.standings import NodeStanding, StatusEvent
from millrace.client.stream_reading import StreamEntry
from millrace.client.sync_bucket import SyncBucket
from millrace.core.append import Appended
from millrace.core.documents.map import BucketRecord
from millrace.core.epochs import EpochRecord
from millrace.core.projection import Projection
from millrace.core.read_stream import Deliver
from millrace.core.runs import Runs
from millrace.core.sequenced.verifying import Verdict
from millrace.types import FIRST_LSN, Ack, Gap, LogInfo, Lsn, NodeId, Record, Selection, Weight


def connect(addresses: Addresses, *, timeout_ms: int = 10_000) -> "SyncClient":
    """As `millrace.connect`, without `await`."""
    return SyncClient(run(cluster_module.connect(addresses, timeout_ms=timeout_ms)))


class SyncClient(Connected):
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

    def change_log(self, name: str, **attributes: Any) -> tuple[LogInfo, EpochRecord]:
        return self._run(self._client.change_log(name, **attributes))

    def log(self, name: str) -> "SyncLog":
        return SyncLog(self._run(self._client.log(name)))

    def logs(self) -> list[LogInfo]:
        return self._run(self._client.logs())

    def reader(self, *, skip_gaps: bool = False, no_payload: bool = False) -> "SyncMultiReader":
        return SyncMultiReader(self._client.reader(skip_gaps=skip_gaps, no_payload=no_payload))

    def delete_log(self, name: str) -> None:
        self._run(self._client.delete_log(name))

    def create_bucket(self, name: str, **attributes: Any) -> SyncBucket:
        return SyncBucket(self._run(self._client.create_bucket(name, **attributes)))

    def bucket(self, name: str) -> SyncBucket:
        return SyncBucket(self._run(self._client.bucket(name)))

    def buckets(self) -> list[BucketRecord]:
        return self._run(self._client.buckets())

    def delete_bucket(self, name: str) -> None:
        self._run(self._client.delete_bucket(name))

    def status(self) -> ClusterStatus:
        return self._run(self._client.status())

    def statuses(self) -> dict[NodeId, NodeStanding]:
        return self._run(self._client.statuses())

    def events(self) -> list[StatusEvent]:
        return self._run(self._client.events())

    def drain(self, node: int, *, cancel: bool = False) -> None:
        self._run(self._client.drain(node, cancel=cancel))

    def mark_unrecoverable(self, node: int) -> None:
        self._run(self._client.mark_unrecoverable(node))

    def close(self, *, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        self._run(self._client.close(timeout_ms=timeout_ms))


class SyncLog(Connected):
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

    @property
    def standing(self) -> LogStanding:
        return self._log.standing

    def show(self, lsn: Lsn) -> str:
        return self._log.show(lsn)

    def append(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        timestamp_us: int | None = None,
        headers: Headers = (),
        ack: Ack | str | None = None,
        if_tail: Lsn | int | str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Lsn:
        return self._run(
            self._log.append(
                value,
                key=key,
                timestamp_us=timestamp_us,
                headers=headers,
                ack=ack,
                if_tail=if_tail,
                timeout_ms=timeout_ms,
            )
        )

    def append_many(
        self,
        values: Iterable[bytes],
        *,
        keys: Iterable[bytes | None] | None = None,
        timestamps_us: Sequence[int] | int | None = None,
        headers: Iterable[Headers] | None = None,
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
        timeout_ms: int | None = None,
    ) -> "SyncReader":
        work = self._log.read(
            first, until, fill_after_ms=fill_after_ms, select=select, timeout_ms=timeout_ms
        )
        return SyncReader(self._run(work))

    def read_stream(
        self,
        stream: int,
        first: int = FIRST_LSN,
        end: int | None = None,
        *,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Iterator[StreamEntry | Gap]:
        entries = self._log.read_stream(stream, first, end, timeout_ms=timeout_ms)

        async def take() -> StreamEntry | Gap | None:
            return await anext(entries, None)

        return iter(lambda: self._run(take()), None)

    def tail(
        self,
        back: int = 0,
        *,
        fill_after_ms: int | None = 1_000,
        select: Selection | None = None,
        timeout_ms: int | None = None,
    ) -> "SyncReader":
        work = self._log.tail(
            back, fill_after_ms=fill_after_ms, select=select, timeout_ms=timeout_ms
        )
        return SyncReader(self._run(work))

    def get(self, position: Position, *, timeout_ms: int = TIMEOUT_MS) -> Record | Gap:
        return self._run(self._log.get(position, timeout_ms=timeout_ms))

    def resolve(self, position: Position, *, timeout_ms: int = TIMEOUT_MS) -> Lsn:
        return self._run(self._log.resolve(position, timeout_ms=timeout_ms))

    def peek(self, *, timeout_ms: int = TIMEOUT_MS) -> Lsn:
        return self._run(self._log.peek(timeout_ms=timeout_ms))

    def tail_lsn(self, *, timeout_ms: int = TIMEOUT_MS) -> Lsn:
        return self._run(self._log.tail_lsn(timeout_ms=timeout_ms))

    def is_empty(self, *, timeout_ms: int = TIMEOUT_MS) -> bool:
        return self._run(self._log.is_empty(timeout_ms=timeout_ms))

    def sealed_end(self, *, timeout_ms: int = TIMEOUT_MS) -> Lsn | None:
        return self._run(self._log.sealed_end(timeout_ms=timeout_ms))

    def bounds(self, *, timeout_ms: int = TIMEOUT_MS) -> tuple[Lsn, Lsn]:
        return self._run(self._log.bounds(timeout_ms=timeout_ms))

    def readable_bounds(self) -> tuple[Lsn, Lsn]:
        return self._run(self._log.readable_bounds())

    def find_time(self, timestamp_us: int) -> Lsn:
        return self._run(self._log.find_time(timestamp_us))

    def weigh(self, first: Lsn, end: Lsn, pieces: int = 64) -> list[Weight]:
        return self._run(self._log.weigh(first, end, pieces))

    def runs(self, first: Lsn, end: Lsn) -> Runs:
        return self._run(self._log.runs(first, end))

    def trim(self, before: Position, *, timeout_ms: int = TIMEOUT_MS) -> Lsn:
        return self._run(self._log.trim(before, timeout_ms=timeout_ms))

    def seal(self, *, timeout_ms: int = TIMEOUT_MS) -> LogStanding:
        return self._run(self._log.seal(timeout_ms=timeout_ms))

    def describe(self, *, timeout_ms: int = TIMEOUT_MS) -> AnyDescription:
        return self._run(self._log.describe(timeout_ms=timeout_ms))

    def verify(self, *, timeout_ms: int = VERIFY_TIMEOUT_MS) -> Verdict:
        return self._run(self._log.verify(timeout_ms=timeout_ms))

    def flush(self) -> None:
        self._run(self._log.flush())


class SyncReader(Connected):
    """Iterate it for records and gaps, or take `batches()`."""

    def __init__(self, reader: Reader) -> None:
        super().__init__()
        self._reader = reader
        self._parts: HandedOver[Deliver | Gap | None] = HandedOver()

    def __enter__(self) -> "SyncReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take(self, timeout_ms: int | None = None) -> Deliver | Gap | None:
        work = partial(self._reader.take, timeout_ms)
        return self._run(self._parts.take(work)).has_arrived()

    def __iter__(self) -> Iterator[Record | Gap]:
        return self.records()

    def records(self, *, timeout_ms: int | None = None) -> Iterator[Record | Gap]:
        while True:
            yield from self._reader.rest
            part = self.take(timeout_ms)
            if part is None:
                return
            if isinstance(part, Gap):
                yield part
            else:
                self._reader.begin(part)

    def batches(
        self, columns: Sequence[str] | None = None, *, timeout_ms: int | None = None
    ) -> Iterator[pa.RecordBatch | Gap]:
        while (part := self.take(timeout_ms)) is not None:
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


class SyncMultiReader(Connected):
    """Several logs in one reader; see `MultiReader`."""

    def __init__(self, reader: MultiReader) -> None:
        super().__init__()
        self._reader = reader
        self._parts: HandedOver[LogRecords | LogGap | None] = HandedOver()

    def __enter__(self) -> "SyncMultiReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start_reading(
        self, log: str, first: Position = "start", until: Position | None = None
    ) -> None:
        self._run(self._reader.start_reading(log, first, until))

    def stop_reading(self, log: str) -> None:
        self._run(self._reader.stop_reading(log))

    def is_reading(self, log: str) -> bool:
        return self._reader.is_reading(log)

    def is_healthy(self, log: str) -> bool:
        return self._reader.is_healthy(log)

    def explain(self, log: str) -> dict[str, object]:
        return self._reader.explain(log)

    def read(
        self, count: int = RECORDS_MAX, *, timeout_ms: int | None = None
    ) -> LogRecords | LogGap | None:
        work = partial(self._reader.read, count, timeout_ms=timeout_ms)
        return self._run(self._parts.take(work)).has_arrived()

    def close(self) -> None:
        self._run(self._reader.close())
