"""A consumer of a partition: where it begins, how it rolls back, and that it never gives up."""

import pytest

from millrace.core.documents.consumer import (
    ANSWER_MS_MAX,
    EVERYTHING,
    RETRY_MS_FIRST,
    RETRY_MS_MAX,
    ConsumerPhase,
    PartitionConsumer,
    Wish,
)
from millrace.core.documents.consumer_effects import Ask, ConsumerEffect, PersistStep, ReloadMap
from millrace.core.documents.document import Cas, Document, FailoverId, PartitionState, Seq
from millrace.core.documents.failover_log import NO_LOG
from millrace.core.documents.message_sizes import documents_bytes
from millrace.core.documents.messages import (
    Answered,
    Changes,
    CloseStream,
    EndReason,
    FailoverLogGot,
    Fetch,
    GetFailoverLog,
    ProducerAnswer,
    ProducerPush,
    Repair,
    SeqAck,
    SnapshotMarker,
    StreamAnswered,
    StreamEnd,
    StreamFlag,
    StreamRequest,
    StreamStatus,
)
from millrace.core.documents.replica import ReplicaBacking, ack_of
from millrace.core.documents.undoing import ANSWER_BYTES_MAX
from tests.core.documents.stream_rig import P0, Link, Node, delete, master, put, replica

BEEF = FailoverId(0xBEEF)


def follow(leader: Node, follower: Node | None = None) -> Link:
    link = Link(follower or replica(), leader)
    link.catch_up()
    return link


def kinds(link: Link) -> list[object]:
    """What was asked and persisted, in order."""
    return [step if isinstance(step, PersistStep) else type(step) for step in link.steps]


def branched() -> tuple[Node, Node]:
    """A replica that has (5, 8] of a master that is gone, and another that went on from 5."""
    old = master()
    for key in "abcde":
        put(old, key, "shared")
    new = replica()
    follow(old, new)
    for key in "axy":
        put(old, key, "lost")
    ahead = replica()
    follow(old, ahead)
    new.partitions[P0].promote(2, BEEF, is_takeover=False)
    return new, ahead


def ahead_of(follower: Node, key: str, value: str) -> None:
    """One more change of the master that is gone."""
    partition = follower.partitions[P0]
    seq = Seq(partition.seen + 1)
    partition.begin_snapshot(partition.seen, seq)
    partition.apply([Document(key.encode(), value.encode(), seq, Cas(seq))])


# -- Beginning ------------------------------------------------------------------------------------


def test_a_new_replica_takes_the_log_first_and_then_everything() -> None:
    leader = master()
    put(leader, "a", "1")
    put(leader, "b", "2")
    delete(leader, "a")
    link = follow(leader)
    assert kinds(link) == [GetFailoverLog, PersistStep.FINISH, StreamRequest]
    assert link.follower.contents() == leader.contents()
    assert link.follower.partitions[P0].log == leader.partitions[P0].log


def test_who_was_away_goes_on_from_where_it_was() -> None:
    leader, follower = master(), replica()
    put(leader, "a")
    follow(leader, follower)
    put(leader, "b")
    link = follow(leader, follower)
    assert kinds(link) == [GetFailoverLog, StreamRequest]
    asked = link.steps[-1]
    assert isinstance(asked, StreamRequest)
    assert (asked.start, asked.id) == (1, leader.partitions[P0].log.newest)
    assert follower.contents() == leader.contents()


def test_who_stopped_in_a_snapshot_says_which() -> None:
    leader, follower = master(), replica()
    for key in "abc":
        put(leader, key)
    link = Link(follower, leader)
    link.start()
    link.stream(bytes_max=50)
    again = Link(follower, leader)
    again.start()
    asked = again.steps[-1]
    assert isinstance(asked, StreamRequest)
    assert (asked.start, asked.snapshot_first, asked.snapshot_last) == (1, 0, 3)
    again.catch_up()
    assert follower.partitions[P0].complete == 3


def test_a_replica_tells_what_it_has_whole_and_durable() -> None:
    leader = master()
    put(leader, "a")
    link = follow(leader)
    partition = link.follower.partitions[P0]
    id = leader.partitions[P0].log.newest
    assert ack_of(partition) == SeqAck(P0, id, Seq(1), Seq(0))
    link.follower.flush()
    assert ack_of(partition) == SeqAck(P0, id, Seq(1), Seq(1))


# -- Rolling back ---------------------------------------------------------------------------------


