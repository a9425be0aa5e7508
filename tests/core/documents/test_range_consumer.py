"""One partition of a task, message by message."""

from typing import Any

import msgspec
import pytest

from millrace.core.documents.change_query import PartitionRange, QueryPlace
from millrace.core.documents.change_ring import RingPart
from millrace.core.documents.consumer_effects import Ask, ReloadMap
from millrace.core.documents.document import (
    NO_SEQ,
    Cas,
    Document,
    FailoverId,
    PartitionId,
    PartitionState,
    Seq,
)
from millrace.core.documents.failover_log import FailoverEntry, FailoverLog
from millrace.core.documents.messages import (
    Answered,
    CloseStream,
    EndReason,
    FailoverLogGot,
    Fetch,
    Fetched,
    GetFailoverLog,
    StreamAnswered,
    StreamRequest,
    StreamStatus,
)
from millrace.core.documents.range_consumer import (
    PATIENCE_MS,
    BeginEra,
    Compensate,
    GiveUp,
    RangeConsumer,
    RangePhase,
    RecallParts,
)
from millrace.core.documents.ring_buffer import RingEntry

P = PartitionId(3)


def log(*entries: tuple[int, int]) -> FailoverLog:
    """Newest first."""
    return FailoverLog(tuple(FailoverEntry(FailoverId(id), Seq(seq)) for id, seq in entries))


A = log((0xA, 0))
B = log((0xB, 5), (0xA, 0))
AT_10 = QueryPlace(A, Seq(10), Seq(10), Seq(10))
WANTED = PartitionRange(P, AT_10, Seq(20))


def got(of: FailoverLog, high: int) -> FailoverLogGot:
    return FailoverLogGot(P, of, Seq(high), NO_SEQ, PartitionState.ACTIVE)


class Task:
    """Asks in turn; `asked` is the last question."""

    def __init__(self, wanted: PartitionRange = WANTED) -> None:
        self.machine = RangeConsumer(wanted, 0)
        self.now_ms = 0
        self.asked: Any = None
        self.effects: list[Any] = []
        self.take(self.machine.tick(0))

    def take(self, effects: list[Any]) -> list[Any]:
        self.effects = effects
        for effect in effects:
            if isinstance(effect, Ask | RecallParts):
                self.asked = effect
        return effects

    def answer(self, answer: Any) -> list[Any]:
        return self.take(self.machine.answered(self.asked.number, answer, self.now_ms))

    def begin(self) -> None:
        self.answer(StreamAnswered(P, StreamStatus.OK, A))

    def later(self, time_ms: int = 2_000) -> list[Any]:
        self.now_ms += time_ms
        return self.take(self.machine.tick(self.now_ms))

    def snapshot(self, first: int, last: int, *seqs: int) -> int:
        """How many of the changes it takes."""
        self.take(self.machine.marked(Seq(first), Seq(last), self.now_ms))
        count, effects = self.machine.took(list(seqs), self.now_ms)
        self.take(effects)
        return count

    def end(self, reason: EndReason = EndReason.OK) -> list[Any]:
        return self.take(self.machine.ended(reason, self.now_ms))


def test_it_asks_for_its_stream_at_once_and_ends_with_the_snapshot() -> None:
    task = Task()
    assert isinstance(task.asked.request, StreamRequest)
    assert (task.asked.request.start, task.asked.request.end) == (10, 20)
    task.begin()
    assert task.snapshot(10, 23, 12, 19, 23) == 3
    assert task.machine.phase is RangePhase.STREAMING
    task.end()
    assert task.machine.phase is RangePhase.DONE
    assert task.machine.place == QueryPlace(A, Seq(23), Seq(23), Seq(23))


CUT = msgspec.structs.replace(WANTED, end=Seq(12), is_cut=True)


def test_a_range_that_is_cut_ends_before_the_next_change_and_says_in_which_snapshot() -> None:
    task = Task(CUT)
    task.begin()
    assert task.snapshot(10, 40, 13, 19, 23, 24) == 2
    assert task.machine.phase is RangePhase.DONE
    assert task.machine.place == QueryPlace(A, Seq(22), Seq(10), Seq(40))
    assert isinstance(task.asked.request, CloseStream)
    assert task.answer(Answered(StreamStatus.OK)) == []
    assert task.machine.phase is RangePhase.DONE


def test_a_range_is_cut_by_changes_however_they_come() -> None:
    task = Task(CUT)
    task.begin()
    assert task.snapshot(10, 40, 30) == 1
    assert task.machine.phase is RangePhase.STREAMING, "beyond its end, with one change of two"
    task.machine.advanced(Seq(33), 0)
    assert task.machine.place.seq == 33
    assert task.machine.took([35], 0)[0] == 1
    assert task.machine.phase is RangePhase.DONE
    assert task.machine.place == QueryPlace(A, Seq(35), Seq(10), Seq(40))


def test_a_range_that_is_cut_ends_with_its_stream_if_that_has_less() -> None:
    task = Task(CUT)
    task.begin()
    assert task.snapshot(10, 40, 40) == 1
    task.end()
    assert task.machine.phase is RangePhase.DONE
    assert task.machine.place == QueryPlace(A, Seq(40), Seq(40), Seq(40))


