"""What a process that appends knows of the streams of commit logs; shared by all its appends.

I1  A stream that failed is left alone for a while, unless all did.
I2  A record is looked up again after a while: streams are added while a log is used.
I3  Streams take turns from one that the process drew: those that append once and end share the
    streams as well as those that go on.
"""

from itertools import count
from typing import Final

from millrace.core.commit.record import CommitRecord, StreamRecord
from millrace.types import LogId, NodeId, StreamId

AVOID_MS: Final = 1_000  # About as long as a reform takes.
FRESH_MS: Final = 5_000


class StreamsKnown:
    def __init__(self, first_turn: int = 0) -> None:
        """`first_turn` is drawn by whoever makes this: 0 or any number above."""
        self._records: dict[LogId, CommitRecord] = {}
        self._stale_ms: dict[LogId, int] = {}  # When they are to be looked up again.
        self._avoided: dict[tuple[LogId, StreamId], int] = {}  # Until when.
        self._suspects: dict[LogId, set[NodeId]] = {}
        self._turns = count(first_turn)  # Keeps I3.

    def record(self, log: LogId, now_ms: int) -> CommitRecord | None:
        """Keeps I2."""
        if now_ms >= self._stale_ms.setdefault(log, now_ms + FRESH_MS):
            self.doubt(log)
        return self._records.get(log)

    def learn(self, record: CommitRecord) -> None:
        known = self._records.get(record.log)
        if known is None or (record.term, record.version) >= (known.term, known.version):
            self._records[record.log] = record

    def doubt(self, log: LogId) -> None:
        """What is known of the log is not so any more."""
        self._records.pop(log, None)
        self._stale_ms.pop(log, None)

    def forget(self, log: LogId) -> None:
        self.doubt(log)
        self._suspects.pop(log, None)

    def avoid(self, log: LogId, stream: StreamId, now_ms: int) -> None:
        self._avoided[log, stream] = now_ms + AVOID_MS

    def served(self, log: LogId, stream: StreamId) -> None:
        self._avoided.pop((log, stream), None)
        self._suspects.pop(log, None)

    def suspect(self, log: LogId, node: NodeId) -> None:
        """The committer does not do its work, for all that we can see."""
        self._suspects.setdefault(log, set()).add(node)

    def suspects(self, log: LogId) -> tuple[NodeId, ...]:
        return tuple(sorted(self._suspects.get(log, ())))

    def choose(self, record: CommitRecord, now_ms: int) -> StreamRecord | None:
        """The next stream in turn that takes appends, as far as is known."""
        can = [each for each in record.streams if each.is_open and each.generation]
        well = [each for each in can if self._avoided.get((record.log, each.stream), 0) <= now_ms]
        usable = well or can  # Keeps I1.
        return usable[next(self._turns) % len(usable)] if usable else None
