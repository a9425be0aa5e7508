"""What publishers do and report when rows are gone that somebody staged who began before them.

`test_publications_faults.py` plays all of it by chance.
"""

from itertools import count
from typing import Any

import pytest

from millrace.core import publishing
from millrace.core.publications import (
    ManifestPlace,
    PublicationRecord,
    Target,
    abandon,
    begin,
    take_over,
)
from millrace.core.publishing import (
    AppendBlocks,
    Done,
    Held,
    Look,
    Looked,
    Prepare,
    Prepared,
    ReadRecord,
    ReplaceRecord,
    Trouble,
)
from millrace.types import LogId, Lsn

HERE, THERE = LogId(5), LogId(6)
OLD_MANIFEST, NEW_MANIFEST = (
    ManifestPlace("@staged/5", Lsn(90)),
    ManifestPlace("@staged/5", Lsn(95)),
)
BEFORE = PublicationRecord("query", 6, (), None)


def target(log: LogId, mark: int) -> Target:
    return Target(log, f"log-{log}", rows=10, mark=mark, since=Lsn(50))


BEGUN = begin(BEFORE, "query", 7, (target(HERE, 111), target(THERE, 112)), OLD_MANIFEST, 0)


class Surroundings:
    """A repository with one record, and logs that take all; `gone` are those whose rows are."""

    def __init__(self, record: PublicationRecord | None, gone: set[LogId]) -> None:
        self.record = record
        self.at = 3
        self.gone = gone
        self._marks = count(201)
        self.appended: dict[LogId, list[int]] = {HERE: [], THERE: []}
        self.manifests: list[ManifestPlace | None] = []  # Of what was appended.

    def run(self, work: Any, answer: Any = None) -> Any:
        while True:
            try:
                effect = work.send(answer)
            except StopIteration as finished:
                return finished.value
            answer = self.perform(effect)

    def until_it_appends(self, work: publishing.Publishing) -> None:
        effect = work.send(None)
        while not isinstance(effect, AppendBlocks):
            effect = work.send(self.perform(effect))

    def perform(self, effect: Any) -> Any:
        match effect:
            case ReadRecord():
                return Held(self.record, self.at)
            case ReplaceRecord(record, expected):
                if expected != self.at:
                    return 0
                self.record, self.at = record, self.at + 1
                return self.at
            case Look(record):
                found = {
                    each.mark: Lsn(60)
                    for each in record.open_targets
                    if each.mark in self.appended[each.log]
                }
                return Looked(found, self.gone)
            case Prepare():
                here, there = next(self._marks), next(self._marks)
                return Prepared((target(HERE, here), target(THERE, there)), NEW_MANIFEST)
            case AppendBlocks(record):
                for each in record.open_targets:
                    self.appended[each.log].append(each.mark)
                self.manifests.append(record.manifest)
                return {each.mark: Lsn(70) for each in record.open_targets}


def publish(version: int) -> publishing.Publishing:
    return publishing.publish("query", version, count(300), 0)


@pytest.mark.parametrize(
    ("gone", "appended", "manifests"),
    [
        pytest.param({HERE, THERE}, ([201], [202]), [NEW_MANIFEST], id="all"),
        pytest.param({HERE}, ([201], [300]), [OLD_MANIFEST, NEW_MANIFEST], id="of one log"),
    ],
)
def test_what_is_gone_is_published_with_the_rows_of_who_comes_again(
    gone: set[LogId], appended: tuple[list[int], list[int]], manifests: list[ManifestPlace]
) -> None:
    surroundings = Surroundings(BEGUN, gone)
    done = surroundings.run(publish(7))
    assert isinstance(done, Done)
    assert not done.is_repeated
    assert done.record == surroundings.record
    assert done.record.is_published
    assert {each.log for each in done.record.targets} == {HERE, THERE}
    assert set(done.record.void) == {111, 112}
    assert tuple(surroundings.appended.values()) == appended
    assert surroundings.manifests == manifests


def test_a_higher_version_passes_over_what_is_gone_and_says_so() -> None:
    surroundings = Surroundings(BEGUN, {HERE, THERE})
    done = surroundings.run(publish(8))
    assert isinstance(done, Done)
    assert (done.record.version, done.record.before, done.record.passed_over) == (8, 6, (7,))
    assert surroundings.run(publish(7)) is Trouble.PASSED_OVER, "it was not published"
    assert surroundings.run(publish(9)).record.passed_over == (), "it is said once"


ACKNOWLEDGED = {201: Lsn(99), 202: Lsn(99)}  # What who wakes up had appended.


def test_who_wakes_up_after_it_was_passed_over_does_not_hear_that_it_was_published() -> None:
    surroundings = Surroundings(BEFORE, set())
    sleeping = publish(7)
    surroundings.until_it_appends(sleeping)
    assert surroundings.record is not None
    surroundings.record, surroundings.at = abandon(surroundings.record, {HERE, THERE}), 20
    assert surroundings.run(publish(8)).record.version == 8
    assert surroundings.run(sleeping, ACKNOWLEDGED) is Trouble.PASSED_OVER


def test_who_wakes_up_after_it_was_given_up_begins_again() -> None:
    surroundings = Surroundings(BEFORE, set())
    sleeping = publish(7)
    surroundings.until_it_appends(sleeping)
    assert surroundings.record is not None
    surroundings.record, surroundings.at = abandon(surroundings.record, {HERE, THERE}), 20
    done = surroundings.run(sleeping, ACKNOWLEDGED)
    assert isinstance(done, Done)
    assert done.record.is_published
    assert done.record.void == (201, 202), "what it had appended does not count"
    assert [each.mark for each in done.record.targets] == [203, 204]


def test_who_wakes_up_after_its_record_is_gone_knows_nothing() -> None:
    surroundings = Surroundings(BEFORE, set())
    sleeping = publish(7)
    surroundings.until_it_appends(sleeping)
    surroundings.record, surroundings.at = None, 0
    assert surroundings.run(sleeping, ACKNOWLEDGED) is Trouble.FORGOTTEN


def test_giving_up_decides_one_log_and_leaves_the_others() -> None:
    surroundings = Surroundings(BEGUN, set())
    assert surroundings.run(publishing.give_up(Held(BEGUN, 3), HERE)) is True
    assert surroundings.record == abandon(BEGUN, {HERE})
    assert [each.log for each in surroundings.record.open_targets] == [THERE]


def test_what_is_in_the_log_is_noted_instead_of_given_up() -> None:
    surroundings = Surroundings(BEGUN, set())
    surroundings.appended[HERE].append(111)
    assert surroundings.run(publishing.give_up(Held(BEGUN, 3), HERE)) is True
    assert surroundings.record is not None
    assert surroundings.record.void == ()
    noted = surroundings.record.target(HERE)
    assert noted is not None and noted.where == 60


def test_nothing_is_given_up_that_somebody_goes_on_with() -> None:
    surroundings = Surroundings(take_over(BEGUN, count(300)), set())
    before = surroundings.record
    assert surroundings.run(publishing.give_up(Held(BEGUN, 2), HERE)) is False
    assert surroundings.record == before
