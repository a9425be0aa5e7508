"""Starts Spark in a process of its own, talks to it, and ends it with all that it started.

Spark is a tree of processes: a Python driver, Java, and Python workers in process groups of their
own.  They share a session, which is how they are found whatever they are doing, also while Java
starts.  They are killed and not asked: whatever they write lies in one folder, which the demo
removes.
"""

import asyncio
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from millrace.demo.ledger import Counts
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
from millrace.errors import TimedOut, Unavailable
from millrace.types import Lsn

PATIENCE_S: Final = 120.0
KILL_TIMEOUT_S: Final = 10.0
POLL_S: Final = 0.02
LINE_BYTES_MAX: Final = 64 * 1024 * 1024
LOG_SHOWN: Final = 2_000
# For a Java that lives less than a minute: the compiler and collector that start quickest.  Its
# performance file would lie outside the folder.
JAVA_OPTIONS: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
# The demo is the same whatever Spark is set up on the machine.
FOREIGN_VARIABLES: Final = ("SPARK_", "PYSPARK_", "HADOOP_", "YARN_")


class SparkProcess:
    """Used on the loop's thread; `start` and `kill` need no loop."""

    def __init__(self, folder: Path) -> None:
        self.batches: list[Batch] = []
        self.batch_done: Callable[[Batch], None] = lambda _: None
        self._folder = folder
        self._log_file = folder / "spark.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._is_following = False
        self._counts: Counts | None = None
        self._failure: Unavailable | None = None

    # -- The process --------------------------------------------------------------------------

    def start(self) -> None:
        self._folder.mkdir()
        with self._log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "millrace.demo.spark_query", str(self._folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(self._folder),
                start_new_session=True,
            )

    def kill(self) -> None:
        """Spark and everything it started are gone afterwards."""
        if self._process is None:
            return
        deadline_s = time.monotonic() + KILL_TIMEOUT_S
        # The leader is waited for last: its number stands for the session until then.
        while (members := list(_session_members(self._process.pid))) and (
            time.monotonic() < deadline_s
        ):
            for number in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            time.sleep(POLL_S)
        self._process.kill()
        self._process.wait()
        self._process = None

    def __enter__(self) -> "SparkProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    # -- The conversation ---------------------------------------------------------------------

    async def follow(self, addresses: list[str], log: str) -> None:
        """Returns when the query runs."""
        self._listening = asyncio.create_task(self._listen())
        self._tell(Follow(",".join(addresses), log))
        await self._until(lambda: self._is_following, "start the query")

    async def reach(self, end: Lsn) -> None:
        """Returns when everything below `end` is in the counts."""
        await self._until(
            lambda: bool(self.batches) and self.batches[-1].end >= end,
            f"read up to position {end - 1}",
        )

    def check(self) -> None:
        """Raises what has stopped Spark, if anything has."""
        if self._failure is not None:
            raise self._failure

    async def counts(self) -> Counts:
        self._tell(Finish())
        await self._until(lambda: self._counts is not None, "answer its counts")
        assert self._counts is not None
        return self._counts

    async def _until(self, is_reached: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not is_reached():
                    self.check()
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise TimedOut(
                f"Spark did not {what} within {PATIENCE_S:.0f} s; {self._log_text()}"
            ) from None

    async def _listen(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), self._process.stdout
        )
        while line := await reader.readline():
            self._heard(msgspec.json.decode(line, type=FromSpark))
            self._news.set()
        if self._failure is None:
            self._failure = Unavailable(f"Spark stopped; {self._log_text()}")
        self._news.set()

    def _heard(self, message: FromSpark) -> None:
        match message:
            case Batch():
                self.batches.append(message)
                self.batch_done(message)
            case Following():
                self._is_following = True
            case Counted():
                self._counts = Counter(
                    {(second, key): count for second, key, count in message.counts}
                )
            case Failed():
                self._failure = Unavailable(f"Spark failed: {message.message}")

    def _tell(self, message: ToSpark) -> None:
        assert self._process is not None and self._process.stdin is not None
        # If it is gone, the end of its stdout says so.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(msgspec.json.encode(message) + b"\n")
            self._process.stdin.flush()

    def _log_text(self) -> str:
        return f"the end of its log:\n{self._log_file.read_text(errors='replace')[-LOG_SHOWN:]}"


def _environment(folder: Path) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(FOREIGN_VARIABLES)
    }
    options = (*JAVA_OPTIONS, shlex.quote(f"-Djava.io.tmpdir={folder}"))
    return kept | {
        "JAVA_TOOL_OPTIONS": " ".join((kept.get("JAVA_TOOL_OPTIONS", ""), *options)).strip(),
        "SPARK_LOCAL_DIRS": str(folder),
        "TMPDIR": str(folder),
    }


def _session_members(session: int) -> Iterator[int]:
    """The processes of a session that have not ended."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                # `pid (name) state parent group session ...`, and a name may hold anything.
                state, _, _, of = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(of) == session and state not in "ZX":
                    yield int(folder.name)
