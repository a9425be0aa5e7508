"""A commit log of two streams in one store, as its committer and a replica of both have it."""

from millrace.core.commit.record import CommitContext, StreamCommit, stream_log_of
from millrace.limits import MIB
from millrace.store.contract import Store
from millrace.types import LSN_MAX, Ack, Block, LogId, Lsn, StreamId, Version
from tests.conformance.store_rig import PLACEMENT, StoreRig, make_block

COMMIT_LOG = LogId(9)
ONE = stream_log_of(COMMIT_LOG, StreamId(1))
TWO = stream_log_of(COMMIT_LOG, StreamId(2))


def run(version: int, local: int, first: int, count: int) -> StreamCommit:
    return StreamCommit(Version(version), Lsn(local), Lsn(first), count)


def context_of(commit: StreamCommit, high_watermark: int | None = None) -> CommitContext:
    """What a replica keeps of a commit that is not empty."""
    last = Lsn(commit.end - 1)
    high = last if high_watermark is None else Lsn(high_watermark)
    return CommitContext(commit.version, high, commit.local, commit.first, commit.count, last)


def emptied(context: CommitContext, version: int, high_watermark: int) -> CommitContext:
    """What it keeps of an empty commit after that."""
    return CommitContext(
        Version(version),
        Lsn(high_watermark),
        context.local_end,
        Lsn(high_watermark + 1),
        0,
        context.last,
    )


class CommitLog:
    def __init__(self, rig: StoreRig) -> None:
        self.rig = rig
        self.version = 0
        self.high_watermark = 0
        self.end = {ONE: 1, TWO: 1}  # Written.
        self.local_end = {ONE: 1, TWO: 1}  # Committed.
        self.placed: dict[int, Block] = {}  # Committed blocks, by their place in the log.
        self._waiting: dict[LogId, list[Block]] = {ONE: [], TWO: []}

    @property
    def store(self) -> Store:
        return self.rig.store

    def write(self, stream: LogId, *counts: int, size: int = 64) -> list[Block]:
        """Blocks of that many entries, not committed yet."""
        written: list[Block] = []
        for count in counts:
            block = make_block(self.end[stream], count, log=stream, size=size)
            self.store.put(block, PLACEMENT, Ack.DISK)
            self.end[stream] += count
            written.append(block)
        self._waiting[stream] += written
        return written

    def commit(self, stream: LogId) -> StreamCommit:
        """All that is written, as the next version."""
        self.version += 1
        local, first = self.local_end[stream], self.high_watermark + 1
        commit = run(self.version, local, first, self.end[stream] - local)
        for block in self._waiting[stream]:
            self.placed[first + block.first - local] = block
        self._waiting[stream] = []
        self.high_watermark += commit.count
        self.local_end[stream] = self.end[stream]
        self.store.commit(stream, context_of(commit), [commit])
        return commit

    def append(self, stream: LogId, *counts: int, size: int = 64) -> StreamCommit:
        self.write(stream, *counts, size=size)
        return self.commit(stream)


def runs_of(store: Store, stream: LogId, first: int = 1, end: int = LSN_MAX) -> list[StreamCommit]:
    return store.commit_runs(stream, Lsn(first), Lsn(end), 1_000_000)


def shipped(
    store: Store,
    first: int = 1,
    end: int = LSN_MAX,
    bytes_max: int = 64 * MIB,
    streams: tuple[LogId, ...] = (ONE, TWO),
) -> tuple[list[int], int]:
    """Where the blocks begin in the commit log, and up to where was looked."""
    shipment = store.ship_committed(streams, Lsn(first), Lsn(end), bytes_max)
    firsts = [int(block.first) for block in shipment.blocks]
    next_lsn = shipment.next_lsn
    shipment.release()
    return firsts, next_lsn
