"""Reading committed entries of a store that has everything in memory: those of scenarios and of
the simulator.  They show what the protocol does with a store, so they read in the same way."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from millrace.core.commit.record import StreamCommit
from millrace.store import committed
from millrace.store.commit_runs import RunList, place_of
from millrace.types import Block, Extent, LogId, Lsn

Within = Callable[[Lsn, Lsn], Iterable[Block]]  # Blocks that intersect [first, end), in order.


class HeldStream:
    """One stream; see `committed.StreamView`."""

    def __init__(
        self, runs: RunList, trim_end: Lsn, within: Within, check: Callable[[Block], None]
    ) -> None:
        """`check` raises CorruptBlock of a block that is damaged."""
        self.run_list = runs
        self.trim_end = trim_end
        self._within = within
        self._check = check

    def runs(self, first: Lsn, end: Lsn) -> Iterator[StreamCommit]:
        return self.run_list.within(first, end)

    def entries(self, first: Lsn, end: Lsn) -> Iterator[tuple[Lsn, Block]]:
        start = max(first, self.trim_end)
        for block in self._within(start, end) if start < end else ():
            yield block.first, block

    def extent(self, first: Lsn, entry: Block) -> Extent:
        return entry.extent()

    def read(self, first: Lsn, entry: Block) -> Block:
        self._check(entry)
        return entry


class HeldShipment:
    """See `contract.Shipment`."""

    def __init__(self, blocks: list[Block], next_lsn: Lsn) -> None:
        self.blocks = blocks
        self.next_lsn = next_lsn
        self._is_released = False

    def release(self) -> None:
        assert not self._is_released, "a shipment is released once"
        self._is_released = True


class HeldCommits:
    """The part of the contract that reads what is committed; a store gives it `_stream`."""

    def _stream(self, log: LogId) -> HeldStream | None:
        raise NotImplementedError

    def commit_runs(self, log: LogId, first: Lsn, end: Lsn, limit: int) -> list[StreamCommit]:
        stream = self._stream(log)
        return [] if stream is None else list(islice(stream.runs(first, end), limit))

    def locate(self, log: LogId, local: Lsn) -> Lsn | None:
        stream = self._stream(log)
        if stream is None or local < stream.trim_end:
            return None
        return place_of(stream.run_list.holding(local), local)

    def ship_committed(
        self, streams: Sequence[LogId], first: Lsn, end: Lsn, bytes_max: int
    ) -> HeldShipment:
        return HeldShipment(*committed.ship(self._streams(streams), first, end, bytes_max))

    def index_committed(
        self, streams: Sequence[LogId], first: Lsn, end: Lsn, limit: int
    ) -> list[Extent]:
        return committed.index(self._streams(streams), first, end, limit)

    def _streams(self, streams: Sequence[LogId]) -> list[HeldStream]:
        return [stream for log in streams if (stream := self._stream(log)) is not None]
