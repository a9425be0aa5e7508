"""Pipelines of one's own, small enough to see what a process, a folder and a command do."""

import threading
from typing import TYPE_CHECKING

import msgspec

from millrace.errors import UsageError
from millrace.spark.pipelines import Context, Progress
from millrace.spark.pipelines.whole_files import write_whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class StepsSettings(msgspec.Struct, frozen=True, kw_only=True):
    steps: int  # How many to take.
    pause_ms: int = 0  # Between two of them.
    words: tuple[str, ...] = ()  # To say.
    fails_at: int | None = None  # The step that goes wrong.
    is_good: bool = True  # Whether what is found is good.
    is_deaf: bool = False  # Whether it goes on when it is to stop.


def run_steps(settings: StepsSettings, context: Context) -> None:
    """Takes steps and remembers each, so that another run goes on with the next."""
    file = context.state / "steps"
    taken = int(file.read_text()) if file.exists() else 0
    context.say(f"from step {taken}")
    for word in settings.words:
        context.say(word)
    while taken < settings.steps:
        if context.wait(settings.pause_ms / 1000):
            if not settings.is_deaf:
                return
            threading.Event().wait()
        if taken == settings.fails_at:
            raise UsageError(f"step {taken} cannot be taken: give another --fails-at")
        taken += 1
        write_whole(file, b"%d" % taken)  # It may be killed at any moment.
        context.report(Progress(batch=taken, rows=taken * 10, rows_per_s=10.0, lag=5, batch_ms=1))
    context.conclude(f"{taken} steps", is_good=settings.is_good, details={"steps": taken})


class ExportSettings(msgspec.Struct, frozen=True, kw_only=True):
    cluster: str
    log: str  # What to read.
    batch_rows: int = 1_000  # In one batch.
    pause_ms: int = 0  # In the middle of each batch.


def run_export(settings: ExportSettings, context: Context) -> None:
    """A log into Parquet files, a folder for each batch."""

    def write(rows: "DataFrame", batch: int) -> None:
        context.say(f"batch {batch} begins")
        context.wait(settings.pause_ms / 1000)
        rows.write.mode("overwrite").parquet(str(context.state / f"batch={batch}"))
        context.say(f"batch {batch} is done")

    query = (
        context.spark.readStream.format("millrace")
        .option("cluster", settings.cluster)
        .option("startingOffsets", "earliest")
        .option("maxRecordsPerTrigger", settings.batch_rows)
        .load(settings.log)
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(context.checkpoint))
        .start()
    )
    context.follow(query)
