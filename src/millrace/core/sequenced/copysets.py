"""Which nodes a block goes to: who is avoided for now, a choice among the others, and its reuse.

Three small machines, used in this order.  `Availability` remembers what storage nodes answered,
`CopysetChooser` draws a copyset of the rest, and `StickyCopysets` keeps to one for a while, so
that neighbouring blocks lie on the same nodes and a reader gets long runs from each of them.

  I1  The first R nodes of a copyset satisfy the replication by themselves; the extras behind them
      are a bonus.
  I2  A choice fails only if the nodes that are left cannot hold a copyset.
  I3  It takes time in proportion to the nodeset: nothing is drawn and thrown away.
  I4  Where the domains allow it every node is as likely as any other to be in a copyset, and to
      be its first.  Domains are drawn by the number of their nodes for that reason; a domain
      that no copyset can do without gives its nodes more to do.  So does a near node: one that
      is to have a copy whenever it can, by whoever asks for a copyset.
  I5  SLOW nodes are avoided only as long as enough others are left: a slow cluster still writes.
  I6  A log whose appends come one at a time has a near copy, on its sequencer's own node; one that
      is written in bulk burdens no node more than the others, but for its first copyset.
"""

from collections.abc import Callable, Collection, Sequence
from enum import Enum
from typing import Final, TypeVar

import msgspec

from millrace.core.replication import Locations, Replication, Scope, domain_of, requirements
from millrace.core.sequenced.settings import SequencerSettings
from millrace.limits import COPYSET_SIZE_MAX
from millrace.types import NO_NODE, NodeId

Copyset = tuple[NodeId, ...]
Draw = Callable[[int], int]  # A number of 0..n-1, each as likely as the others.
T = TypeVar("T")
LONE_PERCENT_MIN: Final = 50  # Of a log's blocks, so that the next have a near copy.


class AvoidCause(Enum):
    """Why no copies are sent to a node for a time."""

    NO_SPACE = "no_space"
    OVERLOADED = "overloaded"
    DISABLED = "disabled"  # It takes no stores now: it is starting, or being repaired.
    UNREACHABLE = "unreachable"
    SLOW = "slow"  # It held up a wave that the others had answered.


class AvoidTimes(msgspec.Struct, frozen=True):
    """For how long, by cause."""

    no_space_ms: int = 60_000
    overloaded_ms: int = 1_000
    disabled_ms: int = 30_000
    unreachable_ms: int = 60_000
    slow_ms: int = 600_000

    def of(self, cause: AvoidCause) -> int:
        match cause:
            case AvoidCause.NO_SPACE:
                return self.no_space_ms
            case AvoidCause.OVERLOADED:
                return self.overloaded_ms
            case AvoidCause.DISABLED:
                return self.disabled_ms
            case AvoidCause.UNREACHABLE:
                return self.unreachable_ms
            case AvoidCause.SLOW:
                return self.slow_ms


