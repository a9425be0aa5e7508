"""A query that reads the changes of a bucket in micro-batches: where it stands, what it reads next.

Its driver plans: up to which seq each partition is read.  A task reads, and only when it is done is
it known how far it came: a stream ends with a snapshot, and of one that were cut where the plan
ends, documents that changed since would be missing, a busy one in every batch.  So each task leaves
a *receipt*, and the next plan begins where the receipts say.

An *era* begins with each rollback.  `version` puts the era above the seq, so that for each key what
came later is larger also when seqs come again.

  I1  A range is read from its place, whatever was planned or read before: who reads it again reads
      at least the same documents, or newer ones.
  I2  Of several attempts at one range the one that came least far counts: which of them Spark took
      is not known, and what the others read comes again.  While the place lies below what any of
      them may have handed out, it is in doubt, and whoever goes on from it looks what that was.
  I3  A limit slows a query down and never stops it: what has changes gets at least one seq on.
  I4  Only where nothing has to be taken back is a range cut: what takes its place is read whole.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from millrace.core.documents.document import NO_SEQ, SEQ_MAX, FailoverId, PartitionId, Seq
from millrace.core.documents.failover_log import NO_LOG, FailoverLog
from millrace.core.documents.rollback import Place, Refuse, find_start

ERA_SHIFT: Final = 48  # A partition with more changes than this in one era is out of reach.
ERAS_UNKNOWN_MAX: Final = 16  # That attempts at one range may have begun.


class QueryPlace(msgspec.Struct, frozen=True):
    """Where a query stands in a partition: all up to `seq` was read, in the snapshot
    (first, last]; SEQ_MAX: its last seq is not known."""

    log: FailoverLog = NO_LOG
    seq: Seq = NO_SEQ
    first: Seq = NO_SEQ
    last: Seq = NO_SEQ
    era: int = 0
    since: Seq = NO_SEQ  # Nothing of what lies at or below it was ever read.

    @property
    def compared(self) -> Place:
        return Place(self.log, self.first, self.seq, max(self.last, self.seq))


class MasterState(msgspec.Struct, frozen=True):
    """What a master says of its partition."""

    log: FailoverLog
    high: Seq
    purged: Seq = NO_SEQ


class PartitionRange(msgspec.Struct, frozen=True):
    """What is to be read of a partition: from its place to `end`, and on to the end of the
    snapshot.  If it is cut, no more changes than there are seqs up to `end`: as each change has a
    seq of its own, that leads to `end` at least."""

    partition: PartitionId
    place: QueryPlace
    end: Seq
    is_cut: bool = False
    is_doubtful: bool = False  # More may have been read than the place says.
    kept_above: Seq = NO_SEQ  # Changes at or below it are too old to be kept for an undo.


class Planned(msgspec.Struct, frozen=True):
    range: PartitionRange
    end: QueryPlace  # Where the query stands afterwards, as far as can be said before.


class Receipt(msgspec.Struct, frozen=True):
    """What an attempt at a range came to."""

    partition: PartitionId
    era: int  # The range: of its place era, newest failover id and seq, and where it was to end.
    id: FailoverId
    seq: Seq
    end: Seq
    place: QueryPlace
    keys: int = 0  # That it kept for an undo.
    detail: str = ""  # What it took back, and why.
    seen: Seq = NO_SEQ  # Up to where others handed out, in this era, as far as it knows.
    is_again: bool = False  # Of an attempt after the first.
    is_begun: bool = False  # It begins only: before it hands anything out, and may not end.


class Settled(msgspec.Struct, frozen=True):
    """Where a query stands.  Unless it `is_told`, its offset speaks of a history that is gone, and
    whoever looks at offsets waits for the next one."""

    place: QueryPlace
    is_doubtful: bool
    is_told: bool = True


def version(era: int, seq: Seq) -> int:
    return era << ERA_SHIFT | seq


def plan_partition(
    partition: PartitionId, settled: Settled, master: MasterState
) -> Planned | Refuse | None:
    """Up to what the master has; None: there is nothing new."""
    place = settled.place
    found = find_start(master.log, place.compared, master.high)
    if isinstance(found, Refuse):
        return found
    is_settled = settled.is_told and not settled.is_doubtful
    is_same = master.log.newest == place.log.newest
    if is_settled and is_same and found.seq == place.seq >= master.high:
        return None  # Whatever is forgotten there: who has all has missed nothing.
    found = find_start(master.log, place.compared, master.high, master.purged)
    assert not isinstance(found, Refuse)
    is_back = found.seq < place.seq
    end = QueryPlace(
        master.log,
        master.high,
        min(place.first, found.seq),
        SEQ_MAX,
        place.era + is_back,
        place.since,
    )
    wanted = PartitionRange(partition, place, master.high, is_doubtful=settled.is_doubtful)
    return Planned(wanted, end)


def cut_to(planned: Mapping[PartitionId, Planned], changes_max: int) -> dict[PartitionId, Planned]:
    """No more than about so many changes, shared by what each partition has waiting.  Keeps I3."""
    waiting = {number: _waiting(each) for number, each in planned.items()}
    total = sum(waiting.values())
    if total <= changes_max:
        return dict(planned)
    found: dict[PartitionId, Planned] = {}
    for number, each in planned.items():
        share = max(1, waiting[number] * changes_max // total)
        is_back = each.end.era > each.range.place.era
        is_cut = share < waiting[number] and not is_back  # Keeps I4.
        found[number] = _cut(each, Seq(each.range.place.seq + share)) if is_cut else each
    return found


def _waiting(planned: Planned) -> int:
    return max(0, planned.range.end - planned.range.place.seq)


def _cut(planned: Planned, end: Seq) -> Planned:
    replace = msgspec.structs.replace
    cut = replace(planned.range, end=end, is_cut=True)
    return Planned(cut, replace(planned.end, seq=end))


def keep_at_most(ranges: Sequence[PartitionRange], keys_max: int) -> list[PartitionRange]:
    """Of a batch that is larger than what is kept for undos, only the newest changes are."""
    total = sum(max(0, each.end - each.place.seq) for each in ranges)
    if total <= keys_max:
        return list(ranges)
    found: list[PartitionRange] = []
    for each in ranges:
        kept = -(-max(0, each.end - each.place.seq) * keys_max // total)
        above = Seq(max(NO_SEQ, each.end - kept))
        found.append(msgspec.structs.replace(each, kept_above=above))
    return found


def settle(before: QueryPlace, end: QueryPlace, receipts: Iterable[Receipt]) -> Settled:
    """Where the query stands that read the range from `before` to `end`.  Keeps I2."""
    all = list(receipts)
    found = [each for each in all if not each.is_begun and _is_of(each, before, end)]
    if not found:  # Nobody read it to its end, as one who takes a few rows does.
        return Settled(end, True)
    least = min((each.place for each in found), key=lambda place: (place.era, place.seq))
    histories = {(each.place.era, each.place.log.newest) for each in found}
    reached = [max(each.place.seq, each.seen) for each in found if each.place.era == least.era]
    is_missing = sum(each.is_begun for each in all) > sum(each.is_again for each in found)
    is_doubtful = is_missing or len(histories) > 1 or max(reached) > least.seq
    is_told = (least.era, least.log.newest) == (end.era, end.log.newest)
    return Settled(least, is_doubtful, is_told)


def settle_unknown(place: QueryPlace) -> Settled:
    """Where the query stands if nothing is left of what its attempts kept: all is read again, above
    whatever they handed out."""
    since, era = place.since, place.era + ERAS_UNKNOWN_MAX
    again = msgspec.structs.replace(place, seq=since, first=since, last=since, era=era)
    return Settled(again, False, False)


def _is_of(receipt: Receipt, before: QueryPlace, end: QueryPlace) -> bool:
    asked = (receipt.era, receipt.id, receipt.seq, receipt.end)
    return asked == (before.era, before.log.newest, before.seq, end.seq)


def receipt_of(
    wanted: PartitionRange,
    place: QueryPlace,
    keys: int,
    detail: str = "",
    seen: Seq = NO_SEQ,
    is_again: bool = False,
) -> Receipt:
    before = wanted.place
    asked = wanted.partition, before.era, before.log.newest, before.seq, wanted.end
    return Receipt(*asked, place, keys, detail, seen, is_again)


def begun_of(wanted: PartitionRange) -> Receipt:
    """For an attempt after the first."""
    found = receipt_of(wanted, wanted.place, 0, is_again=True)
    return msgspec.structs.replace(found, is_begun=True)


def droppable(keys: Sequence[int], keys_max: int) -> int:
    """How many of the oldest receipts, with so many keys each, the others can do without."""
    kept = 0
    for at in range(len(keys) - 1, -1, -1):
        if kept >= keys_max:
            return at + 1
        kept += max(1, keys[at])
    return 0


def shared_out(ranges: Sequence[PartitionRange], tasks: int) -> list[list[PartitionRange]]:
    """About equal parts for so many tasks, neighbours together; none is empty."""
    if not ranges:
        return []
    total = sum(1 + max(0, each.end - each.place.seq) for each in ranges)
    parts: list[list[PartitionRange]] = [[]]
    taken = 0
    for each in ranges:
        if parts[-1] and taken * tasks >= total * len(parts) and len(parts) < tasks:
            parts.append([])
        parts[-1].append(each)
        taken += 1 + max(0, each.end - each.place.seq)
    return parts
