"""What a pipeline is given: its folder, a Spark session, and ways to say how far it is.

A pipeline is a function of its settings and a context.  It keeps all that it must remember below
`home`, so called again with the same home it goes on.  `Context.at` makes one without a process of
its own, for notebooks and tests.

I1  What a pipeline reports is in its folder before `report` returns: whoever looks there, also
    after a kill, sees how far it came.
I2  Totals go on over restarts: the rows of a follow are added to those of the runs before.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from millrace.spark.pipelines.folder import Conclusion, Folder, Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Conclusion", "Context", "Progress"]

# How far a pipeline is is reported; Spark's bars are for terminals.
QUIET: Final = {"spark.ui.showConsoleProgress": "false"}


class Context:
    def __init__(
        self,
        folder: Folder,
        *,
        spark: "SparkSession | None" = None,
        master: str | None = None,
        spark_settings: Mapping[str, str] | None = None,
        stopping: threading.Event | None = None,
    ) -> None:
        self.folder = folder
        self.conclusion: Conclusion | None = None
        self._spark = spark
        self._master = master
        self._spark_settings = dict(spark_settings or {})
        self._is_spark_mine = False
        self._stopping = stopping or threading.Event()
        self._lock = threading.Lock()

    @classmethod
    def at(cls, home: Path | str, spark: "SparkSession | None" = None) -> "Context":
        """A context without a process: `spark` is the session to use, or one is made."""
        return cls(Folder.made(Path(home)), spark=spark)

    # -- Where and with what ----------------------------------------------------------------------

    @property
    def home(self) -> Path:
        return self.folder.home

    @property
    def checkpoint(self) -> Path:
        return self._made("checkpoint")

    @property
    def state(self) -> Path:
        return self._made("state")

    @property
    def spark(self) -> "SparkSession":
        with self._lock:
            if self._spark is None:
                from millrace.spark.session import session

                name = f"millrace {self.home.name}"
                self._spark = session(name, self._master, **{**QUIET, **self._spark_settings})
                self._is_spark_mine = True
            return self._spark

    def close(self) -> None:
        """Stops the session if it was made here."""
        if self._spark is not None and self._is_spark_mine:
            self._spark.stop()
            self._spark = None

    def _made(self, name: str) -> Path:
        path = self.home / name
        path.mkdir(exist_ok=True)
        return path

    # -- Stopping ---------------------------------------------------------------------------------

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        """Ask the pipeline to end when it has done what it is at."""
        self._stopping.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait this long, or until it is to stop: then True."""
        return self._stopping.wait(timeout_s)

    # -- What it says -----------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """A line in the pipeline's log, for people."""
        with self._lock:
            self.folder.say(text)

    def report(self, progress: Progress) -> None:
        """Keeps I1."""
        with self._lock:
            self.folder.report(progress)

    def reported(self) -> Progress:
        """What was reported last, also by a run before; an empty one if nothing was."""
        return self.folder.progress() or Progress()

    def conclude(
        self, summary: str, *, is_good: bool = True, details: dict[str, Any] | None = None
    ) -> None:
        """What a pipeline that comes to an end has found: `summary` may have many lines and is
        printed, `details` are for programs.  If it is not good, the command fails."""
        self.conclusion = Conclusion(is_good=is_good, summary=summary, details=details or {})

    # -- Streaming queries ------------------------------------------------------------------------

    def follow(self, query: "StreamingQuery", lag: Callable[[], int | None] | None = None) -> None:
        """Until the query ends, or its current batch when the pipeline is to stop.  Reports its
        progress on the way and raises what the query raised.  `lag` says how many rows are yet to
        come; without it, that of the logs that the query reads is reported."""
        self.follow_all([query], lag)

    def follow_all(
        self,
        queries: "Sequence[StreamingQuery]",
        lag: Callable[[], int | None] | None = None,
        note: Callable[[], str] | None = None,
    ) -> None:
        """As `follow`, for queries that belong together: when one ends the others are stopped.
        `note` is asked after `lag`, for what is to be said besides."""
        from millrace.spark.pipelines.following import follow

        follow(self, queries, lag, note)
