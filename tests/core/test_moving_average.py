"""The mean of the samples of the last while."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.reading.moving_average import MovingAverage

SPAN_MS, BUCKETS = 1_000, 10


@pytest.mark.parametrize(
    ("now_ms", "mean"),
    [(0, 3.0), (999, 3.0), (1_000, 5.0), (1_499, 5.0), (1_500, None), (10**9, None)],
)
def test_samples_are_forgotten_a_bucket_at_a_time(now_ms: int, mean: float | None) -> None:
    average = MovingAverage(SPAN_MS, BUCKETS)
    average.add(1.0, 99)
    average.add(5.0, 500)
    assert average.mean(now_ms) == mean


def test_it_knows_nothing_at_first_and_when_it_is_cleared() -> None:
    average = MovingAverage(SPAN_MS, BUCKETS)
    assert average.mean(0) is None
    average.add(1.0, 0)
    average.clear()
    assert average.mean(0) is None


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 100)), min_size=1))
def test_it_is_the_mean_of_the_buckets_that_the_span_reaches(
    samples: list[tuple[int, int]],
) -> None:
    average, now_ms, added = MovingAverage(SPAN_MS, BUCKETS), 0, []
    for pause_ms, value in samples:
        now_ms += pause_ms
        average.add(value, now_ms)
        added.append((now_ms // 100, value))
    recent = [value for bucket, value in added if bucket > now_ms // 100 - BUCKETS]
    assert average.mean(now_ms) == pytest.approx(sum(recent) / len(recent))
