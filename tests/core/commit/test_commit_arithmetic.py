"""What a committer gives which place, and what it tells whom."""

from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.commit.arithmetic import (
    HISTORY_MAX,
    commits_for,
    forget_taken,
    next_record,
    with_stream,
    without_lost,
)
from millrace.core.commit.record import CommitRecord, Loss, StreamCommit, StreamRecord
from millrace.core.commit.reports import Reports
from millrace.core.messages.commit import ReplicaState, StreamCommits, StreamReport
from millrace.types import Epoch, LogId, Lsn, NodeId, StreamId, Version
from tests.core.commit.commit_samples import run

LOG = LogId(7)
ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
S1, S2, S3 = StreamId(1), StreamId(2), StreamId(3)
GENERATION = Epoch(1)


def stream(number: StreamId, *replicas: NodeId, **fields: object) -> StreamRecord:
    return msgspec.structs.replace(StreamRecord(number, GENERATION, replicas), **fields)


def record(*streams: StreamRecord, version: int = 0, high_watermark: int = 0) -> CommitRecord:
    return CommitRecord(LOG, Epoch(1), ONE, 2, streams, Version(version), Lsn(high_watermark))


def report(
    number: StreamId, version: int, local: int, count: int, generation: int = GENERATION
) -> StreamReport:
    return StreamReport(
        number, Epoch(generation), ReplicaState.OPEN, Version(version), Lsn(local), count
    )


def told(after: CommitRecord, node: NodeId, **versions: int) -> dict[StreamId, tuple[object, ...]]:
    known = {StreamId(int(name[1:])): Version(each) for name, each in versions.items()}
    commits = commits_for(after, node, known).streams
    return {each.stream: each.commits for each in commits}


def must(after: CommitRecord | None) -> CommitRecord:
    assert after is not None
    return after


def test_the_worked_example_of_the_rfc() -> None:
    """Two streams of one replica each; the second one commits alone in version 2."""
    before = record(stream(S1, ONE), stream(S2, TWO))
    reports = {S1: {ONE: report(S1, 0, 1, 1)}, S2: {TWO: report(S2, 0, 1, 1)}}
    first = must(next_record(before, reports))
    assert (first.version, first.high_watermark) == (1, 2)
    assert told(first, ONE) == {S1: (run(1, 1, 1, 1),)}
    assert told(first, TWO) == {S2: (run(1, 1, 2, 1),)}

    reports = {S1: {ONE: report(S1, 1, 2, 0)}, S2: {TWO: report(S2, 1, 2, 1)}}
    second = must(next_record(first, reports))
    assert (second.version, second.high_watermark) == (2, 3)
    assert told(second, ONE, s1=1) == {S1: ()}  # Empty: the log's next position before it was 3.
    assert told(second, TWO, s2=1) == {S2: (run(2, 2, 3, 1),)}


Ends = Mapping[NodeId, tuple[int, int, int]]


@pytest.mark.parametrize(
    ("fields", "reports", "count"),
    [
        pytest.param({}, {1: (5, 21, 4), 2: (5, 21, 9)}, 4, id="the least end"),
        pytest.param({}, {1: (5, 21, 4), 2: (4, 15, 12)}, 4, id="one has not taken a commit"),
        pytest.param({}, {1: (5, 21, 0), 2: (5, 21, 9)}, 0, id="one has nothing"),
        pytest.param({}, {1: (5, 21, 4)}, 0, id="one is silent"),
        pytest.param({}, {}, 0, id="all are silent"),
        pytest.param({}, {1: (4, 15, 6), 2: (4, 15, 6)}, 0, id="what is committed already"),
        pytest.param({}, {1: (2, 3, 4), 2: (5, 21, 4)}, 0, id="less than is committed"),
        pytest.param({"is_open": False}, {1: (5, 21, 4), 2: (5, 21, 4)}, 0, id="sealed stream"),
        pytest.param({"replicas": ()}, {1: (5, 21, 4), 2: (5, 21, 4)}, 0, id="no replicas"),
        pytest.param({"generation": 2}, {1: (5, 21, 4), 2: (5, 21, 4)}, 0, id="former generation"),
    ],
)
def test_what_every_replica_reported_is_committed(
    fields: dict[str, object], reports: Ends, count: int
) -> None:
    before = record(
        stream(S1, ONE, TWO, local_end=Lsn(21), last=Lsn(33), **fields),
        version=5,
        high_watermark=40,
    )
    said = {NodeId(node): report(S1, *each) for node, each in reports.items()}
    after = next_record(before, {S1: said})
    if count == 0:
        assert after is None
        return
    (committed,) = must(after).streams
    assert (must(after).version, must(after).high_watermark) == (6, 40 + count)
    assert (committed.local_end, committed.last) == (21 + count, 40 + count)
    assert committed.history == (run(6, 21, 41, count),)


