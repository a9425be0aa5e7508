"""The demo's story: append, kill a node half-way, read everything back, compare.

Each record says which one it is, so that the reader can tell missing, doubled and foreign records
apart: its value is its number in 8 bytes, filled up to RECORD_BYTES with bytes made from it.
"""

import asyncio
import struct
import time
from collections import Counter
from contextlib import aclosing

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from millrace.client import Client, Log, connect
from millrace.client.outcomes import UnknownAppend
from millrace.core.append import Appended
from millrace.errors import MillraceError
from millrace.local import LocalCluster
from millrace.meta import keys
from millrace.types import Gap

RECORD_BYTES = 100
CHUNK = 5_000
CHUNKS_AT_ONCE = 8
SETTLE_TIMEOUT_S = 60.0


class Outcome(msgspec.Struct):
    """What the closing table is made of."""

    appended: int = 0
    acknowledged: list[tuple[int, int, int]] = msgspec.field(default_factory=list)
    resumed: int = 0
    read_back: int = 0
    missing: int = 0
    doubled: int = 0
    wrong: int = 0
    gaps: Counter[str] = msgspec.field(default_factory=Counter)
    append_s: float = 0.0
    read_s: float = 0.0
    bytes_received: int = 0
    bytes_delivered: int = 0
    killed: int = 0
    stalled_ms: float = 0.0

    @property
    def is_proven(self) -> bool:
        return self.read_back == self.appended and not (self.missing or self.doubled or self.wrong)


