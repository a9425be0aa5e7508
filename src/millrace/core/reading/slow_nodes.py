"""Which nodes are much slower than the others: the failure detector for nodes that are not down.

In single copy delivery a reader is as fast as the slowest node that sends to it.  Measured is how
long each node takes from the moment the window slides until it has nothing more to send in it, or
nothing more that it may send before the reader has taken some, for each mebibyte that it sends:
with sticky copysets one node may have the whole window to send and the others nothing.  When all
but a few have passed the window, those few are compared with the rest: whoever has not finished
after

    threshold = m + 5 d + m * margin

of the others' mean m and root mean square deviation d is slow, is treated like a node that is
known to be down, and is measured anew after a probation (LogDevice's greylisting, seed 003).  When
nobody else has ever sent enough to be measured, a node is compared with what it was itself.

Two things are more careful than the original, because here the detector is on by default (R9).  A
node that has finished counts with what this window took it if that is more than its average: at the
end of a log a window stays open until enough is written, for whatever node.  And nobody is slow in
less than `pending_ms_min`, since that is not worth a rewind.

  I1  Slow and down nodes together are fewer than the copies of a block, so that never a whole
      copyset is passed over.
  I2  A detection doubles the margin, which then falls with time while windows slide: a wrong
      verdict makes the next one less likely.
  I3  A probation is twice as long as the one before, and as the first again after a time of
      good behaviour, within bounds.
  I4  Nothing of before a rewind, a probation or an absence is held against a node.

Whoever uses it tells what happened, then asks `slow` who is to be listed, and `next_check_ms` when
to ask again although nothing happened.  In all-send-all nobody is listed: the stream rewinds and
tells of no windows.
"""

import math
from collections import deque
from collections.abc import Callable, Collection
from enum import Enum
from statistics import fmean
from typing import Final

import msgspec

from millrace.core.reading.moving_average import MovingAverage
from millrace.limits import MIB
from millrace.types import NO_LSN, Lsn, NodeId

DEVIATIONS: Final = 5
MARGIN_DOUBLINGS_MAX: Final = 7  # Wrong so often, the detector rests for about an hour and a half.
UNIT_BYTES: Final = MIB
PENDING_CHECK_SLACK_MS: Final = 10  # So that a timer that is early does not find "not quite yet".
PROBATION_CHECK_SLACK_MS: Final = 50  # Those that end together return in one rewind.
WINDOWS_TRACKED: Final = 2  # The window slides before all nodes have passed the one before.


class SlowNodeMode(Enum):
    OFF = "off"
    OBSERVE = "observe"  # Judge and explain, list nobody.
    ON = "on"


class SlowNodeSettings(msgspec.Struct, frozen=True):
    """`outlier_ms_*` bound a probation; `outlier_decrease` is by how much the next one falls, in
    milliseconds for each millisecond of good behaviour."""

    mode: SlowNodeMode = SlowNodeMode.ON
    moving_average_ms: int = 1_800_000
    buckets: int = 10
    required_margin: float = 10.0
    margin_decrease_per_s: float = 0.25
    outlier_ms_min: int = 60_000
    outlier_ms_max: int = 1_800_000
    outlier_decrease: float = 0.25
    pending_ms_min: int = 100


class Verdict(msgspec.Struct, frozen=True):
    """Why a node is slow and how long it stays so."""

    waited_ms: int
    others_ms: float  # The mean of the others.
    until_ms: int


class _Easing:
    """A value that doubles at a setback, and falls while all goes well, from the first good news
    after the setback on."""

    def __init__(self, low: float, high: float, decrease_per_ms: float) -> None:
        self.value = low
        self._low, self._high = low, high
        self._decrease_per_ms = decrease_per_ms
        self._well_since_ms: int | None = None

    def double(self) -> None:
        self.value = min(self._high, 2 * self.value)
        self._well_since_ms = None

    def ease(self, now_ms: int) -> None:
        if self._well_since_ms is not None:
            fall = (now_ms - self._well_since_ms) * self._decrease_per_ms
            self.value = max(self._low, self.value - fall)
        self._well_since_ms = now_ms


class _Pace:
    """What is known of one node's speed."""

    def __init__(self, settings: SlowNodeSettings) -> None:
        self.next_lsn = NO_LSN
        self.sent_bytes = 0
        self.average = MovingAverage(settings.moving_average_ms, settings.buckets)
        self.probation_ms = _Easing(
            settings.outlier_ms_min, settings.outlier_ms_max, settings.outlier_decrease
        )


