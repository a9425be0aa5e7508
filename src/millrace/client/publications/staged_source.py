"""Reads pieces of a staging log, most often one behind the other, and shows them where they were
published.

  I1  A piece is handed over whole: its blocks and gaps tile it, in order.
  I2  One stream is open at a time.  It reaches as far as pieces follow each other closely; what
      lies between them is passed over, since it costs less than another stream.
"""

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from millrace.client.reader import Reader
from millrace.codec.blocks import shifted
from millrace.codec.published import Placed
from millrace.core.publications import staging_name
from millrace.core.read_effects import Deliver
from millrace.errors import Unavailable, UnknownLog
from millrace.limits import MIB
from millrace.types import Block, Gap, LogId, LogInfo, Lsn, Selection

if TYPE_CHECKING:
    from millrace.client.cluster import Client

PASSED_OVER_BYTES_MAX: Final = 1 * MIB
PASSED_OVER_LSNS_MIN: Final = 64  # Manifests and the like.


class StagedSource:
    def __init__(self, client: "Client", target: LogInfo, selection: Selection | None) -> None:
        self._client = client
        self._target = target
        self._selection = selection
        self._reader: Reader | None = None
        self._end = Lsn(0)  # Of what the reader gives.
        self._at = Lsn(0)  # What it gives next.
        self._held: Deliver | Gap | None = None  # Taken, and not handed over as a whole.
        self._before_bytes = 0

    @property
    def bytes_received(self) -> int:
        return self._before_bytes + (0 if self._reader is None else self._reader.bytes_received)

    def explain(self) -> dict[str, object] | None:
        return None if self._reader is None else self._reader.explain()

    async def read(
        self, log: LogId, piece: Placed, following: Iterable[Placed], record_bytes: float
    ) -> AsyncIterator[Deliver | Gap]:
        """Keeps I1.  `following` are the pieces that are read next, as far as they are known."""
        if self._reader is None or not self._at <= piece.first < piece.end <= self._end:
            await self._open(log, piece, following, record_bytes)
        at = piece.first
        while at < piece.end:
            part = await self._next()
            first, end = _bounds(part)
            low, high = max(first, at), min(end, piece.end)
            if low < high:
                yield self._shown(part, low, high, piece.shift)
                at = high
            self._held = part if end > piece.end else None
            self._at = max(self._at, piece.end if end > piece.end else end)

    async def _open(
        self, log: LogId, piece: Placed, following: Iterable[Placed], record_bytes: float
    ) -> None:
        await self.close()
        opened = await self._client.log(staging_name(self._target.id))
        if opened.info.id != log:
            raise UnknownLog(f"the rows of log {self._target.name!r} were deleted")
        self._at = piece.first
        self._end = reach(piece, following, record_bytes)
        self._reader = opened.reader(self._at, self._end, select=self._selection, is_expanded=False)

    async def _next(self) -> Deliver | Gap:
        if self._held is not None:
            return self._held
        assert self._reader is not None
        part = await self._reader.take()
        if part is None:
            raise Unavailable(
                f"rows that were published in log {self._target.name!r} lie in log "
                f"{staging_name(self._target.id)!r}, which ended at {self._at}: try again"
            )
        return part

    def _shown(self, part: Deliver | Gap, low: Lsn, high: Lsn, shift: int) -> Deliver | Gap:
        if isinstance(part, Gap):
            return msgspec.structs.replace(part, first=Lsn(low + shift), last=Lsn(high + shift - 1))
        block: Block = shifted(part.block, self._target.id, shift)
        return Deliver(block, Lsn(low + shift), Lsn(high + shift))

    async def close(self) -> None:
        self._held = None
        reader, self._reader = self._reader, None
        if reader is not None:
            self._before_bytes += reader.bytes_received
            await reader.close()


def reach(piece: Placed, following: Iterable[Placed], record_bytes: float) -> Lsn:
    """How far a stream is to go that begins with this piece.  Keeps I2."""
    passed_over = int(PASSED_OVER_BYTES_MAX / max(record_bytes, 1.0))
    farthest = max(passed_over, PASSED_OVER_LSNS_MIN)
    end = piece.end
    for each in following:
        if not 0 <= each.first - end <= farthest:
            break
        end = each.end
    return end


def _bounds(part: Deliver | Gap) -> tuple[Lsn, Lsn]:
    if isinstance(part, Gap):
        return part.first, Lsn(part.last + 1)
    return part.first, part.end
