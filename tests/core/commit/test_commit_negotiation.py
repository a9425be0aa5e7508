"""What a replica that is synced keeps, and what it asks for."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.commit.negotiation import (
    SyncDrop,
    SyncPlan,
    SyncRefusal,
    SyncRefused,
    negotiate,
)
from millrace.core.commit.record import CommitContext, StreamCommit
from millrace.core.commit.recovery import Quarantined, ReplicaFacts, Valid, recover
from millrace.core.messages.commit import SyncInit
from millrace.types import Epoch, LogId, Lsn, NodeId, StreamId
from tests.core.commit.commit_samples import context, facts, run


def offer(first: int, end: int, closing: CommitContext | None = None) -> SyncInit:
    return SyncInit(
        LogId(7), StreamId(1), Epoch(2), NodeId(1), Lsn(first), Lsn(end), closing
    )  # fmt: skip


def closed(first: int, end: int) -> SyncInit:
    """Of the only stream of a log, so that both numbers are the same."""
    return offer(first, end, upto(end))


def upto(end: int) -> CommitContext:
    return context(end, end - 1, end, end, 0, end - 1)


def held(first: int, end: int) -> tuple[StreamCommit, ...]:
    return (run(1, first, first, end - first),)


def replica(first: int, end: int, uncommitted: int = 0) -> ReplicaFacts:
    """A whole one."""
    return facts(
        entries=(first, end + uncommitted),
        context=upto(end),
        runs=held(first, end) if first < end else (),
    )


def plan(
    drop: SyncDrop, trim_end: int, first: int, end: int, is_complete: bool = False
) -> SyncPlan:
    return SyncPlan(drop, Lsn(trim_end), Lsn(first), Lsn(end), is_complete)


@pytest.mark.parametrize(
    ("source", "mine", "expected"),
    [
        pytest.param(
            closed(1, 11), replica(1, 6), plan(SyncDrop.NOTHING, 1, 6, 11), id="RFC: a beginning"
        ),
        pytest.param(
            closed(11, 21), replica(1, 6), plan(SyncDrop.ALL, 11, 11, 21), id="RFC: a gap"
        ),
        pytest.param(
            closed(11, 11),
            replica(1, 6),
            plan(SyncDrop.ALL, 11, 11, 11),
            id="1 the source has trimmed all, with a gap",
        ),
        pytest.param(
            closed(11, 11),
            facts(entries=(1, 11), runs=held(1, 11)),
            plan(SyncDrop.PREFIX, 11, 11, 11),
            id="1 the source has trimmed all",
        ),
        pytest.param(
            closed(1, 11),
            facts(entries=(1, 11), runs=held(1, 11)),
            plan(SyncDrop.NOTHING, 1, 11, 11),
            id="2 only the context is missing",
        ),
        pytest.param(
            closed(1, 11),
            replica(4, 6),
            plan(SyncDrop.NOTHING, 4, 6, 11),
            id="3 more is trimmed here than there",
        ),
        pytest.param(
            closed(1, 11),
            facts(entries=(1, 6), context=upto(6), runs=held(4, 6)),
            plan(SyncDrop.ALL, 1, 1, 11),
            id="3 the beginning was lost",
        ),
        pytest.param(
            closed(4, 11),
            replica(4, 6),
            plan(SyncDrop.NOTHING, 4, 6, 11),
            id="4 the same beginning",
        ),
        pytest.param(
            closed(4, 11),
            replica(1, 6),
            plan(SyncDrop.PREFIX, 4, 6, 11),
            id="5 more is trimmed there than here",
        ),
        pytest.param(
            closed(6, 11),
            replica(1, 6),
            plan(SyncDrop.PREFIX, 6, 6, 11),
            id="5 the source begins where this one ends",
        ),
        pytest.param(
            closed(7, 11), replica(1, 6), plan(SyncDrop.ALL, 7, 7, 11), id="6 a gap of one"
        ),
        pytest.param(closed(1, 11), facts(), plan(SyncDrop.NOTHING, 1, 1, 11), id="blank"),
        pytest.param(
            closed(5, 11), facts(), plan(SyncDrop.NOTHING, 5, 5, 11), id="blank, source trimmed"
        ),
        pytest.param(
            closed(1, 11),
            facts(entries=(1, 15)),
            plan(SyncDrop.UNCOMMITTED, 1, 1, 11),
            id="only uncommitted entries",
        ),
        pytest.param(
            closed(1, 11),
            replica(1, 6, uncommitted=9),
            plan(SyncDrop.UNCOMMITTED, 1, 6, 11),
            id="uncommitted entries behind a beginning",
        ),
        pytest.param(
            closed(1, 21),
            facts(entries=(1, 6), context=upto(11), runs=held(1, 6)),
            plan(SyncDrop.NOTHING, 1, 6, 21),
            id="suffix missing",
        ),
        pytest.param(
            closed(1, 21),
            facts(entries=(1, 6), context=upto(11), runs=held(1, 11)),
            plan(SyncDrop.ALL, 1, 1, 21),
            id="fewer entries than runs",
        ),
        pytest.param(
            closed(1, 21),
            facts(entries=(1, 11), context=upto(11), runs=(run(3, 1, 1, 4), run(2, 5, 5, 6))),
            plan(SyncDrop.ALL, 1, 1, 21),
            id="runs that contradict one another",
        ),
        pytest.param(
            closed(1, 21), replica(11, 11), plan(SyncDrop.NOTHING, 11, 11, 21), id="all trimmed"
        ),
    ],
)
def test_as_little_as_possible_is_dropped_and_sent(
    source: SyncInit, mine: ReplicaFacts, expected: SyncPlan
) -> None:
    assert negotiate(source, mine) == expected


@pytest.mark.parametrize(
    ("source", "mine", "expected"),
    [
        pytest.param(closed(1, 11), replica(1, 11), SyncDrop.NOTHING, id="the same"),
        pytest.param(closed(1, 11), replica(1, 11, 4), SyncDrop.UNCOMMITTED, id="uncommitted"),
        pytest.param(closed(4, 11), replica(1, 11), SyncDrop.PREFIX, id="source trimmed more"),
        pytest.param(closed(11, 11), replica(1, 11), SyncDrop.PREFIX, id="source trimmed all"),
        pytest.param(closed(1, 11), replica(11, 11), SyncDrop.NOTHING, id="all trimmed here"),
        pytest.param(offer(1, 1), facts(), SyncDrop.NOTHING, id="nothing was ever committed"),
        pytest.param(offer(1, 1), facts(entries=(1, 5)), SyncDrop.UNCOMMITTED, id="only written"),
        pytest.param(
            offer(1, 11, context(30, 29, 11, 30, 0, 10)),
            replica(1, 11),
            SyncDrop.NOTHING,
            id="empty commits lie between",
        ),
        pytest.param(
            closed(1, 11),
            msgspec.structs.replace(replica(1, 11), is_dirty=True),
            SyncDrop.NOTHING,
            id="lost memory, but nothing that is committed",
        ),
    ],
)
def test_a_replica_that_has_it_all_needs_nothing(
    source: SyncInit, mine: ReplicaFacts, expected: SyncDrop
) -> None:
    answer = negotiate(source, mine)
    assert isinstance(answer, SyncPlan)
    assert (answer.drop, answer.is_complete) == (expected, True)
    assert answer.first == answer.end == source.end


@pytest.mark.parametrize(
    ("source", "mine", "reason"),
    [
        pytest.param(closed(0, 11), facts(), SyncRefusal.BAD_RANGE, id="first is 0"),
        pytest.param(closed(12, 11), facts(), SyncRefusal.BAD_RANGE, id="backwards"),
        pytest.param(offer(1, 11), facts(), SyncRefusal.BAD_CONTEXT, id="entries and no context"),
        pytest.param(offer(5, 5), facts(), SyncRefusal.BAD_CONTEXT, id="trimmed and no context"),
        pytest.param(
            offer(1, 11, upto(12)), facts(), SyncRefusal.BAD_CONTEXT, id="context ends elsewhere"
        ),
        pytest.param(
            offer(1, 11, context(3, 9, 11, 11, 0, 10)),
            facts(),
            SyncRefusal.BAD_CONTEXT,
            id="context that cannot be",
        ),
        pytest.param(closed(1, 11), replica(1, 12), SyncRefusal.AHEAD, id="more entries"),
        pytest.param(closed(1, 11), replica(12, 12), SyncRefusal.AHEAD, id="more, and trimmed"),
        pytest.param(
            closed(1, 11),
            facts(entries=(1, 6), context=upto(20), runs=held(1, 6)),
            SyncRefusal.AHEAD,
            id="a context that knows of more",
        ),
        pytest.param(
            closed(1, 11),
            facts(entries=(1, 15), runs=held(1, 15)),
            SyncRefusal.AHEAD,
            id="runs that know of more",
        ),
        pytest.param(offer(1, 1), replica(1, 2), SyncRefusal.AHEAD, id="the source has nothing"),
        pytest.param(
            offer(1, 11, context(30, 29, 11, 30, 0, 25)),
            replica(1, 11),
            SyncRefusal.DIVERGED,
            id="the same entries elsewhere in the log",
        ),
    ],
)
def test_refusals(source: SyncInit, mine: ReplicaFacts, reason: SyncRefusal) -> None:
    answer = negotiate(source, mine)
    assert isinstance(answer, SyncRefused)
    assert answer.reason is reason
    assert answer.detail


# -- A sync as a whole -------------------------------------------------------------------------


class Disk:
    """The replica that is synced, entry by entry."""

    def __init__(self, found: ReplicaFacts) -> None:
        self.trim_end = found.trim_end
        self.context = found.context
        self.entries = set(range(found.trim_end, found.end))
        end = found.last_run.local_end if found.last_run else found.trim_end
        first = found.first_run.local if found.first_run else end
        self.committed = set(range(max(first, found.trim_end), end))

    def apply(self, agreed: SyncPlan) -> None:
        if agreed.drop is SyncDrop.ALL:
            self.entries, self.committed, self.context = set(), set(), None
        self.trim_end = agreed.trim_end
        self.entries = {each for each in self.entries if agreed.trim_end <= each < agreed.first}
        self.committed = {each for each in self.committed if each >= agreed.trim_end}

    def receive(self, first: int, end: int, closing: CommitContext | None = None) -> None:
        batch = set(range(first, end))
        assert not batch & self.entries
        self.entries |= batch
        self.committed |= batch
        self.context = closing or self.context

    def facts(self) -> ReplicaFacts:
        end = max(self.entries, default=self.trim_end - 1) + 1
        bounds = (min(self.committed), max(self.committed) + 1) if self.committed else None
        return facts(
            entries=(self.trim_end, end),
            context=self.context,
            runs=held(*bounds) if bounds else (),
        )


@st.composite
def syncs(draw: st.DrawFn) -> tuple[SyncInit, ReplicaFacts]:
    """A source, and a replica that may have anything that a crash or a sync leaves behind."""
    end = draw(st.integers(2, 20))
    source = closed(draw(st.integers(1, end)), end)
    mine_end = draw(st.integers(1, end))
    trim_end = draw(st.integers(1, mine_end))
    context_end = draw(st.just(mine_end) | st.integers(1, end))
    mine = facts(
        entries=(trim_end, mine_end + draw(st.integers(0, 4))),
        context=upto(context_end) if draw(st.booleans()) else None,
        runs=held(trim_end, mine_end) if trim_end < mine_end else (),
    )
    return source, mine


def agreed_on(source: SyncInit, mine: ReplicaFacts) -> SyncPlan:
    answer = negotiate(source, mine)
    assert isinstance(answer, SyncPlan)
    return answer


@given(syncs())
def test_after_a_sync_the_replica_is_whole_and_has_what_the_source_has(
    drawn: tuple[SyncInit, ReplicaFacts],
) -> None:
    source, mine = drawn
    disk = Disk(mine)
    agreed = agreed_on(source, mine)
    disk.apply(agreed)
    if not agreed.is_complete:
        disk.receive(agreed.first, agreed.end, source.context)
    begin = max(source.first, mine.trim_end)
    assert disk.entries == disk.committed == set(range(begin, source.end))
    after = recover(disk.facts())
    assert isinstance(after, Valid)
    assert after.local_end == after.end == source.end
    assert agreed_on(source, disk.facts()).is_complete


@given(syncs(), st.data())
def test_a_sync_that_breaks_off_goes_on_where_it_stopped(
    drawn: tuple[SyncInit, ReplicaFacts], data: st.DataObject
) -> None:
    source, mine = drawn
    disk = Disk(mine)
    agreed = agreed_on(source, mine)
    disk.apply(agreed)
    stopped = data.draw(st.integers(agreed.first, agreed.end))
    disk.receive(agreed.first, stopped)
    again = agreed_on(source, disk.facts())
    assert (again.drop, again.first, again.end) == (SyncDrop.NOTHING, stopped, source.end)


@given(syncs())
def test_what_both_have_committed_is_kept_and_nothing_else(
    drawn: tuple[SyncInit, ReplicaFacts],
) -> None:
    source, mine = drawn
    disk = Disk(mine)
    had = disk.committed & set(range(source.first, source.end))
    disk.apply(agreed_on(source, mine))
    assert disk.entries == had


numbers = st.integers(-2, 9)
contexts = st.builds(CommitContext, numbers, numbers, numbers, numbers, numbers, numbers)
runs = st.builds(StreamCommit, numbers, numbers, numbers, numbers)
anything = st.builds(
    ReplicaFacts,
    numbers, numbers, numbers, st.none() | contexts, st.none() | runs, st.none() | runs,
    st.booleans(),
)  # fmt: skip
offers = st.builds(offer, numbers, numbers, st.none() | contexts) | st.integers(2, 9).map(
    lambda end: closed(1, end)
)


@given(offers, anything)
def test_whatever_is_offered_and_held_has_an_answer(source: SyncInit, mine: ReplicaFacts) -> None:
    answer = negotiate(source, mine)
    if isinstance(answer, SyncRefused):
        assert answer.detail
        return
    assert mine.trim_end <= answer.trim_end <= answer.first <= answer.end == source.end
    if answer.is_complete:
        found = recover(mine)
        assert not isinstance(found, Quarantined) or found.otherwise is not None
        assert answer.first == answer.end
