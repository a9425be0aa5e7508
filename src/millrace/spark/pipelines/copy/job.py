"""A copy on the driver: a query for each direction, side by side in one session.

I1  A query that fails because somebody could not be reached, or Spark was too busy to start a
    worker, is started again, where it stopped, until the pipeline is to stop; whatever else fails
    ends the pipeline.
I2  What the progress says of a direction (`lag`) is counted from what was copied for good.
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from millrace import errors
from millrace.errors import Unavailable
from millrace.spark.buckets.options import DURABILITIES
from millrace.spark.pipelines.bucket_state.seen import lag_of, note_seen
from millrace.spark.pipelines.copy.offering import COLUMNS, COUNTS, Place, Work
from millrace.spark.pipelines.copy.settings import CopySettings

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from millrace.spark.pipelines.context import Context

FORTH: Final = "forth"
BACK: Final = "back"
PAUSE_S: Final = 1.0  # Before a query is started again; doubled up to PAUSE_S_MAX.
PAUSE_S_MAX: Final = 30.0
REASON_CHARS_SHOWN: Final = 300
# What Spark says when the machine is too busy, or a worker was killed.
_LOST_WORKER: Final = ("Python worker failed to connect back", "Python worker exited unexpectedly")
_ERROR: Final = re.compile(r"millrace\.errors\.(\w+): ([^\n]*)")


def run_copy(settings: CopySettings, context: "Context") -> None:
    """Copies until the pipeline is stopped, or has caught up if that was asked for.
    Raises UsageError, UnknownBucket, Unavailable, and what Spark raises."""
    for place in _places(settings):
        place.open()  # Both are there, or it is said now.
    directions = list(_directions(settings, context))
    pause_s = PAUSE_S
    while True:
        batches = sum(direction.batches for direction in directions)
        try:
            _follow(settings, context, directions)
            return
        except PySparkException as failure:
            reason = passing_reason(str(failure))
            if reason is None:
                raise
        # Keeps I1.  Who got on in the meantime is in no trouble.
        has_moved = sum(direction.batches for direction in directions) > batches
        pause_s = PAUSE_S if has_moved else min(2 * pause_s, PAUSE_S_MAX)
        context.say(f"going on in {pause_s:g} s: {reason}")
        if context.wait(pause_s):
            return


def _follow(settings: CopySettings, context: "Context", directions: Sequence["Direction"]) -> None:
    together = [[each] for each in directions] if settings.until_caught_up else [directions]
    for some in together:
        with contextlib.ExitStack() as started:
            queries = []
            for direction in some:
                queries.append(direction.start(context))
                started.callback(queries[-1].stop)
            lags = Lags(directions)
            context.follow_all(queries, lags.total, lags.note)
        if context.is_stopping:
            return


def passing_reason(text: str) -> str | None:
    """What may pass by itself, if that is why a query failed; None: something else is wrong."""
    for name, message in _ERROR.findall(text):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, Unavailable):
            return str(message)[:REASON_CHARS_SHOWN]
    return next((words for words in _LOST_WORKER if words in text), None)


def _places(settings: CopySettings) -> tuple[Place, Place]:
    here = Place(settings.cluster, settings.bucket)
    return here, Place(settings.target_cluster, settings.target_bucket)


def _directions(settings: CopySettings, context: "Context") -> Iterator["Direction"]:
    here, there = _places(settings)
    yield Direction(FORTH, here, there, settings, context)
    if settings.two_way:
        yield Direction(BACK, there, here, settings, context)


class Direction:
    def __init__(
        self,
        name: str,
        source: Place,
        target: Place,
        settings: CopySettings,
        context: "Context",
    ) -> None:
        self.name = name
        self.batches = 0  # Since the start of the pipeline.
        self._settings = settings
        self._context = context
        self._checkpoint = _made(context.checkpoint / name)
        self._state = _made(context.state / name)
        self._work = Work(
            source,
            target,
            DURABILITIES[settings.durability],
            settings.give_back,
            settings.key_pattern.encode(),
        )

    def start(self, context: "Context") -> "StreamingQuery":
        settings, source = self._settings, self._work.source
        changes = (
            context.spark.readStream.format("millrace-changes")
            .option("cluster", source.cluster)
            .option("bucket", source.bucket)
            .option("mode", "latest")
            .option("rollbackKeys", settings.rollback_keys)
            .option("maxChangesPerTrigger", settings.changes_per_batch)
        )
        if settings.key_prefix:
            changes = changes.option("keyPrefix", settings.key_prefix)
        writer = changes.load().writeStream.queryName(f"copy {self.name}")
        writer = writer.foreachBatch(self._take)
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        if settings.until_caught_up:
            writer = writer.trigger(availableNow=True)
        elif settings.interval_ms:
            writer = writer.trigger(processingTime=f"{settings.interval_ms} milliseconds")
        return writer.start()

    def _take(self, frame: DataFrame, batch: int) -> None:
        """One batch, perhaps again."""
        offered = frame.select(*COLUMNS).mapInArrow(self._work, COUNTS)
        (counts,) = offered.groupBy().sum().collect()
        self.batches += 1
        note_seen(self._state, self._checkpoint, self._work.source.cluster, batch)
        _, _, rolled_back, given_back = (number or 0 for number in counts)
        if rolled_back:
            self._context.say(
                f"{self.name}: a failover took back changes of {rolled_back} keys; the other "
                f"bucket gave {given_back} of them back"
            )

    def lag(self) -> int | None:
        """Keeps I2."""
        source = self._work.source
        return lag_of(source.cluster, source.bucket, self._state)


class Lags:
    """Of all directions, for one progress."""

    def __init__(self, directions: Sequence[Direction]) -> None:
        self._directions = directions
        self._lags: dict[str, int | None] = {}

    def total(self) -> int | None:
        self._lags = {direction.name: direction.lag() for direction in self._directions}
        known = [lag for lag in self._lags.values() if lag is not None]
        return sum(known) if known else None

    def note(self) -> str:
        told = (f"{name} {'?' if lag is None else lag}" for name, lag in self._lags.items())
        return f"lag: {', '.join(told)}" if self._lags else ""


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder
