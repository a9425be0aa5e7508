"""What a query of changes has read, kept for the day when it must be taken back.

Tasks keep the key and seq of every change before they hand it out.  The *parts* that they leave
say which stretch of a history each covers.  When a failover takes changes back, the next task reads
the parts, fetches from the new master the documents of exactly the keys that were changed above the
rollback point, and goes on from there in a new era.

A part may be of an attempt that nobody took: it died, or another was quicker.  Its rows may have
reached somebody all the same, so it counts.  The same part twice is harmless: a key is fetched
once.

  I1  Nothing was handed out that lies in no part, but for what was too old to be kept.
  I2  What was taken back in an era that the place has reached is not taken back again.
  I3  A document that was fetched for an undo is kept, too, at its own seq: it may be the older one
      of two, of which only the newer was read.
  I4  What is not covered by parts is read again as a whole, never guessed.
"""

from collections.abc import Iterable, Sequence

import msgspec

from millrace.core.documents.change_query import MasterState, PartitionRange, QueryPlace
from millrace.core.documents.document import NO_SEQ, SEQ_MAX, Seq
from millrace.core.documents.failover_log import FailoverLog
from millrace.core.documents.ring_buffer import RingEntry
from millrace.core.documents.rollback import Place, Refuse, Start, find_start


class RingPart(msgspec.Struct, frozen=True):
    """What one attempt at a range read of its partition: all changes of (after, last], which are
    of `log`; its stream began at `began`."""

    era: int
    log: FailoverLog
    first: Seq  # The last seq of the last complete snapshot.
    began: Seq
    after: Seq
    last: Seq
    entries: tuple[RingEntry, ...] = ()
    cut: Seq | None = None  # The era begins with it, from this rollback point on.
    is_settled: bool = True  # The place says all about it.

    @property
    def seen(self) -> Seq:
        """What was fetched for an undo may lie above what was streamed."""
        return max(self.last, max((entry.seq for entry in self.entries), default=NO_SEQ))

    @property
    def compared(self) -> Place:
        return Place(self.log, min(self.first, self.last), self.seen, SEQ_MAX)


class Stretches:
    """The parts that one attempt at a range leaves: they tile what it took, each from where the one
    before it ended, whether changes lie there or not."""

    def __init__(self, wanted: PartitionRange) -> None:
        self.above = wanted.kept_above  # No key at or below it is kept.
        self._began = self._kept_to = wanted.place.seq
        self._cut: Seq | None = None

    def begin_era(self, start: Seq) -> None:
        """Whatever was taken until now is in a part."""
        self.above = NO_SEQ
        self._began = self._kept_to = self._cut = start

    def next(self, place: QueryPlace, has_rows: bool, blind_to: Seq = NO_SEQ) -> RingPart | None:
        """For what was taken since, without its entries; None: there is nothing to say.  Deletions
        up to `blind_to` did not come, so nothing is said of what lies there."""
        if not has_rows and place.seq <= self._kept_to:
            return None
        after = max(self._kept_to, min(max(self.above, blind_to), place.seq))
        self._kept_to = max(self._kept_to, place.seq)
        first = min(place.first, after)
        return RingPart(place.era, place.log, first, self._began, after, place.seq, cut=self._cut)


class Begin(msgspec.Struct, frozen=True):
    """Where a task streams from.  If `is_back`, an era begins: `keys` are to be fetched first."""

    start: Seq
    era: int
    is_back: bool = False
    point: Seq = NO_SEQ  # To which changes are taken back.
    keys: tuple[bytes, ...] = ()
    is_reread: bool = False  # Not all keys are known: the partition is read again.
    detail: str = ""


def begin(place: QueryPlace, parts: Sequence[RingPart], master: MasterState) -> Begin | Refuse:
    """`parts` are all of the partition that are kept."""
    newer = [part for part in parts if not part.is_settled and part.era >= place.era]
    found = find_start(master.log, place.compared, master.high, master.purged)
    if isinstance(found, Refuse):
        return found
    is_back = found.seq < place.seq
    starts, newest = [found], max([place.era, *(part.era for part in newer)])
    is_newest_back = is_back and newest == place.era
    for part in newer:
        judged = find_start(master.log, part.compared, None, master.purged)
        if isinstance(judged, Refuse):
            return judged
        starts.append(judged)
        is_newest_back |= judged.seq < part.seen and part.era == newest
    if newest == place.era and not is_newest_back:
        return Begin(place.seq, place.era, detail=found.detail)
    lowest = min(starts, key=lambda start: start.seq)
    return _undo(place, parts, newest + is_newest_back, lowest)


def _undo(place: QueryPlace, parts: Sequence[RingPart], era: int, found: Start) -> Begin:
    cuts = _cuts(parts)
    keys = _keys_above(found.seq, place.era, parts, era, cuts)
    if _is_covered(found.seq, place, parts, cuts):
        return Begin(found.seq, era, True, found.seq, keys, detail=found.detail)
    start = min(found.seq, place.since)  # Keeps I4.
    return Begin(start, era, True, found.seq, keys, True, found.detail)


def _cuts(parts: Iterable[RingPart]) -> dict[int, Seq]:
    """Where eras began; of several attempts the highest, by which the most is still valid."""
    found: dict[int, Seq] = {}
    for part in parts:
        if part.cut is not None:
            found[part.era] = max(part.cut, found.get(part.era, NO_SEQ))
    return found


def _keys_above(
    start: Seq, reached: int, parts: Iterable[RingPart], era: int, cuts: dict[int, Seq]
) -> tuple[bytes, ...]:
    """Changed above `start` in eras before `era`.  Keeps I2."""
    keys: dict[bytes, None] = {}
    for part in parts:
        if part.era >= era:
            continue
        valid = min((cut for of, cut in cuts.items() if part.era < of <= reached), default=SEQ_MAX)
        for entry in part.entries:
            if start < entry.seq <= valid:
                keys[entry.key] = None
    return tuple(keys)


def _is_covered(
    start: Seq, place: QueryPlace, parts: Sequence[RingPart], cuts: dict[int, Seq]
) -> bool:
    """Whether every change above `start` that may have been read is in the parts."""
    top = place.seq
    for era in range(place.era, -1, -1):
        bottom = max(start, place.since, cuts.get(era, NO_SEQ))
        if bottom < top and not _covers(parts, era, bottom, top):
            return False
        top = min(top, bottom)
    newer = [part for part in parts if not part.is_settled and part.era >= place.era]
    return all(_covers_attempts(start, newer, part) for part in newer)


def _covers_attempts(start: Seq, newer: Iterable[RingPart], like: RingPart) -> bool:
    """Whether attempts that began as this one did left all that they read."""
    mine = [part for part in newer if (part.era, part.began) == (like.era, like.began)]
    top = max(part.last for part in mine)
    return _covers(mine, like.era, max(start, like.began), top)


def _covers(parts: Iterable[RingPart], era: int, bottom: Seq, top: Seq) -> bool:
    stretches = sorted((part.after, part.last) for part in parts if part.era == era)
    reached = bottom
    for after, last in stretches:
        if after <= reached:
            reached = max(reached, last)
    return reached >= top
