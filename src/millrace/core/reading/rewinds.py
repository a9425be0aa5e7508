"""When a stream rewinds, and why (logdevice 2.10).

A rewind is START to all nodes at the position that is to be delivered next, with a new version.
It costs what was sent ahead, so reasons that come together make one rewind, and rewinds that
follow each other closely get slower.

  I1  The pause before a rewind is twice the one before, within bounds, and falls with time: a
      trouble that does not end causes a bounded number of rewinds in any time.
  I2  Whether there is still a cause is asked when the time has come, not when it was set: a rewind
      whose causes went away is not done.
"""

from enum import Enum
from typing import Final

from millrace.core.reading.settings import SequencedReadSettings


class RewindReason(Enum):
    """Why a stream asked all nodes again."""

    SENDER_LOST = "sender_lost"  # The connection broke, or could not be made.
    STARTED_TIMEOUT = "started_timeout"  # No answer to START.
    REFUSED = "refused"  # START was refused.
    ENDED = "ended"  # The node does not serve the log any more.
    DAMAGED = "damaged"  # The node's copy does not match its checksum.
    MISBEHAVED = "misbehaved"  # The node breaks the protocol.
    STATUS = "status"  # The node is not fully authoritative.
    INCOMPLETE = "incomplete"  # The node may have lost the block that is missing.
    NO_PROGRESS = "no_progress"  # The node has been silent for too long.
    RETURNED = "returned"  # A node that was down sends again.
    SLOW = "slow"  # The list of slow nodes changed.
    NOBODY_LEFT = "nobody_left"  # No node is to send the next position: all send all.
    STALLED = "stalled"  # As the last resort: all send all.
    SLID = "slid"  # The window slid: back to single copy delivery.
    EMPTIED = "emptied"  # A node's data was copied elsewhere, perhaps behind the reader.
    REFILLED = "refilled"  # A node counts again: its copies were made anew, here or elsewhere.
    SECOND_CHANCE = "second_chance"  # Before a loss is told.


# Those that are done whether the lists have changed or not.
_UNCONDITIONAL: Final = frozenset(
    {RewindReason.EMPTIED, RewindReason.REFILLED, RewindReason.SECOND_CHANCE}
)


class RewindSchedule:
    def __init__(self, settings: SequencedReadSettings) -> None:
        self.counts: dict[RewindReason, int] = {}  # A rewind with two reasons counts for both.
        self.total = 0
        self.due_ms: int | None = None
        self._settings = settings
        self._reasons: dict[RewindReason, None] = {}  # A set that keeps its order.
        self._pause_ms = settings.rewind_ms_min
        self._rewound_ms: int | None = None

    @property
    def is_pending(self) -> bool:
        return self.due_ms is not None

    @property
    def reasons(self) -> tuple[RewindReason, ...]:
        """Of the rewind that is pending."""
        return tuple(self._reasons)

    def schedule(self, reason: RewindReason, now_ms: int) -> None:
        self._reasons[reason] = None
        if self.due_ms is None:
            self.due_ms = now_ms + self._pause_at(now_ms)

    def take(self, has_changes: bool, now_ms: int) -> bool:
        """The time has come: whether to rewind.  Keeps I2."""
        reasons, self._reasons, self.due_ms = self._reasons, {}, None
        if not has_changes and _UNCONDITIONAL.isdisjoint(reasons):
            return False
        self.total += 1
        for reason in reasons:
            self.counts[reason] = self.counts.get(reason, 0) + 1
        self._pause_ms = min(2 * self._pause_at(now_ms), self._settings.rewind_ms_max)
        self._rewound_ms = now_ms
        return True

    def _pause_at(self, now_ms: int) -> int:
        if self._rewound_ms is None:
            return self._settings.rewind_ms_min
        fallen = (now_ms - self._rewound_ms) * self._settings.rewind_decrease_ms_per_s // 1_000
        return max(self._settings.rewind_ms_min, self._pause_ms - fallen)
