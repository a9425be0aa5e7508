"""What is wrong with a commit log, and what of it may be forgotten, told from its replicas."""

from collections.abc import Callable, Generator
from typing import Any

import pytest

from millrace.core import messages as m
from millrace.core.commit.record import CommitRecord, StreamRecord, stream_log_of
from millrace.core.commit.retention import retention_point
from millrace.core.commit.verifying import verify_commits
from millrace.core.procedure import Ask, AskAll, Failure, FailureKind
from millrace.core.sequenced.verifying import Verdict, Wrong
from millrace.types import (
    FIRST_LSN,
    NO_TOKEN,
    Block,
    Copy,
    EntryKind,
    Epoch,
    Extent,
    LogId,
    Lsn,
    NodeId,
    Placement,
    StreamId,
    Version,
)

LOG = LogId(7)
NODES = tuple(map(NodeId, (1, 2, 3)))
ENTRIES = 8  # Of each stream, a block each; stream 1 has the odd positions of the log.
PAGE = 3  # So that several are needed.
SIZE = 100


class Replica:
    """A replica of a stream: an index, ages, and where entries lie in the log."""

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.trim_end = FIRST_LSN
        self.extents = {
            Lsn(at): Extent(Lsn(at), Lsn(at), EntryKind.DATA, NO_TOKEN, at, SIZE)
            for at in range(1, ENTRIES + 1)
        }

    def answer(self, message: m.Message) -> m.Message:
        match message:
            case m.Copies(_, first, end):
                held = [each for at, each in sorted(self.extents.items()) if first <= at < end]
                page = tuple(Copy(each, Placement(())) for each in held[:PAGE])
                next_lsn = Lsn(page[-1].extent.last + 1) if len(held) > PAGE else end
                return m.CopiesPage(page, next_lsn, FIRST_LSN)
            case m.Describe():
                held = list(self.extents.values())
                end = Lsn(ENTRIES + 1)
                size = sum(each.size for each in held)
                standing = m.Standing.MEMBER
                return m.Described(
                    Epoch(1), standing, self.trim_end, end, end, end, len(held), size
                )
            case m.FindTime(_, _, timestamp_us):  # An entry is as old as its position in the log.
                young = (at for at in self.extents if self.place(at) >= timestamp_us)
                return m.Position(min(young, default=Lsn(ENTRIES + 1)))
            case m.FindSize(_, _, bytes_kept):
                return m.Position(Lsn(ENTRIES + 1 - bytes_kept // SIZE))
            case m.FetchStream(_, _, first):
                block = Block(LOG, first, 1, Epoch(1), EntryKind.DATA, NO_TOKEN, 0, b"")
                high = Lsn(ENTRIES + 1)
                place = (self.place(first),)
                return m.StreamPage(self.trim_end, high, (block,), place, (Version(1),))
        raise AssertionError(message)

    def place(self, local: Lsn) -> Lsn:
        return Lsn(2 * local - (self.stream == 1))


class Cluster:
    def __init__(self) -> None:
        self.replicas = {
            (stream_log_of(LOG, StreamId(stream)), node): Replica(stream)
            for stream in (1, 2)
            for node in NODES
        }
        self.down: set[NodeId] = set()

    def of(self, stream: int, node: int) -> Replica:
        return self.replicas[stream_log_of(LOG, StreamId(stream)), NodeId(node)]

    def run(self, procedure: Generator[Any, Any, Any]) -> Any:
        answer: Any = None
        try:
            while True:
                effect = procedure.send(answer)
                if isinstance(effect, AskAll):
                    answer = [self._ask(each) for each in effect.asks]
                else:
                    answer = self._ask(effect)
        except StopIteration as stop:
            return stop.value

    def _ask(self, ask: Ask) -> m.Message | Failure:
        if ask.node in self.down:
            return Failure(FailureKind.LOST, "silent")
        message: Any = ask.message
        log = message.log
        if isinstance(message, m.FetchStream):
            log = stream_log_of(LOG, message.stream)
        return self.replicas[log, ask.node].answer(message)


def record(replicas: tuple[NodeId, ...] = NODES, committed: int = ENTRIES) -> CommitRecord:
    streams = tuple(
        StreamRecord(
            StreamId(stream),
            Epoch(1),
            replicas,
            local_end=Lsn(committed + 1),
            last=Lsn(2 * committed - (stream == 1)),
        )
        for stream in (1, 2)
    )
    watermark = Lsn(2 * committed)
    return CommitRecord(LOG, Epoch(1), NodeId(1), 3, streams, Version(9), watermark)


def look(cluster: Cluster, at: CommitRecord | None = None) -> Verdict:
    verdict = cluster.run(verify_commits(at or record()))
    assert isinstance(verdict, Verdict)
    return verdict


# -- Verifying ------------------------------------------------------------------------------------


def test_a_sound_log() -> None:
    verdict = look(Cluster())
    assert verdict.is_sound
    counted = (verdict.blocks, verdict.records, verdict.copies, verdict.bytes)
    assert counted == (2 * ENTRIES, 2 * ENTRIES, 6 * ENTRIES, 2 * ENTRIES * SIZE)
    assert verdict.nodes == NODES


def lose_one(cluster: Cluster) -> None:
    del cluster.of(2, 3).extents[Lsn(4)]


def lose_everywhere(cluster: Cluster) -> None:
    for node in NODES:
        del cluster.of(2, node).extents[Lsn(4)]


def lose_the_last(cluster: Cluster) -> None:
    for node in NODES:
        del cluster.of(1, node).extents[Lsn(ENTRIES)]


def differ(cluster: Cluster) -> None:
    other = Extent(Lsn(4), Lsn(4), EntryKind.DATA, NO_TOKEN, 999, SIZE)
    cluster.of(1, 2).extents[Lsn(4)] = other


def be_silent(cluster: Cluster) -> None:
    cluster.down.add(NodeId(2))


@pytest.mark.parametrize(
    ("harm", "wrong", "count", "words"),
    [
        pytest.param(lose_one, Wrong.NOT_HELD, 1, "stream 2: nodes [3]", id="one lacks it"),
        pytest.param(lose_everywhere, Wrong.NOT_TILED, 1, "stream 2: no node", id="all lack it"),
        pytest.param(lose_the_last, Wrong.NOT_TILED, 1, "stream 1: no node", id="the last"),
        pytest.param(differ, Wrong.DIFFERENT, 1, "stream 1: nodes [2] hold another", id="differ"),
        pytest.param(be_silent, Wrong.SILENT_NODE, 2, "stream 1: node 2", id="silent"),
    ],
)
def test_what_is_wrong_is_told(
    harm: Callable[[Cluster], None], wrong: Wrong, count: int, words: str
) -> None:
    cluster = Cluster()
    harm(cluster)
    verdict = look(cluster)
    assert verdict.counts == {wrong: count}
    assert verdict.findings[0].detail.startswith(words)


def test_streams_with_too_few_replicas() -> None:
    verdict = look(Cluster(), record(NODES[:2]))
    assert verdict.counts == {Wrong.TOO_FEW_COPIES: 2}


def test_entries_that_are_not_committed_are_not_looked_at() -> None:
    cluster = Cluster()
    differ(cluster)
    assert look(cluster, record(committed=3)).is_sound


def test_what_was_trimmed_need_not_be_there() -> None:
    cluster = Cluster()
    for node in NODES:
        for at in (1, 2, 3, 4):
            del cluster.of(1, node).extents[Lsn(at)]
    cluster.of(1, 2).trim_end = Lsn(5)  # The others were read before they had trimmed.
    assert look(cluster).is_sound


def test_positions_of_the_log_that_no_stream_has() -> None:
    whole = record()
    streams = (whole.streams[0],)
    partial = CommitRecord(LOG, Epoch(1), NodeId(1), 3, streams, Version(9), whole.high_watermark)
    verdict = look(Cluster(), partial)
    assert verdict.counts == {Wrong.NOT_TILED: 1}
    assert "the streams have 8 committed entries, the log 16" in verdict.findings[0].detail


# -- Forgetting -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("oldest_us", "bytes_kept", "point"),
    [
        pytest.param(None, None, 1, id="nothing is asked for"),
        pytest.param(7, None, 7, id="by age"),
        pytest.param(8, None, 8, id="by age, of the other stream"),
        pytest.param(99, None, 17, id="all is old"),
        pytest.param(None, 99_999, 1, id="there is room"),
        pytest.param(None, 6 * SIZE, 11, id="by size, in shares"),
        pytest.param(None, 0, 17, id="no room"),
        pytest.param(7, 6 * SIZE, 11, id="by both: the higher"),
    ],
)
def test_below_which_position_a_log_is_forgotten(
    oldest_us: int | None, bytes_kept: int | None, point: int
) -> None:
    assert Cluster().run(retention_point(record(), oldest_us, bytes_kept)) == point


def test_any_replica_knows_and_without_one_nothing_is_forgotten() -> None:
    cluster = Cluster()
    cluster.down.update(NODES[:2])
    assert cluster.run(retention_point(record(), 7, None)) == 7
    cluster.down.add(NODES[2])
    assert cluster.run(retention_point(record(), 7, None)) is None
