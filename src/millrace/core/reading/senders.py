"""One node that a stream reads from: whether it answers, how far it says it has come.

All that a node ever says is one number, its claim: "below `next_lsn` I have nothing more to send
on this version of the stream".  In single copy delivery that is less than "I do not have it".

  I1  A claim holds for one version: START takes it back to where the stream is.
  I2  Within a version a claim only goes up.
  I3  A claim made while the node may have lost blocks, or past a block that it could not read, is
      no vote that there is nothing.
  I4  A node that fails is asked again after a pause that doubles, within bounds, until it has
      served for as long as the longest pause.
"""

from enum import Enum

from millrace.core.messages import Blocks, CaughtUp, Damaged, GapFound
from millrace.core.reading.settings import SequencedReadSettings
from millrace.types import NO_LSN, AuthoritativeStatus, Lsn, NodeId

Push = Blocks | CaughtUp | GapFound | Damaged
EARLY_MESSAGES_MAX = 1_024  # Pushed before the answer to START; far more than any node does.


class SenderState(Enum):
    START_SENT = "start_sent"
    READING = "reading"
    RECONNECTING = "reconnecting"  # It failed, and will be asked again when its pause is over.


class Trouble(Enum):
    """Why a node does not serve the stream."""

    LOST = "lost"
    SILENT = "silent"
    REFUSED = "refused"
    ENDED = "ended"
    MISBEHAVED = "misbehaved"
    CROWDED = "crowded"


class GapState(Enum):
    """What a node's claim says of the position that is to be delivered next."""

    NONE = "none"  # It may still send it.
    GAP = "gap"  # It has it not, or not for this stream.
    INCOMPLETE = "incomplete"  # It will not send it, but may have had it.


class Sender:
    __slots__ = (
        "_reconnect_ms",
        "_served_since_ms",
        "_settings",
        "damaged_end",
        "due_ms",
        "early",
        "granted_bytes",
        "has_spoken",
        "incomplete_end",
        "is_alive",
        "is_incomplete",
        "next_lsn",
        "node",
        "received_bytes",
        "start_first",
        "state",
        "strikes",
        "trimmed_end",
        "trouble",
        "version",
        "window_ends",
    )

    def __init__(self, node: NodeId, settings: SequencedReadSettings) -> None:
        self.node = node
        self.state = SenderState.RECONNECTING
        self.trouble: Trouble | None = None
        self.version = 0  # Of the last START to it.
        self.due_ms: int | None = None  # Of the answer to START, or of the next START.
        self.is_alive = False  # It has answered START, and nothing was wrong since.
        self.is_incomplete = False
        self.start_first = NO_LSN
        self.trimmed_end = NO_LSN  # Up to where it said that the log is trimmed.
        self.next_lsn = NO_LSN
        self.incomplete_end = NO_LSN  # Claims below this are no votes (I3).
        self.damaged_end = NO_LSN  # Not forgotten in a rewind: the copy stays damaged.
        self.has_spoken = False  # It has made a claim in this version.
        self.strikes = 0  # Grace periods in which it was silent.
        self.early: list[Push] = []  # Overtook the answer to START.
        self.received_bytes = 0
        self.granted_bytes = 0
        self.window_ends: set[Lsn] = set()  # Where the windows end that it was told of.
        self._settings = settings
        self._reconnect_ms = settings.reconnect_ms_min
        self._served_since_ms: int | None = None

    @property
    def is_connected(self) -> bool:
        return self.state is not SenderState.RECONNECTING

    @property
    def is_reading(self) -> bool:
        return self.state is SenderState.READING

    @property
    def has_room(self) -> bool:
        return self.received_bytes < self.granted_bytes

    @property
    def is_at_window_end(self) -> bool:
        """Its claim ends where a window did, so it says nothing of what lies there."""
        return self.next_lsn in self.window_ends

    def gap_state(self, next_lsn: Lsn) -> GapState:
        if self.next_lsn <= next_lsn:
            return GapState.NONE
        return GapState.INCOMPLETE if next_lsn < self.incomplete_end else GapState.GAP

    def status(self, known: AuthoritativeStatus) -> AuthoritativeStatus:
        """A node that serves and says that it lost nothing is fully authoritative, whatever was
        known of it (logdevice 2.1)."""
        if self.is_alive and not self.is_incomplete:
            return AuthoritativeStatus.FULLY_AUTHORITATIVE
        return known

    # -- What happens to it -------------------------------------------------------------------

    def start(
        self, version: int, first: Lsn, granted_bytes: int, window_last: Lsn, now_ms: int
    ) -> None:
        """START is sent.  Keeps I1."""
        self.state = SenderState.START_SENT
        self.version = version
        self.due_ms = now_ms + self._settings.started_timeout_ms
        self.start_first = first
        self.trimmed_end = NO_LSN
        self.forget_claims(first)
        self.early.clear()
        self.received_bytes = 0
        self.granted_bytes = granted_bytes
        self.window_ends = {Lsn(window_last + 1)}

    def widen(self, granted_bytes: int, window_last: Lsn) -> None:
        """WINDOW is sent."""
        self.granted_bytes = granted_bytes
        passed = {end for end in self.window_ends if end < self.next_lsn}
        self.window_ends = (self.window_ends - passed) | {Lsn(window_last + 1)}

    def forget_claims(self, first: Lsn) -> None:
        self.next_lsn = first
        self.incomplete_end = NO_LSN
        self.has_spoken = False

    def started(self, is_incomplete: bool, now_ms: int) -> None:
        self.state = SenderState.READING
        self.trouble = None
        self.due_ms = None
        self.is_alive = True
        self.is_incomplete = is_incomplete
        if self._served_since_ms is None:
            self._served_since_ms = now_ms

    def claimed(self, next_lsn: Lsn) -> None:
        """Nothing more comes below this position."""
        assert next_lsn >= self.next_lsn  # I2; whoever receives the claim has checked it.
        if self.has_spoken and next_lsn == self.next_lsn:
            self.window_ends.discard(next_lsn)  # Said again: it knows of a wider window.
        self.next_lsn = next_lsn
        if self.is_incomplete:
            self.incomplete_end = next_lsn
        self.has_spoken = True
        self.strikes = 0

    def damaged(self, next_lsn: Lsn) -> None:
        """It passed a block that it holds and cannot read."""
        self.claimed(next_lsn)
        self.incomplete_end = self.damaged_end = next_lsn

    def failed(self, trouble: Trouble, now_ms: int) -> None:
        """Keeps I4."""
        longest_ms = self._settings.reconnect_ms_max
        since_ms = self._served_since_ms
        if since_ms is not None and now_ms - since_ms >= longest_ms:
            self._reconnect_ms = self._settings.reconnect_ms_min
        self._served_since_ms = None
        self.state = SenderState.RECONNECTING
        self.trouble = trouble
        self.is_alive = False
        self.early.clear()
        if trouble is Trouble.MISBEHAVED or self.is_at_window_end:
            # What another one said remains true; but not that there is nothing beyond a window.
            self.forget_claims(self.start_first)
        self.due_ms = now_ms + self._reconnect_ms
        self._reconnect_ms = min(2 * self._reconnect_ms, longest_ms)
