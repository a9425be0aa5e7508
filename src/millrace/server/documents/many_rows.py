"""What the requests for many documents have in common: rows, their partitions and what became of
each.

I1  A wait for durability that does not end well makes the rows AMBIGUOUS that it stands for.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence

from millrace.codec.memcached.binary import Durability
from millrace.codec.memcached.multi import MultiStored
from millrace.core.documents.document import PartitionId
from millrace.core.documents.messages import MutationToken
from millrace.core.documents.operations import DurabilityLevel, OperationStatus
from millrace.core.documents.waits import WaitOutcome
from millrace.server.documents.backend import BucketHost
from millrace.server.documents.carrying_out import CONDITIONS


def rows_by_partition(numbers: Iterable[int]) -> dict[PartitionId, list[int]]:
    rows: defaultdict[PartitionId, list[int]] = defaultdict(list)
    for row, number in enumerate(numbers):
        rows[PartitionId(number)].append(row)
    return rows


def level_and_timeout(asked: Durability | None) -> tuple[DurabilityLevel, int]:
    if asked is None:
        return DurabilityLevel.NONE, 0
    return DurabilityLevel(asked.level), asked.timeout_ms or 0


class StoredRows:
    """A status and a CAS for each row, and what is waited for: of each partition the last change,
    with the rows that it stands for."""

    def __init__(self, host: BucketHost, count: int) -> None:
        self._host = host
        self.statuses: list[int] = [OperationStatus.OK] * count
        self.cas = [0] * count
        self._tokens: list[tuple[MutationToken, Sequence[int]]] = []

    @property
    def answer(self) -> MultiStored:
        return MultiStored(self.statuses, self.cas)

    @property
    def has_changes(self) -> bool:
        return bool(self._tokens)

    def wait_for(self, token: MutationToken, rows: Sequence[int]) -> None:
        self._tokens.append((token, rows))

    def mark(self, rows: Iterable[int], status: OperationStatus) -> None:
        for row in rows:
            self.statuses[row] = status
            self.cas[row] = 0

    async def settled(self, asked: Durability | None) -> MultiStored:
        """When the last change of each partition is safe, and so are those before it.  Keeps I1."""
        level, timeout_ms = level_and_timeout(asked)
        waits = [
            self._host.wait(token.partition, token, CONDITIONS[level], timeout_ms)
            for token, _ in self._tokens
        ]
        for (_, rows), ended in zip(self._tokens, await asyncio.gather(*waits), strict=True):
            if ended is not WaitOutcome.OK:
                self.mark(rows, OperationStatus.AMBIGUOUS)
        return self.answer
