"""What runs in the demo's Spark process: a streaming query that counts events by key and second.

`complete` output into a table in memory: each micro-batch replaces the counts as a whole, so one
that is run again changes nothing, and their sum is exact.

Messages come on stdin and go to what was stdout: Spark and whatever it starts write there too.
"""

import json
import os
import sys
import threading
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, decode, unix_seconds, window
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from millrace.demo.spark_messages import (
    Batch,
    Counted,
    Failed,
    Finish,
    Follow,
    Following,
    FromSpark,
    ToSpark,
)
from millrace.spark import offsets, session

MASTER: Final = "local[2]"
TRIGGER: Final = "500 milliseconds"
TABLE: Final = "events"
# A socket's path has 107 bytes at most, and its name in the folder takes 43.
SOCKET_FOLDER_BYTES_MAX: Final = 64

T = TypeVar("T", bound=ToSpark)


def start_spark(folder: Path) -> SparkSession:
    """Everything that Spark writes is in `folder`."""
    has_sockets = len(os.fsencode(folder)) <= SOCKET_FOLDER_BYTES_MAX
    settings: dict[str, str | bool] = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.python.unix.domain.socket.dir": str(folder),
        "spark.python.unix.domain.socket.enabled": has_sockets,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.showConsoleProgress": False,
    }
    return session("millrace demo", MASTER, **settings)


def count_events(spark: SparkSession, cluster: str, log: str, checkpoint: Path) -> StreamingQuery:
    events = (
        spark.readStream.format("millrace")
        .option("cluster", cluster)
        .option("log", log)
        .option("startingOffsets", "earliest")
        .schema("key binary, timestamp timestamp")  # The nodes send these columns alone.
        .load()
    )
    counts = events.groupBy(window("timestamp", "1 second"), "key").count()
    return (
        counts.writeStream.format("memory")
        .queryName(TABLE)
        .outputMode("complete")
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime=TRIGGER)
        .start()
    )


def collect_counts(spark: SparkSession) -> list[tuple[int, str, int]]:
    rows = spark.table(TABLE).select(
        unix_seconds(col("window.start")).alias("second"),
        decode("key", "utf-8").alias("key"),
        "count",
    )
    return [(row["second"], row["key"], row["count"]) for row in rows.collect()]


class Conversation:
    """With the demo; any thread may tell."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        self._lock = threading.Lock()

    def tell(self, message: FromSpark) -> None:
        with self._lock:
            self._out.write(msgspec.json.encode(message) + b"\n")
            self._out.flush()

    def hear(self, kind: type[T]) -> T:
        line = sys.stdin.buffer.readline()
        if not line:
            raise EOFError("the demo is gone")
        return msgspec.json.decode(line, type=kind)


class Listener(StreamingQueryListener):
    def __init__(self, conversation: Conversation, log: str) -> None:
        self._conversation = conversation
        self._log = log

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """`Following` is told when the query stands."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = event.progress
        if progress.numInputRows:
            planned_s = datetime.fromisoformat(progress.timestamp).timestamp()
            end = offsets.parse(json.loads(progress.sources[0].endOffset)).logs[self._log].next
            done_s = planned_s + progress.batchDuration / 1_000
            self._conversation.tell(Batch(planned_s, done_s, progress.numInputRows, end))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """`watch` sees it, also when Java is gone and sends no events."""


def watch(conversation: Conversation, query: StreamingQuery) -> None:
    """Tells when the query fails."""
    try:
        query.awaitTermination()
    except Exception as problem:
        # What comes after the cause is the query's plan.
        conversation.tell(Failed(str(problem).split("\n=== Streaming Query ===")[0]))


def serve(conversation: Conversation, folder: Path) -> None:
    spark = start_spark(folder)
    follow = conversation.hear(Follow)
    spark.streams.addListener(Listener(conversation, follow.log))
    query = count_events(spark, follow.cluster, follow.log, folder / "checkpoint")
    threading.Thread(target=watch, args=(conversation, query), daemon=True).start()
    conversation.tell(Following())
    conversation.hear(Finish)
    query.processAllAvailable()
    conversation.tell(Counted(collect_counts(spark)))
    sys.stdin.buffer.read()  # Until the demo ends this process, or is gone.


def main() -> int:
    conversation = Conversation()
    try:
        serve(conversation, Path(sys.argv[1]))
    except EOFError:
        return 0
    except Exception as problem:  # Whatever it is, the demo shows it.
        conversation.tell(Failed(str(problem)))
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
