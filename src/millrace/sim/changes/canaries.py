"""Planted bugs in what a query of changes decides."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from millrace.core.documents import change_ring, range_consumer
from millrace.core.documents.change_query import MasterState, QueryPlace, Receipt, Settled, settle
from millrace.core.documents.change_ring import Begin, RingPart, begin
from millrace.core.documents.document import Seq
from millrace.core.documents.messages import FailoverLogGot
from millrace.core.documents.range_consumer import RangeConsumer, RangeEffect, RangePhase
from millrace.core.documents.rollback import Refuse
from millrace.sim.changes import query
from millrace.sim.changes.attempt import AttemptRange
from millrace.sim.changes.checkpoint import Row, SimRing
from millrace.sim.planting import Nursery, Patch

CANARIES = Nursery()
canary = CANARIES.plant


@canary
def nothing_is_compensated(patch: Patch) -> None:
    """A rollback goes back, and says nothing of what it took back."""
    patch(change_ring, "_keys_above", lambda *_: ())


@canary
def the_era_is_not_raised(patch: Patch) -> None:
    """After a rollback versions go on in the same era, and old ones stand above new ones."""

    def same(place: QueryPlace, *rest: Any) -> Begin | Refuse:
        found = begin(place, *rest)
        return found if isinstance(found, Refuse) else msgspec.structs.replace(found, era=place.era)

    patch(range_consumer, "begin", same)


@canary
def the_ring_is_not_written(patch: Patch) -> None:
    """Parts say what they cover, and have no keys."""
    real = AttemptRange.take_out

    def without(each: AttemptRange) -> tuple[list[Row], RingPart | None]:
        rows, part = real(each)
        return rows, part and msgspec.structs.replace(part, entries=())

    patch(AttemptRange, "take_out", without)


@canary
def a_range_is_not_planned_again(patch: Patch) -> None:
    """A task that finds another history goes on as it was told."""

    def trusting(machine: RangeConsumer, got: FailoverLogGot) -> list[RangeEffect]:
        machine._master = MasterState(got.log, got.high, got.purged)
        return machine._begin(Begin(min(machine.place.seq, got.high), machine.place.era))

    patch(RangeConsumer, "_compare", trusting)


@canary
def attempts_do_not_look_at_each_other(patch: Patch) -> None:
    """A task that is repeated knows nothing of what the one before it handed out."""

    def alone(place: QueryPlace, parts: Sequence[RingPart], master: MasterState) -> Begin | Refuse:
        return begin(place, [part for part in parts if part.is_settled], master)

    patch(range_consumer, "begin", alone)


@canary
def the_furthest_attempt_counts(patch: Patch) -> None:
    """Whoever came furthest is taken for the one that Spark took."""

    def eager(before: QueryPlace, end: QueryPlace, receipts: Iterable[Receipt]) -> Settled:
        found = list(receipts)
        settled = settle(before, end, found)
        places = [each.place for each in found if each.end == end.seq and each.seq == before.seq]
        if not places:
            return settled
        return Settled(max(places, key=lambda place: (place.era, place.seq)), False)

    patch(query, "settle", eager)


@canary
def half_an_undo_counts(patch: Patch) -> None:
    """An undo that broke off is not begun again."""
    real = RangeConsumer._retry

    def forgetful(machine: RangeConsumer, *rest: Any, **more: Any) -> list[RangeEffect]:
        machine._undoing = None  # As if all was fetched.
        return real(machine, *rest, **more)

    patch(RangeConsumer, "_retry", forgetful)


@canary
def receipts_of_earlier_batches_count(patch: Patch) -> None:
    """A batch of the same range as one before is settled by what that one came to."""
    patch(SimRing, "receipts", _all_receipts)


def _all_receipts(ring: SimRing, first: int) -> list[Receipt]:
    return [receipt for _, receipt in ring._receipts]


@canary
def attempts_that_came_further_are_forgotten(patch: Patch) -> None:
    """Where the least of them came to is taken for all that was handed out."""

    def sure(before: QueryPlace, end: QueryPlace, receipts: Iterable[Receipt]) -> Settled:
        found = [each for each in receipts if not each.is_begun]
        settled = settle(before, end, found)
        histories = {(each.place.era, each.place.log.newest) for each in found}
        is_doubtful = settled.is_doubtful and len(histories) != 1
        return Settled(settled.place, is_doubtful, settled.is_told)

    patch(query, "settle", sure)


@canary
def a_cut_range_passes_over_a_change(patch: Patch) -> None:
    """A range that is cut ends at the change it has no room for, and not before it."""
    real = RangeConsumer.took

    def eager(
        machine: RangeConsumer, seqs: Sequence[int], now_ms: int
    ) -> tuple[int, list[RangeEffect]]:
        count, effects = real(machine, seqs, now_ms)
        if machine.phase is RangePhase.DONE and count < len(seqs):
            machine.place = msgspec.structs.replace(machine.place, seq=Seq(int(seqs[count])))
        return count, effects

    patch(RangeConsumer, "took", eager)
