"""Carries one block to its copyset, in the three stages of seed 000 (R10).

    REPLICATION   any R nodes of the copyset have it         the client is answered
    SYNC_LEADERS  so have its first `sync_leaders` nodes     it may be released
    LEADERS       so have its first `leaders` nodes          complete

Readers ask the left-most nodes of a copyset first, so the copies are to lie on the left: whoever
is slower than R others and still answers takes the place of the right-most one that has a copy.

An attempt is a wave: one copyset, one number.  A wave that cannot succeed is void, and the next
one has another copyset; copies that a void wave left behind are dropped at the end.  Writing goes
before tidiness: a block whose leaders do not answer is complete without them.

  I1  The client is answered at most once, when R nodes have acknowledged the same wave.
  I2  Acknowledgements of a void wave do not count.
  I3  A copy is dropped only while enough acknowledged copies of the current wave remain, so what
      was acknowledged once stays stored, whatever happens to later waves.
  I4  Once retired there is no further wave: a released block does not move.
  I5  At the end nobody but the acknowledged, R if all leaders answered, keeps a copy, as far as
      they can be told.
  I6  Every wait has an end: a Store its own time limit, leaders and pauses a timer, and waves are
      counted.
"""

from collections.abc import Callable, Collection
from enum import Enum

from millrace.core.sequenced.copysets import Copyset
from millrace.core.sequenced.effects import (
    AppenderEffect,
    Complete,
    DropCopies,
    GiveUp,
    NeedCopyset,
    Reply,
    Retire,
    SendWave,
    StartTimer,
)
from millrace.core.sequenced.settings import AppenderSettings
from millrace.types import NodeId

Replicates = Callable[[Collection[NodeId]], bool]  # Whether copies on these nodes are enough.


class Stage(Enum):
    PAUSED = "paused"  # No wave is on its way.
    REPLICATION = "replication"
    SYNC_LEADERS = "sync_leaders"
    LEADERS = "leaders"
    COMPLETE = "complete"
    GIVEN_UP = "given_up"


class _Wave:
    __slots__ = ("absent", "acked", "copyset", "dropped", "missed")

    def __init__(self, copyset: Copyset) -> None:
        self.copyset = copyset
        self.acked: set[NodeId] = set()
        self.dropped: set[NodeId] = set()  # Acknowledged, and not needed.
        self.missed: set[NodeId] = set()  # Will not acknowledge ...
        self.absent: set[NodeId] = set()  # ... and certainly has no copy of this wave.


_OPEN = (Stage.REPLICATION, Stage.SYNC_LEADERS, Stage.LEADERS)  # A wave is on its way.
_REPLY, _RETIRE, _GIVE_UP = Reply(), Retire(), GiveUp()
_COMPLETE = Complete(is_short=False)


