"""Sums without rounding: what was added can be taken back, and nothing of it stays.

A double is a whole number over a power of two, and so is every sum of doubles.  Kept that way a
sum does not depend on the order of what was added and removed, which batches, retries and
rollbacks change; it is rounded once, when it is shown.

  I1  `over` is the smallest power of two possible: equal sums are equal structures.
"""

import math
from typing import Any

import msgspec

from millrace.spark.pipelines.view.order import INTEGER_MAX, INTEGER_MIN


class Exact(msgspec.Struct, frozen=True):
    """units / 2**over"""

    units: int = 0
    over: int = 0

    def plus(self, number: int | float, times: int = 1) -> "Exact":
        if type(number) is int and not self.over:
            return Exact(self.units + number * times)
        return self._plus(number.as_integer_ratio(), times)

    def plus_square(self, number: int | float, times: int = 1) -> "Exact":
        if type(number) is int and not self.over:
            return Exact(self.units + number * number * times)
        numerator, denominator = number.as_integer_ratio()
        return self._plus((numerator * numerator, denominator * denominator), times)

    def shown(self) -> int | float | None:
        """As a JSON number; None when it is larger than any double."""
        if not self.over and INTEGER_MIN <= self.units <= INTEGER_MAX:
            return self.units
        try:
            rounded = self.units / (1 << self.over)
        except OverflowError:
            return None
        return None if math.isinf(rounded) else rounded

    def packed(self) -> tuple[bytes, int]:
        return self.units.to_bytes(self.units.bit_length() // 8 + 1, "big", signed=True), self.over

    def _plus(self, ratio: tuple[int, int], times: int) -> "Exact":
        numerator, denominator = ratio
        shift = denominator.bit_length() - 1
        over = max(self.over, shift)
        units = (self.units << (over - self.over)) + (numerator * times << (over - shift))
        if not units:
            return ZERO
        spare = min((units & -units).bit_length() - 1, over)
        return Exact(units >> spare, over - spare)


ZERO = Exact()


def unpacked(packed: tuple[bytes, int] | Any) -> Exact:
    units, over = packed
    return Exact(int.from_bytes(units, "big", signed=True), over)
