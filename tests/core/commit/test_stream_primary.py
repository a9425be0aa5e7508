"""The primary of a stream: positions, backups, answers to clients, the end of its generation."""

from typing import Any

import msgspec
import pytest

from millrace.codec import blocks
from millrace.core import effects as e
from millrace.core import messages as m
from millrace.core.commit import pending
from millrace.core.commit.feed import LATE_MAX, RETRY_MS, RETRY_MS_MAX
from millrace.core.commit.pending import TICKETS_PER_APPEND_MAX, PendingAppends
from millrace.core.commit.primary import Primary
from millrace.core.commit.record import StreamCommit
from millrace.core.commit.replica import StreamReplica
from millrace.core.procedure import Answer, Failure, FailureKind
from millrace.types import NO_TOKEN, Ack, Block, EntryKind, Epoch, Lsn, NodeId, Token
from tests.core.commit.commit_samples import run
from tests.core.commit.stream_samples import (
    LOG,
    ME,
    SECOND,
    STREAM,
    STREAM_LOG,
    THIRD,
    draft,
    of,
    opening,
    seal,
)

BROKEN = Failure(FailureKind.LOST, "the connection broke")
LATE = m.Refused(m.Refusal.NOT_READY, Epoch(1), "not open yet")


class Rig:
    """A primary with two backups, and everything it ordered so far."""

    def __init__(
        self,
        replicas: tuple[NodeId, ...] = (ME, SECOND, THIRD),
        pending: PendingAppends | None = None,
    ) -> None:
        self.replica = StreamReplica(STREAM_LOG, None, ME)
        self.primary = Primary(self.replica, blocks.move, pending)
        self.effects: list[e.NodeEffect] = []
        self.tickets = 0
        self.reform(1, replicas=replicas)

    def append(self, sent: Block | None = None, generation: int = 1, **fields: Any) -> int:
        self.tickets += 1
        block = draft(token=Token(9, self.tickets)) if sent is None else sent
        request = m.AppendStream(LOG, STREAM, Epoch(generation), block, **fields)
        self.note(self.primary.append((1, self.tickets), request))
        return self.tickets

    def commit(self, *runs: StreamCommit) -> None:
        self.note(self.primary.committed(runs))

    def answer(self, order: e.AskReplicate, answer: Answer) -> list[e.NodeEffect]:
        return self.note(self.primary.replicated(order, answer))

    def seal(self, generation: int) -> None:
        self.note(self.replica.seal((0, 9), seal(generation)))
        self.primary.sealed()

    def reform(
        self, generation: int, end: int = 1, replicas: tuple[NodeId, ...] = (ME, SECOND, THIRD)
    ) -> None:
        self.seal(generation)
        self.note(self.replica.open((0, 9), opening(generation, end, replicas)))
        self.note(self.primary.opened(Lsn(end)))

    def note(self, effects: list[e.NodeEffect]) -> list[e.NodeEffect]:
        self.effects += effects
        return effects

    def asked(self, node: NodeId = SECOND) -> list[e.AskReplicate]:
        return [each for each in of(self.effects, e.AskReplicate) if each.node == node]

    def firsts(self, node: NodeId = SECOND) -> list[int]:
        return [each.message.block.first for each in self.asked(node)]

    def answers(self) -> dict[int, m.Message]:
        """By the number of the append; each is answered at most once."""
        found = [each for each in self.effects if isinstance(each, e.Reply | e.Settle)]
        of_clients = [each for each in found if each.ticket[0] == 1]
        assert len({each.ticket for each in of_clients}) == len(of_clients)
        return {each.ticket[1]: each.message for each in of_clients}

    def refused(self, number: int) -> m.Refusal:
        answer = self.answers()[number]
        assert isinstance(answer, m.Refused), answer
        return answer.reason


# -- Appending ------------------------------------------------------------------------------------


def test_a_block_gets_the_next_positions_and_goes_to_all_replicas() -> None:
    rig = Rig()
    rig.append(draft(3), ack=Ack.MEMORY)
    rig.append(draft(2, token=Token(6, 6)))
    stored = [each.block for each in of(rig.effects, e.StoreBlock)]
    assert [(each.first, each.end, each.log) for each in stored] == [
        (1, 4, STREAM_LOG),
        (4, 6, STREAM_LOG),
    ]
    for block in stored:
        blocks.verify(block)
        assert block.epoch == 1
    for node in (SECOND, THIRD):
        messages = [each.message for each in rig.asked(node)]
        assert [each.block for each in messages] == stored
        assert [each.ack for each in messages] == [Ack.MEMORY, Ack.DISK]


