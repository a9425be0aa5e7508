"""Who sends: the mode of a stream and its two lists (R5, R6, logdevice 2.11).

In single copy delivery every node is told which ones are known to be down, so that the next of a
copyset sends in their place.  Nodes get on that list for two causes that end differently: those
that cannot send leave it when they send, those that are slow when their probation is over.  In
all-send-all every node sends what it has, and nobody is listed.

  I1  What nodes were told changes only in a rewind (`apply`), for all of them together; what is
      wanted meanwhile is kept apart.
  I2  In all-send-all both lists are empty; single copy delivery with all nodes down is
      all-send-all.
  I3  A node that is down is not slow: down wins.
"""

from collections.abc import Collection, Mapping
from enum import Enum

from millrace.core.reading.rewinds import RewindReason
from millrace.types import NodeId

NOBODY: frozenset[NodeId] = frozenset()


class Mode(Enum):
    SINGLE_COPY = "single_copy"
    ALL_SEND_ALL = "all_send_all"


class Lists:
    def __init__(self, is_single_copy: bool) -> None:
        self._is_single_copy_allowed = is_single_copy
        self.mode = Mode.SINGLE_COPY if is_single_copy else Mode.ALL_SEND_ALL
        self.down = NOBODY
        self.slow = NOBODY
        self._wanted_mode = self.mode
        self._wanted_down: dict[NodeId, RewindReason] = {}
        self._wanted_slow = NOBODY

    # -- What nodes were told -----------------------------------------------------------------

    @property
    def is_single_copy(self) -> bool:
        return self.mode is Mode.SINGLE_COPY

    @property
    def listed(self) -> frozenset[NodeId]:
        """Those that are sent as known to be down."""
        return self.down | self.slow

    # -- What is wanted -----------------------------------------------------------------------

    @property
    def wants_single_copy(self) -> bool:
        return self._wanted_mode is Mode.SINGLE_COPY

    @property
    def wanted_down(self) -> Mapping[NodeId, RewindReason]:
        """Who is to be listed as down, and why."""
        return self._wanted_down

    @property
    def has_changes(self) -> bool:
        return (
            self.mode is not self._wanted_mode
            or self.down != self._wanted_down.keys()
            or self.slow != self._effective_slow()
        )

    def add_down(self, node: NodeId, reason: RewindReason, members: Collection[NodeId]) -> bool:
        """Whether something has changed.  Keeps I2."""
        if not self.wants_single_copy or node in self._wanted_down:
            return False
        self._wanted_down[node] = reason
        if self._wanted_down.keys() >= set(members):
            self.want_all_send_all()
        return True

    def remove_down(self, node: NodeId) -> bool:
        return self._wanted_down.pop(node, None) is not None

    def set_slow(self, nodes: frozenset[NodeId]) -> bool:
        if not self.wants_single_copy or nodes == self._wanted_slow:
            return False
        self._wanted_slow = nodes
        return self.slow != self._effective_slow()

    def want_all_send_all(self) -> None:
        self._wanted_mode = Mode.ALL_SEND_ALL
        self._wanted_down.clear()
        self._wanted_slow = NOBODY

    def want_single_copy(
        self, down: Mapping[NodeId, RewindReason], members: Collection[NodeId]
    ) -> bool:
        """Back, with these known to be down; refused when that would be all, or is not wanted by
        the user."""
        if not self._is_single_copy_allowed or down.keys() >= set(members):
            return False
        self._wanted_mode = Mode.SINGLE_COPY
        self._wanted_down = dict(down)
        return True

    def keep(self, members: Collection[NodeId]) -> None:
        """The others are not in the nodeset any more: no copyset has them, so it need not be
        told."""
        kept = frozenset(members)
        self.down &= kept
        self.slow &= kept
        self._wanted_slow &= kept
        for node in self._wanted_down.keys() - kept:
            del self._wanted_down[node]

    def apply(self) -> None:
        """A rewind: what was wanted is what nodes are told."""
        self.mode = self._wanted_mode
        self.down = frozenset(self._wanted_down)
        self.slow = self._effective_slow()

    def _effective_slow(self) -> frozenset[NodeId]:
        return self._wanted_slow - self._wanted_down.keys()  # Keeps I3.
