"""Positions of sequenced logs: an epoch and an offset in it, in one number (L2).

    lsn = epoch << 32 | offset        written e7n42

Real records begin at e1n1.  Offset 0 never holds a record, but a reader may stand on it: it is
where an epoch begins.  The last offset of an epoch never holds one either, so that the end of a
full epoch can still be bridged.
"""

import re
from typing import Final

from millrace.types import LSN_MAX, Epoch, Lsn

OFFSET_BITS: Final = 32
OFFSET_MAX: Final = (1 << OFFSET_BITS) - 1
EPOCH_MAX: Final = Epoch((LSN_MAX >> OFFSET_BITS) - 1)
_TEXT: Final = re.compile(r"e(\d+)n(\d+)")


def lsn_of(epoch: Epoch, offset: int) -> Lsn:
    assert 0 <= offset <= OFFSET_MAX, f"offset {offset} does not fit in an epoch"
    return Lsn(epoch << OFFSET_BITS | offset)


def epoch_of(lsn: Lsn) -> Epoch:
    return Epoch(lsn >> OFFSET_BITS)


def offset_of(lsn: Lsn) -> int:
    return lsn & OFFSET_MAX


def first_of(epoch: Epoch) -> Lsn:
    """Where the epoch begins; no record lies here."""
    return lsn_of(epoch, 0)


def last_of(epoch: Epoch) -> Lsn:
    """The last position that belongs to the epoch."""
    return lsn_of(epoch, OFFSET_MAX)


def show(lsn: Lsn) -> str:
    """`e7n42`; positions of chain logs, which have no epoch in them, as the number they are."""
    epoch = epoch_of(lsn)
    return f"e{epoch}n{offset_of(lsn)}" if epoch else str(lsn)


def parse(text: str) -> Lsn | None:
    """The position that `e7n42` names; None if the text is not of this form or out of range."""
    found = _TEXT.fullmatch(text)
    if found is None:
        return None
    epoch, offset = int(found[1]), int(found[2])
    if epoch > EPOCH_MAX or offset > OFFSET_MAX:
        return None
    return lsn_of(Epoch(epoch), offset)
