"""What a run of the Spark benchmark stands on: a cluster with filled logs and one Spark session.

1. Whatever ends the run, the session, its Java process and the nodes end, and all files go.
2. Rows from memory come in as many partitions and in batches of the same size as the `millrace`
   source gives of the log they are held against: its own planner and reader are asked.
"""

import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from bench.millrace_peer import NODES, REPLICATION
from bench.peer import PeerFailure
from bench.progress import progress
from bench.spark import memory
from bench.spark import rows as spark_rows
from millrace import sync
from millrace.limits import MIB
from millrace.local import LocalCluster
from millrace.spark import session

ROOT: Final = Path(__file__).resolve().parents[2]
LOAD_BYTES: Final = 32 * MIB  # Of one call that appends.
STOP_SECONDS_MAX: Final = 20.0
PROGRESS_KEPT: Final = 1_000  # Micro-batches of one query: none may be forgotten before it is read.


@dataclass(frozen=True, slots=True)
class Stage:
    spark: SparkSession
    client: sync.SyncClient
    cluster: LocalCluster
    folder: Path  # For files of this run.
    _numbers: Iterator[int]

    @property
    def process_ids(self) -> Sequence[int]:
        """All that works beside this process: the nodes, and Java with Spark's Python workers."""
        java = _java()
        nodes = [node.pid for node in self.cluster.nodes]
        return nodes if java is None else [*nodes, java.pid]

    def new_path(self, stem: str) -> Path:
        return self.folder / f"{stem}-{next(self._numbers)}"

    def create_log(self, name: str, **attributes: Any) -> sync.SyncLog:
        return self.client.create_log(
            name, write_path="chain", replication=REPLICATION, **attributes
        )

    def log_options(self, log: str) -> dict[str, str]:
        return {"cluster": ",".join(self.cluster.addresses), "log": log}

    def describe(self) -> str:
        context = self.spark.sparkContext
        java = context._jvm.System.getProperty("java.version")  # type: ignore[union-attr]
        return (
            f"Spark {self.spark.version}, {context.master} with {context.defaultParallelism} tasks "
            f"at once, Java {java}; Millrace, {NODES} nodes, chain logs, R={REPLICATION}"
        )


@contextmanager
def open_stage() -> Iterator[Stage]:
    """Keeps 1."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="millrace-bench-spark-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        progress("starting five nodes")
        cluster = LocalCluster.create(folder / "cluster", NODES, name="bench")
        stack.callback(cluster.destroy)
        cluster.start()
        client = stack.enter_context(sync.connect(cluster.addresses))
        progress("starting Spark")
        stack.callback(_end_java)
        spark = _start_spark(folder)
        stack.callback(spark.stop)
        yield Stage(spark, client, cluster, folder, itertools.count(1))


def _start_spark(folder: Path) -> SparkSession:
    # Spark's Python workers import the source of this benchmark by its name.
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ["SPARK_LOCAL_DIRS"] = str(folder / "spark")
    settings: dict[str, str | int] = {
        "spark.driver.memory": "4g",  # For rows that lie in Spark's cache.
        "spark.driver.host": "127.0.0.1",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.streaming.numRecentProgressUpdates": PROGRESS_KEPT,
    }
    spark = session("millrace-bench", None, **settings)
    spark.sparkContext.setLogLevel("ERROR")  # Stopping a query is no reason for a warning.
    spark.dataSource.register(memory.MemorySource)
    return spark


def _java() -> "subprocess.Popen[bytes] | None":
    process = getattr(SparkContext._gateway, "proc", None)
    return process if isinstance(process, subprocess.Popen) else None


def _end_java() -> None:
    """Java outlives a session that was stopped: it ends when its standard input does."""
    process, gateway = _java(), SparkContext._gateway
    if process is None or gateway is None:
        return
    gateway.shutdown()
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_SECONDS_MAX)
    SparkContext._gateway = SparkContext._jvm = None


class FilledLog:
    """A log with `rows` records, and rows from memory of the same shape."""

    def __init__(self, stage: Stage, value_bytes: int, rows: int) -> None:
        self.rows = rows
        self.value_bytes = value_bytes
        self._stage = stage
        self._name = f"rows-{value_bytes}"
        # Memory is enough for what is read back: it makes no difference to a reader.
        log = stage.create_log(self._name, ack="memory")
        chunk = max(1, LOAD_BYTES // value_bytes)
        for batch in spark_rows.batches(value_bytes, min(chunk, rows), 0, rows):
            log.append_table(pa.table(batch.drop_columns(["log", "lsn"])))
        self.batch_rows, self.partitions = self._shape()

    def log_options(self) -> dict[str, str]:
        return self._stage.log_options(self._name)

    def memory_options(self) -> dict[str, str]:
        return {
            "rows": str(self.rows),
            "valueBytes": str(self.value_bytes),
            "batchRows": str(self.batch_rows),
            "partitions": str(self.partitions),
        }

    def write_parquet(self) -> Path:
        path = self._stage.new_path("parquet")
        reader = self._stage.spark.read.format("millrace").options(**self.log_options())
        reader.load().write.option("compression", "none").parquet(str(path))
        return path

    def delete(self) -> None:
        self._stage.client.delete_log(self._name)

    def _shape(self) -> tuple[int, int]:
        """Keeps 2: rows of a batch and number of partitions."""
        from millrace.spark.source import MillraceSource

        source = MillraceSource(self.log_options())
        reader = source.reader(source.schema())
        partitions = reader.partitions()
        sizes = [
            batch.num_rows
            for partition in partitions
            for batch in reader.read(partition)
            if isinstance(batch, pa.RecordBatch)
        ]
        if sum(sizes) != self.rows:
            raise PeerFailure(f"log {self._name!r} gave {sum(sizes)} rows of {self.rows}")
        return -(-self.rows // len(sizes)), len(partitions)


def check_rows(frame: DataFrame, rows: int, value_bytes: int, name: str) -> None:
    """That a source gives what it is measured by: every row and all bytes of it."""
    found = frame.selectExpr("count(*)", "sum(lsn)", "sum(length(value))").first()
    wanted = (rows, rows * (rows + 1) // 2, rows * value_bytes)
    if found is None or tuple(found) != wanted:
        raise PeerFailure(f"{name} gave rows, positions and bytes {found}, not {wanted}")
