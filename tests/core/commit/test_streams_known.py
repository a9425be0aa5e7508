"""Which stream of a commit log an append goes to."""

import pytest

from millrace.core.commit.record import CommitRecord, StreamRecord
from millrace.core.commit.streams_known import AVOID_MS, StreamsKnown
from millrace.types import Epoch, LogId, NodeId, StreamId

LOG = LogId(7)
NOW_MS = 1_000


def record(count: int = 3) -> CommitRecord:
    numbers = map(StreamId, range(1, count + 1))
    streams = tuple(StreamRecord(each, Epoch(1), (NodeId(1),)) for each in numbers)
    return CommitRecord(LOG, Epoch(1), NodeId(1), 1, streams)


def chosen(known: StreamsKnown, now_ms: int = NOW_MS) -> int:
    stream = known.choose(record(), now_ms)
    assert stream is not None
    return stream.stream


@pytest.mark.parametrize(("first_turn", "turns"), [(0, [1, 2, 3, 1]), (5, [3, 1, 2, 3])])
def test_streams_take_turns_from_the_one_that_was_drawn(first_turn: int, turns: list[int]) -> None:
    known = StreamsKnown(first_turn)
    assert [chosen(known) for _ in turns] == turns


def test_processes_that_append_once_share_the_streams() -> None:
    drawn = [chosen(StreamsKnown(first_turn)) for first_turn in range(300)]
    assert [drawn.count(stream) for stream in (1, 2, 3)] == [100, 100, 100]


def test_a_stream_that_failed_is_left_alone_for_a_while() -> None:
    known = StreamsKnown()
    known.avoid(LOG, StreamId(1), NOW_MS)
    assert {chosen(known) for _ in range(6)} == {2, 3}
    assert {chosen(known, NOW_MS + AVOID_MS) for _ in range(6)} == {1, 2, 3}
