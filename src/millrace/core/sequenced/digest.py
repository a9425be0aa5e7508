"""What an epoch holds, decided from what its sealed nodes hold (R11).

Above the last position that is known to be good, nodes hold what was on its way when the
sequencer ended, and what earlier recoveries wrote before they ended themselves.  Everything is
looked at in the order of precedence: what comes first takes its positions.  A block stands whole
or not at all; a HOLE takes whatever is free of its range; a BRIDGE all that is free behind it,
because it says that nothing follows.

  I1  An acknowledged block stands.  Every f-majority holds a copy of it, so no recovery with the
      authority to write a HOLE or a BRIDGE has ever put one in its place.
  I2  With authority the decisions tile everything above `good` up to the last position that any
      node holds: what does not stand is overwritten on every node that has it.
  I3  Without authority nothing is said to be empty that was not said to be before.
  I4  Whoever decides again from an f-majority, after all decisions were carried out, decides the
      same.  So an epoch that is empty gets a BRIDGE too: a node that was silent may hold a block
      that nobody acknowledged, and when nodes are lost for good those that are left must be able
      to tell an epoch without records from one whose records are gone.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from millrace.core.messages import EpochsSealed
from millrace.core.replication import Authority
from millrace.lsn import epoch_of, first_of, last_of, offset_of
from millrace.types import NO_LSN, Copy, EntryKind, Epoch, Extent, Lsn, NodeId

Positions = tuple[Lsn, Lsn]  # First and last.


class Decision(msgspec.Struct, frozen=True):
    """What `first..last` shall hold: a block, or the kind of junk to be written.  `holders` have
    the block, whatever their placement says; `overwrite` hold something else that overlaps."""

    first: Lsn
    last: Lsn
    winner: Copy | EntryKind
    holders: frozenset[NodeId] = frozenset()
    overwrite: frozenset[NodeId] = frozenset()


class Verdict(msgspec.Struct, frozen=True):
    decisions: tuple[Decision, ...]  # In order.
    tail: Lsn  # The last record of the epoch, as far as is known; 0: it has none.


class Settled(msgspec.Struct, frozen=True):
    """Where nothing is left to decide: everything up to `floor`, and in each epoch above it what
    is up to the epoch's last good position."""

    floor: Lsn
    good: Mapping[Epoch, Lsn]

    def good_in(self, epoch: Epoch) -> Lsn:
        """The last settled position of the epoch, or where it begins if none is known."""
        known = max(self.floor, self.good.get(epoch, first_of(epoch)))
        return min(max(known, first_of(epoch)), last_of(epoch))

    def windows(self, first: Epoch, last: Epoch) -> list[tuple[Lsn, Lsn]]:
        """What is not settled of the epochs first..last, as few [first, end) as possible."""
        found: list[tuple[Lsn, Lsn]] = []
        at, end = Lsn(max(first_of(first), self.floor + 1)), Lsn(last_of(last) + 1)
        for epoch in sorted(each for each in self.good if first <= each <= last):
            good = self.good[epoch]
            if offset_of(good) and good >= at:
                found.append((at, first_of(epoch)))
                at = Lsn(good + 1)
        return [(low, high) for low, high in [*found, (at, end)] if low < high]


class _Version(msgspec.Struct):
    """A block, or junk of one range, with its highest precedence and all who have it."""

    copy: Copy
    holders: set[NodeId]

    @property
    def extent(self) -> Extent:
        return self.copy.extent


class _Cleared(msgspec.Struct, frozen=True):
    """Positions that junk of this kind took."""

    first: Lsn
    last: Lsn
    kind: EntryKind


class _Ground:
    """Which positions are taken, in order."""

    def __init__(self) -> None:
        self._taken: list[Positions] = []

    def free(self, first: Lsn, last: Lsn) -> list[Positions]:
        """The parts of first..last that are not taken."""
        found: list[Positions] = []
        at = max(0, bisect_right(self._taken, (first, last)) - 1)
        for low, high in self._taken[at:]:
            if low > last:
                break
            if low > first:
                found.append((first, Lsn(low - 1)))
            first = Lsn(max(first, high + 1))
        return [*found, (first, last)] if first <= last else found

    def take(self, first: Lsn, last: Lsn) -> None:
        self._taken.insert(bisect_right(self._taken, (first, last)), (first, last))


def settled_by(sealed: Iterable[EpochsSealed]) -> Settled:
    """What was released is good, and what was trimmed is nobody's business any more."""
    floor, good = NO_LSN, dict[Epoch, Lsn]()
    for answer in sealed:
        floor = Lsn(max(floor, answer.released, answer.trim_end - 1))
        for lsn in answer.good:
            good[epoch_of(lsn)] = max(lsn, good.get(epoch_of(lsn), lsn))
    return Settled(floor, good)


