"""The committer of a log, among replicas that do what they are told."""

import msgspec
import pytest

from millrace.core.commit.care import SYNC_RETRY_MS, Nodes
from millrace.core.commit.committer import QUIET_MS
from millrace.core.commit.operating import operate
from millrace.core.commit.record import StreamCommit
from millrace.core.messages import (
    AddStream,
    CommitsChanged,
    GiveUpStream,
    MoveReplica,
    Refusal,
    Refused,
    ReplicaState,
    Report,
    Reported,
    SealCommits,
    SetStreamOpen,
    StreamReport,
    TrimCommits,
)
from millrace.core.procedure import Failure, FailureKind
from millrace.types import Epoch, Lsn, NodeId, StreamId, Version
from tests.core.commit.committer_office import (
    LOG,
    NODES,
    ONE,
    SILENCE,
    TERM,
    TICKET,
    TWO,
    Office,
    record_of,
    replicas_of,
    stream_of,
)


def test_what_all_replicas_hold_is_committed_and_told_to_all() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    office.write(ONE, 5)
    assert (office.record.version, office.record.high_watermark) == (1, 5)
    assert office.record.stream(ONE) == stream_of(
        ONE, 1, 2, 3, local_end=6, last=5, history=(StreamCommit(Version(1), Lsn(1), Lsn(1), 5),)
    )
    assert {node for node, commit in office.commits if commit.version == 1} == {1, 2, 3}


def test_what_one_replica_lacks_is_not_committed() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    office.write(ONE, 5, 1, 2)
    assert office.record.version == 0
    office.write(ONE, 3, 3)
    assert office.record.high_watermark == 3


def test_nothing_is_told_before_it_is_in_the_repository() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    office.holds_writes = True
    office.write(ONE, 5)
    assert [commit.version for _, commit in office.commits] == [0, 0, 0]
    office.finish_write()
    assert [commit.version for _, commit in office.commits[3:]] == [1, 1, 1]


def test_reports_that_come_during_a_write_go_with_the_next_one() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    office.holds_writes = True
    for _ in range(10):
        office.write(ONE, 1)
    assert len(office.waiting) == 1
    office.finish_write()
    assert [each.high_watermark for each in office.waiting] == [10]


def test_an_idle_log_costs_no_write_and_no_message() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    office.write(ONE, 5)
    written, told = len(office.written), len(office.commits)
    for _ in range(100):
        office.pass_time(1_000)
    assert (len(office.written), len(office.commits)) == (written, told)


def test_a_committer_that_was_replaced_is_over() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    office.holds_writes = True
    office.write(ONE, 5)
    told = len(office.commits)
    office.finish_write(is_mine=False)
    assert office.is_over
    assert len(office.commits) == told, "what was not written is told to nobody"
    assert office.committer.next(10) == []


def test_a_node_that_has_heard_of_a_later_term_ends_the_committer() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    commit = office.commits[0][1]
    fenced = Refused(Refusal.EPOCH, Epoch(TERM + 1))
    office.perform(office.committer.answered(NodeId(2), commit, fenced, 0))
    assert office.is_over


def test_a_stream_goes_on_without_a_replica_whose_lease_is_over() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    office.away.add(NodeId(3))
    office.write(ONE, 2, 1, 2)
    assert office.record.high_watermark == 0
    office.perform(office.committer.live_changed(NODES[:2], NODES[:2], office.now_ms))
    found = office.record.stream(ONE)
    assert found is not None
    assert (found.replicas, found.generation) == ((1, 2), 2)
    assert office.record.high_watermark == 2, "what both hold is committed now"
    office.write(ONE, 4)
    assert office.record.high_watermark == 6


def test_a_replica_that_answers_stays_whatever_its_lease_says() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    for now_ms in range(0, 20_000, 1_000):
        office.perform(office.committer.live_changed(NODES[:2], NODES[:2], now_ms))
    assert office.seals == []


def test_a_node_that_lost_its_disk_is_noticed_although_nothing_is_appended() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    office.wiped.add(NodeId(3))
    office.perform(office.committer.live_changed(NODES, NODES, QUIET_MS))
    assert office.seals == []
    office.perform(office.committer.live_changed(NODES, NODES, QUIET_MS + 1))
    assert office.seals[0] == ONE


def test_a_stream_that_was_never_open_is_begun_elsewhere() -> None:
    """Both nodes that were chosen for it are dead: it is nowhere yet."""
    office = Office(record_of(copies=2))
    live = NODES[2:]
    office.away |= {NodeId(1), NodeId(2)}
    office.perform(operate(office.committer, TICKET, AddStream(LOG), 0))
    office.perform(office.committer.live_changed(live, live, 0))
    office.pass_time(1_000)
    office.pass_time(1_000)  # the moved record is formed at the next try
    found = office.record.stream(ONE)
    assert found is not None
    assert set(found.replicas) == {3, 4}
    assert found.generation > 0


