"""Streams at a low rate: one from a log, one from memory, each given its records one by one.

Both run at once, each in a query of its own, and take turns: while one has a record the other
waits for one, which costs next to nothing.
"""

import queue
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from bench.peer import PeerFailure
from bench.spark.memory import NAME as MEMORY_FORMAT
from bench.spark.memory import publish
from bench.spark.profile import LOW_RATE_BYTES
from bench.spark.results import Source
from bench.spark.stage import Stage
from bench.workloads import payloads
from millrace import sync

WAIT_MS: Final = 500  # How long either source waits for news.
NEWS_SECONDS_MAX: Final = 60.0
MEMORY_BATCH_ROWS: Final = 1_000

T = TypeVar("T")


class Feed(Protocol):
    """Gives a stream its records."""

    def add(self) -> int:
        """One more record; returns its position once it can be read."""
        ...


class LogFeed:
    def __init__(self, log: sync.SyncLog) -> None:
        self._log = log
        (self._value,) = payloads(LOW_RATE_BYTES, 1)

    def add(self) -> int:
        return self._log.append(self._value)


class MemoryFeed:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._count = 0
        publish(path, 0)

    def add(self) -> int:
        self._count += 1
        publish(self._path, self._count)
        return self._count


@dataclass(frozen=True, slots=True)
class FedStream:
    """A stream that reads what its feed gives."""

    source: Source
    frame: DataFrame
    feed: Feed


def fed_streams(stage: Stage, name: str, options: dict[str, str]) -> list[FedStream]:
    """One for each source, with the same options."""
    feed_path = stage.new_path("feed")
    log_feed, memory_feed = LogFeed(stage.create_log(name)), MemoryFeed(feed_path)
    common = {**options, "maxWaitMs": str(WAIT_MS)}
    log_options = {**stage.log_options(name), **common, "startingOffsets": "earliest"}
    memory_options = {
        **common,
        "rows": "0",
        "valueBytes": str(LOW_RATE_BYTES),
        "batchRows": str(MEMORY_BATCH_ROWS),
        "partitions": "1",
        "feed": str(feed_path),
    }
    log_frame = stage.spark.readStream.format("millrace").options(**log_options).load()
    memory_frame = stage.spark.readStream.format(MEMORY_FORMAT).options(**memory_options).load()
    return [
        FedStream(Source.MILLRACE, log_frame, log_feed),
        FedStream(Source.MEMORY, memory_frame, memory_feed),
    ]


@contextmanager
def running(
    stage: Stage, streams: Sequence[FedStream], write: Callable[[FedStream], DataStreamWriter]
) -> Iterator[dict[Source, StreamingQuery]]:
    """The queries of all streams; `write` says where their rows go."""
    queries: dict[Source, StreamingQuery] = {}
    try:
        for stream in streams:
            queries[stream.source] = (
                write(stream)
                .option("checkpointLocation", str(stage.new_path("checkpoint")))
                .trigger(processingTime="0 seconds")
                .start()
            )
        yield queries
    finally:
        for query in queries.values():
            query.stop()


def turned(streams: Sequence[FedStream], number: int) -> list[FedStream]:
    turn = number % len(streams)
    return [*streams[turn:], *streams[:turn]]


def next_of(waiting: "queue.Queue[T]", what: str) -> T:
    try:
        return waiting.get(timeout=NEWS_SECONDS_MAX)
    except queue.Empty:
        raise PeerFailure(f"{what} was not seen within {NEWS_SECONDS_MAX:.0f} s") from None
