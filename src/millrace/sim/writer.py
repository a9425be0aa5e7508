"""Clients that append: small blocks with unique values, retried when the outcome is unknown."""

from random import Random
from typing import TYPE_CHECKING

from millrace.codec import blocks
from millrace.core.append import (
    Append,
    Appended,
    AppendOutcome,
    AppendUnknown,
    NotAppended,
    NotAppendedReason,
)
from millrace.core.procedure import DeadlinePassed, Failure, Procedure, Refresh
from millrace.core.projection import Projection
from millrace.sim.driver import Driver, Run
from millrace.sim.ledger import AppendRecord
from millrace.sim.process import Process
from millrace.sim.schedule import MS
from millrace.sim.selecting import KEYS, TIME_ZERO_US, Columns
from millrace.types import Ack, Block, Epoch, LogId, Lsn, Token

if TYPE_CHECKING:
    from millrace.sim.world import World

RECORD_AGE_US = 300 * MS  # Timestamps are the application's: they need not be in order.
RETRY_SHARE = 0.8
RETRY_US = 20 * MS
LATE_RETRY_US = 2_000 * MS


class Operation:
    """One append and what drives it."""

    def __init__(self, record: AppendRecord, append: Append) -> None:
        self.record = record
        self.append = append
        self.run: Run | None = None
        self.tries = 0
        self.asks_before = 0


class Writer(Process):
    def __init__(self, world: "World", number: int, name: str) -> None:
        super().__init__(world, number, name)
        self.driver: Driver
        self.under_way: dict[Token, Operation] = {}
        self.acknowledged = 0
        self.is_stopping = False
        self._appends = 0
        self._column_rng = Random(f"{world.seed}/columns/{number}")
        self.compresses = self._column_rng.random() < 0.3

    def on_start(self) -> None:
        self.driver = Driver(self)
        self.under_way = {}
        for _ in range(self.world.shape.appends_in_flight):
            self._think()

    def _think(self) -> None:
        if not self.is_stopping and self._appends < self.world.shape.appends_max:
            delay_us = int(2 * self.rng.random() * self.world.shape.think_us)
            self.later(1 + delay_us, self._begin)

    def _begin(self) -> None:
        if not self.is_stopping:
            self.append(self.rng.choice(self.world.log_ids))

    def append(self, log: LogId) -> Operation:
        shape = self.world.shape
        count = 1 + int(self.rng.random() * shape.records_max)
        self._appends += 1
        token = Token(self.number * 10_000 + self.life, self._appends)
        stem = f"{self.name}.{self.life}.{self._appends}."
        size = int(self.rng.random() * shape.value_bytes_max)
        values = tuple(f"{stem}{at}".encode().ljust(size, b".") for at in range(count))
        written = self._write(values)
        draft = blocks.draft(
            values,
            keys=written.keys,
            timestamps_us=written.timestamps,
            compress=self.compresses,
        )
        ack = Ack.MEMORY if self.rng.random() < shape.memory_share else Ack.DISK
        record = self.world.ledger.began(log, token, ack, self.name, written)

        def place(first: Lsn, epoch: Epoch) -> Block:
            block = blocks.place(draft, log, epoch, first, token)
            record.placed[first] = block.checksum
            return block

        operation = Operation(record, Append(log, count, token, ack, place))
        self.under_way[token] = operation
        self._try(operation)
        return operation

    def _write(self, values: tuple[bytes, ...]) -> Columns:
        rng = self._column_rng
        now_us = self.clock_us() + TIME_ZERO_US
        stamps = [now_us - int(rng.random() * RECORD_AGE_US) for _ in values]
        return Columns(values, [rng.choice(KEYS) for _ in values], stamps)

    def _try(self, operation: Operation) -> None:
        operation.tries += 1
        procedure = run_append(operation, self.driver)
        operation.run = self.driver.start(
            procedure,
            lambda outcome: self._ended(operation, outcome),
            self.world.shape.append_ms * MS,
        )

    def _ended(self, operation: Operation, outcome: AppendOutcome) -> None:
        world = self.world
        world.count(f"append.{type(outcome).__name__}")
        self.trace(f"append {operation.record.token.request}: {outcome}")
        world.ledger.ended(operation.record, outcome)
        if isinstance(outcome, AppendUnknown) and self._is_retried(outcome, operation.record.log):
            world.count("append.retried")
            is_late = self.rng.random() < 0.3 and not self.is_stopping
            self.later(LATE_RETRY_US if is_late else RETRY_US, self._try, operation)
            return
        del self.under_way[operation.record.token]
        if isinstance(outcome, Appended):
            self.acknowledged += 1
            if operation.tries > 1:
                world.count("append.resolved")
        self._think()

    def _is_retried(self, outcome: AppendUnknown, log: LogId) -> bool:
        if outcome.first < self.world.ledger.truth(log).trim_end:
            self.world.count("append.trimmed_unknown")
            return False  # Nobody can tell any more.
        return self.is_stopping or self.rng.random() < RETRY_SHARE


def run_append(operation: Operation, driver: Driver) -> Procedure[AppendOutcome]:
    """The append with the projection it needs, as the client library finds it."""
    log = operation.record.log
    projection = driver.projections.get(log)
    try:
        while projection is None:
            found: Projection | Failure = yield Refresh(log, Epoch(0))
            if isinstance(found, Projection):
                projection = found
            elif operation.record.outcome is None:
                return NotAppended(NotAppendedReason.UNAVAILABLE, found.detail)
            else:
                return operation.record.outcome
    except DeadlinePassed:
        return operation.record.outcome or NotAppended(NotAppendedReason.DEADLINE)
    return (yield from operation.append.run(projection))
