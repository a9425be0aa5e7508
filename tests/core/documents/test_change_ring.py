"""What must be taken back of what a query read, and whether it is known."""

import pytest

from millrace.core.documents.change_query import MasterState, PartitionRange, QueryPlace
from millrace.core.documents.change_ring import Begin, RingPart, Stretches, begin
from millrace.core.documents.document import FailoverId, PartitionId, Seq
from millrace.core.documents.failover_log import FailoverEntry, FailoverLog
from millrace.core.documents.ring_buffer import RingEntry
from millrace.core.documents.rollback import Refuse


def log(*entries: tuple[int, int]) -> FailoverLog:
    """Newest first."""
    return FailoverLog(tuple(FailoverEntry(FailoverId(id), Seq(seq)) for id, seq in entries))


A = log((0xA, 0))
B = log((0xB, 20), (0xA, 0))  # Goes on from 20 of A.
C = log((0xC, 15), (0xA, 0))  # Goes on from 15 of A, and knows nothing of B.
C_OF_B = log((0xC, 22), (0xB, 20), (0xA, 0))


def place(seq: int, of: FailoverLog = A, era: int = 0, since: int = 0) -> QueryPlace:
    at = Seq(seq)
    return QueryPlace(of, at, at, at, era, Seq(since))


def part(
    after: int,
    last: int,
    keys: dict[str, int],
    of: FailoverLog = A,
    *,
    era: int = 0,
    cut: int | None = None,
    is_settled: bool = True,
    began: int | None = None,
) -> RingPart:
    entries = tuple(RingEntry(Seq(seq), key.encode()) for key, seq in keys.items())
    return RingPart(
        era,
        of,
        Seq(after),
        Seq(after if began is None else began),
        Seq(after),
        Seq(last),
        entries,
        None if cut is None else Seq(cut),
        is_settled,
    )


def brief(found: Begin | Refuse) -> tuple[int, int, bool, set[bytes], bool]:
    assert isinstance(found, Begin)
    return found.start, found.era, found.is_back, set(found.keys), found.is_reread


FIRST = part(0, 10, {"a": 3, "b": 9})
SECOND = part(10, 30, {"c": 12, "a": 18, "b": 21, "d": 28})


@pytest.mark.parametrize(
    ("stands", "parts", "master", "expected"),
    [
        (place(30), [FIRST, SECOND], (A, 35), (30, 0, False, set(), False)),
        (place(30), [FIRST, SECOND], (B, 35), (20, 1, True, {b"b", b"d"}, False)),
        (place(30), [FIRST, SECOND], (C, 16), (15, 1, True, {b"a", b"b", b"d"}, False)),
        (place(30), [SECOND], (C, 16), (15, 1, True, {b"a", b"b", b"d"}, False)),
        (place(30), [part(25, 30, {"d": 28})], (B, 35), (0, 1, True, {b"d"}, True)),
        (place(30), [], (B, 35), (0, 1, True, set(), True)),
        (place(30, since=25), [part(25, 30, {"d": 28})], (B, 35), (20, 1, True, {b"d"}, False)),
        (place(30, since=10), [], (B, 35), (10, 1, True, set(), True)),
        (place(30), [FIRST, SECOND], (log((0xF, 0)), 9), (0, 1, True, set(b"abcd"), False)),
    ],
    ids=[
        "nothing happened",
        "back to 20: the keys above it",
        "back to 15",
        "parts below the rollback point are not needed",
        "below the ring: all is read again",
        "no ring at all",
        "who began at 25 has nothing else to take back",
        "who began at 10 reads again from there",
        "back to 0, and all is known",
    ],
)
def test_a_rollback(
    stands: QueryPlace,
    parts: list[RingPart],
    master: tuple[FailoverLog, int],
    expected: tuple[int, int, bool, set[bytes], bool],
) -> None:
    keys = {bytes([key]) if isinstance(key, int) else key for key in expected[3]}
    found = begin(stands, parts, MasterState(master[0], Seq(master[1])))
    assert brief(found) == (*expected[:3], keys, expected[4])