def test_a_range_that_is_cut_counts_what_it_took_before_its_stream_broke_off() -> None:
    task = Task(msgspec.structs.replace(CUT, end=Seq(13)))
    task.begin()
    assert task.snapshot(10, 40, 11, 12) == 2
    task.take(task.machine.failed(0, "reset"))
    task.later()
    task.answer(got(A, 40))
    task.take(task.machine.recalled(task.asked.number, [], task.now_ms))
    assert (task.asked.request.start, task.asked.request.end) == (12, 13)
    task.begin()
    assert task.snapshot(12, 40, 20, 21, 22) == 1
    assert task.machine.phase is RangePhase.DONE
    assert task.machine.place.seq == 20


def test_a_snapshot_that_was_begun_before_is_whole_where_the_next_one_ends() -> None:
    within = QueryPlace(A, Seq(20), Seq(10), Seq(40))
    task = Task(PartitionRange(P, within, Seq(40)))
    request = task.asked.request
    assert (request.snapshot_first, request.snapshot_last) == (10, 40)
    task.begin()
    task.snapshot(20, 45, 41)
    assert task.machine.place.first == 10
    task.machine.took([45], 0)
    assert task.machine.place == QueryPlace(A, Seq(45), Seq(45), Seq(45))


def test_a_stream_that_breaks_off_goes_on_where_it_stopped() -> None:
    task = Task()
    task.begin()
    task.snapshot(10, 23, 12)
    task.end(EndReason.DISCONNECTED)
    task.later()
    assert task.asked.request == GetFailoverLog(P)
    task.answer(got(A, 25))
    assert isinstance(task.asked, RecallParts)
    mine = RingPart(0, A, Seq(10), Seq(10), Seq(10), Seq(12), is_settled=False)
    task.take(task.machine.recalled(task.asked.number, [mine], task.now_ms))
    assert (task.asked.request.start, task.asked.request.end) == (12, 20)


def rolled_back() -> Task:
    """It has found a master that goes on from 5, of which `k` at 4 and `n` are known."""
    task = Task()
    task.answer(StreamAnswered(P, StreamStatus.WRONG_FAILOVER_ID))
    assert isinstance(task.effects[0], ReloadMap)
    task.later()
    task.answer(got(B, 7))
    assert task.effects == [task.asked]
    task.take(task.machine.recalled(task.asked.number, [PART], task.now_ms))
    return task


READ = tuple(RingEntry(Seq(at), key) for at, key in ((4, b"a"), (8, b"k"), (9, b"n")))
PART = RingPart(0, A, NO_SEQ, NO_SEQ, NO_SEQ, Seq(10), READ)
K = Document(b"k", b"old", Seq(4), Cas(1))


def test_what_was_taken_back_is_fetched_and_an_era_begins() -> None:
    task = rolled_back()
    (era, asked) = task.effects
    assert isinstance(era, BeginEra)
    assert (era.begin.start, era.begin.era, era.begin.is_reread) == (5, 1, False)
    assert asked.request == Fetch(P, FailoverId(0xB), (b"k", b"n"), Seq(5))
    (compensate, request) = task.answer(Fetched((K,)))
    assert compensate == Compensate((K,), (b"n",))
    assert (request.request.start, request.request.id, request.request.end) == (5, 0xB, 7)
    task.begin()
    assert task.snapshot(5, 8, 6, 8) == 2
    task.end()
    assert task.machine.place == QueryPlace(B, Seq(8), Seq(8), Seq(8), 1)


def test_half_of_an_undo_is_begun_again() -> None:
    """What it handed out is kept as what it is, of the era that it began."""
    task = rolled_back()
    task.take(task.machine.failed(task.now_ms, "the connection was lost"))
    task.later()
    task.answer(got(B, 7))
    assert isinstance(task.asked, RecallParts)
    assert task.machine.place.era == 1
    half = RingPart(1, B, Seq(5), Seq(5), Seq(5), Seq(5), cut=Seq(5), is_settled=False)
    task.take(task.machine.recalled(task.asked.number, [PART, half], task.now_ms))
    assert task.asked.request == Fetch(P, FailoverId(0xB), (b"k", b"n"), Seq(5))
    assert task.machine.place.era == 1


def test_the_stream_overtakes_what_was_fetched() -> None:
    task = rolled_back()
    newer = msgspec.structs.replace(K, seq=Seq(30))
    task.answer(Fetched((newer,)))
    assert task.asked.request.end == 30


@pytest.mark.parametrize(
    ("marker", "seqs"),
    [((11, 20), (12,)), ((10, 20), (9, 12)), ((10, 20), (12, 21))],
    ids=["a snapshot that leaves some out", "what was there already", "beyond the snapshot"],
)
def test_a_producer_that_breaks_the_rules_is_asked_anew(
    marker: tuple[int, int], seqs: tuple[int, ...]
) -> None:
    task = Task()
    task.begin()
    task.snapshot(*marker, *seqs)
    assert isinstance(task.asked.request, CloseStream)
    assert task.machine.place == AT_10


def test_it_gives_up_when_nothing_comes_for_long_and_says_why() -> None:
    task = Task()
    for _ in range(2):
        task.take(task.machine.failed(task.now_ms, "nobody is there"))
        task.later(PATIENCE_MS)
    task.take(task.machine.failed(task.now_ms, "nobody is there"))
    assert task.effects == [GiveUp("nobody is there")]
    assert "nobody is there" in task.machine.explain()
