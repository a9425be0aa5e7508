"""What a node has sent goes where it belongs: blocks to the buffer, claims to the sender.

What follows from it for the stream, who is to be listed or that it can go on, is decided there.
"""

import msgspec

from millrace.core.messages import Blocks, CaughtUp, Damaged, GapFound
from millrace.core.reading.buffer import Added
from millrace.core.reading.delivery import Delivery
from millrace.core.reading.senders import Push, Sender
from millrace.core.reading.validation import Misbehaviour, Rules
from millrace.core.selections import credit_bytes
from millrace.types import Block, EntryKind, GapKind, Lsn


class Received(msgspec.Struct):
    """Counts since the stream was opened, and in all versions of it."""

    blocks: int = 0
    bytes: int = 0
    blocks_duplicate: int = 0
    bytes_duplicate: int = 0


class Receiver:
    def __init__(self, rules: Rules, delivery: Delivery) -> None:
        self.received = Received()
        self._rules = rules
        self._delivery = delivery

    def take(self, sender: Sender, push: Push, window_last: Lsn) -> Misbehaviour | None:
        """None: it was within the rules, and is done."""
        match push:
            case Blocks():
                return self._take_blocks(sender, push, window_last)
            case CaughtUp(_, _, next_lsn, _, is_incomplete):
                wrong = self._rules.check_claim(sender.next_lsn, next_lsn)
                if wrong is None:
                    sender.is_incomplete = is_incomplete
                    self._claim(sender, next_lsn)
                return wrong
            case GapFound():
                return self._take_gap(sender, push, window_last)
            case Damaged(_, _, _, next_lsn):
                wrong = self._rules.check_damaged(sender, push)
                if wrong is None:
                    sender.damaged(min(next_lsn, self._delivery.end))
                return wrong

    def _take_blocks(self, sender: Sender, push: Blocks, window_last: Lsn) -> Misbehaviour | None:
        wrong = self._rules.check_blocks(sender, push, window_last)
        if wrong is not None:
            return wrong
        for block in push.blocks:
            if not self._take_block(sender, block):
                return Misbehaviour.CONFLICT
        self._claim(sender, push.next_lsn)
        return None

    def _take_block(self, sender: Sender, block: Block) -> bool:
        sender.received_bytes += credit_bytes(block)
        self.received.blocks += 1
        self.received.bytes += block.size
        added = self._delivery.add(block, sender.node)
        if added is Added.DUPLICATE:
            self.received.blocks_duplicate += 1
            self.received.bytes_duplicate += block.size
        return added is not Added.CONFLICT

    def _take_gap(self, sender: Sender, gap: GapFound, window_last: Lsn) -> Misbehaviour | None:
        wrong = self._rules.check_gap(sender, gap, window_last)
        if wrong is not None:
            return wrong
        end = Lsn(gap.last + 1)
        if gap.kind is GapKind.TRIM:
            # Trim points are of the log and only go up: one node that knows suffices.
            self._delivery.trim_end = max(self._delivery.trim_end, end)
            sender.trimmed_end = end
        else:
            self._delivery.add_filtered(gap.first, end, sender.node)
        self._claim(sender, end)
        return None

    def _claim(self, sender: Sender, next_lsn: Lsn) -> None:
        sender.claimed(min(next_lsn, self._delivery.end))


def has_data(push: Push) -> bool:
    """Whether it proves that the node can send again (R5)."""
    return isinstance(push, Blocks) and any(b.kind is EntryKind.DATA for b in push.blocks)
