"""What empty commits cost a replica of a commit log: on disk, and when it starts again.

A stream that gets nothing hears of every commit of the others.  It keeps the newest context alone,
so a million of them must leave a file of the same size, and take the same time to open, as one.
Two replicas are made that differ in nothing else and are opened in turns.

1. Empty commits reach the disk with transactions that happen anyway: both replicas make the same
   ones, block by block, so that the files can be compared by the byte.
2. A restart is what a node does with the stream: open the store, read its state, judge it.
3. Times are compared in pairs, of the same round: noise that slowed a round cancels out.
"""

import queue
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from millrace.codec.blocks import draft, place
from millrace.core.commit.committed import Committed
from millrace.core.commit.record import StreamCommit, stream_log_of
from millrace.core.commit.replica import EMPTY, StreamReplica
from millrace.limits import KIB, MIB
from millrace.store.contract import StoreFailed
from millrace.store.lmdb_store import LmdbStore, open_store
from millrace.types import (
    FIRST_LSN,
    Ack,
    Epoch,
    LogId,
    Lsn,
    NodeId,
    Placement,
    StreamId,
    Token,
    Version,
)

COUNTS: Final = (1, 1_000_000)
OPENINGS: Final = 61
BLOCKS: Final = 200  # Of the stream, committed before the empty commits.
BLOCK_BYTES: Final = 1 * KIB
TRANSACTIONS: Final = 10  # That happen meanwhile.
HEADINGS: Final = ("empty commits", "file", "of it in use", "restart, median", "vs the first")
_NODE: Final = NodeId(1)
_LOG: Final = LogId(9)
_STREAM: Final = stream_log_of(_LOG, StreamId(1))
_BUSY_LOG: Final = LogId(8)  # Whose blocks are the transactions.
_MAP_BYTES: Final = 256 * MIB
_WAIT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class EmptyCommits:
    """One replica: what it takes on disk, and each of its restarts, in milliseconds."""

    count: int
    file_bytes: int  # It is grown ahead of need ...
    used_bytes: int  # ... so this tells more.
    restarts_ms: Sequence[float]

    @property
    def restart_ms(self) -> float:
        return median(self.restarts_ms)

    def slower_than(self, other: "EmptyCommits") -> float:
        """Keeps 3."""
        pairs = zip(self.restarts_ms, other.restarts_ms, strict=True)
        return median(mine / theirs for mine, theirs in pairs)


def measure(counts: Sequence[int] = COUNTS, openings: int = OPENINGS) -> list[EmptyCommits]:
    folder = Path(tempfile.mkdtemp(prefix="millrace-bench-commits-"))
    try:
        paths = {count: folder / str(count) for count in counts}
        for count, path in paths.items():
            _fill(path, count)
        times = _open_in_turns(paths, openings)
        return [EmptyCommits(count, *_sizes(path), times[count]) for count, path in paths.items()]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _open_in_turns(paths: Mapping[int, Path], openings: int) -> dict[int, list[float]]:
    """The order turns from round to round, so that no place in it favours anybody."""
    times: dict[int, list[float]] = {count: [] for count in paths}
    counts = list(paths)
    for number in range(openings):
        turn = number % len(counts)
        for count in counts[turn:] + counts[:turn]:
            times[count].append(_restart_ms(paths[count], count))
    return times


def _restart_ms(path: Path, count: int) -> float:
    """Keeps 2."""
    began_s = time.perf_counter()
    store = _open(path, lambda call: None)
    replica = StreamReplica(_STREAM, store.state(_STREAM), _NODE)
    seconds = time.perf_counter() - began_s
    store.close()
    assert replica.is_valid and replica.version == count + 1, replica.why
    return seconds * 1e3


# -- Making a replica ------------------------------------------------------------------------------


class _Filling:
    """A store whose owner's loop is this thread."""

    def __init__(self, path: Path) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.store = _open(path, self._calls.put)

    def put(self, log: LogId, first: int) -> None:
        """In a transaction of its own."""
        value = first.to_bytes(BLOCK_BYTES, "big")
        made = draft([value], timestamps_us=0, compress=False)
        block = place(made, log, Epoch(1), Lsn(first), Token(1, first))
        self.store.put(block, Placement((_NODE,)), Ack.DISK)
        self.settle()

    def settle(self) -> None:
        answers: list[StoreFailed | None] = []
        self.store.barrier(Ack.DISK, answers.append)
        while not answers:
            self._calls.get(timeout=_WAIT_S)()
        assert answers == [None], answers


@contextmanager
def _filling(path: Path) -> Iterator[_Filling]:
    filling = _Filling(path)
    try:
        yield filling
    finally:
        filling.store.close()


def _fill(path: Path, count: int) -> None:
    with _filling(path) as filling:
        committed = _commit_blocks(filling)
        share = -(-count // TRANSACTIONS)
        for transaction in range(TRANSACTIONS):  # Keeps 1.
            begun = min(count, share * transaction)
            for number in range(begun, min(count, begun + share)):
                version, high = Version(number + 2), Lsn(BLOCKS + number + 1)
                filling.store.commit(_STREAM, committed.take(version, high, (), FIRST_LSN, 0), ())
            filling.put(_BUSY_LOG, transaction + 1)


def _commit_blocks(filling: _Filling) -> Committed:
    for first in range(1, BLOCKS + 1):
        filling.put(_STREAM, first)
    run = StreamCommit(Version(1), FIRST_LSN, FIRST_LSN, BLOCKS)
    committed = Committed(EMPTY)
    context = committed.take(Version(1), Lsn(BLOCKS), (run,), FIRST_LSN, 0)
    filling.store.commit(_STREAM, context, (run,))
    filling.settle()
    return committed


def _open(path: Path, call_soon: Callable[[Callable[[], None]], None]) -> LmdbStore:
    return open_store(path, "bench", _NODE, call_soon, map_bytes=_MAP_BYTES)


def _sizes(path: Path) -> tuple[int, int]:
    with _filling(path) as filling:
        return filling.store.directory.data_file.stat().st_size, filling.store.usage().bytes_used


# -- Telling ---------------------------------------------------------------------------------------


def rows(found: Sequence[EmptyCommits]) -> list[tuple[str, ...]]:
    """The cells of the table, by HEADINGS."""
    return [
        (
            f"{each.count:,}",
            f"{each.file_bytes:,} B",
            f"{each.used_bytes:,} B",
            f"{each.restart_ms:.2f} ms",
            f"{each.used_bytes / found[0].used_bytes:.3f}× size, "
            f"{each.slower_than(found[0]):.2f}× time",
        )
        for each in found
    ]


def as_markdown(found: Sequence[EmptyCommits]) -> list[str]:
    return [
        "## A replica of a commit log after empty commits",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|--:" * len(HEADINGS) + "|",
        *("| " + " | ".join(row) + " |" for row in rows(found)),
        "",
    ]


def as_json(found: Sequence[EmptyCommits]) -> list[dict[str, Any]]:
    return [asdict(each) for each in found]


def print_table(found: Sequence[EmptyCommits], console: Console) -> None:
    table = Table(title="A replica of a commit log after empty commits")
    for heading in HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows(found):
        table.add_row(*row)
    console.print(table)
