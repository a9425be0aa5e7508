"""Several logs read through one door (R12): records of one log at a time, or one gap.

Each log has a reader of its own, with its window and its place at the nodes; here is only decided
whose turn it is.

  I1  A log's records and gaps come in its order.  A gap is never in a batch with records: those
      before it come first.
  I2  Logs that have something take turns, so a busy one does not starve the others.
  I3  At most `logs_max` logs are read at a time, each with a window of its own (G13).
  I4  A log that fails is told once, as an exception, and is not read any more; the others go on.
"""

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import pyarrow as pa

from millrace.client.log import Log
from millrace.client.positions import Position
from millrace.client.reader import Reader
from millrace.codec.blocks import records_of
from millrace.core.read_effects import Deliver
from millrace.errors import UsageError
from millrace.types import Gap, Record, Selection

if TYPE_CHECKING:
    from millrace.client.cluster import Client

LOGS_MAX: Final = 256
RECORDS_MAX: Final = 1_000
NO_PAYLOAD: Final = Selection(columns=("key", "timestamp", "headers"))


class LogRecords(msgspec.Struct, frozen=True):
    """Consecutive records of one log; between two of them there may be a gap that was skipped."""

    log: str
    records: list[Record]


class LogGap(msgspec.Struct, frozen=True):
    log: str
    gap: Gap


class _Source:
    """One log: its reader, and what was taken from it and not handed over yet."""

    def __init__(self, reader: Reader, skips_gaps: bool) -> None:
        self.reader = reader
        self._skips_gaps = skips_gaps
        self._records: list[Record] = []  # Of one block at most, oldest first.
        self._at = 0
        self._gap: Gap | None = None

    def take(self, count: int) -> list[Record] | Gap | None:
        """What is here now; None if nothing is.  Keeps I1."""
        while self._at == len(self._records) and self._gap is None:
            part = self.reader.poll()
            if part is None:
                return None
            if not isinstance(part, Gap):
                self._records, self._at = _records(self.reader, part), 0
            elif not self._skips_gaps or part.last + 1 >= self.reader.end:
                self._gap = part
        if self._at < len(self._records):
            taken = self._records[self._at : self._at + count]
            self._at += len(taken)
            return taken
        gap, self._gap = self._gap, None
        return gap


class MultiReader:
    """Made by `Client.reader`.  Begin with `start_reading`, then `read` again and again; close it,
    or use it as a context manager."""

    def __init__(
        self,
        client: "Client",
        *,
        skip_gaps: bool = False,
        no_payload: bool = False,
        logs_max: int = LOGS_MAX,
    ) -> None:
        self._client = client
        self._skips_gaps = skip_gaps
        self._selection = NO_PAYLOAD if no_payload else None
        self._logs_max = logs_max
        self._sources: dict[str, _Source] = {}  # In the order of their turns.
        self._news = asyncio.Event()

    async def start_reading(
        self, log: Log | str, first: Position = "start", until: Position | None = None
    ) -> None:
        """Read the log from `first` up to and not including `until`; None follows it until it is
        sealed.  A log that is being read begins anew."""
        opened = await self._client.log(log) if isinstance(log, str) else log
        if opened.name not in self._sources and len(self._sources) >= self._logs_max:
            raise UsageError(
                f"{len(self._sources)} logs are read already, and no more than that may be: "
                "stop one, or use another reader"
            )
        reader = await opened.read(first, until, select=self._selection)
        await self.stop_reading(opened.name)
        self._sources[opened.name] = _Source(reader, self._skips_gaps)
        reader.heard = self._news.set
        self._news.set()

    async def stop_reading(self, log: Log | str) -> None:
        source = self._sources.pop(_name(log), None)
        if source is not None:
            source.reader.heard = None
            await source.reader.close()

    def is_reading(self, log: Log | str) -> bool:
        """False also when all of it was read and handed over."""
        return _name(log) in self._sources

    @property
    def logs(self) -> list[str]:
        """Those that are being read."""
        return sorted(self._sources)

    def is_healthy(self, log: Log | str) -> bool:
        """Whether enough nodes serve the log that its records can come."""
        return self._source(log).reader.is_served

    def explain(self, log: Log | str) -> dict[str, object]:
        """Why the log is where it is: what is waited for, and of whom."""
        return self._source(log).reader.explain()

    async def read(
        self, count: int = RECORDS_MAX, *, timeout_ms: int | None = None
    ) -> LogRecords | LogGap | None:
        """At most `count` records of one log, or one gap; whatever is here, as soon as anything is.
        None when the time is up, or when no log is being read any more.  Raises what is wrong with
        a log, which is then not read any more."""
        if count < 1:
            raise UsageError(f"count={count}: read at least one record")
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                while self._sources:
                    self._news.clear()
                    found = await self._next(count)
                    if found is not None:
                        return found
                    if self._sources:
                        await self._news.wait()
        except TimeoutError:
            pass
        return None

    async def _next(self, count: int) -> LogRecords | LogGap | None:
        """Keeps I2: who has something goes to the end of the line."""
        for name, source in list(self._sources.items()):
            try:
                taken = source.take(count)
            except Exception:
                await self.stop_reading(name)  # Keeps I4.
                raise
            if taken is not None:
                del self._sources[name]
                self._sources[name] = source
                return LogGap(name, taken) if isinstance(taken, Gap) else LogRecords(name, taken)
            if source.reader.is_over:
                await self.stop_reading(name)
        return None

    async def close(self) -> None:
        for name in list(self._sources):
            await self.stop_reading(name)

    async def __aenter__(self) -> "MultiReader":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _source(self, log: Log | str) -> _Source:
        name = _name(log)
        if name not in self._sources:
            raise UsageError(f"log {name!r} is not being read: start_reading begins")
        return self._sources[name]


def _name(log: Log | str) -> str:
    return log if isinstance(log, str) else log.name


def _records(reader: Reader, part: Deliver) -> list[Record]:
    if reader.selection is not NO_PAYLOAD:
        return reader.part_records(part)
    batch = reader.batch(part)
    lsns, keys, stamps, headers = cast("list[Any]", batch.columns)
    nothing = pa.array([b""] * batch.num_rows, pa.binary())
    stamps_us = stamps.cast(pa.int64()).to_pylist()
    return records_of(lsns.to_pylist(), nothing, keys, stamps_us, headers)
