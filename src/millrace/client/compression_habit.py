"""Whether to try to compress the next block that a writer has gathered.

For a block of one record the attempt is a good part of what its append costs the client.  Records
of one log are much alike: where compression saved nothing several times in a row it hardly will
the next time.

  I1  Blocks of more than SMALL_BYTES_MAX are always tried: there it costs little for each record.
  I2  Of the others one in TRY_EVERY is tried in any case, so that records which begin to compress
      are noticed.
"""

from typing import Final

from millrace.limits import KIB

SMALL_BYTES_MAX: Final = 4 * KIB
MISSES_MAX: Final = 8  # Small blocks in a row, before most are not tried any more.
TRY_EVERY: Final = 16


class CompressionHabit:
    def __init__(self) -> None:
        self._misses = 0
        self._skipped = 0

    def should_try(self, size_bytes: int) -> bool:
        if self._misses < MISSES_MAX or size_bytes > SMALL_BYTES_MAX:
            return True
        self._skipped = (self._skipped + 1) % TRY_EVERY
        return self._skipped == 0

    def tried(self, size_bytes: int, is_compressed: bool) -> None:
        if size_bytes <= SMALL_BYTES_MAX:
            self._misses = 0 if is_compressed else self._misses + 1