def test_a_stream_with_one_replica_asks_nobody() -> None:
    rig = Rig((ME,))
    rig.append()
    assert not of(rig.effects, e.AskReplicate)
    rig.commit(run(1, 1, 8, 1))
    assert rig.answers() == {1: m.StreamAppended(Lsn(8), Lsn(8), Lsn(1))}


def test_clients_are_answered_when_their_records_have_a_place_in_the_log() -> None:
    rig = Rig()
    for count in (2, 3, 1):
        rig.append(draft(count, NO_TOKEN))
    assert rig.answers() == {}
    rig.commit(run(4, 1, 11, 5))
    assert rig.answers() == {
        1: m.StreamAppended(Lsn(11), Lsn(12), Lsn(1)),
        2: m.StreamAppended(Lsn(13), Lsn(15), Lsn(3)),
    }
    rig.commit(run(5, 6, 20, 1))
    assert rig.answers()[3] == m.StreamAppended(Lsn(20), Lsn(20), Lsn(6))
    assert rig.primary.waiting == 0


def test_a_repetition_waits_with_the_first_and_is_answered_like_it_afterwards() -> None:
    rig = Rig()
    rig.append(draft())
    rig.append(draft(), is_repeated=True)
    assert len(of(rig.effects, e.StoreBlock)) == 1
    rig.commit(run(1, 1, 4, 1))
    rig.append(draft(), is_repeated=True)
    assert set(rig.answers().values()) == {m.StreamAppended(Lsn(4), Lsn(4), Lsn(1))}
    assert len(rig.answers()) == 3


def test_no_more_than_so_many_repetitions_wait() -> None:
    rig = Rig()
    for _ in range(TICKETS_PER_APPEND_MAX + 1):
        rig.append(draft())
    assert rig.answers() == {1: m.AppendUnsettled(Epoch(1), Lsn(1))}


def test_a_repetition_of_what_is_not_known_is_appended_only_if_nothing_was_forgotten() -> None:
    rig = Rig()
    rig.append(draft(token=Token(6, 6)), is_repeated=True)
    assert of(rig.effects, e.StoreBlock), "the stream is new: it cannot be there"
    later = StreamReplica(STREAM_LOG, None, ME)
    later.entries.restart(Lsn(5))
    rig.primary = Primary(later, blocks.move)
    rig.replica = later
    rig.reform(2, end=5)
    number = rig.append(draft(token=Token(6, 7)), generation=2, is_repeated=True)
    assert rig.answers()[number] == m.AppendUnsettled(Epoch(2))


def test_a_repetition_that_was_looked_for_is_appended_if_all_above_is_known() -> None:
    later = StreamReplica(STREAM_LOG, None, ME)
    later.entries.restart(Lsn(5))
    rig = Rig()
    rig.replica, rig.primary = later, Primary(later, blocks.move)
    rig.reform(2, end=5)
    sent = {"generation": 2, "is_repeated": True}
    unsettled = rig.append(draft(token=Token(6, 7)), **sent, searched=Lsn(4))
    assert rig.answers()[unsettled] == m.AppendUnsettled(Epoch(2))
    rig.append(draft(token=Token(6, 7)), **sent, searched=Lsn(5))
    assert of(rig.effects, e.StoreBlock)


def test_what_is_forgotten_has_to_be_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "TOKENS_REMEMBERED", 2)
    rig = Rig()
    for number in range(1, 5):
        rig.append(draft(token=Token(6, number)))
        rig.commit(run(number, number, number, 1))
    missing = draft(token=Token(7, 1))
    number = rig.append(missing, is_repeated=True, searched=Lsn(2))
    assert rig.answers()[number] == m.AppendUnsettled(Epoch(1))
    rig.append(missing, is_repeated=True, searched=Lsn(3))
    assert len(of(rig.effects, e.StoreBlock)) == 5


