"""The mean of the samples of the last while, at a cost that does not grow with their number.

Time is cut into buckets, each with a sum and a count; the oldest is forgotten as a whole, so
the time that is looked back on is the span less up to one bucket.
"""

from collections import deque

import msgspec


class _Bucket(msgspec.Struct):
    number: int  # Counted from time 0.
    total: float = 0.0
    count: int = 0


class MovingAverage:
    def __init__(self, span_ms: int, buckets: int) -> None:
        assert 0 < buckets <= span_ms, f"{buckets} buckets do not fit in {span_ms} ms"
        self._bucket_ms = span_ms // buckets
        self._buckets_max = buckets
        self._buckets: deque[_Bucket] = deque(maxlen=buckets)

    def add(self, value: float, now_ms: int) -> None:
        number = now_ms // self._bucket_ms
        if not self._buckets or self._buckets[-1].number < number:
            self._buckets.append(_Bucket(number))
        newest = self._buckets[-1]
        newest.total += value
        newest.count += 1

    def mean(self, now_ms: int) -> float | None:
        """None when there was nothing lately."""
        oldest = now_ms // self._bucket_ms - self._buckets_max
        while self._buckets and self._buckets[0].number <= oldest:
            self._buckets.popleft()
        count = sum(bucket.count for bucket in self._buckets)
        return sum(bucket.total for bucket in self._buckets) / count if count else None

    def clear(self) -> None:
        self._buckets.clear()
