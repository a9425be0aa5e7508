"""What the record of an application says, row by row of the design's tables."""

from itertools import count

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.publications import (
    VOID_MARKS_MAX,
    Course,
    ManifestPlace,
    PublicationRecord,
    Standing,
    Target,
    abandon,
    app_key,
    begin,
    course,
    decides,
    is_forgettable,
    is_removable,
    note,
    standing_of,
    take_over,
)
from millrace.meta.bounds import check_key
from millrace.meta.keys import PUBLICATIONS
from millrace.types import LogId, Lsn

HERE, THERE = LogId(7), LogId(8)
MARK, OTHER, VOID = 11, 12, 13
WHERE = Lsn(41)


def target(log: LogId = HERE, mark: int = MARK, where: int = 0) -> Target:
    return Target(log, f"log-{log}", rows=3, mark=mark, since=Lsn(1), where=Lsn(where))


def record(version: int, *targets: Target, void: tuple[int, ...] = ()) -> PublicationRecord:
    return PublicationRecord("app", version, targets, ManifestPlace("@staged/7", Lsn(1)), void)


PUBLISHED = record(7, target(where=WHERE), target(THERE, OTHER, where=5))
PUBLISHING = record(7, target(), target(THERE, OTHER, where=5))
LOST = abandon(PUBLISHING, {HERE})
PASSED_OVER = begin(LOST, "app", 8, (target(mark=17, where=90),), None, now_ms=5)


# -- Publishing -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "version", "expected"),
    [
        pytest.param(None, 7, Course.BEGIN, id="no record"),
        pytest.param(PUBLISHED, 8, Course.BEGIN, id="the one before is published"),
        pytest.param(PUBLISHED, 7, Course.NOTHING, id="it is published"),
        pytest.param(PUBLISHED, 6, Course.NOTHING, id="a later one is published"),
        pytest.param(PUBLISHING, 7, Course.FINISH, id="it was begun"),
        pytest.param(PUBLISHING, 8, Course.FINISH, id="the one before was begun"),
        pytest.param(PUBLISHING, 6, Course.NOTHING, id="a later one was begun"),
        pytest.param(record(7), 8, Course.BEGIN, id="the one before had no rows"),
        pytest.param(LOST, 7, Course.BEGIN_AGAIN, id="it was given up in a log"),
        pytest.param(LOST, 8, Course.BEGIN, id="the one before was given up"),
        pytest.param(PASSED_OVER, 7, Course.TOO_LATE, id="it was given up and passed over"),
        pytest.param(PASSED_OVER, 6, Course.NOTHING, id="a later one was passed over"),
    ],
)
def test_what_publishing_does(
    found: PublicationRecord | None, version: int, expected: Course
) -> None:
    assert course(found, version) is expected


def test_beginning_keeps_what_is_void_and_what_was_published() -> None:
    before = msgspec.structs.replace(PUBLISHED, void=(VOID,))
    begun = begin(before, "app", 8, (target(),), None, now_ms=5)
    assert (begun.version, begun.before, begun.void, begun.begun_ms) == (8, 7, (VOID,), 5)
    assert not begun.is_published


def test_it_is_published_when_every_log_is_noted() -> None:
    noted = note(PUBLISHING, {MARK: WHERE})
    assert noted == PUBLISHED
    assert noted is not None and noted.is_published


@pytest.mark.parametrize(
    "found",
    [
        pytest.param({}, id="nothing was found"),
        pytest.param({OTHER: Lsn(99)}, id="what is noted stays where it is"),
        pytest.param({VOID: Lsn(99)}, id="somebody else's block"),
    ],
)
def test_nothing_new_is_not_noted(found: dict[int, Lsn]) -> None:
    assert note(PUBLISHING, found) is None


def test_taking_over_leaves_what_is_noted_and_voids_the_rest() -> None:
    taken = take_over(PUBLISHING, count(100))
    assert taken is not None
    assert [each.mark for each in taken.targets] == [100, OTHER]
    assert taken.void == (MARK,)
    assert note(taken, {MARK: WHERE}) is None, "whoever held the old mark cannot note any more"


def test_a_record_does_not_grow_without_bound() -> None:
    full = record(7, target(), void=tuple(range(VOID_MARKS_MAX)))
    assert take_over(full, count(10**6)) is None


def test_what_is_given_up_in_a_log_is_void_and_not_published() -> None:
    assert not LOST.is_published
    assert LOST.open_targets == ()
    assert standing_of(LOST, HERE, 7, MARK, WHERE) is Standing.VOID
    assert note(LOST, {MARK: WHERE}) is None, "whoever held the mark cannot note any more"


