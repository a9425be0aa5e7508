"""How a log is written and served, as its face (`log.py`) uses it.

One class for each write path (`chain_path.py`, `sequenced_path.py`); everything that is the same
for all logs stands in `log.py`.
"""

import time
from typing import TYPE_CHECKING, Protocol

from millrace.client.outcomes import BlockAppend
from millrace.client.reader import Reading
from millrace.codec.drafts import Draft
from millrace.core.append import Appended
from millrace.core.read_effects import Deliver
from millrace.core.runs import Runs
from millrace.core.sequenced.verifying import Verdict
from millrace.errors import UsageError
from millrace.runtime.hot_run import Waiter
from millrace.types import Ack, Gap, Lsn, Selection, Weight

if TYPE_CHECKING:
    from millrace.client.describe import LogDescription
    from millrace.client.describe_sequenced import SequencedDescription

TIMEOUT_MS = 30_000


def deadline_after(timeout_ms: int) -> float:
    """A moment of `time.monotonic`.  Raises UsageError if an append would have no time at all: its
    outcome would be unknown for nothing."""
    if timeout_ms <= 0:
        raise UsageError(f"timeout_ms={timeout_ms}: an append needs some time; give more than 0")
    return time.monotonic() + timeout_ms / 1000


class ReadingOptions(Protocol):
    """Settings of a read stream of this kind of log."""


class LogPath(Protocol):
    def begin_append(
        self, draft: Draft, ack: Ack, timeout_ms: int, waiter: Waiter[Appended]
    ) -> BlockAppend:
        """Append a block and tell the waiter."""

    async def run_append(self, block: BlockAppend, timeout_ms: int) -> Appended:
        """Go on with an append whose outcome is unknown."""

    def reading(
        self,
        first: Lsn,
        end: Lsn,
        fill_after_ms: int | None,
        settings: ReadingOptions | None,
        selection: Selection | None,
    ) -> Reading: ...

    async def part_at(self, lsn: Lsn, timeout_ms: int) -> Deliver | Gap:
        """The block that holds this position, or the gap that it lies in."""

    async def peek(self, timeout_ms: int) -> Lsn: ...

    async def bounds(self, timeout_ms: int) -> tuple[Lsn, Lsn]: ...

    async def readable_bounds(self, timeout_ms: int) -> tuple[Lsn, Lsn]: ...

    async def tail_lsn(self, timeout_ms: int) -> Lsn:
        """At or above every position that was acknowledged before the call."""

    async def sealed_end(self, timeout_ms: int) -> Lsn | None:
        """The position after the last record, for good; None while the log takes appends."""

    async def back_from(self, start: Lsn, end: Lsn, count: int) -> Lsn:
        """The position `count` records before `end`, not below `start`."""

    async def find_time(self, timestamp_us: int, timeout_ms: int) -> Lsn: ...

    async def young_from(self, moment_us: int, timeout_ms: int) -> Lsn:
        """Below it nothing is younger than this, by what the headers of blocks say."""

    async def weigh(self, first: Lsn, end: Lsn, pieces: int) -> list[Weight]: ...

    async def runs(self, first: Lsn, end: Lsn) -> Runs:
        """Where in [first, end) records lie."""

    async def trim_nodes(self, point: Lsn, timeout_ms: int) -> str | None:
        """None when every node has trimmed, or what is in the way."""

    async def verify(self, timeout_ms: int) -> Verdict:
        """Whether every block lies where it should; raises UsageError if that is not looked at."""

    async def describe(self, timeout_ms: int) -> "LogDescription | SequencedDescription": ...

    def show(self, lsn: Lsn) -> str:
        """As people write positions of this kind of log."""