class _Window(msgspec.Struct):
    last: Lsn
    slid_ms: int
    took_ms: dict[NodeId, float]  # Each mebibyte, of those that have passed; 0: not measured.
    sent_before: dict[NodeId, int]  # Bytes that each node had sent when the window slid.


class _Suspicion(msgspec.Struct, frozen=True):
    """The node is slow if it has still not passed the window at `due_ms`, and sent no more."""

    node: NodeId
    slid_ms: int
    others_ms: float
    due_ms: int


class SlowNodes:
    """`copies` is R, how many nodes have each block at least.  `draw` gives a random number from 0
    to n-1: readers that judged a node together do not return to it at the same moment."""

    def __init__(
        self,
        copies: int,
        draw: Callable[[int], int],
        settings: SlowNodeSettings | None = None,
    ) -> None:
        self._settings = settings or SlowNodeSettings()
        self._copies = copies
        self._draw = draw
        self._paces: dict[NodeId, _Pace] = {}
        self._down: frozenset[NodeId] = frozenset()
        self._slow: dict[NodeId, Verdict] = {}
        self._windows: deque[_Window] = deque(maxlen=WINDOWS_TRACKED)
        margin = self._settings.required_margin
        self._margin = _Easing(
            margin, margin * 2**MARGIN_DOUBLINGS_MAX, self._settings.margin_decrease_per_s / 1_000
        )

    # -- What happened ------------------------------------------------------------------------

    def window_slid(self, window_last: Lsn, now_ms: int, senders: Collection[NodeId]) -> None:
        """`senders` are all nodes that the stream reads from; what it has left is forgotten."""
        if self._settings.mode is SlowNodeMode.OFF:
            return
        self._track(senders)
        passed = {node: 0.0 for node, pace in self._paces.items() if pace.next_lsn > window_last}
        sent = {node: pace.sent_bytes for node, pace in self._paces.items()}
        self._windows.append(_Window(window_last, now_ms, passed, sent))
        self._margin.ease(now_ms)

    def sender_passed(
        self, node: NodeId, next_lsn: Lsn, now_ms: int, sent_bytes: int = UNIT_BYTES
    ) -> None:
        """The node has nothing more to send below `next_lsn`; it has just sent so much."""
        pace = self._paces.get(node)
        if pace is None:
            return
        pace.sent_bytes += sent_bytes
        if next_lsn <= pace.next_lsn:
            return
        pace.next_lsn = next_lsn
        for window in self._windows:
            if window.last < next_lsn and node not in window.took_ms:
                self._finished(window, node, now_ms)

    def sender_waits(self, node: NodeId, now_ms: int) -> None:
        """The node has sent all that it may for now: the rest of its windows is not its doing."""
        for window in self._windows if node in self._paces else ():
            if node not in window.took_ms:
                self._finished(window, node, now_ms)

    def _finished(self, window: _Window, node: NodeId, now_ms: int) -> None:
        pace = self._paces[node]
        window.took_ms[node] = self._took_ms(window, node, now_ms)
        has_sent = pace.sent_bytes - window.sent_before.get(node, 0) >= UNIT_BYTES
        if self._is_candidate(node) and has_sent:
            pace.average.add(window.took_ms[node], now_ms)
            pace.probation_ms.ease(now_ms)

    def _took_ms(self, window: _Window, node: NodeId, now_ms: int) -> float:
        return max(0, now_ms - window.slid_ms) / self._units(window, node)

    def _units(self, window: _Window, node: NodeId) -> float:
        """How much of the window it has sent: at least one unit, for asking takes time too."""
        sent_bytes = self._paces[node].sent_bytes - window.sent_before.get(node, 0)
        return max(1.0, sent_bytes / UNIT_BYTES)

    def rewound(self) -> None:
        """All nodes were asked to begin again: the window that slides next is the first."""
        self._windows.clear()
        for pace in self._paces.values():
            pace.next_lsn = NO_LSN
            pace.sent_bytes = 0

    def down_changed(self, down: Collection[NodeId], now_ms: int) -> None:
        """`down` are those known to be down that may hold copies; the empty ones do not count."""
        for node in self._down.difference(down):
            self._excuse(node)
        self._down = frozenset(down)
        for node in self._down & self._slow.keys():
            self._reinstate(node, now_ms)
        self._make_room(now_ms)

    def copies_changed(self, copies: int, now_ms: int) -> None:
        """The stream has come to epochs that are replicated otherwise."""
        self._copies = copies
        self._make_room(now_ms)

    # -- What follows -------------------------------------------------------------------------

    def slow(self, now_ms: int) -> frozenset[NodeId]:
        """Who is to be listed now."""
        for node, verdict in list(self._slow.items()):
            if now_ms >= verdict.until_ms:
                self._reinstate(node, now_ms)
        for suspicion in self._suspicions(now_ms):
            if now_ms >= suspicion.due_ms and len(self._slow) < self._slow_max:
                self._condemn(suspicion, now_ms)
        is_listing = self._settings.mode is SlowNodeMode.ON
        return frozenset(self._slow) if is_listing else frozenset()

    def next_check_ms(self, now_ms: int) -> int | None:
        """In how many milliseconds `slow` may answer otherwise with no event in between."""
        checks = [each.until_ms + PROBATION_CHECK_SLACK_MS for each in self._slow.values()]
        checks += [each.due_ms + PENDING_CHECK_SLACK_MS for each in self._suspicions(now_ms)]
        return max(0, min(checks) - now_ms) if checks else None

    def explain(self) -> dict[str, object]:
        """Also in mode `observe`, where the slow ones are those that would be listed."""
        return {
            "mode": self._settings.mode.value,
            "required_margin": self._margin.value,
            "slow_max": self._slow_max,
            "slow": {node: msgspec.structs.asdict(each) for node, each in self._slow.items()},
        }

    # -- Judging ------------------------------------------------------------------------------

    @property
    def _slow_max(self) -> int:
        return max(0, self._copies - 1 - len(self._down))  # Keeps I1.

    def _is_candidate(self, node: NodeId) -> bool:
        return node not in self._down and node not in self._slow

    def _suspicions(self, now_ms: int) -> list[_Suspicion]:
        """Nobody while too many have not finished the newest window, or there is nothing to
        compare them with."""
        if not self._windows:
            return []
        window = self._windows[-1]
        candidates = [node for node in self._paces if self._is_candidate(node)]
        pending = [node for node in candidates if node not in window.took_ms]
        if not pending or len(pending) + len(self._slow) > self._slow_max:
            return []
        averages = {node: self._paces[node].average.mean(now_ms) for node in candidates}
        others = [
            max(average, window.took_ms[node])
            for node, average in averages.items()
            if average is not None and node in window.took_ms
        ]
        found: list[_Suspicion] = []
        for node in pending:
            own = averages[node]
            compared = others or ([] if own is None else [own])
            if compared:
                least_ms = math.ceil(self._threshold(compared) * self._units(window, node))
                due_ms = window.slid_ms + max(self._settings.pending_ms_min, least_ms)
                found.append(_Suspicion(node, window.slid_ms, fmean(compared), due_ms))
        return found

    def _threshold(self, others: list[float]) -> float:
        mean = fmean(others)
        deviation = math.sqrt(fmean((each - mean) ** 2 for each in others))
        return mean + DEVIATIONS * deviation + mean * self._margin.value

    def _condemn(self, suspicion: _Suspicion, now_ms: int) -> None:
        waited_ms = now_ms - suspicion.slid_ms
        probation_ms = self._paces[suspicion.node].probation_ms
        until_ms = now_ms + self._fuzzed(probation_ms.value)
        self._slow[suspicion.node] = Verdict(waited_ms, suspicion.others_ms, until_ms)
        probation_ms.double()
        self._margin.double()

    def _fuzzed(self, duration_ms: float) -> int:
        """Up to a tenth more."""
        return int(duration_ms) + self._draw(int(duration_ms) // 10 + 1)

    def _reinstate(self, node: NodeId, now_ms: int) -> None:
        del self._slow[node]
        pace = self._paces[node]
        pace.average.clear()
        pace.probation_ms.ease(now_ms)  # Good behaviour counts from here on.
        self._excuse(node)

    def _excuse(self, node: NodeId) -> None:
        """Keeps I4: the windows that are open now are not measured."""
        for window in self._windows:
            window.took_ms.setdefault(node, 0)

    def _make_room(self, now_ms: int) -> None:
        """Keeps I1: those whose probation ends soonest return first."""
        by_end = sorted(self._slow, key=lambda node: self._slow[node].until_ms, reverse=True)
        for node in by_end[self._slow_max :]:
            self._reinstate(node, now_ms)

    def _track(self, senders: Collection[NodeId]) -> None:
        for node in set(senders) - self._paces.keys():
            self._excuse(node)
        self._paces = {
            node: self._paces.get(node) or _Pace(self._settings) for node in sorted(senders)
        }
        self._slow = {node: each for node, each in self._slow.items() if node in self._paces}
