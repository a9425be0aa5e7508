"""Nodes that take no copies now, and when to ask them whether they do again.

A block that no copyset takes is tried again after longer and longer pauses, and a node that comes
back tells nobody.  So while blocks are held back, the nodes that did not take them are asked, and
what waits goes on with the first of them that is back.

  I1  A node is asked one question at a time, and not before its pause is over.
  I2  One that answers and still takes no copies is asked less and less often: everything that
      waits is sent again each time, and the waves of a block are counted.
"""

from collections.abc import Collection
from typing import Final

from millrace.types import NodeId

PAUSE_MS: Final = 250
PAUSE_MS_MAX: Final = 60_000


class _Absence:
    __slots__ = ("due_ms", "has_answered", "is_asked", "pause_ms")

    def __init__(self, now_ms: int) -> None:
        self.pause_ms = PAUSE_MS
        self.due_ms = now_ms + PAUSE_MS
        self.is_asked = False
        self.has_answered = False


class Absences:
    def __init__(self) -> None:
        self._absences: dict[NodeId, _Absence] = {}

    def __contains__(self, node: NodeId) -> bool:
        return node in self._absences

    @property
    def nodes(self) -> list[NodeId]:
        return sorted(self._absences)

    def missed(self, node: NodeId, now_ms: int) -> None:
        """It did not take a copy."""
        absence = self._absences.get(node)
        if absence is None:
            self._absences[node] = _Absence(now_ms)
        elif absence.has_answered:  # Keeps I2.
            absence.has_answered = False
            absence.pause_ms = min(2 * absence.pause_ms, PAUSE_MS_MAX)
            absence.due_ms = now_ms + absence.pause_ms

    def stored(self, node: NodeId) -> None:
        self._absences.pop(node, None)

    def due(self, now_ms: int, but: Collection[NodeId]) -> list[NodeId]:
        """Whom to ask now; keeps I1."""
        due: list[NodeId] = []
        for node, absence in self._absences.items():
            if now_ms >= absence.due_ms and not absence.is_asked and node not in but:
                absence.is_asked = True
                due.append(node)
        return due

    def hope(self, now_ms: int) -> None:
        """Things have changed: all are asked as if they had just gone."""
        for absence in self._absences.values():
            absence.pause_ms = PAUSE_MS
            absence.due_ms = now_ms

    def answered(self, node: NodeId, is_back: bool, now_ms: int) -> None:
        """To the question; what it is worth shows when it is sent a copy."""
        absence = self._absences.get(node)
        if absence is not None:
            absence.is_asked = False
            absence.has_answered = is_back
            absence.due_ms = now_ms + absence.pause_ms
