"""The half of the store that reads: what is asked of a log by its number goes to the reader."""

from collections.abc import Sequence
from itertools import islice

from millrace.core.commit.record import StreamCommit
from millrace.core.log_state import LogState
from millrace.store import committed
from millrace.store.layout import IndexEntry
from millrace.store.open_log import OpenLog
from millrace.store.reader import Reader
from millrace.store.reading import BlockScan
from millrace.store.shipment import BlockShipment, Ships
from millrace.types import FIRST_LSN, Block, Copy, Extent, LogId, Lsn, Run, Weight


class ReadSide:
    def __init__(self, reader: Reader, logs: dict[LogId, OpenLog]) -> None:
        self._reader = reader
        self._logs = logs

    @property
    def scans_outstanding(self) -> int:
        return self._reader.scans

    @property
    def blocks_read(self) -> int:
        """Blocks whose data was handed out: a walk of the index adds nothing."""
        return self._reader.blocks_read

    def logs(self) -> list[LogId]:
        return sorted(self._logs)

    def state(self, log: LogId) -> LogState | None:
        opened = self._logs.get(log)
        return None if opened is None else opened.state()

    def block_at(self, log: LogId, lsn: Lsn) -> Block | None:
        opened = self._logs.get(log)
        return None if opened is None else self._reader.block_at(opened, lsn)

    def bridge_over(self, log: LogId, lsn: Lsn) -> Block | None:
        opened = self._logs.get(log)
        return None if opened is None else self._reader.bridge_over(opened, lsn)

    def scan(self, log: LogId, first: Lsn, end: Lsn, bytes_max: int) -> BlockScan:
        opened = self._logs.get(log)
        if opened is None:
            return BlockScan([])
        return self._reader.scan(opened, first, end, bytes_max)

    def ship(self, log: LogId, first: Lsn, end: Lsn, bytes_max: int, ships: Ships) -> BlockShipment:
        opened = self._logs.get(log)
        if opened is None:
            return BlockShipment([], max(first, end))
        return self._reader.ship(opened, first, end, bytes_max, ships)

    def commit_runs(self, log: LogId, first: Lsn, end: Lsn, limit: int) -> list[StreamCommit]:
        with self._reader.streams(self._opened([log])) as streams:
            return [run for each in streams for run in islice(each.runs(first, end), limit)]

    def locate(self, log: LogId, local: Lsn) -> Lsn | None:
        with self._reader.streams(self._opened([log])) as streams:
            return streams[0].locate(local) if streams else None

    def ship_committed(
        self, streams: Sequence[LogId], first: Lsn, end: Lsn, bytes_max: int
    ) -> BlockShipment:
        return self._reader.ship_committed(self._opened(streams), first, end, bytes_max)

    def index_committed(
        self, streams: Sequence[LogId], first: Lsn, end: Lsn, limit: int
    ) -> list[Extent]:
        with self._reader.streams(self._opened(streams)) as found:
            return committed.index(found, first, end, limit)

    def _opened(self, logs: Sequence[LogId]) -> list[OpenLog]:
        return [self._logs[log] for log in logs if log in self._logs]

    def index(self, log: LogId, first: Lsn, end: Lsn, limit: int | None = None) -> list[Extent]:
        return [entry.extent for entry in self.entries(log, first, end, limit)]

    def copies(self, log: LogId, first: Lsn, end: Lsn, limit: int) -> list[Copy]:
        return [entry.copy() for entry in self.entries(log, first, end, limit)]

    def entries(
        self, log: LogId, first: Lsn, end: Lsn, limit: int | None = None
    ) -> list[IndexEntry]:
        """Index entries with epoch, newest timestamp and placement."""
        opened = self._logs.get(log)
        return [] if opened is None else self._reader.entries(opened, first, end, limit)

    def find_time(self, log: LogId, timestamp_us: int) -> Lsn:
        opened = self._logs.get(log)
        return FIRST_LSN if opened is None else self._reader.find_time(opened, timestamp_us)

    def find_size(self, log: LogId, bytes_kept: int) -> Lsn:
        opened = self._logs.get(log)
        return FIRST_LSN if opened is None else self._reader.find_size(opened, bytes_kept)

    def weigh(self, log: LogId, first: Lsn, end: Lsn, pieces: int) -> list[Weight]:
        opened = self._logs.get(log)
        return [] if opened is None else self._reader.weigh(opened, first, end, pieces)

    def runs(self, log: LogId, first: Lsn, end: Lsn, limit: int) -> list[Run]:
        opened = self._logs.get(log)
        return [] if opened is None else self._reader.runs(opened, first, end, limit)
