"""`millrace bench`: a small load on a running cluster, to see whether it does what it should.

For comparisons use the benchmarks of the repository: they measure several systems side by side.
"""

import asyncio
import math
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from millrace.cli.output import Output, Step
from millrace.cli.quantities import show_size
from millrace.cli.session import FormatOption, Session, run_async, session_of, size_bytes
from millrace.types import Ack, Gap

if TYPE_CHECKING:
    from millrace.client import Client, Log

COUNT_MAX: Final = 10_000_000
WINDOW_MAX: Final = 10_000
SECONDS_MAX: Final = 3_600
SIZE_BYTES: Final = 100
PROGRESS_EVERY: Final = 100

app = typer.Typer(name="bench", help="A small load on a running cluster.", no_args_is_help=True)

SecondsOption = Annotated[
    float, typer.Option("--seconds", min=0.1, max=SECONDS_MAX, help="Stop after this long.")
]


class Figures(msgspec.Struct, frozen=True):
    """What was measured.  Latencies are of single appends, or between blocks when reading."""

    log: str
    records: int
    bytes: int
    seconds: float
    records_per_second: float
    bytes_per_second: float
    latency_ms_p50: float
    latency_ms_p99: float
    latency_ms_p999: float


@app.command()
def append(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="The log; without one, a log is made and removed."),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            "--size",
            parser=size_bytes,
            metavar="SIZE",
            show_default=f"{SIZE_BYTES}B",
            help="Of each value.",
        ),
    ] = None,
    count: Annotated[int, typer.Option("--count", min=1, max=COUNT_MAX, help="Records.")] = 10_000,
    window: Annotated[
        int, typer.Option("--window", min=1, max=WINDOW_MAX, help="Appends under way at once.")
    ] = 64,
    ack: Annotated[
        Ack | None, typer.Option("--ack", help="disk or memory, instead of the log's own.")
    ] = None,
    seconds: SecondsOption = 30.0,
    format: FormatOption = None,
) -> None:
    """Append records of random bytes; show the rate and how long an append takes."""
    session = session_of(context)
    output = session.output(format)
    value = secrets.token_bytes(size or SIZE_BYTES)

    async def work() -> Figures:
        async with session.connected() as client, _bench_log(session, client, name) as log:
            with output.progress("appends", count) as progress:
                load = _Appends(log, value, count, ack, session.timeout_ms, seconds, progress)
                return await load.run(window)

    _show(output, run_async(work()))


@app.command()
def read(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The log.")],
    count: Annotated[int, typer.Option("--count", min=1, max=COUNT_MAX, help="Records.")] = (
        COUNT_MAX
    ),
    seconds: SecondsOption = 30.0,
    format: FormatOption = None,
) -> None:
    """Read a log from its start; show the rate and the time between blocks."""
    session = session_of(context)

    async def work() -> Figures:
        async with session.connected() as client:
            return await _read(await session.within(client.log(name)), count, seconds)

    _show(session.output(format), run_async(work()))


@asynccontextmanager
async def _bench_log(session: Session, client: "Client", name: str | None) -> "AsyncIterator[Log]":
    if name is not None:
        yield await session.within(client.log(name))
        return
    view = await session.within(client.directory.view())
    log = await client.create_log(
        f"bench-{secrets.token_hex(4)}", replication=max(1, min(3, len(view.live)))
    )
    try:
        yield log
    finally:
        await log.close()
        await client.delete_log(log.name)


class _Appends:
    """`window` writers that each append one record after the other until all are in."""

    def __init__(
        self,
        log: "Log",
        value: bytes,
        count: int,
        ack: Ack | None,
        timeout_ms: int,
        seconds: float,
        progress: Step,
    ) -> None:
        self._log = log
        self._value = value
        self._left = count
        self._ack = ack
        self._timeout_ms = timeout_ms
        self._seconds = seconds
        self._progress = progress
        self._latencies_s: list[float] = []

    async def run(self, window: int) -> Figures:
        started_s = time.perf_counter()
        deadline_s = started_s + self._seconds
        writers = range(min(window, self._left))
        tasks = [asyncio.create_task(self._write(deadline_s)) for _ in writers]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        elapsed_s = time.perf_counter() - started_s
        records = len(self._latencies_s)
        size = records * len(self._value)
        return _figures(self._log.name, records, size, elapsed_s, self._latencies_s)

    async def _write(self, deadline_s: float) -> None:
        now_s = time.perf_counter()
        while self._left > 0 and now_s < deadline_s:
            self._left -= 1
            await self._log.append(self._value, ack=self._ack, timeout_ms=self._timeout_ms)
            then_s, now_s = now_s, time.perf_counter()
            self._latencies_s.append(now_s - then_s)
            if self._left % PROGRESS_EVERY == 0:
                self._progress.advance(PROGRESS_EVERY)


async def _read(log: "Log", count: int, seconds: float) -> Figures:
    records = size = 0
    latencies_s: list[float] = []
    started_s = now_s = time.perf_counter()
    async with await log.read() as reader:
        while records < count and now_s < started_s + seconds:
            part = await reader.take()
            if part is None:
                break
            then_s, now_s = now_s, time.perf_counter()
            latencies_s.append(now_s - then_s)
            if not isinstance(part, Gap):
                records += part.end - part.first
                size += part.block.size
    return _figures(log.name, records, size, time.perf_counter() - started_s, latencies_s)


def _figures(
    log: str, records: int, size: int, elapsed_s: float, latencies_s: list[float]
) -> Figures:
    ordered = sorted(latencies_s)
    return Figures(
        log,
        records,
        size,
        round(elapsed_s, 6),
        round(records / elapsed_s, 1),
        round(size / elapsed_s, 1),
        *(percentile_ms(ordered, share) for share in (0.5, 0.99, 0.999)),
    )


def percentile_ms(ordered_s: list[float], share: float) -> float:
    """Nearest rank: a latency that was really seen; 0 when none was."""
    if not ordered_s:
        return 0.0
    rank = max(math.ceil(share * len(ordered_s)), 1)
    return round(ordered_s[rank - 1] * 1000, 3)


def _show(output: Output, figures: Figures) -> None:
    if output.is_json:
        output.json(figures)
        return
    output.table(
        ("log", "records", "size", "time", "records/s", "bytes/s", "p50", "p99", "p99.9"),
        [
            (
                figures.log,
                figures.records,
                show_size(figures.bytes),
                f"{figures.seconds:.2f}s",
                f"{figures.records_per_second:,.0f}",
                f"{show_size(int(figures.bytes_per_second))}/s",
                f"{figures.latency_ms_p50:.2f}ms",
                f"{figures.latency_ms_p99:.2f}ms",
                f"{figures.latency_ms_p999:.2f}ms",
            )
        ],
    )
