"""The blocks of a sequencer that are in flight, in the order of their positions.

A block is in flight from the moment it has a position until its appender is complete and all
blocks before it have retired too.  `good` is the end of what has retired without a hole: answers
come in any order, readers get everything in one.

  I1  At most `writes_max` blocks and `bytes_max` bytes are in flight; one block always has room.
  I2  `good` only goes up, and only over blocks that have retired.
"""

from collections import deque
from collections.abc import Iterator

from millrace.core.effects import Ticket
from millrace.core.sequenced.appender import Appender, Stage
from millrace.types import NO_TOKEN, Ack, Block, Lsn, Token


class BlockInFlight:
    __slots__ = ("ack", "appender", "block", "is_reaped", "tickets")

    def __init__(self, block: Block, ack: Ack, appender: Appender, ticket: Ticket) -> None:
        self.block = block
        self.ack = ack
        self.appender = appender
        self.tickets = [ticket]  # Who waits for it, oldest first.
        self.is_reaped = False

    @property
    def is_done(self) -> bool:
        return self.is_reaped and self.appender.stage is Stage.COMPLETE


class AppendWindow:
    def __init__(self, writes_max: int, bytes_max: int, good: Lsn) -> None:
        self.good = good
        self.size_bytes = 0
        self._writes_max = writes_max
        self._bytes_max = bytes_max
        self._blocks: dict[Lsn, BlockInFlight] = {}
        self._by_token: dict[Token, BlockInFlight] = {}
        self._unreaped: deque[BlockInFlight] = deque()

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[BlockInFlight]:
        return iter(self._blocks.values())

    def has_room(self, size_bytes: int) -> bool:
        """Keeps I1."""
        if not self._blocks:
            return True
        return (
            len(self._blocks) < self._writes_max and self.size_bytes + size_bytes <= self._bytes_max
        )

    def add(self, added: BlockInFlight) -> None:
        block = added.block
        self._blocks[block.first] = added
        self._unreaped.append(added)
        self.size_bytes += block.size
        if block.token != NO_TOKEN:
            self._by_token[block.token] = added

    def at(self, first: Lsn) -> BlockInFlight | None:
        return self._blocks.get(first)

    def of(self, token: Token) -> BlockInFlight | None:
        return self._by_token.get(token)

    def reap(self) -> None:
        """Some block has retired: move `good` as far as it goes (I2)."""
        while self._unreaped and self._unreaped[0].appender.is_retired:
            reaped = self._unreaped.popleft()
            reaped.is_reaped = True
            self.good = reaped.block.last
            self.forget(reaped)

    def forget(self, one: BlockInFlight) -> None:
        """Unless something is still to be done about it."""
        if one.is_done and self._blocks.pop(one.block.first, None) is not None:
            self.size_bytes -= one.block.size
            self._by_token.pop(one.block.token, None)

    def clear(self) -> None:
        self._blocks.clear()
        self._by_token.clear()
        self._unreaped.clear()
        self.size_bytes = 0