def test_a_closed_stream_takes_no_appends_and_forgets_those_that_wait() -> None:
    rig = Rig()
    waiting = rig.append()
    rig.seal(2)
    closing = msgspec.structs.replace(opening(2, 1, (ME, SECOND, THIRD)), is_open=False)
    rig.note(rig.replica.open((0, 9), closing))
    rig.note(rig.primary.opened(Lsn(1)))
    assert rig.refused(waiting) is m.Refusal.EPOCH
    assert rig.refused(rig.append(generation=2)) is m.Refusal.NOT_READY
    rig.reform(3)
    rig.append(generation=3)
    assert len(of(rig.effects, e.StoreBlock)) == 2


REFUSED = {
    "an-earlier-generation": (draft(), 0, m.Refusal.EPOCH),
    "a-later-generation": (draft(), 2, m.Refusal.NOT_READY),
    "another-log": (blocks.move(draft(), Epoch(0), Lsn(1), STREAM_LOG), 1, m.Refusal.BAD_REQUEST),
    "no-data": (blocks.junk(LOG, Lsn(1), 1, EntryKind.HOLE), 1, m.Refusal.BAD_REQUEST),
}


@pytest.mark.parametrize(("sent", "generation", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_appended_is_refused(
    sent: Block, generation: int, reason: m.Refusal
) -> None:
    rig = Rig()
    assert rig.refused(rig.append(sent, generation)) is reason
    assert not of(rig.effects, e.StoreBlock)


def test_a_backup_refuses_appends_and_says_who_is_primary() -> None:
    rig = Rig((SECOND, ME))
    rig.append()
    answer = rig.answers()[1]
    assert isinstance(answer, m.Refused) and answer.reason is m.Refusal.NOT_READY
    assert "node 2 is the primary" in answer.detail


@pytest.mark.parametrize(
    ("appends_max", "bytes_max"),
    [pytest.param(2, 1_000_000, id="appends"), pytest.param(1_000, 2 * draft().size, id="bytes")],
)
def test_what_waits_is_bounded_and_one_block_always_has_room(
    appends_max: int, bytes_max: int
) -> None:
    rig = Rig(pending=PendingAppends(True, appends_max, bytes_max))
    rig.append()
    rig.append()
    assert rig.refused(rig.append()) is m.Refusal.BUSY
    rig.commit(run(1, 1, 1, 2))
    rig.append(draft(value=b"x" * 5_000))
    assert len(of(rig.effects, e.StoreBlock)) == 3


def test_a_full_disk_refuses_appends() -> None:
    rig = Rig()
    rig.replica.refuse_writes = m.Refusal.DISK_FULL
    assert rig.refused(rig.append()) is m.Refusal.DISK_FULL


# -- Backups --------------------------------------------------------------------------------------


def test_a_backup_that_missed_one_is_sent_all_from_there_after_a_pause() -> None:
    rig = Rig()
    for _ in range(3):
        rig.append()
    first, second, third = rig.asked()
    rig.answer(first, m.StreamStored(Lsn(2)))
    assert rig.answer(second, LATE) == [e.SetStreamTimer(STREAM_LOG, SECOND, 2, RETRY_MS)]
    assert rig.answer(third, LATE) == [], "it was sent behind the one that was missed"
    rig.append()
    assert rig.firsts() == [1, 2, 3], "nothing is sent during the pause"
    rig.note(rig.primary.resume(SECOND))
    assert rig.firsts() == [1, 2, 3, 2, 3, 4]
    assert rig.firsts(THIRD) == [1, 2, 3, 4]


def test_pauses_become_longer_until_something_is_taken() -> None:
    rig = Rig()
    rig.append()
    pauses = []
    for _ in range(12):
        timer = of(rig.answer(rig.asked()[-1], BROKEN), e.SetStreamTimer)[0]
        pauses.append(timer.ms)
        rig.note(rig.primary.resume(SECOND))
    assert pauses[:4] == [RETRY_MS, 2 * RETRY_MS, 4 * RETRY_MS, 8 * RETRY_MS]
    assert max(pauses) == RETRY_MS_MAX
    rig.answer(rig.asked()[-1], m.StreamStored(Lsn(2)))
    rig.append()
    again = of(rig.answer(rig.asked()[-1], BROKEN), e.SetStreamTimer)
    assert [each.ms for each in again] == [RETRY_MS]


def test_a_backup_that_does_not_answer_is_reported_until_it_does() -> None:
    rig = Rig()
    rig.append()
    assert of(rig.answer(rig.asked()[-1], BROKEN), e.StreamTroubled) == [
        e.StreamTroubled(STREAM_LOG, SECOND, "lost: the connection broke")
    ]
    assert rig.replica.report().suspects == (SECOND,)
    rig.note(rig.primary.resume(SECOND))
    assert not of(rig.answer(rig.asked()[-1], BROKEN), e.StreamTroubled), "it is known"
    rig.note(rig.primary.resume(SECOND))
    rig.answer(rig.asked()[-1], m.StreamStored(Lsn(2)))
    assert rig.replica.report().suspects == ()


def test_a_backup_that_is_late_with_its_opening_is_no_trouble_for_a_while() -> None:
    rig = Rig()
    rig.append()
    for _ in range(LATE_MAX):
        assert not of(rig.answer(rig.asked()[-1], LATE), e.StreamTroubled)
        rig.note(rig.primary.resume(SECOND))
    assert of(rig.answer(rig.asked()[-1], LATE), e.StreamTroubled)


def test_what_is_committed_all_backups_have() -> None:
    rig = Rig()
    rig.append()
    rig.append()
    rig.answer(rig.asked()[0], BROKEN)
    rig.commit(run(1, 1, 1, 1))
    rig.note(rig.primary.resume(SECOND))
    assert rig.firsts() == [1, 2, 2]


# -- Generations ----------------------------------------------------------------------------------


def test_while_the_stream_is_sealed_appends_wait() -> None:
    rig = Rig()
    rig.append()
    rig.seal(2)
    assert rig.answers() == {}
    assert rig.refused(rig.append(generation=1)) is m.Refusal.EPOCH
    assert rig.refused(rig.append(generation=2)) is m.Refusal.NOT_READY


def test_what_lies_above_the_next_generation_was_not_appended() -> None:
    rig = Rig()
    for _ in range(3):
        rig.append()
    rig.reform(2, end=3)
    assert rig.refused(3) is m.Refusal.EPOCH
    assert rig.answers().keys() == {3}
    kinds = [type(each) for each in rig.effects]
    refusal = next(each for each in of(rig.effects, e.Settle) if each.ticket == (1, 3))
    assert refusal.ack is Ack.DISK
    assert kinds.index(e.TruncateLog) < rig.effects.index(refusal), "it is forgotten first"
    rig.commit(run(7, 1, 4, 2))
    assert rig.answers()[1] == m.StreamAppended(Lsn(4), Lsn(4), Lsn(1))
    rig.append(generation=2)
    assert rig.firsts()[-1] == 3, "the position is given out again, in another generation"


def test_who_is_not_primary_any_more_cannot_say_what_becomes_of_its_appends() -> None:
    rig = Rig()
    rig.append()
    rig.append()
    rig.reform(2, end=2, replicas=(SECOND, ME))
    assert rig.answers()[1] == m.AppendUnsettled(Epoch(2), Lsn(1))
    assert rig.refused(2) is m.Refusal.EPOCH
    rig.reform(3, end=2)
    number = rig.append(draft(token=Token(9, 1)), generation=3, is_repeated=True)
    assert rig.answers()[number] == m.AppendUnsettled(Epoch(3)), "others may have appended it"


def test_a_backup_of_a_later_generation_ends_the_primary() -> None:
    rig = Rig()
    rig.append()
    rig.answer(rig.asked()[0], m.Refused(m.Refusal.EPOCH, Epoch(2)))
    assert rig.answers() == {1: m.AppendUnsettled(Epoch(2), Lsn(1))}
    rig.append()
    assert rig.answers()[2] == m.Refused(m.Refusal.EPOCH, Epoch(2), "a later generation has begun")


def test_answers_of_an_earlier_generation_mean_nothing() -> None:
    rig = Rig()
    rig.append()
    (late,) = rig.asked()
    rig.reform(2, end=2)
    assert rig.answer(late, BROKEN) == []
    assert rig.replica.suspects == ()
