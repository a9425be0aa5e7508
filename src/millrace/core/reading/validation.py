"""What a node may say on a stream: the rules whose breach makes it an outcast of this reader.

A node with a bug or a broken memory must not harm a reader more than a node that is down: it is
taken for one, asked again after a while, and counted.

  I1  Whatever a message holds, it is either within these rules or changes nothing.
"""

from enum import Enum

from millrace.core.messages import Blocks, Damaged, GapFound
from millrace.core.reading.buffer import end_of
from millrace.core.reading.senders import Sender
from millrace.limits import BLOCK_BYTES_MAX
from millrace.lsn import epoch_of
from millrace.types import Block, GapKind, LogId, Lsn


class Misbehaviour(Enum):
    STRANGER = "stranger"  # Another stream, a version to come, or a message of another kind.
    BACKWARDS = "backwards"  # Below what it had said to have passed.
    OUT_OF_ORDER = "out_of_order"  # Blocks that overlap or are not in order.
    OUT_OF_WINDOW = "out_of_window"
    OUT_OF_RANGE = "out_of_range"  # Not asked for.
    NOT_A_BLOCK = "not_a_block"  # Of another log, cut without being asked to, across epochs.
    CONFLICT = "conflict"  # Another block than other nodes sent for the same position.
    TOO_MUCH = "too_much"  # More than its credit and a block.
    BAD_GAP = "bad_gap"  # A gap of a kind that nodes do not tell, or turned around.


class Rules:
    """What was asked for; the same for all nodes."""

    def __init__(self, log: LogId, end: Lsn, is_selecting: bool, is_dense: bool = False) -> None:
        """`is_dense`: positions have no epochs in them, so a block may begin and end anywhere."""
        self._log = log
        self._is_dense = is_dense
        self._end = end
        self._is_selecting = is_selecting

    def check_blocks(
        self, sender: Sender, message: Blocks, window_last: Lsn
    ) -> Misbehaviour | None:
        if sender.received_bytes > sender.granted_bytes + BLOCK_BYTES_MAX:
            return Misbehaviour.TOO_MUCH
        at = sender.next_lsn
        for block in message.blocks:
            wrong = self._check_block(sender, block, at, window_last)
            if wrong is not None:
                return wrong
            at = max(at, block.end)  # A bridge may begin below START and is about what follows.
        return self.check_claim(min(at, self._end), message.next_lsn)

    def _check_block(
        self, sender: Sender, block: Block, at: Lsn, window_last: Lsn
    ) -> Misbehaviour | None:
        if block.log != self._log or (block.is_cut and not self._is_selecting):
            return Misbehaviour.NOT_A_BLOCK
        is_across = not self._is_dense and epoch_of(block.first) != epoch_of(block.last)
        if block.count < 1 or is_across:
            return Misbehaviour.NOT_A_BLOCK
        if block.first >= self._end or end_of(block) <= sender.start_first:
            return Misbehaviour.OUT_OF_RANGE
        if block.first > window_last:
            return Misbehaviour.OUT_OF_WINDOW
        # A block may begin below only where START or the trim point was in the middle of it; or the
        # end of a window, if the node was given the block by a donor when it had come so far.
        has_come_late = at == sender.next_lsn and sender.is_at_window_end and block.end > at
        is_in_order = block.first >= at or at in (sender.start_first, sender.trimmed_end)
        is_in_order = is_in_order or has_come_late
        return None if is_in_order else Misbehaviour.OUT_OF_ORDER

    def check_claim(self, at: Lsn, next_lsn: Lsn) -> Misbehaviour | None:
        return Misbehaviour.BACKWARDS if next_lsn < at else None

    def check_gap(self, sender: Sender, gap: GapFound, window_last: Lsn) -> Misbehaviour | None:
        """A trimmed range may reach as far as it wants."""
        if gap.last < gap.first or gap.kind not in (GapKind.TRIM, GapKind.FILTERED_OUT):
            return Misbehaviour.BAD_GAP
        if gap.kind is GapKind.TRIM:
            return self.check_claim(sender.next_lsn, Lsn(gap.last + 1))
        if gap.first > window_last:
            return Misbehaviour.OUT_OF_WINDOW
        return self.check_claim(sender.next_lsn, gap.first)

    def check_damaged(self, sender: Sender, damaged: Damaged) -> Misbehaviour | None:
        if damaged.next_lsn <= damaged.first:
            return Misbehaviour.BAD_GAP
        return self.check_claim(sender.next_lsn, damaged.next_lsn)