class Availability:
    """Which nodes of a nodeset are to be avoided now."""

    SLOW_SHARE = 4  # At most one node in so many is avoided for being slow.

    def __init__(
        self, nodeset: Collection[NodeId], copies: int, times: AvoidTimes | None = None
    ) -> None:
        self._nodeset = frozenset(nodeset)
        self._times = times or AvoidTimes()
        spare = max(0, len(self._nodeset) - copies)
        self._slow_max = min(max(len(self._nodeset) // self.SLOW_SHARE, 1), spare)
        self._until_ms: dict[tuple[NodeId, AvoidCause], int] = {}
        self.disabled: frozenset[NodeId] = (
            frozenset()
        )  # By their statuses, for as long as those say.

    def disable(self, nodes: frozenset[NodeId]) -> None:
        self.disabled = nodes & self._nodeset

    def avoid(self, node: NodeId, cause: AvoidCause, now_ms: int) -> None:
        """Answers may come from nodes that are not in the nodeset any more: they are ignored."""
        self._forget_expired(now_ms)
        if node not in self._nodeset:
            return
        key = node, cause
        if cause is AvoidCause.SLOW and key not in self._until_ms:
            slow = sum(1 for _, why in self._until_ms if why is AvoidCause.SLOW)
            if slow >= self._slow_max:  # Keeps I5.
                return
        self._until_ms[key] = now_ms + self._times.of(cause)

    def cleared(self, node: NodeId) -> None:
        """It answered, so it can be reached.  That says nothing about its other troubles: the
        answer may be older than they are."""
        self._until_ms.pop((node, AvoidCause.UNREACHABLE), None)

    def returned(self, node: NodeId) -> None:
        """It was asked, and serves again: only a lack of room is still held against it."""
        for cause in (AvoidCause.UNREACHABLE, AvoidCause.DISABLED, AvoidCause.SLOW):
            self._until_ms.pop((node, cause), None)

    def avoided(self, now_ms: int) -> frozenset[NodeId]:
        if not self._until_ms:  # As nearly always; asked for each answer of a node.
            return self.disabled
        self._forget_expired(now_ms)
        return self.disabled.union(node for node, _ in self._until_ms)

    def _forget_expired(self, now_ms: int) -> None:
        if any(until_ms <= now_ms for until_ms in self._until_ms.values()):
            self._until_ms = {
                key: until_ms for key, until_ms in self._until_ms.items() if until_ms > now_ms
            }


class CopysetChooser:
    """Draws copysets of one nodeset.  Big scopes come first: as many domains as the scope needs and
    one node in each; every smaller scope adds what is missing, in domains not touched yet."""

    def __init__(
        self,
        replication: Replication,
        nodeset: Collection[NodeId],
        locations: Locations,
        draw: Draw,
    ) -> None:
        assert len(set(nodeset)) == len(nodeset), f"{nodeset} names a node twice"
        self._copies = replication.copies
        self._nodeset = tuple(nodeset)
        self._draw = draw
        self._scopes = [
            (factor, {node: domain_of(node, scope, locations) for node in nodeset})
            for scope, factor in requirements(replication)
            if scope is not Scope.NODE
        ]

    def choose(
        self, size_extra: int, avoided: Collection[NodeId], near: NodeId = NO_NODE
    ) -> Copyset | None:
        """R nodes in random order, `near` among them if it can be, and up to `size_extra` more
        behind them as far as there are any; None if it cannot be done without the avoided ones
        (I2)."""
        away = frozenset(avoided)
        left = [node for node in self._nodeset if node not in away]
        if len(left) < self._copies:
            return None
        chosen = [near] if near in left else []  # Whoever comes first stands in no other's way.
        for factor, domains in self._scopes:
            added = self._in_new_domains(left, chosen, factor, domains)
            if added is None:
                return None
            chosen += added
        size = min(self._copies + size_extra, COPYSET_SIZE_MAX, len(left))
        others = [node for node in left if node not in chosen]
        chosen += drawn(others, size - len(chosen), self._draw)
        leaders = drawn(chosen[: self._copies], self._copies, self._draw)
        return (*leaders, *chosen[self._copies :])

    def choose_without_one_of(
        self, than: Copyset, size_extra: int, avoided: Collection[NodeId]
    ) -> Copyset | None:
        """A copyset that leaves out some node of `than`; None if all must have the whole of it."""
        for node in drawn(than, len(than), self._draw):
            copyset = self.choose(size_extra, {*avoided, node})
            if copyset is not None:
                return copyset
        return None

    def _in_new_domains(
        self,
        left: Sequence[NodeId],
        chosen: Collection[NodeId],
        factor: int,
        domains: dict[NodeId, str],
    ) -> list[NodeId] | None:
        """Nodes that bring the number of domains touched up to the factor; None if there are too
        few domains.  One node in each: which, is as likely for all of a domain."""
        touched = {domains[node] for node in chosen}
        groups: dict[str, list[NodeId]] = {}
        for node in left:
            if domains[node] not in touched:
                groups.setdefault(domains[node], []).append(node)
        missing = factor - len(touched)
        if missing > len(groups):
            return None
        picked = self._by_size(list(groups.values()), missing)
        return [group[self._draw(len(group))] for group in picked]

    def _by_size(self, groups: list[list[NodeId]], count: int) -> list[list[NodeId]]:
        """`count` of the groups, each as likely as it is large (I4).

        Systematic sampling: groups lie side by side in random order, each as long as its size
        times `count`, and marks at distance `total` from each other pick those they fall in.
        A group longer than the distance is picked for certain, and left out of the rest."""
        rest = sorted(groups, key=len)
        total = sum(map(len, rest))
        picked: list[list[NodeId]] = []
        while count and len(rest[-1]) * count >= total:
            picked.append(rest.pop())
            total -= len(picked[-1])
            count -= 1
        if not count:
            return picked
        reach, mark = 0, self._draw(total)
        for group in drawn(rest, len(rest), self._draw):
            reach += len(group) * count
            if mark < reach:
                picked.append(group)
                mark += total
        return picked


class StickyCopysets:
    """One copyset for many blocks, until it has taken enough of them, is old, a store failed or one
    of its nodes is avoided.

    Who appends one block after the other waits for the slowest of its copies each time, and the one
    on the sequencer's own node needs no connection.  Who has many blocks under way waits for bytes,
    and gains by spreading them.  What a log was written like shows in the copyset before."""

    def __init__(
        self,
        chooser: CopysetChooser,
        settings: SequencerSettings | None = None,
        near: NodeId = NO_NODE,
    ) -> None:
        """`near` is the sequencer's own node; it need not store the log."""
        self._chooser = chooser
        self._near = near
        settings = settings or SequencerSettings()
        self._size_extra = settings.extras
        self._bytes_max = settings.sticky_bytes
        self._age_max_ms = settings.sticky_ms
        self._copyset: Copyset | None = None
        self._bytes = 0  # Given to the copyset so far.
        self._since_ms = 0
        self._blocks = 0  # Since a copyset was drawn here, and how many of them were alone.
        self._lone = 0

    @property
    def _is_written_alone(self) -> bool:
        """One that was not written yet is taken to be."""
        return 100 * self._lone >= LONE_PERCENT_MIN * self._blocks

    def next(
        self, size_bytes: int, now_ms: int, avoided: Collection[NodeId], is_lone: bool = True
    ) -> Copyset | None:
        """For the first wave of a block; None if no copyset is possible now.  The block `is_lone`
        if no other is under way."""
        is_full = self._bytes + size_bytes > self._bytes_max
        if is_full or not self._is_usable(now_ms, avoided):
            near = self._near if self._is_written_alone else NO_NODE  # Keeps I6.
            self._blocks = self._lone = 0
            self._begin(self._chooser.choose(self._size_extra, avoided, near), now_ms)
        self._bytes += size_bytes
        self._blocks += 1
        self._lone += is_lone
        return self._copyset

    def another(self, than: Copyset, now_ms: int, avoided: Collection[NodeId]) -> Copyset | None:
        """For another wave of a block that `than` did not take: other nodes, if there are any to
        choose from.  The bytes were counted with the first wave."""
        current = self._copyset
        if current is None or set(current) == set(than) or not self._is_usable(now_ms, avoided):
            extra = self._size_extra
            other = self._chooser.choose_without_one_of(than, extra, avoided)
            self._begin(other or self._chooser.choose(extra, avoided), now_ms)
        return self._copyset

    def void(self) -> None:
        """A store failed: the next block gets another draw."""
        self._copyset = None

    def _is_usable(self, now_ms: int, avoided: Collection[NodeId]) -> bool:
        return (
            self._copyset is not None
            and now_ms - self._since_ms < self._age_max_ms
            and not any(node in avoided for node in self._copyset)
        )

    def _begin(self, copyset: Copyset | None, now_ms: int) -> None:
        self._copyset = copyset
        self._bytes = 0
        self._since_ms = now_ms


def drawn(items: Collection[T], count: int, draw: Draw) -> list[T]:
    """`count` of the items in random order, any selection as likely as any other."""
    order = list(items)
    for at in range(count):
        other = at + draw(len(order) - at)
        order[at], order[other] = order[other], order[at]
    return order[:count]