def test_streams_are_ordered_by_their_numbers_and_those_left_out_keep_their_place() -> None:
    before = record(stream(S1, ONE), stream(S2, ONE), stream(S3, ONE), high_watermark=10)
    reports = {S3: {ONE: report(S3, 0, 1, 5)}, S1: {ONE: report(S1, 0, 1, 2)}}
    after = must(next_record(before, reports))
    assert [each.history for each in after.streams] == [
        (run(1, 1, 11, 2),),
        (),
        (run(1, 1, 13, 5),),
    ]


def test_a_sealed_log_commits_nothing() -> None:
    before = record(stream(S1, ONE))
    reports = {S1: {ONE: report(S1, 0, 1, 5)}}
    assert next_record(before, reports) is not None
    assert next_record(msgspec.structs.replace(before, is_sealed=True), reports) is None


# -- History -----------------------------------------------------------------------------------

HISTORY = (run(3, 1, 1, 2), run(5, 3, 9, 2), run(6, 5, 11, 1))


@pytest.mark.parametrize(
    ("versions", "left"),
    [
        pytest.param({1: 6, 2: 6}, (), id="all taken by all"),
        pytest.param({1: 6, 2: 4}, HISTORY[1:], id="one took the first"),
        pytest.param({1: 5, 2: 6}, HISTORY[2:], id="both took two"),
        pytest.param({1: 9, 2: 2}, HISTORY, id="one took none"),
        pytest.param({1: 6}, HISTORY, id="one is silent"),
    ],
)
def test_a_commit_is_kept_until_all_replicas_reported_it(
    versions: dict[int, int], left: tuple[StreamCommit, ...]
) -> None:
    said = {NodeId(node): report(S1, each, 1, 9) for node, each in versions.items()}
    kept = forget_taken(stream(S1, ONE, TWO, history=HISTORY), said)
    assert kept.history == left


def test_reports_of_another_generation_forget_nothing() -> None:
    said = {ONE: report(S1, 6, 6, 0, generation=2)}
    assert forget_taken(stream(S1, ONE, history=HISTORY), said).history == HISTORY


def test_a_stream_waits_for_a_replica_that_takes_no_commits() -> None:
    now = record(stream(S1, ONE, TWO))
    for version in range(HISTORY_MAX):
        ends = {ONE: report(S1, version, version + 1, 1), TWO: report(S1, 0, 1, version + 1)}
        now = must(next_record(now, {S1: ends}))
    ends = {ONE: report(S1, 64, 65, 9), TWO: report(S1, 0, 1, 73)}
    assert next_record(now, {S1: ends}) is None
    ends[TWO] = report(S1, 1, 2, 72)
    (after,) = must(next_record(now, {S1: ends})).streams
    assert (len(after.history), after.local_end) == (HISTORY_MAX, 74)


def test_commits_that_continue_one_another_stay_apart_in_the_history() -> None:
    """A node at version 1 needs exactly the second one."""
    now = must(
        next_record(
            record(stream(S1, ONE, TWO)), {S1: dict.fromkeys((ONE, TWO), report(S1, 0, 1, 2))}
        )
    )
    ends = {ONE: report(S1, 1, 3, 2), TWO: report(S1, 0, 1, 4)}
    now = must(next_record(now, {S1: ends}))
    assert told(now, ONE, s1=1) == {S1: (run(2, 3, 3, 2),)}
    assert told(now, TWO, s1=0) == {S1: (run(1, 1, 1, 2), run(2, 3, 3, 2))}


def test_a_node_is_told_of_its_own_streams() -> None:
    now = record(
        stream(S1, ONE, TWO, history=HISTORY, local_end=Lsn(6)),
        stream(S2, THREE, history=HISTORY),
        stream(S3, TWO),
        version=6,
        high_watermark=11,
    )
    now = msgspec.structs.replace(now, trim_end=Lsn(4))
    commit = commits_for(now, TWO, {S1: Version(5)})
    assert (commit.log, commit.term, commit.committer) == (LOG, 1, ONE)
    assert (commit.version, commit.high_watermark, commit.trim_end) == (6, 11, 4)
    assert commit.streams == (
        StreamCommits(S1, GENERATION, HISTORY[2:], Lsn(6)),
        StreamCommits(S3, GENERATION, (), Lsn(1)),
    )
    assert told(now, TWO)[S1] == HISTORY


def test_a_stream_takes_the_place_of_its_number() -> None:
    one, two, three = stream(S1, ONE), stream(S2, ONE), stream(S3, ONE)
    before = record(one, three)
    assert with_stream(before, two).streams == (one, two, three)
    moved = stream(S1, THREE)
    assert with_stream(before, moved).streams == (moved, three)


# -- Total order -------------------------------------------------------------------------------

NODES = (ONE, TWO, THREE)
STREAMS = (stream(S1, ONE, TWO), stream(S2, TWO, THREE), stream(S3, THREE))


