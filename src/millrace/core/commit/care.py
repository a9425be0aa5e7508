"""Which streams of a log need to be reformed, and by whom: the committer's judgement of replicas.

I1  A stream is reformed by one at a time; what failed is tried again after a pause.
I2  Nobody is left out while nobody else is there: a stream whose replicas are all away waits.
I3  A stream with fewer replicas than it should have gets one more at a time, and a node that was
    a replica before comes first, because it has most of the stream (M8); those that failed last.
I4  A replica on a node that is drained, or that is moved, counts for nothing when replicas are
    wanted, and leaves only when the stream has all it should have without it.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from millrace.core.commit.record import StreamRecord
from millrace.types import NodeId

REFORM_RETRY_MS: Final = 500
SYNC_RETRY_MS: Final = 1_000
SILENT_MS: Final = 1_500  # A live node that did not answer for so long is left out ...
REFUSED_MS: Final = 300  # ... and sooner if it cannot be connected to.


class Nodes(msgspec.Struct, frozen=True):
    """What the committer knows of nodes: `takers` are alive and may get a replica, the best first;
    `drained` ones should have none; `loads` counts the replicas of the log that they have or get;
    `away_ms` tells when those that do not answer are to be given up.  Nobody is known to be `live`
    before the committer has looked."""

    live: frozenset[NodeId]
    takers: tuple[NodeId, ...]
    away_ms: Mapping[NodeId, int]
    drained: frozenset[NodeId] = frozenset()
    loads: Counter[NodeId] = msgspec.field(default_factory=Counter)

    def is_away(self, node: NodeId, now_ms: int) -> bool:
        """One that answers is here, whatever its lease says; of one whose lease is over a single
        answer that does not come is enough."""
        due_ms = self.away_ms.get(node)
        if due_ms is None:
            return False
        return now_ms >= due_ms or bool(self.live and node not in self.live)


class StreamCare:
    def __init__(self) -> None:
        self.is_reforming = False
        self.trouble = ""
        self.retry_ms = 0
        self.sync_retry_ms = 0
        self.learner: NodeId | None = None  # Is being brought to where the stream is.
        self.joining: frozenset[NodeId] = frozenset()  # Is there.
        self.leaving: frozenset[NodeId] = frozenset()  # At once, whether others come or not.
        self.former: tuple[NodeId, ...] = ()  # Replicas that were left out, the last one first.
        self.should_be_open: bool | None = None  # None: as it is.
        self.gives_up = False  # What no replica has any more, once.
        self._invited: NodeId | None = None  # By an operator, in the place of `_moving`, if any.
        self._moving: NodeId | None = None
        self._failures: dict[NodeId, int] = {}  # Of those that were to join.

    # -- What is to be done ---------------------------------------------------------------------

    def needs_reform(
        self, record: StreamRecord, copies: int, is_broken: bool, nodes: Nodes, now_ms: int
    ) -> bool:
        if self.is_reforming or now_ms < self.retry_ms:  # Keeps I1.
            return False
        if self.should_be_open is not None and self.should_be_open is not record.is_open:
            return True
        if not record.generation or is_broken or self.joining:
            return True
        count = len(record.replicas)
        if count > copies and self.who_yields(record, nodes):
            return True
        away = sum(nodes.is_away(node, now_ms) for node in record.replicas)
        return 0 < away < count or 0 < len(self.who_leaves(record)) < count  # Keeps I2.

    def review(self, record: StreamRecord, copies: int, nodes: Nodes) -> None:
        """Forget who was synced in vain: it died, was drained, or is not needed any more."""
        if self.is_reforming or not self.joining:
            return
        can = (self.joining & nodes.live).difference(nodes.drained, record.replicas)
        needed = sorted(can)[: self._missing(record, copies, nodes)]
        self.joining = can.intersection((*needed, self._invited))

    def _missing(self, record: StreamRecord, copies: int, nodes: Nodes) -> int:
        stays = len(record.replicas) - len(self.who_yields(record, nodes))
        return max(0, copies - stays)

    def who_joins(self) -> tuple[NodeId, ...]:
        return tuple(sorted(self.joining))

    def who_leaves(self, record: StreamRecord) -> tuple[NodeId, ...]:
        return tuple(node for node in record.replicas if node in self.leaving)

    def who_yields(self, record: StreamRecord, nodes: Nodes) -> tuple[NodeId, ...]:
        """Those that leave when there are enough without them (I4)."""
        unwanted = nodes.drained if self._moving is None else nodes.drained | {self._moving}
        return tuple(node for node in record.replicas if node in unwanted)

    def next_learner(
        self, record: StreamRecord, copies: int, nodes: Nodes, now_ms: int
    ) -> NodeId | None:
        """Keeps I3 and I4."""
        is_busy = self.is_reforming or self.learner is not None or bool(self.joining)
        if is_busy or not record.generation or now_ms < self.sync_retry_ms:
            return None
        can = [node for node in nodes.takers if node not in record.replicas]
        if self._invited is not None and self._invited in can:
            return self._invited
        if not self._missing(record, copies, nodes):
            return None
        return min(can, key=lambda node: self._rank(node, nodes), default=None)

    def _rank(self, node: NodeId, nodes: Nodes) -> tuple[int, int, int]:
        place = self.former.index(node) if node in self.former else len(self.former)
        return self._failures.get(node, 0), place, nodes.loads[node]

    def lack(self, record: StreamRecord, copies: int, nodes: Nodes) -> str:
        """Why it does not get the replicas that it should have; empty if it can."""
        yielding = self.who_yields(record, nodes)
        missing = self._missing(record, copies, nodes)
        can = sum(node not in record.replicas for node in nodes.takers)
        if missing <= can or not nodes.live:
            return ""
        drained = f"; drained: {', '.join(map(str, yielding))}" if yielding else ""
        return f"{missing} more nodes that take copies are needed, there are {can}{drained}"

    # -- What operators want --------------------------------------------------------------------

    @property
    def is_moving(self) -> bool:
        return self._invited is not None and self._invited in self.coming

    def invite(self, node: NodeId, instead_of: NodeId | None) -> None:
        """One at a time: nobody is invited while somebody else `is_moving`."""
        self._invited, self._moving = node, instead_of

    def _forget_move(self) -> None:
        self._invited = self._moving = None

    # -- What happened --------------------------------------------------------------------------

    def failed(self, why: str, now_ms: int) -> None:
        self.is_reforming = False
        self.trouble = why
        self.retry_ms = now_ms + REFORM_RETRY_MS

    def opened(self, record: StreamRecord, failed: Collection[NodeId], now_ms: int) -> None:
        self.is_reforming = self.gives_up = False
        self.trouble = ""
        for node in self.joining.difference(record.replicas):
            self._not_joined(node, f"node {node} could not be given the last entries", now_ms)
        for node in record.replicas:
            self._failures.pop(node, None)
        self.joining = frozenset()
        self.leaving &= frozenset(record.replicas)
        has_come = self._invited in record.replicas or self._moving is not None
        if has_come and self._moving not in record.replicas:
            self._forget_move()
        if self.should_be_open is record.is_open:
            self.should_be_open = None
        if failed:
            self.failed(f"nodes {', '.join(map(str, failed))} did not open it", now_ms)

    def replaced(self, before: StreamRecord, after: StreamRecord) -> None:
        gone = [node for node in before.replicas if node not in after.replicas]
        stays = [node for node in self.former if node not in after.replicas + tuple(gone)]
        self.former = (*gone, *stays)

    def synced(self, why_not: str, now_ms: int) -> None:
        learner, self.learner = self.learner, None
        if why_not and learner is not None:
            self._not_joined(learner, why_not, now_ms)
        elif learner is not None:
            self.joining |= {learner}

    def _not_joined(self, node: NodeId, why: str, now_ms: int) -> None:
        self._failures[node] = self._failures.get(node, 0) + 1
        self.trouble = why
        self.sync_retry_ms = now_ms + SYNC_RETRY_MS
        if node == self._invited:
            self._forget_move()  # An operator may want another node then.

    @property
    def coming(self) -> frozenset[NodeId]:
        return self.joining if self.learner is None else self.joining | {self.learner}

    def due_ms(self) -> Sequence[int]:
        return self.retry_ms, self.sync_retry_ms