@pytest.mark.parametrize(
    ("answer", "after_ms"),
    [
        pytest.param(SILENCE, 1_500, id="does not answer"),
        pytest.param(Failure(FailureKind.CONNECT), 300, id="cannot be connected to"),
    ],
)
def test_a_live_replica_that_is_not_reached_is_left_out_after_a_while(
    answer: Failure, after_ms: int
) -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    commit = office.commits[-1][1]
    office.away.add(NodeId(3))
    office.perform(office.committer.answered(NodeId(3), commit, answer, 0))
    office.pass_time(after_ms - 1)
    assert office.seals == []
    office.pass_time(1)
    assert office.seals[0] == ONE
    assert office.syncs == [3], "it may come back, and has most of the stream"


def test_when_somebody_cannot_append_all_replicas_are_asked() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    told = len(office.commits)
    office.perform(office.committer.doubted(0))
    assert [node for node, _ in office.commits[told:]] == [1, 2, 3]


def test_a_backup_that_the_primary_cannot_reach_is_left_out() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    (report,) = office.reports(NodeId(1))
    report = msgspec.structs.replace(report, count=1, suspects=(NodeId(2),))
    office.perform(office.committer.reported(TICKET, Report(LOG, TERM, NodeId(1), (report,)), 0))
    found = office.record.stream(ONE)
    assert found is not None
    assert found.replicas[:2] == (1, 3)


def test_a_stream_of_which_all_replicas_are_away_waits() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    office.away |= {NodeId(1), NodeId(2), NodeId(3)}
    commit = office.commits[-1][1]
    for node in (1, 2, 3):
        office.perform(office.committer.answered(NodeId(node), commit, SILENCE, 0))
    office.pass_time(60_000)
    assert office.seals == []


def test_a_stream_that_lacks_a_replica_gets_one_by_sync() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2)))
    found = office.record.stream(ONE)
    assert found is not None
    assert office.syncs == [3]
    assert (found.replicas, found.generation) == ((1, 2, 3), 2)


def test_a_node_that_cannot_join_is_passed_over_for_another() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    care = office.committer.care[ONE]
    care.former = (NodeId(4),)
    lacking = stream_of(ONE, 1, 2)
    nodes = Nodes(frozenset(NODES), NODES, {})
    assert care.next_learner(lacking, 3, nodes, 0) == 4
    care.learner = NodeId(4)
    care.synced("it is full", 0)
    assert care.next_learner(lacking, 3, nodes, SYNC_RETRY_MS) == 3


def test_a_new_stream_is_made_by_a_reform() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    office.perform(operate(office.committer, TICKET, AddStream(LOG), 0))
    assert isinstance(office.answers[-1], CommitsChanged)
    found = office.record.stream(TWO)
    assert found is not None
    assert (found.generation, len(found.replicas)) == (1, 3)
    office.write(TWO, 3)
    office.write(ONE, 2)
    assert office.record.high_watermark == 5


def test_a_replica_is_moved_when_the_new_one_is_there() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    move = MoveReplica(LOG, ONE, NodeId(2), NodeId(5))
    office.perform(operate(office.committer, TICKET, move, 0))
    found = office.record.stream(ONE)
    assert found is not None
    assert set(found.replicas) == {1, 3, 5}


def test_a_move_to_a_node_that_cannot_take_it_leaves_the_stream_as_it_is() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    office.holds_syncs = True
    move = MoveReplica(LOG, ONE, NodeId(2), NodeId(5))
    office.perform(operate(office.committer, TICKET, move, 0))
    office.finish_sync(ONE, "its disk is full")
    office.pass_time(60_000)
    assert (replicas_of(office), office.seals, office.syncs) == ({1, 2, 3}, [], [5])


def test_one_replica_of_a_stream_is_moved_at_a_time() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    office.holds_syncs = True
    for source, destination in ((2, 5), (3, 4)):
        move = MoveReplica(LOG, ONE, NodeId(source), NodeId(destination))
        office.perform(operate(office.committer, TICKET, move, 0))
    refused = office.answers[-1]
    assert isinstance(refused, Refused)
    assert "another node is being brought" in refused.detail


def test_new_streams_are_made_where_the_log_has_the_fewest_replicas() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    operation = AddStream(LOG)
    office.perform(operate(office.committer, TICKET, operation, 0))
    found = office.record.stream(TWO)
    assert found is not None
    assert set(found.replicas) >= {4, 5}


