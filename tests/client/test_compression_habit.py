"""When a writer stops trying to compress single records, and when it begins again."""

from millrace.client.compression_habit import (
    MISSES_MAX,
    SMALL_BYTES_MAX,
    TRY_EVERY,
    CompressionHabit,
)

SMALL, LARGE = SMALL_BYTES_MAX, SMALL_BYTES_MAX + 1


def tries(habit: CompressionHabit, blocks: int, size_bytes: int, is_compressed: bool) -> int:
    tried = 0
    for _ in range(blocks):
        if habit.should_try(size_bytes):
            habit.tried(size_bytes, is_compressed)
            tried += 1
    return tried


def discouraged() -> CompressionHabit:
    habit = CompressionHabit()
    assert tries(habit, MISSES_MAX, SMALL, is_compressed=False) == MISSES_MAX
    return habit


def test_what_compresses_is_always_tried() -> None:
    assert tries(CompressionHabit(), 100, SMALL, is_compressed=True) == 100


def test_a_miss_now_and_then_changes_nothing() -> None:
    habit = CompressionHabit()
    for _ in range(10):
        assert tries(habit, MISSES_MAX - 1, SMALL, is_compressed=False) == MISSES_MAX - 1
        assert tries(habit, 1, SMALL, is_compressed=True) == 1


def test_after_misses_in_a_row_one_block_in_many_is_tried() -> None:
    assert tries(discouraged(), 10 * TRY_EVERY, SMALL, is_compressed=False) == 10


def test_one_that_compresses_makes_all_be_tried_again() -> None:
    habit = discouraged()
    assert tries(habit, TRY_EVERY, SMALL, is_compressed=True) == 1
    assert tries(habit, 100, SMALL, is_compressed=True) == 100


def test_large_blocks_are_always_tried_and_say_nothing_about_small_ones() -> None:
    habit = discouraged()
    assert tries(habit, 100, LARGE, is_compressed=True) == 100
    assert tries(habit, TRY_EVERY, SMALL, is_compressed=False) == 1
