"""The demo's story: append while Spark counts, kill a node half-way, read everything back, compare,
draw."""

import asyncio
import time
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from millrace.client import Client, Log, connect
from millrace.core.projection import Projection
from millrace.demo.appending import Appending, chunk_size
from millrace.demo.failure import NodeFailure
from millrace.demo.ledger import Ledger
from millrace.demo.proof import read_back
from millrace.demo.report import Report
from millrace.demo.spark_process import SparkProcess
from millrace.demo.timeline import Timeline
from millrace.local import LocalCluster

LOG = "demo"


class Settings(msgspec.Struct, frozen=True):
    records: int
    rate: int  # Records a second; 0: as fast as it goes.
    picture: Path


class Demo:
    """`spark` is None if the demo is to do without."""

    def __init__(
        self,
        cluster: LocalCluster,
        spark: SparkProcess | None,
        console: Console,
        settings: Settings,
    ) -> None:
        self._cluster = cluster
        self._spark = spark
        self._console = console
        self._settings = settings
        self._ledger = Ledger(settings.records)
        self._timeline = Timeline()
        self._failure = NodeFailure(cluster, console, self._timeline)
        self._append_s = 0.0
        self._measured = 0

    async def run(self) -> bool:
        what = f"{len(self._cluster.nodes)} nodes on loopback"
        self._console.print(f"Starting {what}{' and Spark' if self._spark else ''} ...")
        if self._spark is not None:
            self._spark.start()
        await asyncio.get_running_loop().run_in_executor(None, self._cluster.start)
        client = await connect(self._cluster.addresses)
        try:
            log = await client.create_log(LOG, replication=3, write_path="chain")
            chain = " -> ".join(map(str, log.projection.chain))
            self._console.print(f"Log {LOG!r}: three copies, chain {chain}, acknowledged on disk")
            report = await self._story(client, log)
        finally:
            await client.close()
        self._console.print(report.table())
        if self._spark is not None:
            await asyncio.to_thread(_draw, report, self._settings.picture)
            self._console.print(f"The picture: {self._settings.picture}", soft_wrap=True)
        return report.is_proven

    async def _story(self, client: Client, log: Log) -> Report:
        if self._spark is not None:
            await self._begin_spark(self._spark, log)
        projection = await self._append(client, log)
        counts = None
        if self._spark is not None:
            counts = await self._spark.counts()
            self._timeline.batches = self._spark.batches
            self._spark.kill()
        with _progress(self._console) as bars:
            bar = bars.add_task("read back", total=self._ledger.appended)
            found = await read_back(log, self._ledger, lambda count: bars.advance(bar, count))
        self._timeline.acknowledgements = self._ledger.acknowledgements
        return Report(
            self._ledger,
            found,
            self._timeline,
            projection,
            self._append_s,
            self._measured,
            self._settings.rate,
            counts,
        )

    async def _begin_spark(self, spark: SparkProcess, log: Log) -> None:
        """Spark's first micro-batch loads and compiles all that the later ones use, so one chunk
        goes ahead: what is measured afterwards is Spark at work, not Spark starting."""
        with self._console.status("Spark starts ..."):
            await spark.follow(self._cluster.addresses, LOG)
            first = min(chunk_size(self._settings.rate), self._settings.records // 10)
            await Appending(log, self._ledger, 0, lambda _: None).append(0, first)
            await spark.reach(self._ledger.end)
        self._console.print("Spark follows the log and counts its records by key and second")

    async def _append(self, client: Client, log: Log) -> Projection:
        """Returns when the third copy is restored and Spark has counted everything."""
        ledger, records = self._ledger, self._settings.records
        with _progress(self._console) as bars:
            bar = bars.add_task("append", total=records, completed=ledger.appended)
            if self._spark is not None:
                spark_bar = bars.add_task("Spark", total=records, completed=ledger.appended)
                self._spark.batch_done = lambda batch: bars.advance(spark_bar, batch.rows)

            def acknowledged(count: int) -> None:
                if self._spark is not None:
                    self._spark.check()
                self._failure.acknowledged(log)
                bars.advance(bar, count)

            failure = asyncio.create_task(self._failure.happen(client, log, ledger))
            before = ledger.appended
            self._timeline.started_s = time.time()
            appending = Appending(log, ledger, self._settings.rate, acknowledged)
            self._append_s = await appending.append(before, records)
            self._measured = records - before
            if self._spark is not None:
                await self._spark.reach(ledger.end)
            return await failure


def _draw(report: Report, path: Path) -> None:
    """Imports late: without Spark there is no picture, and perhaps nothing to draw it with."""
    from millrace.demo.picture import draw

    draw(report.timeline, report.title, report.summary, path)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:<10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )
