"""The sliding window of seed 003, in positions and in bytes; and the credit of each node."""

import pytest

from millrace.core.reading.credit import Credit
from millrace.core.reading.settings import SequencedReadSettings
from millrace.core.reading.window import SlidingWindow
from millrace.types import LSN_MAX, Lsn, NodeId

FIVE = SequencedReadSettings(window_lsns=5, flow_control_threshold=0.7)
FAR = Lsn(1_000)


def window(
    settings: SequencedReadSettings = FIVE, first: int = 42, end: Lsn = FAR
) -> SlidingWindow:
    placed = SlidingWindow(Lsn(first), end, settings)
    placed.place(Lsn(first), end)
    return placed


def test_the_window_of_the_seed() -> None:
    """Five slots at 42: [42, 46]; when 45 is next it slides to [45, 49]."""
    seed = window()
    assert (seed.last, seed.slide_point) == (46, 44)
    assert not seed.is_due(Lsn(44), 0)
    assert seed.is_due(Lsn(45), 0)
    seed.slide(Lsn(45), 0, FAR)
    assert (seed.first, seed.last) == (45, 49)


def test_it_never_reaches_beyond_the_end_or_the_epochs_that_are_read() -> None:
    assert window(end=Lsn(45)).last == 44
    short = window()
    short.slide(Lsn(45), 0, limit=Lsn(48))
    assert short.last == 47


def test_the_end_of_all_positions_does_not_overflow() -> None:
    assert window(first=LSN_MAX - 2, end=LSN_MAX).last == LSN_MAX - 1


def test_a_window_of_one_slides_with_every_position() -> None:
    one = window(SequencedReadSettings(window_lsns=1))
    assert one.last == 42
    assert one.is_due(Lsn(43), 0)


def test_it_slides_after_bytes_too() -> None:
    bytes_window = window(SequencedReadSettings(window_lsns=500, window_bytes=1_000))
    assert not bytes_window.is_due(Lsn(43), 699)
    assert bytes_window.is_due(Lsn(43), 700)
    bytes_window.slide(Lsn(43), 700, FAR)
    assert not bytes_window.is_due(Lsn(44), 1_399)
    assert bytes_window.is_due(Lsn(44), 1_400)


def test_memory_pressure_halves_it_at_each_slide_and_it_grows_back() -> None:
    pressed = window(SequencedReadSettings(window_lsns=8))
    sizes = []
    for next_lsn in range(100, 800, 100):
        pressed.has_memory_pressure = next_lsn < 500
        pressed.slide(Lsn(next_lsn), 0, FAR)
        sizes.append(pressed.last - pressed.first + 1)
    assert sizes == [4, 2, 1, 1, 2, 3, 4]


def test_a_large_window_grows_back_in_large_steps() -> None:
    large = window(SequencedReadSettings(window_lsns=1 << 20), end=LSN_MAX)
    large.has_memory_pressure = True
    large.slide(Lsn(50), 0, LSN_MAX)
    large.has_memory_pressure = False
    large.slide(Lsn(60), 0, LSN_MAX)
    assert large.size == (1 << 19) + (1 << 14)


def test_what_was_allowed_is_not_taken_back() -> None:
    pressed = window(SequencedReadSettings(window_lsns=10))
    pressed.has_memory_pressure = True
    pressed.slide(Lsn(43), 0, FAR)
    assert pressed.last == 51


def test_it_can_be_opened_to_look_for_what_lies_beyond() -> None:
    opened = window()
    assert opened.open_to(FAR)
    assert opened.last == FAR - 1
    assert not opened.open_to(FAR)


ONE, TWO = NodeId(1), NodeId(2)


@pytest.mark.parametrize(
    ("senders", "fullness", "share"),
    [(1, 1.0, 16_000), (4, 1.0, 4_000), (4, 0.5, 2_000), (100, 1.0, 1_000)],
)
def test_nodes_share_the_window_in_bytes_but_none_gets_too_little(
    senders: int, fullness: float, share: int
) -> None:
    settings = SequencedReadSettings(window_bytes=16_000, sender_bytes_min=1_000)
    assert Credit(settings).share(senders, fullness) == share


def test_a_node_gets_back_what_the_application_takes_in_the_order_of_delivery() -> None:
    credit = Credit(SequencedReadSettings())
    credit.delivered(ONE, 100)
    credit.delivered(TWO, 50)
    credit.took(120)
    assert (credit.untaken_of(ONE), credit.untaken_of(TWO), credit.untaken_bytes) == (0, 30, 30)
    assert credit.has_untaken
    credit.took(30)
    assert not credit.has_untaken
