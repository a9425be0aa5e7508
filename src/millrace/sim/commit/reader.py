"""Clients that read commit logs: a read stream goes by a record, and when the record is another one
a new stream takes its place.  A loss is told when the record confirms it."""

from functools import partial
from typing import TYPE_CHECKING

from millrace.core.commit.reading import LAST_EPOCH, LossCheck, Part, range_of
from millrace.core.commit.record import CommitRecord
from millrace.core.procedure import (
    ClusterView,
    DeadlinePassed,
    Failure,
    FailureKind,
    ListNodes,
    Procedure,
    ReadCommits,
)
from millrace.core.reading.settings import SequencedReadSettings
from millrace.core.reading.slow_nodes import SlowNodeMode, SlowNodeSettings
from millrace.core.reading.stream import SequencedReadStream
from millrace.sim.schedule import MS, SECOND
from millrace.sim.stream_reader import Reading, StreamReader, small_times
from millrace.types import Epoch, LogId, Lsn, NodeId

if TYPE_CHECKING:
    from millrace.sim.commit.part import CommitPart
    from millrace.sim.commit.shape import CommitShape
    from millrace.sim.world import World

RECORD_US = 5 * SECOND
CHECK_US = 100 * MS

_Found = tuple[CommitRecord, dict[NodeId, str]]


class CommitReading(Reading):
    def __init__(self, stream: SequencedReadStream, first: Lsn, end: Lsn) -> None:
        super().__init__(stream, first, end)
        self.check = LossCheck()
        self.is_checking = False
        self.is_over = False  # The stream gave all that it has.


class CommitReader(StreamReader):
    FOLLOWER = "cr1"
    IS_DENSE = True

    def __init__(self, world: "World", number: int, name: str) -> None:
        super().__init__(world, number, name)
        self._settings = settings_of(world.commits.shape, world.shape.ask_ms)

    @property
    def part(self) -> "CommitPart":
        return self.world.commits

    @property
    def settings(self) -> SequencedReadSettings:
        return self._settings

    @property
    def look_ms(self) -> int:
        return self.world.commits.shape.look_ms

    def values(self, log: LogId) -> list[Lsn]:
        return [place.last for place in self.part.ledger.truth(log).order.values()]

    def on_start(self) -> None:
        super().on_start()
        self._watch()

    # -- Streams --------------------------------------------------------------------------------

    def reading(self, stream: SequencedReadStream, first: Lsn, end: Lsn) -> CommitReading:
        return CommitReading(stream, first, end)

    def find_epochs(self, reading: Reading, epoch: Epoch) -> None:
        assert isinstance(reading, CommitReading)

        def found(answer: _Found | Failure) -> None:
            stream, now_ms = reading.stream, self._now_ms()
            if isinstance(answer, Failure):
                self.perform(reading, stream.epochs_failed(answer, now_ms))
                return
            record, locations = answer
            reading.check.tell(record)
            ranges = (range_of(record),)
            effects = stream.epochs_known(ranges, LAST_EPOCH, locations, {}, now_ms)
            self.perform(reading, effects)

        self.driver.start(_look_up(reading.stream.log), found, RECORD_US)

    def arrived(self, reading: Reading, part: Part) -> None:
        assert isinstance(reading, CommitReading)
        for each in reading.check.arrived(part):
            self.hand_over(reading, each)
        if reading.check.is_due and not reading.is_checking:
            reading.is_checking = True
            self._check(reading)

    def finish(self, reading: Reading) -> None:
        assert isinstance(reading, CommitReading)
        if reading.check.is_due:
            reading.is_over = True
        else:
            super().finish(reading)

    # -- The record -----------------------------------------------------------------------------

    def _watch(self) -> None:
        """Stands for the look that clients have at the record from time to time."""
        self.later(self.look_ms * MS, self._watch)
        for reading in list(self.readings.values()):
            assert isinstance(reading, CommitReading)
            if not reading.is_checking:
                self._check(reading)

    def _check(self, reading: CommitReading) -> None:
        self.driver.perform(ReadCommits(reading.stream.log), partial(self._checked, reading))

    def _checked(
        self, reading: CommitReading, read: tuple[CommitRecord | None, int] | Failure
    ) -> None:
        if self.readings.get(reading.stream.number) is not reading:
            return
        if isinstance(read, Failure) or read[0] is None:
            if reading.is_checking:
                self.later(CHECK_US, self._check, reading)
            return
        if not reading.check.is_current(read[0]):
            self._begin_anew(reading)
            return
        if not reading.is_checking:
            return
        for part in reading.check.confirmed():
            self.world.count("commit.loss_confirmed")
            self.hand_over(reading, part)
        reading.is_checking = reading.check.is_due
        if reading.is_checking:
            self._check(reading)
        elif reading.is_over:
            super().finish(reading)

    def _begin_anew(self, reading: CommitReading) -> None:
        self.world.count("commit.reading_anew")
        self.abandon(reading)
        self.read(reading.stream.log, reading.at, reading.end)


def _look_up(log: LogId) -> Procedure[_Found | Failure]:
    """As the client library does it."""
    try:
        read: tuple[CommitRecord | None, int] | Failure = yield ReadCommits(log)
        view: ClusterView | Failure = yield ListNodes()
    except DeadlinePassed:
        return Failure(FailureKind.TIMED_OUT, f"the repository does not tell of log {log}")
    if isinstance(read, Failure):
        return read
    if isinstance(view, Failure):
        return view
    record = read[0]
    assert record is not None, f"log {log} was never made"
    return record, {node.id: node.location for node in view.nodes}


def settings_of(shape: "CommitShape", ask_ms: int) -> SequencedReadSettings:
    settings = SequencedReadSettings(
        is_single_copy=shape.is_single_copy,
        copyset_order=shape.copyset_order,
        local_scd=shape.local_scd,
        window_lsns=shape.window_lsns,
        window_bytes=shape.window_bytes,
        scd_timeout_ms=shape.scd_timeout_ms,
        all_send_all_timeout_ms=2 * shape.scd_timeout_ms,
        grace_period_ms=shape.grace_period_ms,
        slow_nodes=SlowNodeSettings(mode=SlowNodeMode.OFF),
    )
    return small_times(settings, ask_ms)
