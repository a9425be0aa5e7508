"""A storage node's part in a sequenced log: what it takes, what readers see, what it says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core import effects as e
from millrace.core import messages as m
from millrace.core.log_state import Fence, LogState, Marks
from millrace.core.sequenced.storage import SequencedStorage, closed_at, raised
from millrace.lsn import epoch_of, first_of, lsn_of
from millrace.types import (
    FIRST_LSN,
    NO_LSN,
    NO_TOKEN,
    Ack,
    Block,
    EntryKind,
    Epoch,
    LogId,
    Lsn,
    NodeId,
    Placement,
    Token,
)

LOG = LogId(7)
TICKET = (1, 2)
E1, E2, E3 = Epoch(1), Epoch(2), Epoch(3)
COPYSET = (NodeId(1), NodeId(2))


def at(epoch: int, offset: int) -> Lsn:
    return lsn_of(Epoch(epoch), offset)


def block(epoch: int, offset: int, count: int = 1, kind: EntryKind = EntryKind.DATA) -> Block:
    first = at(epoch, offset)
    return Block(LOG, first, count, Epoch(epoch), kind, Token(1, first), 9, b"x" * count)


def store(
    sent: Block,
    *,
    by: int | None = None,
    recovery: int = 0,
    good: Lsn = NO_LSN,
    released: Lsn = NO_LSN,
) -> m.Store:
    epoch = sent.epoch if by is None else Epoch(by)
    placement = Placement(COPYSET, 1, Epoch(recovery))
    return m.Store(LOG, epoch, sent, placement, good, released, Ack.DISK)


def storage() -> SequencedStorage:
    return SequencedStorage(LOG, None)


def reply(effects: list[e.NodeEffect]) -> m.Message:
    (answer,) = [each for each in effects if isinstance(each, e.Reply)]
    return answer.message


def refusal(effects: list[e.NodeEffect]) -> m.Refusal:
    refused = reply(effects)
    assert isinstance(refused, m.Refused)
    return refused.reason


# -- Storing --------------------------------------------------------------------------------------


marks_of_one_epoch = st.builds(
    lambda offset, closed: Marks(at(2, offset), (at(2, offset),), Epoch(closed)),
    st.integers(0, 9),
    st.integers(1, 3),
)


@given(
    marks_of_one_epoch,
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 9), st.integers(0, 3)), max_size=6),
)
def test_marks_only_go_up_and_speak_of_each_epoch_that_is_not_settled(
    marks: Marks, told: list[tuple[int, int, int]]
) -> None:
    best = {E2: marks.good[0]}
    for epoch, offset, unreleased in told:
        good, released = at(epoch, offset), at(epoch, max(0, offset - unreleased))
        best[Epoch(epoch)] = max(best.get(Epoch(epoch), good), good)
        after = raised(marks, good, released)
        assert after.released == max(marks.released, released)
        assert after.closed == marks.closed
        floor = min(marks.closed, epoch_of(after.released) + 1)
        assert after.good == tuple(best[each] for each in sorted(best) if each >= floor)
        marks = after


def test_the_first_block_makes_the_log_known_before_it_is_stored() -> None:
    node = storage()
    effects = node.step(TICKET, store(block(1, 1)))
    kinds = [type(effect) for effect in effects]
    assert kinds.index(e.Scatter) < kinds.index(e.StoreBlock) < kinds.index(e.Settle)
    assert node.is_stored and node.end == at(1, 2)
    again = node.step(TICKET, store(block(1, 2)))
    assert [type(effect) for effect in again] == [e.StoreBlock, e.Settle]


def test_who_is_sealed_for_an_epoch_takes_nothing_of_an_earlier_one() -> None:
    node = storage()
    node.step(TICKET, m.SealEpochs(LOG, E2))
    refused = reply(node.step(TICKET, store(block(1, 1))))
    assert refused == m.Refused(m.Refusal.EPOCH, E2, "sealed for epoch 2")
    assert isinstance(node.step(TICKET, store(block(2, 1)))[-1], e.Settle)
    assert refusal(node.step(TICKET, m.SealEpochs(LOG, E1))) is m.Refusal.EPOCH


def test_a_seal_is_durable_before_it_is_answered_and_tells_what_is_there_by_then() -> None:
    node = storage()
    node.step(TICKET, store(block(1, 5), good=at(1, 3), released=at(1, 2)))
    effects = node.step(TICKET, m.SealEpochs(LOG, E2))
    assert isinstance(effects[-2], e.SetFence) and effects[-2].fence.epoch == E2
    settle = effects[-1]
    assert isinstance(settle, e.Settle) and settle.ack is Ack.DISK
    node.reload(LogState(node.fence, FIRST_LSN, FIRST_LSN, FIRST_LSN, [], 0, 0, True, node.marks))
    answer = node.settled(settle.message)
    assert isinstance(answer, m.EpochsSealed)
    assert (answer.end, answer.released) == (FIRST_LSN, at(1, 2)), "the block was not kept"


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(store(block(1, 1), by=2), id="of-another-epoch"),
        pytest.param(store(block(2, 1), by=2, recovery=2), id="recovery-of-its-own-epoch"),
        pytest.param(store(block(1, 1), by=3, recovery=2), id="recovery-of-somebody-else"),
    ],
)
def test_what_does_not_belong_to_the_senders_epoch_is_refused(request_: m.Store) -> None:
    assert refusal(storage().step(TICKET, request_)) is m.Refusal.BAD_REQUEST


def test_recovery_writes_into_the_epochs_before_its_own() -> None:
    node = storage()
    node.step(TICKET, m.SealEpochs(LOG, E3))
    bridge = block(1, 4, kind=EntryKind.BRIDGE)
    effects = node.step(TICKET, store(bridge, by=3, recovery=3))
    assert e.StoreBlock(bridge, Placement(COPYSET, 1, E3), Ack.DISK) in effects


def test_a_full_disk_refuses_records_and_takes_what_recovery_must_write() -> None:
    node = storage()
    node.refuse_writes = m.Refusal.DISK_FULL
    assert refusal(node.step(TICKET, store(block(1, 1)))) is m.Refusal.DISK_FULL
    hole = block(1, 1, kind=EntryKind.HOLE)
    assert isinstance(node.step(TICKET, store(hole, by=2, recovery=2))[-1], e.Settle)


def test_what_is_trimmed_already_is_acknowledged_and_not_stored() -> None:
    node = storage()
    node.step(TICKET, m.TrimSequenced(LOG, at(1, 9)))
    effects = node.step(TICKET, store(block(1, 3)))
    assert reply(effects) == m.Stored()
    assert not any(isinstance(effect, e.StoreBlock) for effect in effects)


def test_the_trim_point_only_goes_up() -> None:
    node = storage()
    node.step(TICKET, m.TrimSequenced(LOG, at(1, 9)))
    assert reply(node.step(TICKET, m.TrimSequenced(LOG, at(1, 4)))) == m.Trimmed(at(1, 9))


# -- Releasing ------------------------------------------------------------------------------------


def test_readers_see_what_is_released_and_it_only_goes_up() -> None:
    node = storage()
    node.step(TICKET, m.Release(LOG, E1, at(1, 5), at(1, 5)))
    node.step(TICKET, m.Release(LOG, E1, at(1, 3), at(1, 3)))
    assert node.readable_end == at(1, 6)


def test_a_release_that_says_nothing_new_costs_nothing() -> None:
    node = storage()
    release = m.Release(LOG, E1, at(1, 5), at(1, 5))
    node.step(TICKET, release)
    assert node.step(TICKET, release) == []


def test_good_is_remembered_for_epochs_that_are_not_released_yet() -> None:
    marks = raised(Marks(at(1, 9), (), E1), at(2, 4), at(1, 9))
    assert marks.good[-1] == at(2, 4)
    closed = closed_at(raised(marks, at(2, 6), at(2, 6)), E2)
    assert closed.released == at(2, 6)
    assert all(good >= first_of(E2) for good in closed.good), "epoch 1 is closed and released"


# -- Having been away -----------------------------------------------------------------------------


def returned() -> SequencedStorage:
    """It was in epoch 1 up to n5, of which n3 is good, and missed how the epoch was closed."""
    marks = Marks(at(1, 3), (), E1)
    fence = Fence(E1, NO_TOKEN, m.Standing.MEMBER)
    return SequencedStorage(
        LOG, LogState(fence, FIRST_LSN, FIRST_LSN, at(1, 6), [], 5, 500, True, marks)
    )


def test_who_missed_a_recovery_serves_only_what_is_good() -> None:
    node = returned()
    node.step(TICKET, m.Release(LOG, E2, at(2, 7), at(2, 7)))
    assert node.must_purge and node.readable_end == at(1, 4)


def test_after_purging_it_serves_all_again() -> None:
    node = returned()
    node.step(TICKET, m.Release(LOG, E2, at(2, 7), at(2, 7)))
    effects = node.purged(E2, (at(1, 5),))
    assert effects[0] == e.RemoveBlocks(LOG, (at(1, 5),))
    assert not node.must_purge and node.readable_end == at(2, 8)


def test_who_took_part_in_a_recovery_need_not_purge() -> None:
    node = returned()
    assert reply(node.step(TICKET, m.CloseEpochs(LOG, E2, E1))) == m.EpochsClosed()
    node.step(TICKET, m.Release(LOG, E2, at(2, 7), at(2, 7)))
    assert not node.must_purge


def test_having_taken_part_in_the_last_recovery_does_not_make_up_for_the_one_before() -> None:
    node = returned()
    node.step(TICKET, m.CloseEpochs(LOG, E3, E2))
    node.step(TICKET, m.Release(LOG, E3, at(3, 1), at(3, 1)))
    assert node.must_purge and node.readable_end == at(1, 4)


def test_who_holds_nothing_has_missed_nothing() -> None:
    node = storage()
    node.step(TICKET, m.Release(LOG, E3, at(3, 1), at(3, 1)))
    assert not node.must_purge and node.readable_end == at(3, 2)


def test_a_node_may_be_told_of_a_release_before_it_has_heard_of_any_record() -> None:
    node = storage()
    node.step(TICKET, m.Release(LOG, E2, first_of(E2), first_of(E2)))
    assert node.readable_end == at(2, 1)


def test_who_was_not_sealed_takes_nothing_of_an_epoch_that_a_release_says_is_closed() -> None:
    """Its old sequencer may have it as its own: what it took would be a second value there."""
    node = returned()
    node.step(TICKET, m.Release(LOG, E2, at(2, 7), at(2, 7)))
    assert refusal(node.step(TICKET, store(block(1, 6)))) is m.Refusal.EPOCH
    node.purged(E2, ())
    assert refusal(node.step(TICKET, store(block(1, 6)))) is m.Refusal.EPOCH
    assert node.step(TICKET, m.Delete(LOG, E1, ((at(1, 2), 1),))) == []
    assert isinstance(node.step(TICKET, store(block(2, 8)))[-1], e.Settle)
