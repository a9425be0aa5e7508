"""A replica of a stream: sealed, opened, begun anew after a restart (I1, I7, M4, M6, M8)."""

import msgspec
import pytest

from millrace.core import effects as e
from millrace.core import messages as m
from millrace.core.commit.replica import StreamReplica
from millrace.core.log_state import Fence, LogState
from millrace.types import Ack, Epoch, Lsn, Token, Version
from tests.core.commit.commit_samples import context, run
from tests.core.commit.stream_samples import (
    G1,
    G2,
    ME,
    SECOND,
    STREAM,
    STREAM_LOG,
    THIRD,
    TICKET,
    backup,
    commits,
    entry,
    of,
    opening,
    refusal,
    seal,
    sent,
    settle,
    state,
    take_commit,
)

CONTEXT = context(4, 9, 1, 8, 2, 9)
RUNS = (run(4, 1, 8, 2),)


def test_a_seal_is_durable_before_it_is_answered_and_says_what_is_there_by_then() -> None:
    replica = backup(entry(1, 2))
    on_its_way = replica.take(TICKET, sent(entry(3)))
    fence, behind = replica.seal(TICKET, seal(2))
    assert fence == e.SetFence(STREAM_LOG, Fence(G2, Token(1, 0), m.Standing.MEMBER))
    assert isinstance(behind, e.Settle) and behind.ack is Ack.DISK
    settle(replica, on_its_way)
    sealed = m.StreamSealed(G2, Version(0), Lsn(1), Lsn(4), True, "", G1)
    assert replica.settled(behind) == sealed


def test_once_sealed_nothing_of_an_earlier_generation_is_taken() -> None:
    replica = backup()
    settle(replica, replica.seal(TICKET, seal(3)))
    assert refusal(replica.take(TICKET, sent(entry(1)))) is m.Refusal.EPOCH
    assert refusal(replica.seal(TICKET, seal(2))) is m.Refusal.EPOCH
    assert refusal(replica.open(TICKET, opening(2))) is m.Refusal.EPOCH


def test_a_seal_may_be_repeated_until_the_generation_is_open() -> None:
    replica = backup()
    settle(replica, replica.seal(TICKET, seal(2)))
    assert isinstance(settle(replica, replica.seal(TICKET, seal(2))), m.StreamSealed)
    settle(replica, replica.open(TICKET, opening(2)))
    assert refusal(replica.seal(TICKET, seal(2))) is m.Refusal.EPOCH


def test_whoever_was_no_member_is_one_again_once_it_is_opened() -> None:
    replica = backup()
    replica.is_disowned = replica.is_left_out = True
    assert not replica.is_member
    settle(replica, replica.seal(TICKET, seal(2)))
    settle(replica, replica.open(TICKET, opening(2)))
    assert replica.is_member


def test_a_node_without_a_replica_makes_an_empty_one() -> None:
    replica = StreamReplica(STREAM_LOG, None, ME)
    sealed = settle(replica, replica.seal(TICKET, seal(5)))
    assert sealed == m.StreamSealed(Epoch(5), replica.version, Lsn(1), Lsn(1), True)
    assert not replica.is_member, "nobody counts on it yet"


def test_an_opening_forgets_what_lies_above_its_end_on_disk_before_it_is_answered() -> None:
    replica = backup(entry(1, 2), entry(3), entry(4))
    settle(replica, replica.seal(TICKET, seal(2)))
    truncate, fence, behind = replica.open(TICKET, opening(2, end=4))
    assert truncate == e.TruncateLog(STREAM_LOG, Lsn(4))
    assert fence == e.SetFence(STREAM_LOG, Fence(G2, Token(2, 0), m.Standing.MEMBER))
    assert isinstance(behind, e.Settle) and behind.ack is Ack.DISK
    expected = m.StreamReport(STREAM, G2, m.ReplicaState.OPEN, replica.version, Lsn(1), 3)
    assert replica.settled(behind) == m.StreamOpened(expected)
    assert refusal(replica.take(TICKET, sent(entry(5, generation=2)))) is m.Refusal.UNWRITTEN
    assert of(replica.take(TICKET, sent(entry(4, generation=2))), e.StoreBlock)


def test_an_opening_may_be_repeated() -> None:
    replica = backup(entry(1))
    again = settle(replica, replica.open(TICKET, opening(1)))
    assert isinstance(again, m.StreamOpened)
    assert (again.report.state, again.report.count) == (m.ReplicaState.OPEN, 1)