class World:
    """Replicas that write, report and take commits; messages that are late, lost or come twice."""

    def __init__(self) -> None:
        self.record = record(*STREAMS)
        self.reports = {each.stream: Reports() for each in STREAMS}
        pairs = [(each.stream, node) for each in STREAMS for node in each.replicas]
        self.ends = {pair: Lsn(1) for pair in pairs}
        self.taken = {pair: (Version(0), Lsn(1)) for pair in pairs}
        self.sent: list[tuple[NodeId, StreamReport]] = []
        self.log: list[StreamCommit] = []
        self.by_stream: dict[StreamId, list[StreamCommit]] = {each.stream: [] for each in STREAMS}

    def write(self, pair: tuple[StreamId, NodeId], count: int) -> None:
        self.ends[pair] = Lsn(self.ends[pair] + count)

    def send_report(self, pair: tuple[StreamId, NodeId]) -> None:
        version, local_end = self.taken[pair]
        said = report(pair[0], version, local_end, self.ends[pair] - local_end)
        self.sent.append((pair[1], said))

    def deliver(self, number: int) -> None:
        if self.sent:
            node, said = self.sent[-1 - number % len(self.sent)]
            own = self.record.stream(said.stream)
            assert own is not None
            self.reports[said.stream].take(node, said, own, self.record.version)

    def commit(self) -> None:
        known = {number: each.taken for number, each in self.reports.items()}
        after = next_record(self.record, known)
        if after is None:
            return
        assert after.version == self.record.version + 1
        for each in after.streams:
            new = [one for one in each.history if one.version == after.version]
            self.by_stream[each.stream] += new
            self.log += new
        self.record = after

    def tell(self, pair: tuple[StreamId, NodeId]) -> None:
        version, local_end = self.taken[pair]
        message = commits_for(self.record, pair[1], {pair[0]: version})
        (mine,) = [each for each in message.streams if each.stream == pair[0]]
        for each in mine.commits:
            assert each.local == local_end  # Nothing that it lacks was forgotten.
            assert each.local_end <= self.ends[pair]  # It holds what is committed.
            local_end = each.local_end
        self.taken[pair] = (message.version, local_end)


pairs = st.sampled_from([(each.stream, node) for each in STREAMS for node in each.replicas])
steps = st.one_of(
    st.tuples(st.just("write"), pairs, st.integers(1, 5)),
    st.tuples(st.just("send_report"), pairs),
    st.tuples(st.just("deliver"), st.integers(0, 20)),
    st.tuples(st.just("deliver"), st.just(0)),
    st.tuples(st.just("commit")),
    st.tuples(st.just("tell"), pairs),
)


@given(st.lists(steps, max_size=120))
def test_positions_are_dense_given_once_and_in_order(taken: list[tuple[str, object]]) -> None:
    world = World()
    for name, *arguments in taken:
        getattr(world, name)(*arguments)
    world.commit()
    next_position = 1
    for each in world.log:
        assert each.first == next_position
        next_position = each.end
    assert world.record.high_watermark == next_position - 1
    for number, commits in world.by_stream.items():
        next_local = 1
        for each in commits:
            assert each.local == next_local
            next_local = each.local_end
        own = world.record.stream(number)
        assert own is not None
        assert own.local_end == next_local
        assert own.last == (commits[-1].end - 1 if commits else 0)


@given(st.lists(steps, max_size=60))
def test_everything_that_all_replicas_hold_is_committed_in_the_end(
    taken: list[tuple[str, object]],
) -> None:
    world = World()
    for name, *arguments in taken:
        getattr(world, name)(*arguments)
    for _ in range(2):
        for pair in world.ends:
            world.tell(pair)
            world.send_report(pair)
            world.deliver(0)
        world.commit()
    for each in world.record.streams:
        # Late messages in a row look like a replica that lost something: it would be reformed.
        if not world.reports[each.stream].has_regressed:
            assert each.local_end == min(world.ends[each.stream, node] for node in each.replicas)


# -- Losses ---------------------------------------------------------------------------------------


def test_a_stream_goes_on_from_what_is_left() -> None:
    history = (run(4, 8, 20, 3), run(6, 11, 30, 4))
    whole = stream(S1, ONE, local_end=Lsn(15), last=Lsn(33), history=history)
    left = without_lost(whole, Lsn(13), Lsn(9), Version(6))
    assert (left.local_end, left.last) == (13, 31)
    assert left.history == (run(4, 8, 20, 3), run(6, 11, 30, 2))
    assert left.loss == Loss(2, Version(6), Lsn(13))
    less = without_lost(left, Lsn(5), Lsn(9), Version(8))
    assert (less.local_end, less.last, less.history) == (5, 9, ())
    assert less.loss == Loss(10, Version(8), Lsn(5))


def test_whoever_forgets_forgets_all_that_was_ever_given_up() -> None:
    whole = stream(S1, ONE, local_end=Lsn(9))
    first = without_lost(whole, Lsn(4), Lsn(3), Version(5))
    grown = msgspec.structs.replace(first, local_end=Lsn(20))
    assert without_lost(grown, Lsn(12), Lsn(3), Version(9)).loss == Loss(13, Version(9), Lsn(4))
