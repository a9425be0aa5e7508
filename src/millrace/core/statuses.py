"""Whether what a node does not have counts, and how that changes (R7, R15).

The repository keeps one NodeStatusEntry for each node that ever had another status than the usual
one, with its history: the event log of seed 003.  Every change is a compare-and-set of what one of
the functions here makes of the entry that was read; None says that there is nothing to change.

| from                  | by                                       | to                  |
|-----------------------|------------------------------------------|---------------------|
| FULLY_AUTHORITATIVE   | gone for long                            | UNAVAILABLE         |
| all but ..._EMPTY     | came back wiped                          | UNDERREPLICATION    |
| ..., UNAVAILABLE      | marked unrecoverable                     | UNDERREPLICATION    |
| UNAVAILABLE           | came back with its disk                  | FULLY_AUTHORITATIVE |
| UNDERREPLICATION      | the same, though marked unrecoverable    | UNDERREPLICATION    |
| UNDERREPLICATION      | refilled: it has again what it lacks     | FULLY_AUTHORITATIVE |
| whatever is rebuilt   | rebuilt: nobody names it as a holder     | AUTHORITATIVE_EMPTY |
| AUTHORITATIVE_EMPTY   | emptied: it holds nothing old            | FULLY_AUTHORITATIVE |

A node that is drained stays FULLY_AUTHORITATIVE until it is rebuilt, and AUTHORITATIVE_EMPTY until
the drain is cancelled.

  I1  A node leaves FULLY_AUTHORITATIVE before it is alive with less than it had.
  I2  Each time that copies must be made anew the number of the wanted rebuilding goes up, so
      that a report about an earlier one proves nothing.
  I3  `instance` names the disk that was lost, or whose copies are elsewhere.  A node that lives
      with another disk has nothing on it that was given away.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from millrace.types import AuthoritativeStatus, NodeId, Placement

HISTORY_MAX: Final = 64  # Statuses remembered of a node, so that its entry stays small.

_FULL: Final = AuthoritativeStatus.FULLY_AUTHORITATIVE
_UNDER: Final = AuthoritativeStatus.UNDERREPLICATION
_EMPTY: Final = AuthoritativeStatus.AUTHORITATIVE_EMPTY
_AWAY: Final = AuthoritativeStatus.UNAVAILABLE


class StatusReason(StrEnum):
    """Written as a word, and read as one: versions may know different ones."""

    GONE = "gone"  # Without a sign of life for long.
    WIPED = "wiped"  # Back with an empty disk.
    RETURNED = "returned"  # Back with what it had.
    UNRECOVERABLE = "unrecoverable"  # An operator says that its disk will not be back.
    DRAIN = "drain"  # An operator wants its copies elsewhere.
    DRAIN_CANCELLED = "drain_cancelled"
    REBUILT = "rebuilt"  # All its copies are elsewhere.
    REFILLED = "refilled"  # It has again what it lost.
    EMPTIED = "emptied"  # It holds nothing old, and takes copies again.


class StatusChange(msgspec.Struct, frozen=True):
    status: AuthoritativeStatus
    since_ms: int = 0
    reason: str = ""


class NodeStatusEntry(msgspec.Struct, frozen=True):
    """A node's status now, and those before it, oldest first.  A node without an entry is
    FULLY_AUTHORITATIVE and was never anything else."""

    status: AuthoritativeStatus
    since_ms: int = 0
    reason: str = ""
    history: tuple[StatusChange, ...] = ()
    is_draining: bool = False
    rebuild: int = 0  # The rebuilding that is wanted; 0: none.
    instance: str = ""  # Keeps I3.
    rebuilds: int = 0  # The last one that was ever wanted.

    @property
    def is_disabled(self) -> bool:
        """No new copies should go there."""
        return self.status is not _FULL or self.is_draining

    @property
    def is_refillable(self) -> bool:
        """Alive, and lacks copies: it may take them, if no other node can."""
        is_back = self.reason in (StatusReason.WIPED, StatusReason.RETURNED)
        return self.status is _UNDER and is_back and not self.is_draining

    @property
    def is_forsaken(self) -> bool:
        """Dead, and what it alone had is lost."""
        return self.status is _UNDER and self.reason in (
            StatusReason.GONE,
            StatusReason.UNRECOVERABLE,
        )


Entries = Mapping[NodeId, NodeStatusEntry]
Statuses = Mapping[NodeId, AuthoritativeStatus]
_USUAL: Final = NodeStatusEntry(_FULL)


def _change(
    entry: NodeStatusEntry | None,
    status: AuthoritativeStatus,
    reason: StatusReason,
    now_ms: int,
    instance: str = "",
    is_draining: bool | None = None,
    rebuild: int = 0,
) -> NodeStatusEntry:
    old = entry or _USUAL
    past = () if entry is None else (StatusChange(old.status, old.since_ms, old.reason),)
    return NodeStatusEntry(
        status,
        now_ms,
        reason,
        (*old.history, *past)[-HISTORY_MAX:],
        old.is_draining if is_draining is None else is_draining,
        rebuild,
        instance or old.instance,
        max(old.rebuilds, rebuild),
    )


def _next(entry: NodeStatusEntry | None) -> int:
    """Keeps I2."""
    return (entry or _USUAL).rebuilds + 1


def statuses_of(entries: Entries) -> dict[NodeId, AuthoritativeStatus]:
    return {node: entry.status for node, entry in entries.items()}


def between(before: Entries, after: Entries) -> list[Statuses]:
    """What the statuses were on the way from `before` to `after`, and those of `after` last, as far
    as the nodes' histories tell: who only looks now and then would miss that a node was emptied."""
    statuses: Statuses = statuses_of(before)
    steps: list[Statuses] = []
    for node, entry in after.items():
        for passed in _passed(before.get(node), entry):
            statuses = {**statuses, node: passed}
            steps.append(statuses)
    now = statuses_of(after)
    return steps if steps and steps[-1] == now else [*steps, now]