def test_a_rollback_goes_in_the_order_that_survives_crashes() -> None:
    new, ahead = branched()
    link = follow(new, ahead)
    undo = [PersistStep.INTENT, Repair, Fetch, PersistStep.FINISH]
    assert kinds(link) == [GetFailoverLog, *undo, StreamRequest]
    assert ahead.contents() == new.contents()


@pytest.mark.parametrize("size_bytes", [1_000, ANSWER_BYTES_MAX // 2, ANSWER_BYTES_MAX])
def test_an_undo_offers_and_fetches_no_more_at_once_than_fits_a_frame(size_bytes: int) -> None:
    new, ahead = branched()
    for key in "axy":
        put(new, key, "n" * size_bytes)
    for key in "uvw":
        ahead_of(ahead, key, "o" * size_bytes)
    link = follow(new, ahead)
    assert ahead.contents() == new.contents()
    offered = [step.documents for step in link.steps if isinstance(step, Repair)]
    assert {one.key for documents in offered for one in documents} == set(map(str.encode, "axyuvw"))
    for documents in offered:
        assert len(documents) == 1 or documents_bytes(documents) <= ANSWER_BYTES_MAX


def test_the_master_is_repaired_with_what_it_did_not_change() -> None:
    new, ahead = branched()
    put(new, "x", "changed here")
    follow(new, ahead)
    values = {key: value for key, (value, _) in new.contents().items()}
    assert (values[b"a"], values[b"x"], values[b"y"]) == (b"lost", b"changed here", b"lost")
    assert ahead.contents() == new.contents()


@pytest.mark.parametrize("steps", range(1, 7))
def test_a_crash_anywhere_in_a_rollback_loses_nothing(steps: int) -> None:
    new, ahead = branched()
    delete(new, "b")
    link = Link(ahead, new)
    link.start(steps_max=steps)
    ahead.crash()
    follow(new, ahead)
    assert ahead.contents() == new.contents()


def test_with_nothing_in_common_everything_is_forgotten() -> None:
    follower, stranger = replica(), master(id=0xF00D)
    old = master()
    put(old, "a")
    follow(old, follower)
    put(stranger, "b")
    link = follow(stranger, follower)
    assert Repair not in kinds(link)
    assert follower.contents() == stranger.contents()
    assert follower.on_disk() == {}


def test_below_its_own_purges_a_replica_cannot_go_back() -> None:
    """A deletion that it forgot would not be undone."""
    old, new = master(), replica()
    put(old, "a", "shared")
    follow(old, new)
    ahead = replica()
    delete(old, "a")
    follow(old, ahead)
    ahead.flush()
    stored = ahead.disk.partitions[1, P0]
    ahead.partitions[P0].purge([one for one in stored.by_seq if one.is_deleted])
    ahead.flush()
    new.partitions[P0].promote(2, BEEF, is_takeover=False)
    follow(new, ahead)
    assert ahead.contents() == new.contents() != {}


def test_too_much_to_undo_is_forgotten_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.core.documents.undoing.UNDO_BYTES_MAX", 100)
    new, ahead = branched()
    link = Link(ahead, new)
    for _ in range(3):
        link.now_ms += RETRY_MS_MAX
        link.catch_up()
    assert link.consumer.phase is ConsumerPhase.STREAMING
    assert ahead.contents() == new.contents()


# -- Refusals and ends ----------------------------------------------------------------------------


class Asked:
    """A consumer whose producer is played by the test."""

    def __init__(self, wish: Wish = EVERYTHING) -> None:
        self.node = replica()
        backing = ReplicaBacking(self.node.partitions[P0], self.node)
        self.consumer = PartitionConsumer(P0, backing, 0, wish)
        self.now_ms = 0
        self.effects: list[ConsumerEffect] = list(self.consumer.tick(0))

    @property
    def ask(self) -> Ask:
        found = self.effects[-1]
        assert isinstance(found, Ask)
        return found

    def answer(self, answer: ProducerAnswer) -> None:
        number = self.ask.number
        self.effects = list(self.consumer.answered(number, answer, self.now_ms))

    def log(self) -> None:
        leader = master().partitions[P0]
        self.answer(FailoverLogGot(P0, leader.log, Seq(9), Seq(0), PartitionState.ACTIVE))
        number = self.consumer._number
        self.node.flush()
        self.effects = self.consumer.persisted(number, self.now_ms)

    def streaming(self) -> "Asked":
        self.log()
        self.answer(StreamAnswered(P0, StreamStatus.OK))
        assert self.consumer.phase is ConsumerPhase.STREAMING
        return self

    def push(self, message: ProducerPush) -> None:
        self.effects = list(self.consumer.pushed(message, self.now_ms))


@pytest.mark.parametrize("status", [s for s in StreamStatus if s is not StreamStatus.OK])
def test_whatever_the_answer_it_is_tried_again(status: StreamStatus) -> None:
    asked = Asked()
    asked.answer(Answered(status, "because"))
    assert asked.consumer.phase is ConsumerPhase.WAITING
    assert asked.consumer.next_timer_ms == RETRY_MS_FIRST
    assert "because" in asked.consumer.explain()


@pytest.mark.parametrize("reason", list(EndReason))
def test_whatever_ends_a_stream_it_is_opened_again(reason: EndReason) -> None:
    asked = Asked().streaming()
    asked.push(StreamEnd(P0, reason))
    assert asked.consumer.phase is ConsumerPhase.WAITING
    asked.effects = asked.consumer.tick(RETRY_MS_FIRST)
    assert asked.ask.request == GetFailoverLog(P0)


@pytest.mark.parametrize(
    "status",
    [StreamStatus.NOT_MY_PARTITION, StreamStatus.WRONG_FAILOVER_ID, StreamStatus.RANGE],
)
def test_who_is_not_the_master_makes_the_map_be_reloaded(status: StreamStatus) -> None:
    asked = Asked()
    asked.log()
    asked.answer(StreamAnswered(P0, status, detail="gone"))
    assert [type(effect) for effect in asked.effects] == [ReloadMap]


def test_a_stale_master_is_refused() -> None:
    new, ahead = branched()
    follow(new, ahead)
    stale = master()
    link = Link(ahead, stale)
    link.start()
    assert len(link.reloads) == 1
    assert link.reloads[0].startswith("stale_master")
    assert ahead.contents() == new.contents()


def test_a_partition_without_a_master_is_waited_for() -> None:
    asked = Asked()
    asked.answer(FailoverLogGot(P0, NO_LOG, Seq(0), Seq(0), PartitionState.REPLICA))
    assert "has no master yet" in asked.consumer.explain()


def test_it_waits_longer_and_longer_but_never_for_ever() -> None:
    asked = Asked()
    delays = []
    for _ in range(12):
        asked.consumer.failed(asked.now_ms, "no connection")
        timer_ms = asked.consumer.next_timer_ms
        assert timer_ms is not None
        delays.append(timer_ms - asked.now_ms)
        asked.now_ms = timer_ms
        asked.effects = asked.consumer.tick(timer_ms)
    assert delays[:3] == [RETRY_MS_FIRST, 2 * RETRY_MS_FIRST, 4 * RETRY_MS_FIRST]
    assert delays[-1] == RETRY_MS_MAX


def test_progress_makes_it_patient_again() -> None:
    asked = Asked()
    for _ in range(5):
        asked.consumer.failed(0, "no connection")
    asked.now_ms = RETRY_MS_MAX
    asked.effects = asked.consumer.tick(asked.now_ms)
    asked.streaming()
    asked.push(SnapshotMarker(P0, Seq(0), Seq(1)))
    asked.push(Changes(P0, (put(master(), "a"),)))
    asked.push(StreamEnd(P0, EndReason.DISCONNECTED))
    assert asked.consumer.next_timer_ms == RETRY_MS_MAX + RETRY_MS_FIRST


def test_a_stream_that_went_well_for_long_is_opened_again_soon_though_nothing_changed() -> None:
    asked = Asked()
    for _ in range(9):
        asked.consumer.failed(asked.now_ms, "no connection")
        asked.now_ms = asked.consumer.next_timer_ms or 0
        asked.effects = asked.consumer.tick(asked.now_ms)
    asked.streaming()
    asked.now_ms += RETRY_MS_MAX
    asked.consumer.failed(asked.now_ms, "the connection was lost")
    assert asked.consumer.next_timer_ms == asked.now_ms + RETRY_MS_FIRST


def test_who_waits_does_not_wait_longer_because_nobody_can_be_reached_meanwhile() -> None:
    asked = Asked()
    for at_ms in range(9):
        asked.consumer.failed(at_ms, "no connection")
    assert asked.consumer.next_timer_ms == RETRY_MS_FIRST


def test_an_answer_that_does_not_come_is_not_waited_for_for_ever() -> None:
    asked = Asked()
    late = asked.ask.number
    assert asked.consumer.next_timer_ms == ANSWER_MS_MAX
    asked.consumer.tick(ANSWER_MS_MAX)
    assert asked.consumer.phase is ConsumerPhase.WAITING
    asked.effects = asked.consumer.tick(ANSWER_MS_MAX + RETRY_MS_FIRST)
    assert asked.ask.number != late
    assert asked.consumer.answered(late, Answered(StreamStatus.BUSY), ANSWER_MS_MAX) == []
    assert asked.consumer.phase is ConsumerPhase.ASKING


def test_what_a_stream_that_was_given_up_still_brings_is_left_out() -> None:
    asked = Asked().streaming()
    asked.push(SnapshotMarker(P0, Seq(0), Seq(1)))
    asked.consumer.failed(0, "the connection broke")
    asked.push(Changes(P0, (put(master(), "a"),)))
    assert asked.effects == []
    assert asked.node.contents() == {}


def test_nothing_is_streamed_before_the_end_of_an_undo_is_durable() -> None:
    """The connection breaks while it is being written: it is written again first."""
    new, ahead = branched()
    link = Link(ahead, new)
    link.start(steps_max=4)
    assert link.consumer.phase is ConsumerPhase.FINISHING
    link.consumer.failed(0, "the connection broke")
    link.now_ms = RETRY_MS_FIRST
    link.steps.clear()
    link.catch_up()
    assert kinds(link) == [GetFailoverLog, PersistStep.FINISH, StreamRequest]
    assert ahead.contents() == new.contents()


@pytest.mark.parametrize(
    "push",
    [
        Changes(P0, (put(master(), "a"),)),
        SnapshotMarker(P0, Seq(5), Seq(9)),
    ],
    ids=["a change without a marker", "a marker with a hole before it"],
)
def test_a_producer_that_breaks_the_rules_is_asked_anew(push: ProducerPush) -> None:
    asked = Asked().streaming()
    asked.push(push)
    assert asked.ask.request == CloseStream(P0)
    asked.answer(Answered(StreamStatus.OK))
    assert asked.consumer.phase is ConsumerPhase.WAITING
    assert asked.node.contents() == {}


def test_a_stream_that_is_open_still_is_closed_first() -> None:
    asked = Asked()
    asked.log()
    asked.answer(StreamAnswered(P0, StreamStatus.EXISTS))
    assert asked.ask.request == CloseStream(P0)


def test_a_rollback_that_the_producer_wants_is_done() -> None:
    leader, follower = master(), replica()
    put(leader, "a")
    follow(leader, follower)
    link = Link(follower, leader)
    link.run(link.consumer.tick(0), steps_max=1)
    number = link.consumer._number
    answer = StreamAnswered(P0, StreamStatus.ROLLBACK, rollback=Seq(0))
    link.run(link.consumer.answered(number, answer, 0))
    assert link.consumer.phase is ConsumerPhase.WAITING
    link.now_ms = RETRY_MS_MAX
    link.catch_up()
    assert PersistStep.INTENT in link.steps
    assert follower.contents() == leader.contents()


def test_a_finite_stream_comes_to_its_end() -> None:
    asked = Asked(Wish(flags=StreamFlag.TO_LATEST)).streaming()
    asked.push(StreamEnd(P0, EndReason.OK))
    assert asked.consumer.phase is ConsumerPhase.DONE
    assert asked.consumer.failed(0, "closed") == []
    assert asked.consumer.next_timer_ms is None


def test_who_is_stopped_says_nothing_more() -> None:
    asked = Asked().streaming()
    asked.consumer.stop()
    asked.push(SnapshotMarker(P0, Seq(0), Seq(1)))
    assert asked.effects == []
    assert asked.consumer.failed(0, "closed") == []
    assert asked.consumer.next_timer_ms is None


def test_it_explains_itself() -> None:
    asked = Asked().streaming()
    asked.push(SnapshotMarker(P0, Seq(0), Seq(12)))
    assert asked.consumer.explain() == (
        "partition 0 is streaming at seq 0; 12 behind; began because of first: "
        "nothing was streamed yet"
    )
    asked.push(StreamEnd(P0, EndReason.TOO_SLOW))
    assert asked.consumer.explain().endswith("the stream ended: too_slow; attempt 2 in 50 ms")