def test_a_version_that_was_given_up_is_begun_again_where_it_is_not_noted() -> None:
    others = (target(mark=17), target(THERE, 18))
    again = begin(LOST, "app", 7, others, ManifestPlace("@staged/7", Lsn(99)), now_ms=5)
    assert again.targets == (target(THERE, OTHER, where=5), target(mark=17))
    assert again.manifest == ManifestPlace("@staged/7", Lsn(99))
    assert (again.void, again.begun_ms, again.lost) == ((MARK,), 5, ())
    assert standing_of(again, HERE, 7, MARK, WHERE) is Standing.VOID
    assert standing_of(again, HERE, 7, 17, WHERE) is Standing.MAY_BE_NOTED


def test_a_version_that_was_passed_over_is_remembered() -> None:
    first = msgspec.structs.replace(LOST, before=4)
    second = abandon(begin(first, "app", 8, (target(mark=17),), None, now_ms=5), {HERE})
    third = begin(second, "app", 9, (), None, now_ms=6)
    assert (third.lost, third.before, third.passed_over) == ((7, 8), 4, (7, 8))
    fourth = begin(third, "app", 10, (), None, now_ms=7)
    assert (fourth.lost, fourth.before, fourth.passed_over) == ((7, 8), 9, ())
    assert fourth.void == (MARK, 17)


@pytest.mark.parametrize(
    ("is_once", "found", "gone", "expected"),
    [
        pytest.param(True, LOST, {HERE, THERE}, True, id="no row is left"),
        pytest.param(True, LOST, {THERE}, False, id="rows of what is void are left"),
        pytest.param(True, PUBLISHING, {HERE, THERE}, False, id="being published"),
        pytest.param(False, LOST, {HERE, THERE}, False, id="another version may come"),
    ],
)
def test_which_records_are_forgotten_with_their_rows(
    is_once: bool, found: PublicationRecord, gone: set[LogId], expected: bool
) -> None:
    of_one = msgspec.structs.replace(found, is_once=is_once)
    assert is_forgettable(of_one, gone) is expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(PUBLISHED, True, id="published"),
        pytest.param(PUBLISHING, False, id="being published"),
        pytest.param(
            msgspec.structs.replace(PUBLISHED, void=(VOID,)), False, id="something is void"
        ),
    ],
)
def test_which_records_can_be_removed(found: PublicationRecord, expected: bool) -> None:
    assert is_removable(found) is expected


# -- Reading --------------------------------------------------------------------------------------

STANDINGS = [
    pytest.param(None, Standing.VALID, id="none"),
    pytest.param(record(7, target(), void=(MARK,)), Standing.VOID, id="void, of this version"),
    pytest.param(record(9, void=(MARK,)), Standing.VOID, id="void, of one before"),
    pytest.param(record(8, target(mark=OTHER)), Standing.VALID, id="a later version"),
    pytest.param(PUBLISHED, Standing.VALID, id="noted here"),
    pytest.param(record(7, target(where=99)), Standing.VOID, id="noted elsewhere"),
    pytest.param(PUBLISHING, Standing.MAY_BE_NOTED, id="not noted yet"),
    pytest.param(record(7, target(mark=OTHER)), Standing.VOID, id="not noted, another mark"),
    pytest.param(record(7, target(THERE)), Standing.VOID, id="not of this log"),
    pytest.param(record(6, target(mark=OTHER)), Standing.VALID, id="removed, and begun again"),
]


@pytest.mark.parametrize(("found", "expected"), STANDINGS)
def test_what_a_block_is(found: PublicationRecord | None, expected: Standing) -> None:
    assert standing_of(found, HERE, 7, MARK, WHERE) is expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(None, False, id="none"),
        pytest.param(record(8), True, id="a later version"),
        pytest.param(PUBLISHED, True, id="noted here"),
        pytest.param(PUBLISHING, False, id="not noted yet"),
        pytest.param(record(6), False, id="an earlier version"),
        pytest.param(LOST, False, id="given up here"),
        pytest.param(record(7), False, id="given up, and begun again in other logs"),
    ],
)
def test_what_need_not_be_read_again(found: PublicationRecord | None, expected: bool) -> None:
    assert decides(found, HERE, 7) is expected


# -- Names ----------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.text(min_size=1, max_size=1_024), st.text(min_size=1, max_size=1_024))
def test_every_application_has_a_key_of_its_own(one: str, other: str) -> None:
    keys = {PUBLICATIONS.key(app_key(app)) for app in (one, other)}
    for key in keys:
        check_key(key)
    assert len(keys) == len({one, other})


def test_names_that_people_can_read_stay_as_they_are() -> None:
    assert app_key("orders-to-invoices/7") == "orders-to-invoices/7"


def test_records_survive_being_written_as_json() -> None:
    wide = msgspec.structs.replace(PUBLISHING, void=(2**63 - 1,))
    entry = PUBLICATIONS.encode(wide)
    assert msgspec.json.decode(entry, type=PublicationRecord) == wide
