"""Whatever dies, hangs or arrives late: each reader sees each version once, whole and for good.

And each rule is needed: without it some run ends differently.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from millrace.core import publications, publishing
from millrace.core.publications import Course, PublicationRecord, Standing
from tests.core import publications_model
from tests.core.publications_model import World, play, played

RUNS = 600
Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("first", range(0, RUNS, 100))
def test_each_reader_sees_each_version_once_and_whole(first: int) -> None:
    for seed in range(first, first + 100):
        assert play(seed) == [], f"seed {seed}"


def test_the_runs_are_not_too_kind() -> None:
    """Publishers die and are taken over, appends arrive late, readers note, rows are trimmed."""
    totals = dict.fromkeys(World(0).counts, 0)
    for seed in range(100):
        for what, count in played(seed).counts.items():
            totals[what] += count
    assert all(count > 50 for count in totals.values()), totals


# -- Without a rule -------------------------------------------------------------------------------


def nothing_is_void(patch: Patch) -> None:
    take_over = publications.take_over

    def forgetful(record: PublicationRecord, marks: Any) -> PublicationRecord | None:
        taken = take_over(record, marks)
        return None if taken is None else msgspec.structs.replace(taken, void=record.void)

    patch.setattr(publications, "take_over", forgetful)


def the_same_marks_go_on(patch: Patch) -> None:
    patch.setattr(publications, "take_over", lambda record, marks: record)


def readers_do_not_note(patch: Patch) -> None:
    settle = publishing.settle

    def trusting(*arguments: Any) -> Any:
        work = settle(*arguments)
        answer = None
        while True:
            try:
                effect = work.send(answer)
            except StopIteration as finished:
                return finished.value
            if isinstance(effect, publishing.ReplaceRecord):
                return publishing.Settled(True, None)
            answer = yield effect

    patch.setattr(publishing, "settle", trusting)


def what_is_being_published_is_valid(patch: Patch) -> None:
    standing_of = publications.standing_of

    def hasty(record: PublicationRecord | None, *block: Any) -> Standing:
        standing = standing_of(record, *block)
        return Standing.VALID if standing is Standing.MAY_BE_NOTED else standing

    patch.setattr(publications, "standing_of", hasty)


def records_are_not_compared(patch: Patch) -> None:
    replace = World.replace

    def careless(self: World, app: str, record: PublicationRecord, expected: int) -> int:
        return replace(self, app, record, self.records.get(app, (None, 0))[1])

    patch.setattr(World, "replace", careless)


def readers_note_without_comparing(patch: Patch) -> None:
    def careless(self: World, app: str, effect: Any) -> Any:
        if not isinstance(effect, publishing.ReplaceRecord):
            return self.read(app)
        return self.replace(app, effect.record, self.records.get(app, (None, 0))[1])

    patch.setattr(World, "answer", careless)


def what_was_read_once_stands_for_good(patch: Patch) -> None:
    patch.setattr(publications, "decides", lambda record, log, version: record is not None)


def who_comes_next_begins_anew(patch: Patch) -> None:
    course = publications.course

    def impatient(record: PublicationRecord | None, version: int) -> Course:
        chosen = course(record, version)
        return Course.BEGIN if chosen is Course.FINISH else chosen

    patch.setattr(publications, "course", impatient)


def what_was_void_is_forgotten_with_the_record(patch: Patch) -> None:
    patch.setattr(publications, "is_removable", lambda record: record.is_published)


def the_next_version_forgets_what_is_void(patch: Patch) -> None:
    begin = publications.begin

    def fresh(*arguments: Any) -> PublicationRecord:
        return msgspec.structs.replace(begin(*arguments), void=())

    patch.setattr(publications, "begin", fresh)


def what_is_given_up_counts_as_published(patch: Patch) -> None:
    """A micro-batch was lost so: its manifest was gone, and Spark heard that it was published."""
    abandon = publications.abandon

    def hasty(record: PublicationRecord, logs: Any) -> PublicationRecord:
        left = abandon(record, logs)
        kept = tuple(each for each in left.targets if not each.is_lost)
        return msgspec.structs.replace(left, targets=kept)

    patch.setattr(publications, "abandon", hasty)


def what_is_given_up_is_not_void(patch: Patch) -> None:
    abandon = publications.abandon

    def forgetful(record: PublicationRecord, logs: Any) -> PublicationRecord:
        return msgspec.structs.replace(abandon(record, logs), void=record.void)

    patch.setattr(publications, "abandon", forgetful)


def what_is_noted_is_begun_again(patch: Patch) -> None:
    begin = publications.begin

    def thorough(record: PublicationRecord | None, *what: Any) -> PublicationRecord:
        begun = begin(record, *what)
        return msgspec.structs.replace(begun, targets=what[2])

    patch.setattr(publications, "begin", thorough)


def readers_remember_that_it_was_given_up(patch: Patch) -> None:
    decides = publications.decides

    def stubborn(record: PublicationRecord | None, log: Any, version: int) -> bool:
        target = None if record is None or record.version != version else record.target(log)
        return decides(record, log, version) or (target is not None and target.is_lost)

    patch.setattr(publications, "decides", stubborn)


def rows_that_are_gone_are_published(patch: Patch) -> None:
    patch.setattr(World, "gone", lambda self, record, found: set())


def what_was_passed_over_is_forgotten(patch: Patch) -> None:
    begin = publications.begin

    def blithe(*arguments: Any) -> PublicationRecord:
        return msgspec.structs.replace(begin(*arguments), lost=())

    patch.setattr(publications, "begin", blithe)


BUGS: list[Callable[[Patch], None]] = [
    nothing_is_void,
    the_same_marks_go_on,
    readers_do_not_note,
    what_is_being_published_is_valid,
    records_are_not_compared,
    readers_note_without_comparing,
    what_was_read_once_stands_for_good,
    who_comes_next_begins_anew,
    what_was_void_is_forgotten_with_the_record,
    the_next_version_forgets_what_is_void,
    what_is_given_up_counts_as_published,
    what_is_given_up_is_not_void,
    what_is_noted_is_begun_again,
    readers_remember_that_it_was_given_up,
    rows_that_are_gone_are_published,
    what_was_passed_over_is_forgotten,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_missing_rule_is_noticed(bug: Callable[[Patch], None], monkeypatch: Patch) -> None:
    bug(monkeypatch)
    assert any(_goes_wrong(seed) for seed in range(RUNS))


def _goes_wrong(seed: int) -> bool:
    try:
        return bool(publications_model.play(seed))
    except AssertionError:  # One of the core's own.
        return True
