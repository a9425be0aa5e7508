"""What is not taken is said and counted, and where an empty commit lies."""

import pytest

from millrace.core import messages as m
from millrace.core.commit.arithmetic import commits_for
from millrace.core.commit.committer import Committer
from millrace.core.commit.record import CommitRecord, StreamCommit, StreamRecord
from millrace.core.commit.recovery import Valid, recover
from millrace.core.commit.reports import ReportVerdict
from millrace.types import Epoch, Lsn, NodeId, StreamId, Version
from tests.core.commit.commit_samples import facts, run
from tests.core.commit.stream_cluster import COMMITTER, Cluster
from tests.core.commit.stream_samples import LOG, STREAM, backup, commits, entry

ONE, TWO = NodeId(1), NodeId(2)


def commit_of(*streams: m.StreamCommits, version: int = 9, first: int = 0) -> m.Commit:
    marks = Version(version), Lsn(20), Lsn(1)
    return m.Commit(LOG, Epoch(1), COMMITTER, *marks, streams, Lsn(first))


# -- Said ----------------------------------------------------------------------------------------


def test_a_node_says_which_streams_it_left_as_they_were_and_why() -> None:
    cluster = Cluster()
    elsewhere = m.StreamCommits(StreamId(8), Epoch(1), (run(9, 1, 5, 1),))
    taken = cluster.ask(ONE, commit_of(commits((9, 4, 5, 1)), elsewhere))
    assert isinstance(taken, m.CommitTaken)
    assert taken.refused == (
        m.RefusedCommit(STREAM, m.CommitVerdict.GAP),
        m.RefusedCommit(StreamId(8), m.CommitVerdict.NO_REPLICA),
    )


def test_it_is_said_although_another_stream_takes_it_and_waits_for_the_disk() -> None:
    cluster = Cluster()
    cluster.append(1)
    cluster.run()
    elsewhere = m.StreamCommits(StreamId(8), Epoch(1), ())
    taken = cluster.ask(ONE, commit_of(commits((9, 1, 5, 1)), elsewhere))
    assert isinstance(taken, m.CommitTaken)
    assert [each.version for each in taken.reports] == [9]
    assert taken.refused == (m.RefusedCommit(StreamId(8), m.CommitVerdict.NO_REPLICA),)


def test_a_node_without_any_replica_of_the_log_says_so() -> None:
    cluster = Cluster(3, 2)
    taken = cluster.ask(NodeId(3), commit_of(commits((9, 1, 5, 1))))
    refused = m.RefusedCommit(STREAM, m.CommitVerdict.NO_REPLICA)
    assert taken == m.CommitTaken((), (refused,))


def test_what_is_known_already_is_not_refused() -> None:
    cluster = Cluster()
    cluster.append(1)
    cluster.commit()
    again = cluster.ask(ONE, commits_for(cluster.record, ONE, {}))
    assert isinstance(again, m.CommitTaken) and again.refused == ()


# -- Counted -------------------------------------------------------------------------------------


def committer() -> Committer:
    stream = StreamRecord(STREAM, Epoch(1), (ONE, TWO))
    made = Committer(CommitRecord(LOG, Epoch(1), COMMITTER, 2, (stream,)))
    made.begin(0)
    return made


def test_the_committer_counts_what_replicas_refuse() -> None:
    made = committer()
    refused = m.RefusedCommit(STREAM, m.CommitVerdict.TOO_LONG)
    for _ in range(2):
        made.answered(ONE, commit_of(), m.CommitTaken((), (refused,)), 0)
    assert made.explain(0)["refusals"] == {"too_long": 2}


def test_a_report_of_a_stream_that_does_not_exist_is_counted() -> None:
    made = committer()
    report = m.StreamReport(StreamId(8), Epoch(1), m.ReplicaState.OPEN, Version(0), Lsn(1), 3)
    made.reported((1, 1), m.Report(LOG, Epoch(1), ONE, (report,)), 0)
    assert made.verdicts == {ReportVerdict.NOT_A_REPLICA: 1}


def test_a_node_tells_what_its_replicas_refused_by_kind_and_reason() -> None:
    cluster = Cluster()
    cluster.ask(TWO, commit_of(commits((9, 4, 5, 1))))
    cluster.ask(TWO, m.StreamBlock(LOG, STREAM, Epoch(1), entry(7)))
    cluster.ask(TWO, m.SyncInit(LOG, STREAM, Epoch(1), ONE, Lsn(1), Lsn(1), None))
    refused = cluster.nodes[TWO].shell.core.stream_refusals()
    assert refused == {"commit_gap": 1, "block_unwritten": 1, "sync_bad_request": 1}


# -- Where an empty commit lies (M2) ---------------------------------------------------------------


def test_a_commit_says_where_the_positions_of_its_version_begin() -> None:
    """As in the example of the seed: version 2 begins at 3, for both streams."""
    first = StreamRecord(StreamId(1), Epoch(1), (ONE,), local_end=Lsn(2), last=Lsn(1))
    second = StreamRecord(
        StreamId(2), Epoch(1), (TWO,), True, Lsn(3), Lsn(3), (run(1, 1, 2, 1), run(2, 2, 3, 1))
    )
    record = CommitRecord(
        LOG, Epoch(1), COMMITTER, 1, (first, second), Version(2), high_watermark=Lsn(3)
    )
    assert [commits_for(record, node, {}).first for node in (ONE, TWO)] == [3, 3]


@pytest.mark.parametrize(
    ("said", "place"),
    [
        pytest.param(15, 15, id="where the version begins"),
        pytest.param(0, 21, id="not known: behind the version"),
        pytest.param(12, 21, id="where the stream has an entry: behind the version"),
        pytest.param(40, 21, id="beyond the version: behind it"),
    ],
)
def test_an_empty_commit_lies_where_its_version_begins_and_always_where_it_can(
    said: int, place: int
) -> None:
    replica = backup(entry(1, 2))
    told = commits((5, 1, 11, 2))
    replica.commit(told, Version(5), Lsn(12), Lsn(1), 1)
    ordered, _, verdict = replica.commit(commits(), Version(6), Lsn(20), Lsn(1), 2, Lsn(said))
    assert verdict is m.CommitVerdict.TAKEN
    context = ordered[0].context  # type: ignore[union-attr]
    assert context is not None and (context.first, context.count) == (place, 0)
    stored: StreamCommit = told.commits[0]
    found = recover(facts(entries=(1, 3), context=context, runs=(stored,)))
    assert found == Valid(Version(6), Lsn(20), Lsn(3), Lsn(3), Lsn(12))