def test_what_an_operator_gives_up_is_given_up_once() -> None:
    """The only replica is on a new disk: it may be the wrong one."""
    office = Office(record_of(stream_of(ONE, 1, local_end=Lsn(9), last=Lsn(8)), copies=1))
    office.wiped.add(NodeId(1))
    office.perform(office.committer.doubted(0))
    office.pass_time(10_000)
    found = office.record.stream(ONE)
    assert found is not None and (found.local_end, found.lost) == (9, 0)
    office.perform(operate(office.committer, TICKET, GiveUpStream(LOG, ONE), office.now_ms))
    found = office.record.stream(ONE)
    assert found is not None and (found.local_end, found.lost) == (1, 8)
    assert not office.committer.care[ONE].gives_up


def test_streams_of_a_sealed_log_stay_as_they_are() -> None:
    office = Office(msgspec.structs.replace(record_of(stream_of(ONE, 1, 2, 3)), is_sealed=True))
    for operation in (AddStream(LOG), SetStreamOpen(LOG, ONE, True)):
        office.perform(operate(office.committer, TICKET, operation, 0))
        refused = office.answers[-1]
        assert isinstance(refused, Refused) and "the log is sealed" in refused.detail


def test_a_stream_that_is_closed_commits_nothing_until_it_is_opened() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    office.perform(operate(office.committer, TICKET, SetStreamOpen(LOG, ONE, False), 0))
    office.write(ONE, 3)
    assert office.record.high_watermark == 0
    office.perform(operate(office.committer, TICKET, SetStreamOpen(LOG, ONE, True), 0))
    office.write(ONE, 3)
    assert office.record.high_watermark == 3


def test_a_sealed_log_has_no_open_stream() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3), stream_of(TWO, 3, 4, 5)))
    office.write(ONE, 3)
    office.perform(operate(office.committer, TICKET, SealCommits(LOG), 0))
    assert [each.is_open for each in office.record.streams] == [False, False]
    assert office.record.high_watermark == 3


def test_a_trim_point_is_told_although_nothing_is_committed() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    office.write(ONE, 5)
    told = len(office.commits)
    office.perform(operate(office.committer, TICKET, TrimCommits(LOG, Lsn(4)), 0))
    assert office.record.trim_end == 4
    assert {commit.trim_end for _, commit in office.commits[told:]} == {4}


@pytest.mark.parametrize(
    ("operation", "says"),
    [
        pytest.param(TrimCommits(LOG, Lsn(9)), "beyond", id="trim beyond the end"),
        pytest.param(SetStreamOpen(LOG, StreamId(9), True), "no stream 9", id="no such stream"),
        pytest.param(MoveReplica(LOG, ONE, NodeId(5), NodeId(4)), "has no replica", id="not there"),
        pytest.param(MoveReplica(LOG, ONE, NodeId(1), NodeId(2)), "already", id="there already"),
        pytest.param(MoveReplica(LOG, ONE, NodeId(1), NodeId(9)), "not alive", id="unknown node"),
    ],
)
def test_what_cannot_be_is_refused(operation: TrimCommits, says: str) -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    office.perform(operate(office.committer, TICKET, operation, 0))
    refused = office.answers[-1]
    assert isinstance(refused, Refused) and refused.reason is Refusal.BAD_REQUEST
    assert says in refused.detail


def test_a_former_replica_is_a_stranger_once_the_stream_is_whole() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    stale = StreamReport(ONE, Epoch(1), ReplicaState.SEALED, why="left out")
    report = Report(LOG, TERM, NodeId(5), (stale,))
    office.perform(office.committer.reported(TICKET, report, 0))
    assert office.answers[-1] == Reported(TERM, (ONE,))


def test_a_replica_that_began_anew_is_told_what_it_forgot() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    office.write(ONE, 5)
    told = len(office.commits)
    office.versions[NodeId(2)] = Version(0)
    office.local_ends[ONE, NodeId(2)] = Lsn(1)
    report = Report(LOG, TERM, NodeId(2), office.reports(NodeId(2)))
    office.perform(office.committer.reported(TICKET, report, 0))
    office.pass_time(1_000)
    ((node, commit),) = office.commits[told:]
    assert node == 2
    assert commit.streams[0].commits == (StreamCommit(Version(1), Lsn(1), Lsn(1), 5),)


def test_explain_says_who_is_silent_and_why() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    report = StreamReport(ONE, Epoch(1), ReplicaState.LEARNING, why="is synchronized")
    office.perform(office.committer.reported(TICKET, Report(LOG, TERM, NodeId(2), (report,)), 0))
    streams = office.committer.explain(0)["streams"]
    assert isinstance(streams, dict)
    assert streams[ONE]["silent"] == {2: "learning: is synchronized"}
