"""Where `-3` is in a sequenced log, whose positions are consecutive only within an epoch.

Within the newest epoch it is arithmetic.  Below it the last record of an earlier epoch is looked
for in the indexes of the storage nodes, by halving: no node knows it by heart.

  I1  Only looks.  Nodes that do not answer are passed over: where a reader begins need not be
      exact, and what it reads from there is complete whatever they hold.
  I2  Takes at most ROUNDS_MAX questions to every node for an epoch, and EPOCHS_MAX epochs.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from millrace.core.messages import Copies, CopiesPage
from millrace.lsn import epoch_of, first_of, lsn_of
from millrace.types import NO_LSN, EntryKind, Epoch, LogId, Lsn

ROUNDS_MAX: Final = 80  # A position has 63 bits to be halved.
EPOCHS_MAX: Final = 64

AskNodes = Callable[[Copies], Awaitable[Iterable[CopiesPage]]]


async def count_back(log: LogId, start: Lsn, end: Lsn, count: int, ask: AskNodes) -> Lsn:
    """The position `count` records before `end`, not below `start`; holes count as records."""
    position, left = max(end, start), count
    for _ in range(EPOCHS_MAX):
        epoch = epoch_of(position)
        begin = max(min(lsn_of(epoch, 1), position), start)
        if position - begin >= left:
            return Lsn(position - left)
        left -= position - begin
        last = await _last_below(log, start, first_of(epoch), ask)
        if last is None:
            break
        position = Lsn(last + 1)
    return begin


async def _last_below(log: LogId, start: Lsn, end: Lsn, ask: AskNodes) -> Lsn | None:
    """The last record of [start, end)."""
    low, high = start, end
    found: Lsn | None = None
    middle = max(start, first_of(Epoch(max(epoch_of(end) - 1, 0))))  # Most often it lies here.
    for _ in range(ROUNDS_MAX):
        if low >= high:
            break
        pages = list(await ask(Copies(log, middle, high)))
        last = max((_last_record(page) for page in pages), default=NO_LSN)
        if last < middle:
            high = middle
        else:
            found, low = last, Lsn(last + 1)
            if all(page.next_lsn >= high for page in pages):
                break
        middle = Lsn((low + high) // 2)
    return found


def _last_record(page: CopiesPage) -> Lsn:
    extents = (copy.extent for copy in page.copies)
    return max((each.last for each in extents if each.kind is EntryKind.DATA), default=NO_LSN)
