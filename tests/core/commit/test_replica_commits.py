"""A replica of a stream: what it makes of commits, and what it reports then (M1-M3, M5)."""

import pytest

from millrace.core import effects as e
from millrace.core import messages as m
from millrace.core.commit.replica import StreamReplica
from millrace.core.messages import CommitVerdict
from millrace.types import Ack, Lsn
from tests.core.commit.commit_samples import context, run
from tests.core.commit.stream_samples import (
    G1,
    STREAM,
    STREAM_LOG,
    TICKET,
    backup,
    commits,
    entry,
    opening,
    seal,
    sent,
    settle,
    take_commit,
)


def reported(replica: StreamReplica) -> tuple[int, int, int]:
    report = replica.report()
    return report.version, report.local, report.count


def test_the_example_of_the_seed() -> None:
    """Two streams report one entry each; then only the other one has something (seed 004)."""
    replica = backup(entry(1))
    effects, fresh = take_commit(replica, commits((1, 1, 1, 1)), 1, 2)
    first = run(1, 1, 1, 1)
    assert effects == [e.CommitRuns(STREAM_LOG, context(1, 2, 1, 1, 1, 1), (first,))]
    assert fresh == (first,)
    replica.commits_settled(1_000)
    assert reported(replica) == (1, 2, 0)
    effects, fresh = take_commit(replica, commits(), 2, 3, first=3)
    assert effects == [e.CommitRuns(STREAM_LOG, context(2, 3, 2, 3, 0, 1), ())]
    assert fresh == ()
    assert reported(replica) == (2, 2, 0), "an empty commit needs no disk"


def test_a_version_is_reported_when_its_runs_are_durable_but_what_is_held_at_once() -> None:
    replica = backup(entry(1, 2), entry(3))
    take_commit(replica, commits((5, 1, 11, 2)), 5, 12, settle=1)
    take_commit(replica, commits(), 6, 20, settle=2)
    settle(replica, replica.take(TICKET, sent(entry(4))))
    assert reported(replica) == (0, 1, 4)
    replica.commits_settled(1)
    assert reported(replica) == (6, 3, 2)


def test_of_two_commits_each_is_reported_when_it_is_durable() -> None:
    replica = backup(entry(1, 2), entry(3))
    take_commit(replica, commits((5, 1, 11, 2)), 5, 12, settle=1)
    take_commit(replica, commits((7, 3, 15, 1)), 7, 16, settle=2)
    replica.commits_settled(1)
    assert reported(replica) == (5, 3, 1)
    replica.commits_settled(2)
    assert reported(replica) == (7, 4, 0)


def test_several_commits_come_at_once_after_an_absence() -> None:
    replica = backup(entry(1, 2), entry(3), entry(4))
    told = commits((5, 1, 11, 2), (7, 3, 15, 1))
    (ordered,), fresh = take_commit(replica, told, 9, 30)
    assert fresh == told.commits
    expected = context(9, 30, 4, 31, 0, 15)
    assert ordered == e.CommitRuns(STREAM_LOG, expected, told.commits), "version 9 is empty here"


def test_what_is_sent_again_is_taken_once() -> None:
    replica = backup(entry(1, 2), entry(3))
    take_commit(replica, commits((5, 1, 11, 2)), 5, 12)
    again = commits((5, 1, 11, 2), (6, 3, 13, 1))
    _, fresh = take_commit(replica, again, 6, 13)
    assert fresh == (run(6, 3, 13, 1),)
    effects, fresh = take_commit(replica, again, 6, 13)
    assert (effects, fresh) == ([], ())
    assert replica.counts.commits == {CommitVerdict.TAKEN: 2, CommitVerdict.KNOWN: 1}


