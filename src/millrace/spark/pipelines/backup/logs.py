"""Saving logs: Spark reads them as it always does, and each task writes what it read to a file.

I1  Records and gaps of a task tile its range: a hole between them fails the task, and is never
    saved as if nothing had been there.
I2  What the tasks saved tiles the range that was to be saved, up to its end.
I3  A task that fails leaves no file open and none behind.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec
import pyarrow as pa

from millrace.errors import RecordsLost
from millrace.spark import workers
from millrace.spark.pipelines.backup.files import FileWriter
from millrace.spark.pipelines.backup.manifest import SavedFile, SavedLog
from millrace.spark.pipelines.backup.planning import LogRange
from millrace.types import Gap, GapKind, Lsn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS: Final = ("lsn", "key", "value", "timestamp", "headers")
PARTS: Final = "log string, part binary"


class SavedPart(msgspec.Struct, frozen=True):
    """What one task saved: [first, end) of a log."""

    first: Lsn
    end: Lsn
    file: SavedFile | None
    gaps: tuple[Gap, ...]


def save_logs(
    spark: "SparkSession", cluster: str, ranges: Sequence[LogRange], run: Path
) -> tuple[SavedLog, ...]:
    waiting = [each for each in ranges if each.first < each.end]
    found: dict[str, list[SavedPart]] = {each.info.name: [] for each in ranges}
    if waiting:
        frame = (
            spark.read.format("millrace")
            .option("cluster", cluster)
            .option("logs", ",".join(each.info.name for each in waiting))
            .option("startingOffsets", _offsets({e.info.name: e.first for e in waiting}))
            .option("endingOffsets", _offsets({e.info.name: e.end for e in waiting}))
            .option("includeGaps", "true")
            .option("includeHeaders", "true")
            .option("failOnDataLoss", "false")  # A gap, which the manifest tells.
            .load()
        )
        for row in frame.mapInArrow(_writer_to(run), PARTS).collect():
            part = msgspec.msgpack.decode(row["part"], type=SavedPart)
            found[row["log"]].append(part)
    return tuple(saved_log(each, found[each.info.name]) for each in ranges)


def _offsets(places: dict[str, Lsn]) -> str:
    return msgspec.json.encode(places).decode()


def saved_log(wanted: LogRange, parts: list[SavedPart]) -> SavedLog:
    """Keeps I2; raises RecordsLost."""
    parts.sort(key=lambda part: part.first)
    end = wanted.first
    for part in parts:
        if part.first != end:
            raise RecordsLost(
                f"log {wanted.info.name!r}: what was read ends at {end} and goes on at {part.first}"
            )
        end = part.end
    if end != wanted.end:
        raise RecordsLost(
            f"log {wanted.info.name!r}: what was read ends at {end}, and {wanted.end} was the end "
            "to be saved: run the backup again"
        )
    files = tuple(part.file for part in parts if part.file is not None)
    return SavedLog(
        wanted.info.name,
        wanted.info.id,
        wanted.info.attributes,
        wanted.is_full,
        wanted.first,
        end,
        sum(file.rows for file in files),
        files,
        tuple(gap for part in parts for gap in part.gaps),
        wanted.streams,
    )


# -- The task --------------------------------------------------------------------------------------


def _writer_to(run: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def save(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        saving = _Saving(run)
        try:
            with workers.plain_errors():
                for batch in batches:
                    saving.take(batch)
            saved = saving.finish()
        except BaseException:
            saving.discard()
            raise
        if saving.log:
            part = msgspec.msgpack.encode(saved)
            yield pa.RecordBatch.from_pydict({"log": [saving.log], "part": [part]})

    return save


class _Saving:
    """The rows of one task, which are of one log and in order."""

    def __init__(self, run: Path) -> None:
        self.log = ""
        self._run = run
        self._writer: FileWriter | None = None
        self._gaps: list[Gap] = []
        self._first = self._end = Lsn(0)

    def take(self, batch: pa.RecordBatch) -> None:
        """A gap comes in a batch of its own, but Spark may join batches."""
        gaps = batch.column("gap")
        at = 0
        while at < batch.num_rows:
            if gaps[at].is_valid:
                self._take_gap(gaps[at].as_py(), batch)
                at += 1
                continue
            end = self._next_gap(gaps, at)
            self._take_records(batch.slice(at, end - at))
            at = end

    def _next_gap(self, gaps: Any, at: int) -> int:
        if gaps.null_count == len(gaps):
            return len(gaps)
        return next((each for each in range(at, len(gaps)) if gaps[each].is_valid), len(gaps))

    def _take_gap(self, gap: dict[str, Any], batch: pa.RecordBatch) -> None:
        first, last = Lsn(gap["first"]), Lsn(gap["last"])
        self._cover(batch, first, Lsn(last + 1))
        self._gaps.append(Gap(GapKind(gap["kind"]), first, last))

    def _take_records(self, batch: pa.RecordBatch) -> None:
        lsns = batch.column("lsn")
        first, last = lsns[0].as_py(), lsns[-1].as_py()
        if last - first + 1 != batch.num_rows:  # Keeps I1.
            raise RecordsLost(f"log {self.log!r}: records {first} to {last} have a hole")
        self._cover(batch, Lsn(first), Lsn(last + 1))
        rows = batch.select(list(COLUMNS))
        if self._writer is None:
            below = f"logs/{quote(self.log, safe='')}"
            self._writer = FileWriter(self._run, below, str(first), rows.schema, "lsn")
        self._writer.write(rows)

    def _cover(self, batch: pa.RecordBatch, first: Lsn, end: Lsn) -> None:
        if not self.log:
            self.log = batch.column("log")[0].as_py()
            self._first = self._end = first
        if first != self._end:  # Keeps I1.
            raise RecordsLost(
                f"log {self.log!r}: position {self._end} was expected and {first} came"
            )
        self._end = end

    def finish(self) -> SavedPart:
        file = None if self._writer is None else self._writer.finish()
        return SavedPart(self._first, self._end, file, tuple(self._gaps))

    def discard(self) -> None:
        """Keeps I3."""
        if self._writer is not None:
            self._writer.discard()