UNDONE = part(20, 20, {"b": 9, "d": 19}, B, era=1, cut=20)  # What took the place of b and d.
AFTER = part(20, 24, {"e": 23}, B, era=1)


def test_what_was_taken_back_is_not_taken_back_again() -> None:
    """Of the first era only what lies at or below 20 still counts, and of what was fetched for the
    undo all: `d` at 19 was never read before."""
    found = begin(place(24, B, era=1), [FIRST, SECOND, UNDONE, AFTER], MasterState(C, Seq(16)))
    assert brief(found) == (15, 2, True, {b"a", b"d", b"e"}, False)


def test_a_second_rollback_of_the_new_history_alone() -> None:
    found = begin(place(24, B, era=1), [FIRST, SECOND, UNDONE, AFTER], MasterState(C_OF_B, Seq(22)))
    assert brief(found) == (22, 2, True, {b"e"}, False)


@pytest.mark.parametrize(
    ("before", "master", "expected"),
    [
        ([part(10, 30, {"c": 12, "d": 28}, is_settled=False)], A, (10, 0, False, set(), False)),
        (
            [part(10, 30, {"c": 12, "d": 28}, is_settled=False)],
            B,
            (10, 1, True, {b"c", b"d"}, False),
        ),
        (
            [part(10, 10, {"b": 9}, C, era=1, cut=10, is_settled=False)],
            C,
            (10, 1, True, set(), False),
        ),
        (
            [part(28, 30, {"d": 29}, is_settled=False, began=10)],
            B,
            (0, 1, True, {b"d"}, True),
        ),
    ],
    ids=[
        "it read the same history: it is read once more",
        "it read what was lost since, though the query stands below that",
        "it began an era: that is gone on with, in the same one",
        "its first keys were too old to be kept",
    ],
)
def test_what_an_attempt_before_handed_out_counts(
    before: list[RingPart],
    master: FailoverLog,
    expected: tuple[int, int, bool, set[bytes], bool],
) -> None:
    found = begin(place(10), [FIRST, *before], MasterState(master, Seq(40)))
    assert brief(found) == expected


def test_two_attempts_in_one_era_that_saw_different_masters_make_another_era() -> None:
    of_b = part(20, 24, {"e": 23}, B, era=1, cut=20, is_settled=False)
    of_c = part(15, 18, {"f": 17}, C, era=1, cut=15, is_settled=False)
    found = begin(place(30), [FIRST, SECOND, of_b, of_c], MasterState(C, Seq(18)))
    assert brief(found) == (15, 2, True, {b"a", b"b", b"d", b"e", b"f"}, False)


def test_a_master_that_an_attempt_knows_to_be_over_is_refused() -> None:
    seen = part(10, 24, {"e": 23}, B, is_settled=False)
    assert isinstance(begin(place(10), [FIRST, seen], MasterState(A, Seq(40))), Refuse)


def test_parts_tile_what_was_taken() -> None:
    wanted = PartitionRange(PartitionId(0), place(10), Seq(40), kept_above=Seq(25))
    stretches = Stretches(wanted)
    found = [
        stretches.next(place(20), True),  # Too old to be kept, and said to be.
        stretches.next(place(30), True),
        stretches.next(place(30), False),
        stretches.next(place(34), False),  # Nothing lies there.
    ]
    assert [each and (each.after, each.last, each.cut) for each in found] == [
        (20, 20, None),
        (25, 30, None),
        None,
        (30, 34, None),
    ]
    stretches.begin_era(Seq(15))
    again = stretches.next(place(15, B, era=1), True)
    assert again is not None
    assert (again.after, again.last, again.cut, again.began) == (15, 15, 15, 15)


def test_of_what_was_forgotten_before_the_stream_began_a_part_says_nothing() -> None:
    stretches = Stretches(PartitionRange(PartitionId(0), place(0), Seq(30)))
    below = stretches.next(place(10), True, Seq(20))
    above = stretches.next(place(30), True, Seq(20))
    assert below is not None
    assert above is not None
    assert [(part.after, part.last) for part in (below, above)] == [(10, 10), (20, 30)]
