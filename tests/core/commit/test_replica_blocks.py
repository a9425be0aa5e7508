"""A replica of a stream: which blocks it takes, and what it says it holds."""

import pytest

from millrace.codec import blocks
from millrace.core import effects as e
from millrace.core import messages as m
from millrace.types import Ack, LogId, Lsn, Placement, Version
from tests.core.commit.stream_samples import (
    G1,
    G2,
    ME,
    SECOND,
    STREAM,
    STREAM_LOG,
    TICKET,
    backup,
    entry,
    of,
    opening,
    refusal,
    seal,
    sent,
    settle,
    state,
)


def test_a_block_is_stored_and_answered_when_it_is_safe() -> None:
    replica, block = backup(), entry(1, 3)
    stored, behind = replica.take(TICKET, sent(block, ack=Ack.MEMORY))
    assert stored == e.StoreBlock(block, Placement((SECOND, ME)), Ack.MEMORY)
    assert isinstance(behind, e.Settle) and (behind.ack, behind.ticket) == (Ack.MEMORY, TICKET)
    assert replica.settled(behind) == m.StreamStored(Lsn(4))


def test_what_is_not_safe_is_not_reported() -> None:
    replica = backup(entry(1, 2))
    ordered = replica.take(TICKET, sent(entry(3, 4)))
    expected = m.StreamReport(STREAM, G1, m.ReplicaState.OPEN, Version(0), Lsn(1), 2)
    assert replica.report() == expected
    settle(replica, ordered)
    assert replica.report().count == 6


def test_what_was_held_in_memory_before_is_not_safe_while_something_before_it_is_not() -> None:
    replica = backup()
    on_disk = replica.take(TICKET, sent(entry(1)))
    settle(replica, replica.take(TICKET, sent(entry(2), ack=Ack.MEMORY)))
    assert replica.report().count == 0
    settle(replica, on_disk)
    assert replica.report().count == 2


def test_a_block_that_is_held_already_is_answered_as_stored_and_not_stored_again() -> None:
    replica, block = backup(), entry(1, 2)
    first = replica.take(TICKET, sent(block))
    again = replica.take(TICKET, sent(entry(1, 2)))
    assert not of(again, e.StoreBlock)
    settle(replica, first)
    assert settle(replica, again) == m.StreamStored(Lsn(3))
    assert replica.counts.repeats == 1


REFUSED = {
    "too-early": (sent(entry(4)), m.Refusal.UNWRITTEN),
    "another-at-its-place": (sent(entry(1, 2, value=b"y")), m.Refusal.CONFLICT),
    "another-cut": (sent(entry(2)), m.Refusal.CONFLICT),
    "of-an-earlier-generation": (sent(entry(3, generation=0)), m.Refusal.EPOCH),
    "of-one-that-is-not-open-yet": (sent(entry(3, generation=2)), m.Refusal.NOT_READY),
    "block-of-another-generation": (sent(entry(3, generation=2), 1), m.Refusal.BAD_REQUEST),
}


@pytest.mark.parametrize(("request_", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_anything_else_is_refused_and_counted(request_: m.StreamBlock, reason: m.Refusal) -> None:
    replica = backup(entry(1, 2))
    assert refusal(replica.take(TICKET, request_)) is reason
    assert replica.counts.refused == {reason: 1}
    assert replica.entries.end == 3


def test_a_block_of_another_log_is_refused() -> None:
    other = blocks.move(entry(1), G1, Lsn(1), LogId(9))
    assert refusal(backup().take(TICKET, sent(other))) is m.Refusal.BAD_REQUEST


def test_a_full_disk_refuses_blocks() -> None:
    replica = backup()
    replica.refuse_writes = m.Refusal.DISK_FULL
    assert refusal(replica.take(TICKET, sent(entry(1)))) is m.Refusal.DISK_FULL


def test_who_is_primary_takes_blocks_of_nobody() -> None:
    replica = backup()
    settle(replica, replica.seal(TICKET, seal(2)))
    settle(replica, replica.open(TICKET, opening(2, replicas=(ME, SECOND))))
    assert replica.is_primary
    refused = replica.take(TICKET, sent(entry(1, generation=2)))
    assert refusal(refused) is m.Refusal.BAD_REQUEST


# -- A store that fails ---------------------------------------------------------------------------


def test_blocks_behind_one_that_was_not_kept_are_not_kept_either() -> None:
    replica = backup(entry(1))
    lost = of(replica.take(TICKET, sent(entry(2))), e.Settle)[0]
    behind = replica.take(TICKET, sent(entry(3)))
    ordered = replica.store_failed(lost, state(entries=(1, 2)))
    assert ordered == [e.TruncateLog(STREAM_LOG, Lsn(2))]
    answer = settle(replica, behind)
    assert isinstance(answer, m.Refused) and answer.reason is m.Refusal.BUSY
    assert (replica.entries.end, replica.report().count) == (2, 1)
    settle(replica, replica.take(TICKET, sent(entry(2))))
    assert replica.report().count == 2, "the primary sends it again"


def test_a_primary_whose_store_fails_does_not_go_on_before_the_next_generation() -> None:
    replica = backup(entry(1))
    settle(replica, replica.seal(TICKET, seal(2)))
    settle(replica, replica.open(TICKET, opening(2, end=2, replicas=(ME, SECOND))))
    lost = of(replica.keep(entry(2, generation=2), Ack.DISK), e.Settle)[0]
    replica.store_failed(lost, state(entries=(1, 2)))
    assert replica.report().state is m.ReplicaState.QUARANTINED
    sealed = settle(replica, replica.seal(TICKET, seal(3)))
    assert isinstance(sealed, m.StreamSealed)
    assert (sealed.is_valid, sealed.end, sealed.opened) == (True, 2, G2)