def _passed(before: NodeStatusEntry | None, after: NodeStatusEntry) -> list[AuthoritativeStatus]:
    """The statuses after `before`; all of them if there was none, or it is forgotten."""
    history = (*after.history, StatusChange(after.status, after.since_ms, after.reason))
    at = 0
    if before is not None:
        known = StatusChange(before.status, before.since_ms, before.reason)
        at = max((i + 1 for i, each in enumerate(history) if each == known), default=0)
    return [each.status for each in history[at:]]


def lost_nodes(entries: Entries) -> frozenset[NodeId]:
    """Those whose data is not coming back."""
    return frozenset(node for node, entry in entries.items() if entry.status is _UNDER)


# -- What nodes and the keeper find -----------------------------------------------------------


def came(
    entry: NodeStatusEntry | None, former: str, instance: str, now_ms: int
) -> NodeStatusEntry | None:
    """The node is about to be alive with the disk `instance`; it was `former` the last time, empty
    if it never was.  Keeps I1."""
    is_wiped = bool(former) and former != instance
    if entry is None:
        return _wiped(None, former, now_ms) if is_wiped else None
    match entry.status:
        case AuthoritativeStatus.AUTHORITATIVE_EMPTY:
            return None  # What it holds must go first, or its seals must come: see `emptied`.
        case _ if is_wiped:
            is_noted = entry.reason == StatusReason.WIPED and entry.instance == former
            return None if is_noted else _wiped(entry, former, now_ms)
        case AuthoritativeStatus.UNDERREPLICATION if entry.reason == StatusReason.GONE:
            # It was not whole before it went: what it has now is another disk than the one lost.
            return _wiped(entry, "", now_ms)
        case _ if entry.instance == instance and _may_return(entry):
            return _returned(entry, now_ms)
    return None


def _may_return(entry: NodeStatusEntry) -> bool:
    """With its disk, it has all that it ever had."""
    return entry.status is _AWAY or entry.reason == StatusReason.UNRECOVERABLE


def _returned(entry: NodeStatusEntry, now_ms: int) -> NodeStatusEntry:
    """While nobody waited for it, recoveries may have stored with fewer copies than are wanted."""
    reason = StatusReason.RETURNED
    if entry.is_draining:
        return _change(entry, _FULL, reason, now_ms, rebuild=entry.rebuild)
    if entry.status is _AWAY:
        return _change(entry, _FULL, reason, now_ms)
    return _change(entry, _UNDER, reason, now_ms, rebuild=_next(entry))


def _wiped(entry: NodeStatusEntry | None, former: str, now_ms: int) -> NodeStatusEntry:
    changed = _change(entry, _UNDER, StatusReason.WIPED, now_ms, rebuild=_next(entry))
    return msgspec.structs.replace(changed, instance=former)


