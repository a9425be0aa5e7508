"""Clients that read sequenced logs."""

from random import Random
from typing import TYPE_CHECKING

import msgspec

from millrace.core.procedure import DeadlinePassed, Failure, FailureKind, Procedure
from millrace.core.reading.settings import SequencedReadSettings
from millrace.core.reading.slow_nodes import SlowNodeMode, SlowNodeSettings
from millrace.core.sequenced.whereabouts import Whereabouts, look_up
from millrace.sim.schedule import SECOND
from millrace.sim.stream_reader import Nap, Reading, StreamReader, small_times
from millrace.types import Epoch, LogId, Lsn

if TYPE_CHECKING:
    from millrace.sim.sequenced.part import SequencedPart
    from millrace.sim.sequenced.shape import SequencedShape
    from millrace.sim.world import World

EPOCHS_US = 5 * SECOND
NAPPING_WINDOW = 300


class SequencedReader(StreamReader):
    FIRSTS = (Lsn(1), Lsn(1 << 32 | 1))
    FOLLOWER = "sr1"

    def __init__(self, world: "World", number: int, name: str) -> None:
        super().__init__(world, number, name)
        self._settings = settings_of(world.sequenced.shape, world.shape.ask_ms)
        self._draw_nap(Random(f"{world.seed}/nap/{number}"))

    @property
    def part(self) -> "SequencedPart":
        return self.world.sequenced

    @property
    def settings(self) -> SequencedReadSettings:
        return self._settings

    @property
    def look_ms(self) -> int:
        return self.world.sequenced.shape.statuses_ms

    def _draw_nap(self, rng: Random) -> None:
        chaos_us = self.world.shape.chaos_us
        if rng.random() < self.part.shape.napping_share:
            begin_us = rng.randrange(chaos_us // 4, chaos_us // 4 * 3)
            self.nap = Nap(begin_us, rng.randrange(begin_us, chaos_us))
            self.is_sampler = False
            # So that little is under way to it meanwhile.
            self._settings = msgspec.structs.replace(self._settings, window_bytes=NAPPING_WINDOW)

    def values(self, log: LogId) -> list[Lsn]:
        return list(self.part.ledger.truth(log).values)

    def find_epochs(self, reading: Reading, epoch: Epoch) -> None:
        def found(answer: Whereabouts | Failure) -> None:
            stream, now_ms = reading.stream, self._now_ms()
            if isinstance(answer, Failure):
                self.perform(reading, stream.epochs_failed(answer, now_ms))
                return
            record, locations = answer.record, answer.locations
            effects = stream.epochs_known(
                answer.ranges, record.epoch, locations, answer.statuses, now_ms, record.clean
            )
            self.perform(reading, effects)

        self.driver.start(find_epochs(reading.stream.log, epoch), found, EPOCHS_US)


def settings_of(shape: "SequencedShape", ask_ms: int) -> SequencedReadSettings:
    settings = SequencedReadSettings(
        is_single_copy=shape.is_single_copy,
        copyset_order=shape.copyset_order,
        local_scd=shape.local_scd,
        window_lsns=shape.window_lsns,
        window_bytes=shape.window_bytes,
        scd_timeout_ms=shape.scd_timeout_ms,
        all_send_all_timeout_ms=2 * shape.scd_timeout_ms,
        grace_period_ms=shape.grace_period_ms,
        has_second_chance=shape.has_second_chance,
        slow_nodes=SlowNodeSettings(
            mode=SlowNodeMode.ON if shape.finds_slow_nodes else SlowNodeMode.OFF,
            required_margin=4.0,
            outlier_ms_min=200,
            outlier_ms_max=2_000,
            pending_ms_min=20,
        ),
    )
    return small_times(settings, ask_ms)


def find_epochs(log: LogId, epoch: Epoch) -> Procedure[Whereabouts | Failure]:
    """As the client library does it."""
    try:
        return (yield from look_up(log, epoch))
    except DeadlinePassed:
        return Failure(FailureKind.TIMED_OUT, f"the repository does not tell of log {log}")
