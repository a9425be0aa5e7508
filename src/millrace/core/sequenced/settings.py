"""What can be set about writing a sequenced log, and what an appender takes from it.

Times: a node has `store_timeout_ms` to answer a Store, twice as long in every further wave, so
that nodes which are all slow are not asked for the same thing again and again.  The first waves
follow one another at once, because another copyset is likely to do; later ones after a pause.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from millrace.limits import MIB, STICKY_BYTES, STICKY_MS
from millrace.lsn import OFFSET_MAX

RECORDS_PER_EPOCH_MAX = OFFSET_MAX - 1  # Offset 0 is the epoch's beginning, the last its bridge's.

_Count = Annotated[int, Meta(ge=1)]


class AppenderSettings(msgspec.Struct, frozen=True):
    """Of the stages of one block; `sync_leaders` <= `leaders` <= the copies it is stored in."""

    sync_leaders: int
    leaders: int
    leader_timeout_ms: int = 500
    waves_at_once: int = 3
    retry_ms: int = 10
    retry_ms_max: int = 60_000
    waves_max: int = 64


class SequencerSettings(msgspec.Struct, frozen=True, kw_only=True):
    writes_in_flight: Annotated[
        _Count, Meta(description="Blocks given a position and not yet stored in order.")
    ] = 1_000
    bytes_in_flight: Annotated[
        _Count, Meta(description="Bytes of them; one block always has room.")
    ] = 256 * MIB
    extras: Annotated[
        int, Meta(ge=0, description="Nodes sent a copy beyond those needed, to wait for none.")
    ] = 0
    sync_leaders: Annotated[
        int,
        Meta(ge=0, description="First nodes of a copyset that must have a block before release."),
    ] = 1
    leaders: Annotated[
        int | None,
        Meta(description="First nodes that should have it in the end; unset: as many as copies."),
    ] = None
    store_timeout_ms: Annotated[
        _Count, Meta(description="Time to answer the first Store; doubles with each wave.")
    ] = 2_000
    store_timeout_ms_max: Annotated[_Count, Meta(description="What it doubles to.")] = 60_000
    leader_timeout_ms: Annotated[
        _Count, Meta(description="How long leaders are waited for once enough others have it.")
    ] = 500
    waves_at_once: Annotated[
        _Count, Meta(description="Waves sent without a pause between them.")
    ] = 3
    retry_ms: Annotated[_Count, Meta(description="First pause before a wave; doubles.")] = 10
    retry_ms_max: Annotated[_Count, Meta(description="What it doubles to.")] = 60_000
    waves_max: Annotated[
        _Count, Meta(description="Attempts to store a block before the epoch is given up.")
    ] = 64
    tokens_remembered: Annotated[
        _Count, Meta(description="Newest appends whose repetition is answered as they were.")
    ] = 4_096
    tickets_per_append: Annotated[
        _Count, Meta(description="Repetitions of one append that wait for it together.")
    ] = 16
    records_per_epoch: Annotated[
        int, Meta(ge=1, le=RECORDS_PER_EPOCH_MAX, description="Then a new epoch is needed.")
    ] = RECORDS_PER_EPOCH_MAX
    sticky_bytes: Annotated[
        _Count, Meta(description="What one copyset is given before another is drawn.")
    ] = STICKY_BYTES
    sticky_ms: Annotated[_Count, Meta(description="How long it is kept at most.")] = STICKY_MS

    def of_appender(self, copies: int) -> AppenderSettings:
        leaders = copies if self.leaders is None else min(self.leaders, copies)
        sync_leaders = min(self.sync_leaders, copies)
        return AppenderSettings(
            sync_leaders,
            max(leaders, sync_leaders),
            self.leader_timeout_ms,
            self.waves_at_once,
            self.retry_ms,
            self.retry_ms_max,
            self.waves_max,
        )

    def store_timeout_of(self, wave: int) -> int:
        return min(self.store_timeout_ms << (wave - 1), self.store_timeout_ms_max)
