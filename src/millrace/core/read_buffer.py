"""Puts blocks in order: whatever comes early waits, whatever came before is dropped."""

from millrace.limits import READ_BUFFER_BLOCKS_MAX
from millrace.types import Block, Lsn


class ReadBuffer:
    def __init__(self) -> None:
        self._waiting: dict[Lsn, Block] = {}  # By the first position they can be delivered at.

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, block: Block, next_lsn: Lsn) -> bool:
        """False: there is no room; the sender does not keep to its window."""
        if block.end <= next_lsn:
            return True
        if len(self._waiting) >= READ_BUFFER_BLOCKS_MAX:
            return False
        self._waiting.setdefault(max(block.first, next_lsn), block)
        return True

    def pop(self, next_lsn: Lsn) -> Block | None:
        return self._waiting.pop(next_lsn, None)

    def clear(self) -> None:
        self._waiting.clear()