def test_an_answer_that_was_overtaken_by_a_seal_is_a_refusal() -> None:
    replica = backup()
    settle(replica, replica.seal(TICKET, seal(2)))
    late = replica.open(TICKET, opening(2))
    replica.seal(TICKET, seal(3))
    answer = settle(replica, late)
    assert isinstance(answer, m.Refused) and answer.reason is m.Refusal.EPOCH


NOT_OPENED = {
    "not-sealed-for-it": (opening(3, end=2), m.Refusal.NOT_READY),
    "without-this-node": (opening(2, end=2, replicas=(SECOND, THIRD)), m.Refusal.BAD_REQUEST),
    "beyond-what-it-holds": (opening(2, end=6), m.Refusal.CONFLICT),
    "below-what-is-committed": (opening(2, end=2), m.Refusal.CONFLICT),
}


@pytest.mark.parametrize(("request_", "reason"), NOT_OPENED.values(), ids=NOT_OPENED.keys())
def test_what_cannot_be_opened_is_refused(request_: m.OpenStream, reason: m.Refusal) -> None:
    replica = backup(entry(1, 2), entry(3))
    take_commit(replica, commits((1, 1, 1, 2)), 1, 2)
    settle(replica, replica.seal(TICKET, seal(2)))
    assert refusal(replica.open(TICKET, request_)) is reason
    assert replica.state is m.ReplicaState.SEALED


# -- Restarts -------------------------------------------------------------------------------------


def restarted(found: LogState) -> StreamReplica:
    return StreamReplica(STREAM_LOG, found, ME)


def test_after_a_restart_it_is_sealed_with_all_that_it_holds() -> None:
    replica = restarted(state(entries=(1, 7), context=CONTEXT, runs=RUNS))
    assert replica.report() == m.StreamReport(STREAM, G1, m.ReplicaState.SEALED)
    assert refusal(replica.take(TICKET, sent(entry(7)))) is m.Refusal.NOT_READY
    sealed = settle(replica, replica.seal(TICKET, seal(2)))
    assert isinstance(sealed, m.StreamSealed)
    assert (sealed.version, sealed.local_end, sealed.end) == (4, 3, 7)
    assert (sealed.is_valid, sealed.opened) == (True, 1)
    assert replica.is_member and replica.high_watermark == 9


def test_what_was_open_before_a_restart_is_not_opened_again_in_the_same_generation() -> None:
    """It may have been the primary, and given out positions of which nothing is on its disk."""
    replica = restarted(state(entries=(1, 3), context=CONTEXT, runs=RUNS))
    assert refusal(replica.open(TICKET, opening(1, end=3))) is m.Refusal.NOT_READY


def test_what_was_only_sealed_before_a_restart_is_opened() -> None:
    replica = restarted(state(generation=2, opened=1, entries=(1, 3), context=CONTEXT, runs=RUNS))
    assert isinstance(settle(replica, replica.open(TICKET, opening(2, end=3))), m.StreamOpened)


def test_the_trim_point_survives_a_restart() -> None:
    trimmed = msgspec.structs.replace(CONTEXT, trim_end=Lsn(6))
    assert restarted(state(entries=(1, 3), context=trimmed, runs=RUNS)).trim_end == 6


def test_what_does_not_fit_together_is_quarantined_whatever_it_is_sealed_for() -> None:
    replica = restarted(state(entries=(1, 3), runs=RUNS))
    report = replica.report()
    assert (report.state, report.local) == (m.ReplicaState.QUARANTINED, 0)
    assert "context_missing" in report.why
    sealed = settle(replica, replica.seal(TICKET, seal(2)))
    assert isinstance(sealed, m.StreamSealed) and not sealed.is_valid and sealed.why
    assert refusal(replica.open(TICKET, opening(2, end=3))) is m.Refusal.INCOMPLETE
    assert take_commit(replica, commits((5, 3, 10, 1)), 5, 10) == ([], ())


def test_who_may_have_lost_memory_counts_again_once_it_is_sealed() -> None:
    found = state(entries=(1, 7), context=CONTEXT, runs=RUNS, standing=m.Standing.DIRTY)
    replica = restarted(found)
    assert replica.report().state is m.ReplicaState.QUARANTINED
    sealed = settle(replica, replica.seal(TICKET, seal(2)))
    assert isinstance(sealed, m.StreamSealed)
    assert (sealed.is_valid, sealed.end) == (True, 7)
