"""Said to the sequencer of a log."""

from millrace.core.messages.root import Message
from millrace.types import Epoch, LogId, Lsn


class Next(Message, frozen=True):
    log: LogId
    epoch: Epoch
    count: int


class Issued(Message, frozen=True):
    first: Lsn
    count: int


class Peek(Message, frozen=True):
    """Largest issued position; with `around`, the issued range that holds that position."""

    log: LogId
    epoch: Epoch
    around: Lsn = Lsn(0)


class Peeked(Message, frozen=True):
    last: Lsn
    range_first: Lsn = Lsn(0)  # 0: the sequencer does not remember.
    range_last: Lsn = Lsn(0)


class Bootstrap(Message, frozen=True):
    """Serve `next` for this epoch, issuing nothing below `next_lsn`."""

    log: LogId
    epoch: Epoch
    next_lsn: Lsn


class Bootstrapped(Message, frozen=True):
    """`since` is the first epoch that this process sequenced, without forgetting its count."""

    next_lsn: Lsn
    since: Epoch = Epoch(0)
