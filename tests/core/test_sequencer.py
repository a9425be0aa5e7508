"""The sequencer: positions once, epochs upwards, ranges remembered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.messages import Bootstrapped, Issued, Peeked, Refusal, Refused
from millrace.core.sequencer import Sequencer
from millrace.limits import PUBLISHED_RECORDS_MAX, RECENT_RANGES_MAX
from millrace.types import LSN_MAX, Epoch, Lsn


def started(epoch: int = 1, next_lsn: int = 1) -> Sequencer:
    sequencer = Sequencer()
    sequencer.bootstrap(Epoch(epoch), Lsn(next_lsn))
    return sequencer


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("next"), st.integers(0, 4), st.integers(1, 9)),
            st.tuples(st.just("bootstrap"), st.integers(1, 4), st.integers(1, 40)),
        )
    )
)
def test_no_position_is_issued_twice_and_epochs_only_grow(
    steps: list[tuple[str, int, int]],
) -> None:
    sequencer = Sequencer()
    last = epoch_before = 0
    floor = 1
    for kind, epoch, number in steps:
        if kind == "bootstrap":
            answer = sequencer.bootstrap(Epoch(epoch), Lsn(number))
            if isinstance(answer, Bootstrapped):
                floor = max(floor, number)
                assert answer.next_lsn == sequencer.next_lsn >= floor
        else:
            issued = sequencer.next(Epoch(epoch), number)
            assert isinstance(issued, Issued) == (epoch == sequencer.epoch)
            if isinstance(issued, Issued):
                assert issued.first > last
                assert issued.first >= floor
                assert issued.count == number
                last = issued.first + number - 1
        assert sequencer.epoch >= epoch_before
        epoch_before = sequencer.epoch


@given(st.lists(st.integers(1, 5), min_size=1, max_size=30), st.data())
def test_peek_finds_the_range_around_a_position(counts: list[int], data: st.DataObject) -> None:
    sequencer = started(next_lsn=10)
    ranges = []
    for count in counts:
        issued = sequencer.next(Epoch(1), count)
        assert isinstance(issued, Issued)
        ranges.append((issued.first, issued.first + count - 1))
    lsn = data.draw(st.integers(8, ranges[-1][1] + 2))
    peeked = sequencer.peek(Epoch(1), Lsn(lsn))
    expected = next(((low, high) for low, high in ranges if low <= lsn <= high), (0, 0))
    assert peeked == Peeked(Lsn(ranges[-1][1]), Lsn(expected[0]), Lsn(expected[1]))


def test_only_the_latest_ranges_are_remembered() -> None:
    sequencer = started()
    for _ in range(RECENT_RANGES_MAX + 1):
        sequencer.next(Epoch(1), 2)
    assert sequencer.peek(Epoch(1), Lsn(2)) == Peeked(Lsn(2 * RECENT_RANGES_MAX + 2))
    assert sequencer.peek(Epoch(1), Lsn(4)) == Peeked(
        Lsn(2 * RECENT_RANGES_MAX + 2), Lsn(3), Lsn(4)
    )


@pytest.mark.parametrize("count", [0, -1, PUBLISHED_RECORDS_MAX + 1])
def test_absurd_counts_are_refused(count: int) -> None:
    answer = started().next(Epoch(1), count)
    assert isinstance(answer, Refused)
    assert answer.reason is Refusal.BAD_REQUEST


def test_the_largest_block_can_be_issued() -> None:
    assert started().next(Epoch(1), PUBLISHED_RECORDS_MAX) == Issued(Lsn(1), PUBLISHED_RECORDS_MAX)


def test_positions_end_at_the_largest() -> None:
    sequencer = started(next_lsn=LSN_MAX - 2)
    assert isinstance(sequencer.next(Epoch(1), 2), Issued)
    assert isinstance(sequencer.next(Epoch(1), 1), Refused)


@pytest.mark.parametrize(
    ("epoch", "reason"),
    [(1, Refusal.EPOCH), (3, Refusal.NOT_READY)],
    ids=["behind", "ahead"],
)
def test_other_epochs_are_refused_with_the_right_one(epoch: int, reason: Refusal) -> None:
    sequencer = started(epoch=2)
    for answer in (sequencer.next(Epoch(epoch), 1), sequencer.peek(Epoch(epoch), Lsn(1))):
        assert isinstance(answer, Refused)
        assert (answer.reason, answer.epoch) == (reason, 2)


def test_it_never_goes_back_when_taken_over_into_a_new_epoch() -> None:
    sequencer = started(next_lsn=5)
    sequencer.next(Epoch(1), 3)
    assert sequencer.bootstrap(Epoch(2), Lsn(6)) == Bootstrapped(Lsn(8), Epoch(1))
    assert sequencer.peek(Epoch(2), Lsn(6)) == Peeked(Lsn(7), Lsn(5), Lsn(7))


def test_a_second_proposer_of_an_epoch_may_have_seen_more() -> None:
    """Otherwise positions below acknowledged records would be issued."""
    sequencer = started(epoch=2, next_lsn=5)
    assert sequencer.bootstrap(Epoch(2), Lsn(9)) == Bootstrapped(Lsn(9), Epoch(2))
    assert sequencer.bootstrap(Epoch(2), Lsn(4)) == Bootstrapped(Lsn(9), Epoch(2))
    assert sequencer.next(Epoch(2), 1) == Issued(Lsn(9), 1)


def test_it_tells_since_when_it_counts() -> None:
    sequencer = started(epoch=4)
    assert sequencer.bootstrap(Epoch(6), Lsn(1)) == Bootstrapped(Lsn(1), Epoch(4))