REFUSED = {
    "an-older-version": (commits(), 2, CommitVerdict.OLD),
    "a-gap": (commits((4, 4, 9, 1)), 4, CommitVerdict.GAP),
    "a-gap-between": (commits((4, 3, 9, 1), (5, 5, 12, 1)), 5, CommitVerdict.GAP),
    "below-what-is-committed": (commits((4, 3, 2, 1)), 4, CommitVerdict.GAP),
    "more-than-it-holds": (commits((4, 3, 9, 9)), 4, CommitVerdict.TOO_LONG),
    "a-log-that-ends-below-it": (commits((4, 3, 50, 1)), 4, CommitVerdict.IMPOSSIBLE),
    "a-later-version-than-the-logs": (commits((7, 3, 9, 1)), 4, CommitVerdict.IMPOSSIBLE),
    "less-than-was-committed": (
        m.StreamCommits(STREAM, G1, (), Lsn(5)),
        4,
        CommitVerdict.GAP,
    ),
    "another-generation": (commits((4, 3, 9, 1), generation=2), 4, CommitVerdict.WRONG_GENERATION),
}


@pytest.mark.parametrize(("told", "version", "verdict"), REFUSED.values(), ids=REFUSED.keys())
def test_what_does_not_fit_is_left_and_counted(
    told: m.StreamCommits, version: int, verdict: CommitVerdict
) -> None:
    replica = backup(entry(1, 2), entry(3, 3))
    take_commit(replica, commits((3, 1, 3, 2)), 3, 4)
    before = replica.version, replica.local_end, replica.high_watermark
    assert take_commit(replica, told, version, 40) == ([], ())
    assert replica.counts.commits[verdict] == 1
    assert (replica.version, replica.local_end, replica.high_watermark) == before


@pytest.mark.parametrize(
    ("acks", "rests_on"),
    [
        pytest.param((Ack.MEMORY, Ack.MEMORY), Ack.MEMORY, id="memory"),
        pytest.param((Ack.DISK, Ack.MEMORY), Ack.DISK, id="disk-then-memory"),
        pytest.param((Ack.MEMORY, Ack.DISK), Ack.DISK, id="memory-then-disk"),
    ],
)
def test_a_commit_rests_on_no_less_than_its_entries(acks: tuple[Ack, Ack], rests_on: Ack) -> None:
    replica = backup()
    for at, ack in enumerate(acks, 1):
        settle(replica, replica.take(TICKET, sent(entry(at), ack=ack)))
    assert replica.ack_of((run(1, 1, 1, 2),)) is rests_on


def test_what_is_not_safe_yet_cannot_be_committed() -> None:
    replica = backup(entry(1))
    replica.take(TICKET, sent(entry(2)))
    take_commit(replica, commits((1, 1, 1, 2)), 1, 2)
    assert replica.counts.commits == {CommitVerdict.TOO_LONG: 1}


def test_a_sealed_replica_takes_what_its_generation_was_committed() -> None:
    replica = backup(entry(1, 2))
    settle(replica, replica.seal(TICKET, seal(2)))
    _, fresh = take_commit(replica, commits((4, 1, 9, 1)), 4, 9)
    assert fresh and replica.local_end == 2
    _, fresh = take_commit(replica, commits((5, 2, 10, 1), generation=2), 5, 10)
    assert not fresh, "it is not open in that one"
    settle(replica, replica.open(TICKET, opening(2, end=3)))
    _, fresh = take_commit(replica, commits((5, 2, 10, 1), generation=2), 5, 10)
    assert fresh


def test_a_trim_is_kept_with_the_context_and_removes_what_lies_below() -> None:
    replica = backup(entry(1, 2))
    effects, _ = take_commit(replica, commits((1, 1, 5, 2)), 1, 6, trim_end=6)
    runs, trim = effects
    assert isinstance(runs, e.CommitRuns) and runs.context is not None
    assert runs.context.trim_end == 6
    assert trim == e.TrimCommitted(STREAM_LOG, Lsn(6))
    effects, _ = take_commit(replica, commits(), 1, 6, trim_end=7)
    assert effects[1:] == [e.TrimCommitted(STREAM_LOG, Lsn(7))], "also without anything else"
    effects, _ = take_commit(replica, commits(), 2, 9, trim_end=7)
    assert len(effects) == 1
