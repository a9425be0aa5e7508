"""Where the reader is, and what can be handed over there without asking anybody (logdevice 2.8).

  I1  Every position of [first, end) is handed over once, in order, in a block or inside a gap.
  I2  The position that is next never goes back.
  I3  Nothing below the trim point is handed over once it is known.
  I4  A change of epoch is one BRIDGE: where it leads to the begin of an epoch it passes offset 0,
      at which no block ever lies, so that nobody has to be asked about it.

What is told by one node suffices here: blocks, what a recovery wrote, trimmed and filtered ranges.
Gaps that only many nodes together can tell are decided in `gaps.py`.
"""

from millrace.core.reading.buffer import Added, BlockBuffer, Entry, end_of, entry_of
from millrace.core.reading.credit import Credit
from millrace.core.reading.effects import Deliver, DeliverGap
from millrace.core.selections import credit_bytes
from millrace.lsn import lsn_of, offset_of
from millrace.types import Block, Epoch, Gap, GapKind, Lsn, NodeId

FIRST_EPOCH_BEGIN = lsn_of(Epoch(1), 0)


class Delivery:
    def __init__(self, first: Lsn, end: Lsn, credit: Credit, is_dense: bool = False) -> None:
        """`is_dense`: positions have no epochs in them, so there is nothing to bridge."""
        self.first = first
        self.next_lsn = first
        self.end = end
        self.buffer = BlockBuffer()
        self.trim_end = Lsn(0)
        self.blocks_delivered = 0
        self.bytes_delivered = 0
        self._credit = credit
        self._is_dense = is_dense

    @property
    def is_done(self) -> bool:
        return self.next_lsn >= self.end

    def add(self, block: Block, node: NodeId) -> Added:
        end = end_of(block)
        if end <= self.next_lsn:
            return Added.DUPLICATE
        entry = entry_of(block, end, node, credit_bytes(block))
        entry.first = max(entry.first, self.next_lsn)
        return self.buffer.add(entry)

    def add_filtered(self, first: Lsn, end: Lsn, node: NodeId) -> None:
        """The node holds all of [first, end), and none of it was asked for."""
        first = max(first, self.next_lsn)
        if first < end:
            self.buffer.add(Entry(first, end, node, gap=GapKind.FILTERED_OUT))

    def take(self) -> list[Deliver | DeliverGap]:
        """All that can be handed over now."""
        taken: list[Deliver | DeliverGap] = []
        while not self.is_done:
            part = self._take_one()
            if part is None:
                break
            taken.append(part)
        return taken

    def _take_one(self) -> Deliver | DeliverGap | None:
        if self.trim_end > self.next_lsn:  # Keeps I3.
            return self.give_up(GapKind.TRIM, self.trim_end)
        if self.next_lsn < FIRST_EPOCH_BEGIN and not self._is_dense:
            return self.give_up(GapKind.BRIDGE, Lsn(FIRST_EPOCH_BEGIN + 1))
        entry = self.buffer.take_at(self.next_lsn)
        if entry is not None:
            return self._hand_over(entry)
        if not self._is_dense and self._is_at_begin_of_epoch():
            return self.give_up(GapKind.BRIDGE, Lsn(self.next_lsn + 1))
        return None

    def _hand_over(self, entry: Entry) -> Deliver | DeliverGap:
        if entry.block is None:
            assert entry.gap is not None
            return self.give_up(entry.gap, entry.end)
        first, self.next_lsn = self.next_lsn, min(entry.end, self.end)
        self.blocks_delivered += 1
        self.bytes_delivered += entry.block.size
        self._credit.delivered(entry.node, entry.size_bytes)
        return Deliver(entry.block, first, self.next_lsn)

    def _is_at_begin_of_epoch(self) -> bool:
        """No block lies at offset 0; but whether the epoch has any is known when one is here."""
        first = self.buffer.first
        return (
            offset_of(self.next_lsn) == 0 and first is not None and first.first == self.next_lsn + 1
        )

    def give_up(self, kind: GapKind, end: Lsn) -> DeliverGap:
        """A gap from the next position up to `end`."""
        if kind is GapKind.BRIDGE and offset_of(end) == 0:
            end = Lsn(end + 1)  # Keeps I4.
        first, self.next_lsn = self.next_lsn, min(end, self.end)
        self.buffer.drop_below(self.next_lsn)
        return DeliverGap(Gap(kind, first, Lsn(self.next_lsn - 1)))