def gone(entry: NodeStatusEntry | None, instance: str, now_ms: int) -> NodeStatusEntry | None:
    """The node has given no sign of life for long; its disk may still be in order."""
    status = (entry or _USUAL).status
    if status is _FULL:
        return _change(entry, _AWAY, StatusReason.GONE, now_ms, instance, rebuild=_next(entry))
    if entry is not None and entry.is_refillable:
        # What others left with it because it had come back is lost again, for now.
        return _change(entry, _UNDER, StatusReason.GONE, now_ms, instance, rebuild=_next(entry))
    return None


def rebuilt(entry: NodeStatusEntry, now_ms: int) -> NodeStatusEntry | None:
    """Nobody names the node as a holder any more."""
    if not entry.rebuild:
        return None
    return _change(entry, _EMPTY, StatusReason.REBUILT, now_ms)


def renewed(entry: NodeStatusEntry | None) -> NodeStatusEntry | None:
    """Blocks were stored with fewer copies, because the node has no vote: whoever has finished with
    it looks again (I2)."""
    if entry is None or entry.status is not _UNDER or not entry.rebuild:
        return None
    return msgspec.structs.replace(entry, rebuild=_next(entry), rebuilds=_next(entry))


def refilled(entry: NodeStatusEntry, now_ms: int) -> NodeStatusEntry | None:
    """A node that was wiped, or given up, has whatever others say that it has."""
    if not entry.is_refillable:
        return None
    return _change(entry, _FULL, StatusReason.REFILLED, now_ms)


def emptied(entry: NodeStatusEntry, now_ms: int) -> NodeStatusEntry | None:
    """The node holds nothing of what was given to others."""
    if entry.status is not _EMPTY or entry.is_draining:
        return None
    return _change(entry, _FULL, StatusReason.EMPTIED, now_ms)


# -- What operators want ----------------------------------------------------------------------


def drain(entry: NodeStatusEntry | None, instance: str, now_ms: int) -> NodeStatusEntry | None:
    old = entry or _USUAL
    if old.is_draining:
        return None
    rebuild = old.rebuild or (0 if old.status is _EMPTY else _next(entry))
    lost = old.instance if old.status is not _FULL else instance
    return _change(entry, old.status, StatusReason.DRAIN, now_ms, lost, True, rebuild)


def cancel_drain(entry: NodeStatusEntry | None, now_ms: int) -> NodeStatusEntry | None:
    if entry is None or not entry.is_draining:
        return None
    rebuild = 0 if entry.status in (_FULL, _EMPTY) else entry.rebuild
    reason = StatusReason.DRAIN_CANCELLED
    return _change(entry, entry.status, reason, now_ms, is_draining=False, rebuild=rebuild)


def mark_unrecoverable(
    entry: NodeStatusEntry | None, instance: str, now_ms: int
) -> NodeStatusEntry | None:
    """Nobody shall wait for the node: what it alone holds is lost."""
    old = entry or _USUAL
    if old.status in (_UNDER, _EMPTY):
        return None
    rebuild = old.rebuild or _next(entry)
    reason = StatusReason.UNRECOVERABLE
    return _change(entry, _UNDER, reason, now_ms, instance, rebuild=rebuild)


# -- What a node goes by ----------------------------------------------------------------------


class StatusBoard:
    """The statuses as a node has seen them last; kept up to date by whoever follows them."""

    def __init__(self, me: NodeId) -> None:
        self.me = me
        self.is_closed = False  # Takes no copies for a moment: its status is about to change.
        self.entries: Entries = {}
        self.disabled: frozenset[NodeId] = frozenset()
        self._barred: frozenset[NodeId] = frozenset()

    def update(self, entries: Entries) -> None:
        self.entries = entries
        disabled = {node for node, entry in entries.items() if entry.is_disabled}
        self.disabled = frozenset(disabled)
        self._barred = frozenset(node for node in disabled if not entries[node].is_refillable)

    @property
    def mine(self) -> NodeStatusEntry | None:
        return self.entries.get(self.me)

    @property
    def is_incomplete(self) -> bool:
        """What this node does not have proves nothing."""
        return self.mine is not None and self.mine.status is _UNDER

    def refuses_copies(self) -> bool:
        return self.is_closed or self.me in self._barred

    def barred_in(self, placement: Placement) -> NodeId | None:
        """A node that an appender should not have chosen: its copies are being made elsewhere, and
        once that is done nobody looks for one there.  Recoveries know better, and may name it."""
        if not self._barred or placement.recovery:
            return None
        return next((node for node in placement.copyset if node in self._barred), None)