def decide(
    epoch: Epoch, good: Lsn, held: Mapping[NodeId, Sequence[Copy]], proof: Authority
) -> Verdict:
    """`good` is the last settled position, or where the epoch begins if none is known; `held` is
    what each node that answered has of the epoch, and `proof` what their answers prove."""
    assert epoch_of(good) == epoch and proof is not Authority.NONE
    versions = _versions(good, held)
    standing, cleared = _settle(epoch, good, versions)
    tail = max([good, *(version.extent.last for version in standing)])
    furthest = max([good, *(version.extent.last for version in versions)])
    if proof is Authority.NON_AUTHORITATIVE:
        junk = [_still_empty(each, tail, furthest) for each in cleared if each.first <= furthest]
    else:
        junk = _gaps(good, standing)
        if tail < last_of(epoch):
            junk.append(Decision(Lsn(tail + 1), max(Lsn(tail + 1), furthest), EntryKind.BRIDGE))
    blocks = [
        Decision(each.extent.first, each.extent.last, each.copy, frozenset(each.holders))
        for each in standing
    ]
    decisions = sorted(blocks + junk, key=lambda decision: decision.first)
    stands = {version.extent for version in standing}
    losers = [version for version in versions if version.extent not in stands]
    return Verdict(_with_losers(decisions, losers), tail if offset_of(tail) else NO_LSN)


def _versions(good: Lsn, held: Mapping[NodeId, Sequence[Copy]]) -> list[_Version]:
    """Highest precedence first.  Copies of one block are the same bytes, whoever placed them."""
    found: dict[Extent, _Version] = {}
    for node, copies in held.items():
        for copy in copies:
            if copy.extent.last <= good:
                continue
            version = found.setdefault(copy.extent, _Version(copy, set()))
            version.holders.add(node)
            if copy.placement.precedence > version.copy.placement.precedence:
                version.copy = copy
    return sorted(found.values(), key=_rank)


def _rank(version: _Version) -> tuple[int, int, EntryKind, Extent]:
    recovery, wave = version.copy.placement.precedence
    return -recovery, -wave, version.extent.kind, version.extent


def _settle(
    epoch: Epoch, good: Lsn, versions: Iterable[_Version]
) -> tuple[list[_Version], list[_Cleared]]:
    """The blocks that stand, in order, and the positions that junk took."""
    ground = _Ground()
    standing: list[_Version] = []
    cleared: list[_Cleared] = []
    for version in versions:
        extent = version.extent
        first = max(extent.first, Lsn(good + 1))
        last = last_of(epoch) if extent.kind is EntryKind.BRIDGE else extent.last
        pieces = ground.free(first, last)
        if extent.kind in (EntryKind.HOLE, EntryKind.BRIDGE):
            cleared += [_Cleared(*piece, extent.kind) for piece in pieces]
        elif pieces == [(first, last)]:
            standing.append(version)
        else:
            continue
        for piece in pieces:
            ground.take(*piece)
    standing.sort(key=lambda version: version.extent)
    return standing, cleared


def _gaps(good: Lsn, standing: Iterable[_Version]) -> list[Decision]:
    """A HOLE for each gap below the last block that stands."""
    holes: list[Decision] = []
    at = Lsn(good + 1)
    for version in standing:
        if at < version.extent.first:
            holes.append(Decision(at, Lsn(version.extent.first - 1), EntryKind.HOLE))
        at = Lsn(version.extent.last + 1)
    return holes


def _still_empty(cleared: _Cleared, tail: Lsn, furthest: Lsn) -> Decision:
    """Keeps I3.  A BRIDGE with blocks behind it was wrong about them, and is a HOLE in between."""
    if cleared.first <= tail or cleared.kind is EntryKind.HOLE:
        return Decision(cleared.first, cleared.last, EntryKind.HOLE)
    return Decision(cleared.first, min(cleared.last, furthest), EntryKind.BRIDGE)


def _with_losers(decisions: Sequence[Decision], losers: Iterable[_Version]) -> tuple[Decision, ...]:
    firsts = [decision.first for decision in decisions]
    nodes: list[set[NodeId]] = [set() for _ in decisions]
    for loser in losers:
        at = max(0, bisect_right(firsts, loser.extent.first) - 1)
        while at < len(decisions) and decisions[at].first <= loser.extent.last:
            if decisions[at].last >= loser.extent.first:
                nodes[at] |= loser.holders
            at += 1
    return tuple(
        msgspec.structs.replace(decision, overwrite=frozenset(found))
        for decision, found in zip(decisions, nodes, strict=True)
    )