class Demo:
    def __init__(self, cluster: LocalCluster, console: Console, records: int) -> None:
        self._cluster = cluster
        self._console = console
        self._records = records
        self._outcome = Outcome()
        self._changes: list[str] = []
        self._last_ack_s = 0.0
        self._half_way = asyncio.Event()

    async def run(self) -> bool:
        count = len(self._cluster.nodes)
        self._console.print(f"Starting {count} nodes on loopback ...")
        await asyncio.get_running_loop().run_in_executor(None, self._cluster.start)
        client = await connect(self._cluster.addresses, noted=self._noted)
        try:
            log = await client.create_log("demo", replication=3)
            chain = " -> ".join(map(str, log.projection.chain))
            self._console.print(f"Log 'demo': three copies, chain {chain}, acknowledged on disk")
            await self._append(log)
            await self._wait_restored(client)
            await self._read_back(log)
            self._show(log)
        finally:
            await client.close()
        return self._outcome.is_proven

    def _noted(self, event: str, fields: dict[str, object]) -> None:
        if event == "chain.changed":
            self._changes.append(f"{fields['reason']}")

    # -- Appending ----------------------------------------------------------------------------

    async def _append(self, log: Log) -> None:
        chunks = iter(range(0, self._records, CHUNK))
        with _progress(self._console) as bar:
            task = bar.add_task("append", total=self._records)
            started = self._last_ack_s = time.perf_counter()
            kill = asyncio.create_task(self._kill_half_way(log))

            async def work() -> None:
                for first in chunks:
                    size = min(CHUNK, self._records - first)
                    await self._append_chunk(log, first, size)
                    bar.advance(task, size)

            await asyncio.gather(*(work() for _ in range(CHUNKS_AT_ONCE)))
            self._outcome.append_s = time.perf_counter() - started
            await kill

    async def _append_chunk(self, log: Log, first: int, size: int) -> None:
        values = make_values(first, size)
        try:
            ranges = await log.append_many(values)
        except UnknownAppend as unknown:
            ranges = [await self._settle(log, outcome) for outcome in unknown.outcomes]
        self._acknowledge(first, ranges)

    async def _settle(self, log: Log, outcome: Appended | MillraceError) -> Appended:
        """One block's range; what is unknown is resumed, what failed for good is raised."""
        if isinstance(outcome, Appended):
            return outcome
        if not isinstance(outcome, UnknownAppend):
            raise outcome
        self._outcome.resumed += 1
        return await log.resume(outcome)

    def _acknowledge(self, first: int, ranges: list[Appended]) -> None:
        now = time.perf_counter()
        self._outcome.stalled_ms = max(self._outcome.stalled_ms, (now - self._last_ack_s) * 1000)
        self._last_ack_s = now
        for each in ranges:
            count = each.last - each.first + 1
            self._outcome.acknowledged.append((each.first, count, first))
            self._outcome.appended += count
            first += count
        if self._outcome.appended >= self._records // 2:
            self._half_way.set()

    async def _kill_half_way(self, log: Log) -> None:
        await self._half_way.wait()
        # Not the node with the embedded metadata: that is what etcd is for.
        victim = next(node for node in reversed(log.projection.chain) if node != 1)
        self._console.print(
            f"[yellow]SIGKILL[/yellow] node {victim}, at {self._outcome.appended:,}"
        )
        await asyncio.get_running_loop().run_in_executor(None, self._cluster.kill, victim)
        self._outcome.killed = victim

    async def _wait_restored(self, client: Client) -> None:
        """The keeper gives the log a third copy again on a spare node."""
        log = await client.log("demo")
        repository = client.directory.repository
        key = keys.PROJECTIONS.key(log.info.id)
        with self._console.status("The keeper restores the third copy ..."):
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                entries, revision = await repository.list(key)
                projection = keys.PROJECTIONS.decode(entries[0])
                if projection.is_degraded:
                    async with aclosing(repository.watch(key, revision)) as changes:
                        async for change in changes:
                            projection = keys.PROJECTIONS.decode(change.entries[-1])
                            if not projection.is_degraded:
                                break
        self._final = projection
        chain = " -> ".join(map(str, projection.chain))
        self._console.print(f"Three copies again: chain {chain}")

    # -- Reading back -------------------------------------------------------------------------

    async def _read_back(self, log: Log) -> None:
        outcome = self._outcome
        seen = bytearray(self._records)
        expected = {first: (count, number) for first, count, number in outcome.acknowledged}
        with _progress(self._console) as bar:
            task = bar.add_task("read back", total=outcome.appended)
            started = time.perf_counter()
            async with await log.read("start", "end") as reader:
                async for batch in reader.batches(["lsn", "value"]):
                    if isinstance(batch, Gap):
                        outcome.gaps[batch.kind.value] += batch.last - batch.first + 1
                        continue
                    self._check(batch, seen, expected)
                    bar.advance(task, batch.num_rows)
                outcome.bytes_received = reader.stream.bytes_received
                outcome.bytes_delivered = reader.stream.bytes_delivered
            outcome.read_s = time.perf_counter() - started
        outcome.missing = seen.count(0)

    def _check(
        self, batch: pa.RecordBatch, seen: bytearray, expected: dict[int, tuple[int, int]]
    ) -> None:
        """Column-wise: the values of a block must be exactly those that were acknowledged at
        its positions."""
        outcome = self._outcome
        outcome.read_back += batch.num_rows
        first = batch.column("lsn")[0].as_py()
        known = expected.get(first)
        number = struct.unpack_from("<Q", batch.column("value")[0].as_py())[0]
        if known is None or known != (batch.num_rows, number):
            outcome.wrong += batch.num_rows
            return
        want = pa.array(make_values(number, batch.num_rows), pa.binary())
        equal = pc.all(pc.equal(batch.column("value"), want)).as_py()
        if not equal:
            outcome.wrong += batch.num_rows
        if seen[number] != 0:
            outcome.doubled += batch.num_rows
        seen[number : number + batch.num_rows] = b"\x01" * batch.num_rows

    # -- Proof --------------------------------------------------------------------------------

    def _show(self, log: Log) -> None:
        outcome = self._outcome
        verdict = "[green]equal[/green]" if outcome.is_proven else "[red]NOT EQUAL[/red]"
        gaps = ", ".join(f"{kind} {count}" for kind, count in sorted(outcome.gaps.items()))
        copies = outcome.bytes_received / max(outcome.bytes_delivered, 1)
        table = Table(title="Nothing was lost" if outcome.is_proven else "Something is wrong")
        table.add_column("what")
        table.add_column("result", justify="right")
        rows = [
            ("appended and acknowledged on disk", f"{outcome.appended:,}"),
            ("read back", f"{outcome.read_back:,} ({verdict})"),
            (
                "missing / doubled / different",
                f"{outcome.missing} / {outcome.doubled} / {outcome.wrong}",
            ),
            ("gaps by kind", gaps or "none"),
            ("appends with unknown outcome, resumed", str(outcome.resumed)),
            ("node killed", str(outcome.killed)),
            ("reconfigurations", f"{self._final.changes} (now epoch {self._final.epoch})"),
            ("longest pause between acknowledgements", f"{outcome.stalled_ms:.0f} ms"),
            ("copies received per record", f"{copies:.2f}"),
            ("append rate", _rate(outcome.appended, outcome.append_s)),
            ("read rate", _rate(outcome.read_back, outcome.read_s)),
        ]
        for row in rows:
            table.add_row(*row)
        self._console.print(table)


def make_values(first: int, count: int) -> list[bytes]:
    """The values of records first .. first + count - 1."""
    filler = bytes(range(256)) * 2
    pack = struct.Struct("<Q").pack
    size = RECORD_BYTES - 8
    return [
        pack(number) + filler[number % 251 : number % 251 + size]
        for number in range(first, first + count)
    ]


def _rate(count: int, seconds: float) -> str:
    per_second = count / max(seconds, 1e-9)
    return f"{per_second:,.0f} records/s ({per_second * RECORD_BYTES / 1e6:.0f} MB/s)"


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:<10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )
