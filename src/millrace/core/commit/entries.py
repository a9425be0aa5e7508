"""Which entries a replica of a stream has, and which of them are safe.

A stream has no holes: blocks are taken in the order of their local positions, so two numbers say
what is there.  `end` is above the last block, `safe_end` above the last one of which nothing before
is still on its way to where it must be before it is spoken of.

  I1  `safe_end` <= `end`, and only a truncation or a failing store sets either back.
  I2  A block counts as held already only if its positions and its checksum are those of a block
      that was taken here: two primaries of one generation would otherwise go unnoticed.
"""

from typing import Final

from millrace.types import Block, Lsn

REMEMBERED_MAX: Final = 2_048  # Newest blocks: more than a primary has in flight (primary.py).


class Entries:
    def __init__(self, end: Lsn) -> None:
        self.end = end
        self._unsafe: dict[int, Lsn] = {}  # Settle number -> first position, in order of both.
        self._newest: dict[Lsn, tuple[Lsn, int]] = {}  # First -> end and checksum, oldest first.

    @property
    def safe_end(self) -> Lsn:
        return next(iter(self._unsafe.values()), self.end)

    def take(self, block: Block, settle: int) -> None:
        assert block.first == self.end, f"{block!r} does not begin at {self.end}"
        self.end = block.end
        self._unsafe[settle] = block.first
        self._newest[block.first] = block.end, block.checksum
        if len(self._newest) > REMEMBERED_MAX:
            del self._newest[next(iter(self._newest))]

    def has(self, block: Block) -> bool:
        """Keeps I2."""
        return self._newest.get(block.first) == (block.end, block.checksum)

    def settled(self, settle: int) -> None:
        self._unsafe.pop(settle, None)

    def truncate(self, end: Lsn) -> None:
        """Nothing at `end` or above is there any more, or ever was."""
        self.end = min(self.end, end)
        self._unsafe = {number: first for number, first in self._unsafe.items() if first < end}
        self._newest = {first: held for first, held in self._newest.items() if held[0] <= end}

    def restart(self, end: Lsn) -> None:
        """Begin anew with what the store has: all of it is safe."""
        self.end = end
        self._unsafe.clear()
        self._newest.clear()