class Appender:
    def __init__(self, settings: AppenderSettings, replicates: Replicates) -> None:
        self.stage = Stage.PAUSED
        self.has_replied = False
        self._settings = settings
        self._replicates = replicates
        self._waves: list[_Wave] = []
        self._attempts = 0
        self._timer = 0

    @property
    def wave(self) -> int:
        return len(self._waves)

    @property
    def is_retired(self) -> bool:
        return self.stage is Stage.LEADERS or self.stage is Stage.COMPLETE

    @property
    def may_be_stored(self) -> bool:
        """Some node has a copy, or nobody knows that it has none."""
        return any(len(wave.absent) < len(wave.copyset) for wave in self._waves)

    @property
    def waits_for(self) -> tuple[NodeId, ...]:
        """The nodes that must answer before the stage can end; none in a pause."""
        match self.stage:
            case Stage.REPLICATION:
                return self._unanswered(None)
            case Stage.SYNC_LEADERS:
                return self._unanswered(self._settings.sync_leaders)
            case Stage.LEADERS:
                return self._unanswered(self._settings.leaders)
        return ()

    def has_acks(self, wave: int) -> bool:
        return bool(self._waves[wave - 1].acked)

    # -- Events -------------------------------------------------------------------------------

    def begin(self, copyset: Copyset | None) -> list[AppenderEffect]:
        """The first wave, or the next one as NeedCopyset asked; None: there is no copyset now."""
        assert self.stage is Stage.PAUSED, f"a wave was begun in stage {self.stage.value}"
        self._attempts += 1
        self._timer += 1  # A pause that was cut short ends here.
        if copyset is None:
            return self._pause()
        self._waves.append(_Wave(copyset))
        self.stage = Stage.REPLICATION
        return [SendWave(self.wave, copyset)]

    def stored(self, node: NodeId, wave: int) -> list[AppenderEffect]:
        current = self._current(node, wave)
        if current is None:
            return []
        current.acked.add(node)
        effects: list[AppenderEffect] = []
        if self.stage is Stage.REPLICATION:
            if not self._replicates(current.acked):
                return effects
            if not self.has_replied:
                self.has_replied = True
                effects.append(_REPLY)
            if wave == 1 and len(current.acked) == len(current.copyset) <= self._settings.leaders:
                # As nearly always: nobody is missing, and nothing was sent to anybody else.
                self.stage = Stage.COMPLETE
                return [*effects, _RETIRE, _COMPLETE]
            self.stage = Stage.SYNC_LEADERS
            return [*effects, *self._drop_surplus(current), *self._advance(current, True)]
        return [*self._drop_surplus(current), *self._advance(current, False)]

    def missed(self, node: NodeId, wave: int, may_be_stored: bool) -> list[AppenderEffect]:
        """The node refused, or there is no answer and will be none."""
        if not may_be_stored and node in self._waves[wave - 1].copyset:
            self._waves[wave - 1].absent.add(node)
        current = self._current(node, wave)
        if current is None:
            return []
        current.missed.add(node)
        if self.stage is not Stage.REPLICATION:
            return self._advance(current, False)
        if self._replicates(set(current.copyset) - current.missed):
            return []  # Its extras can still make up for it.
        return self._void()

    def timer_fired(self, number: int) -> list[AppenderEffect]:
        if number != self._timer:
            return []
        match self.stage:
            case Stage.PAUSED:
                return self.retry()
            case Stage.SYNC_LEADERS:
                return self._void()
            case Stage.LEADERS:
                return self._complete(self._waves[-1], is_short=True)
        return []

    def retry(self) -> list[AppenderEffect]:
        """Do not wait for the end of the pause, if there is one: things look better."""
        if self.stage is not Stage.PAUSED:
            return []
        return [NeedCopyset(self._waves[-1].copyset if self._waves else ())]

    # -- Stages -------------------------------------------------------------------------------

    def _current(self, node: NodeId, wave: int) -> _Wave | None:
        """The wave, if the node's answer to it still counts (I2)."""
        if self.stage not in _OPEN or wave != len(self._waves):
            return None
        current = self._waves[-1]
        is_news = (
            node in current.copyset and node not in current.acked and node not in current.missed
        )
        return current if is_news else None

    def _advance(self, current: _Wave, is_new_stage: bool) -> list[AppenderEffect]:
        """As far as the answers go; R nodes have acknowledged."""
        effects: list[AppenderEffect] = []
        if self.stage is Stage.SYNC_LEADERS:
            missing = self._missing(current, self._settings.sync_leaders)
            if missing & current.missed:
                return self._void()
            if not missing:
                self.stage, is_new_stage = Stage.LEADERS, True
                effects.append(_RETIRE)
        if self.stage is Stage.LEADERS:
            missing = self._missing(current, self._settings.leaders)
            if missing <= current.missed:
                return [*effects, *self._complete(current, is_short=bool(missing))]
        if is_new_stage:
            effects.append(self._start_timer(self._settings.leader_timeout_ms))
        return effects

    def _missing(self, current: _Wave, leaders: int) -> set[NodeId]:
        return set(current.copyset[:leaders]) - current.acked

    def _unanswered(self, leaders: int | None) -> tuple[NodeId, ...]:
        current = self._waves[-1]
        answered = current.acked | current.dropped | current.missed
        return tuple(node for node in current.copyset[:leaders] if node not in answered)

    def _drop_surplus(self, current: _Wave) -> list[AppenderEffect]:
        """Keeps I3.  From the right; never a leader, which is where copies are to be."""
        surplus = []
        for node in reversed(current.copyset[self._settings.leaders :]):
            if node in current.acked and self._replicates(current.acked - {node}):
                current.acked.remove(node)
                current.dropped.add(node)
                surplus.append(node)
        return [DropCopies(tuple(surplus), self.wave)] if surplus else []

    def _complete(self, current: _Wave, is_short: bool) -> list[AppenderEffect]:
        """Keeps I5.  Copies that may be on their way are dropped as well: the order to do so comes
        behind them."""
        self.stage = Stage.COMPLETE
        strays: dict[NodeId, None] = {}
        for wave in self._waves:
            gone = wave.absent | wave.dropped | current.acked | current.dropped
            strays |= dict.fromkeys(node for node in wave.copyset if node not in gone)
        dropped: list[AppenderEffect] = [DropCopies(tuple(strays), self.wave)] if strays else []
        return [*dropped, Complete(is_short)]

    # -- Waves --------------------------------------------------------------------------------

    def _void(self) -> list[AppenderEffect]:
        self.stage = Stage.PAUSED
        settings = self._settings
        if self._attempts < min(settings.waves_at_once, settings.waves_max):
            return self.retry()
        return self._pause()

    def _pause(self) -> list[AppenderEffect]:
        settings = self._settings
        if self._attempts >= settings.waves_max:
            self.stage = Stage.GIVEN_UP
            return [_GIVE_UP]
        doublings = max(0, self._attempts - settings.waves_at_once)
        return [self._start_timer(min(settings.retry_ms << doublings, settings.retry_ms_max))]

    def _start_timer(self, ms: int) -> StartTimer:
        self._timer += 1
        return StartTimer(self._timer, ms)
