"""Rows that will become a block, and everybody who waits for them.

A block's appends may have different deadlines.  The block runs with the latest of them; whoever is
earlier stops waiting at its own time.

  I1  Rows are taken out only before the block is drafted: of those nothing was ever sent.
  I2  An append whose deadline is within SLACK_S of its block's waits for the block, which ends at
      that time with an outcome that is better known than "still under way".
"""

import asyncio
import math
from collections.abc import Callable

import msgspec

from millrace.client.outcomes import BlockAppend, UnknownAppend
from millrace.codec.blocks import draft
from millrace.codec.drafts import Draft, HeaderPairs
from millrace.core.append import Appended
from millrace.limits import BLOCK_BYTES_TARGET, BLOCK_RECORDS_MAX
from millrace.runtime.hot_run import Waiter
from millrace.types import Ack, Lsn

SendBlock = Callable[[Draft, Ack, int, Waiter[Appended]], BlockAppend]
NEVER_S = math.inf
SLACK_S = 0.005


class Share(msgspec.Struct, eq=False):
    """One append's part of a block: its first row, its rows, and whoever waits for it."""

    offset: int
    count: int
    size: int
    deadline_s: float
    future: asyncio.Future[Appended]


class Batch:
    """Is told what became of its block, and tells all who have a share in it."""

    __slots__ = (
        "_ended",
        "ack",
        "block",
        "deadline_s",
        "drafted",
        "earliest_s",
        "has_headers",
        "has_keys",
        "headers",
        "keys",
        "send",
        "shares",
        "size",
        "timestamps",
        "values",
    )

    def __init__(self, ack: Ack, deadline_s: float, ended: "Callable[[Batch], None]") -> None:
        self._ended = ended
        self.ack = ack
        self.deadline_s = deadline_s  # The latest of its shares; the time in the queue counts.
        self.earliest_s = deadline_s  # Nobody's time is up before.
        self.values: list[bytes] = []
        self.keys: list[bytes | None] = []
        self.timestamps: list[int] = []
        self.headers: list[HeaderPairs] = []
        self.shares: list[Share] = []
        self.has_keys = False
        self.has_headers = False
        self.size = 0
        self.drafted: Draft | None = None  # Came as a finished draft.
        self.send: SendBlock | None = None  # In a way of its own.
        self.block: BlockAppend | None = None  # Once it was sent.

    @property
    def is_full(self) -> bool:
        return (
            self.drafted is not None
            or self.size >= BLOCK_BYTES_TARGET
            or len(self.values) >= BLOCK_RECORDS_MAX
        )

    def widen(self, deadline_s: float) -> None:
        """Another append with this deadline joins."""
        if deadline_s > self.deadline_s:
            self.deadline_s = deadline_s
        elif deadline_s < self.earliest_s:
            self.earliest_s = deadline_s

    def draft(self, compress: bool) -> Draft:
        if self.drafted is not None:
            return self.drafted
        return draft(
            self.values,
            timestamps_us=self.timestamps,
            keys=self.keys if self.has_keys else None,
            headers=self.headers if self.has_headers else None,
            compress=compress,
        )

    # -- Outcomes -----------------------------------------------------------------------------

    def set_result(self, appended: Appended) -> None:
        for share in self.shares:
            if not share.future.done():
                first = Lsn(appended.first + share.offset)
                share.future.set_result(Appended(first, Lsn(first + share.count - 1)))
        self._ended(self)

    def set_exception(self, error: Exception) -> None:
        for share in self.shares:
            if not share.future.done():
                share.future.set_exception(_of_share(error, share))
        self._ended(self)

    # -- Deadlines ----------------------------------------------------------------------------

    def withdraw(self, now_s: float, error: Callable[[], Exception]) -> None:
        """While it waits: take out whoever's time is up.  Keeps I1."""
        kept = [share for share in self.shares if share.deadline_s > now_s]
        for share in self.shares:
            if share.deadline_s <= now_s and not share.future.done():
                share.future.set_exception(error())
        if self.drafted is None:
            self._keep_rows([share.offset for share in kept])
        for row, share in enumerate(kept):
            share.offset = row
        self.shares = kept
        self.size = sum(share.size for share in kept)
        self.earliest_s = min((share.deadline_s for share in kept), default=NEVER_S)

    def _keep_rows(self, rows: list[int]) -> None:
        self.values = [self.values[row] for row in rows]
        self.keys = [self.keys[row] for row in rows]
        self.timestamps = [self.timestamps[row] for row in rows]
        self.headers = [self.headers[row] for row in rows]

    def sent(self, block: BlockAppend) -> None:
        self.block = block
        if self.earliest_s >= self.deadline_s - SLACK_S:  # Keeps I2.
            self.earliest_s = NEVER_S

    def leave(self, now_s: float, error: UnknownAppend) -> None:
        """While it is under way: whoever's time is up waits no longer; the block goes on."""
        earliest_s = NEVER_S
        for share in self.shares:
            if share.deadline_s >= self.deadline_s - SLACK_S or share.future.done():
                continue
            if share.deadline_s > now_s:
                earliest_s = min(earliest_s, share.deadline_s)
            else:
                share.future.set_exception(_of_share(error, share))
        self.earliest_s = earliest_s


def _of_share(error: Exception, share: Share) -> Exception:
    return error.of_share(share.offset, share.count) if isinstance(error, UnknownAppend) else error
