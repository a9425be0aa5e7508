"""Clients that append: small blocks with unique values, retried when the outcome is unknown.

What is the same for all kinds of logs is in AppendingClient; a Writer appends to chain logs.
"""

from collections.abc import Iterable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millrace.codec import blocks
from millrace.codec.drafts import Draft
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
from millrace.types import FIRST_LSN, Ack, Block, Epoch, LogId, Lsn, Token

if TYPE_CHECKING:
    from millrace.sim.world import World

RECORD_AGE_US = 300 * MS  # Timestamps are the application's: they need not be in order.
RETRY_SHARE = 0.8
RETRY_US = 20 * MS
LATE_RETRY_US = 2_000 * MS

R = TypeVar("R")  # A ledger's record of an append ...
A = TypeVar("A")  # ... and the append itself.


class Operation(Generic[R, A]):
    """One append and what drives it."""

    def __init__(self, log: LogId, token: Token, record: R, append: A) -> None:
        self.log = log
        self.token = token
        self.record = record
        self.append = append
        self.run: Run | None = None
        self.outcome: AppendOutcome | None = None
        self.tries = 0


def unplaced(draft: Draft, log: LogId, token: Token) -> Block:
    """A block that is given its position by somebody else."""
    placed = blocks.place(draft, log, Epoch(0), FIRST_LSN, token)
    return blocks.parse(bytes(placed.data))


class AppendingClient(Process, Generic[R, A]):
    world: "World"
    STOPPING_MS = 0  # What one try may take at least when the faults are over.

    def __init__(self, world: "World", number: int, name: str) -> None:
        super().__init__(world, number, name)
        self.driver: Driver
        self.under_way: dict[Token, Operation[R, A]] = {}
        self.acknowledged = 0
        self.is_stopping = False
        self._appends = 0
        self._column_rng = Random(f"{world.seed}/columns/{number}")
        self.compresses = self._column_rng.random() < 0.3

    # -- What kinds of logs differ in -----------------------------------------------------------

    @property
    def logs(self) -> Sequence[LogId]:
        raise NotImplementedError

    def operation(
        self, log: LogId, token: Token, ack: Ack, draft: Draft, written: Columns
    ) -> Operation[R, A]:
        raise NotImplementedError

    def procedure(self, operation: Operation[R, A]) -> Procedure[AppendOutcome]:
        raise NotImplementedError

    def ended(self, operation: Operation[R, A], outcome: AppendOutcome) -> None:
        raise NotImplementedError

    def is_hopeless(self, operation: Operation[R, A], outcome: AppendUnknown) -> bool:
        """Nobody can tell any more."""
        raise NotImplementedError

    @property
    def think_us(self) -> int:
        """Mean time between two appends."""
        return self.world.shape.think_us

    @property
    def patience_ms(self) -> int:
        """How long one try may take."""
        patience_ms = self.world.shape.append_ms
        return max(patience_ms, self.STOPPING_MS) if self.is_stopping else patience_ms

    # -- Appending ------------------------------------------------------------------------------

    def on_start(self) -> None:
        self.driver = Driver(self)
        self.under_way = {}
        for _ in range(self.world.shape.appends_in_flight):
            self._think()

    def _think(self) -> None:
        if not self.is_stopping and self._appends < self.world.shape.appends_max:
            delay_us = int(2 * self.rng.random() * self.think_us)
            self.later(1 + delay_us, self._begin)

    def _begin(self) -> None:
        if not self.is_stopping:
            self.begin_append(self.rng.choice(self.logs))

    def begin_append(self, log: LogId) -> Operation[R, A]:
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
        operation = self.operation(log, token, ack, draft, written)
        self.under_way[token] = operation
        self._try(operation)
        return operation

    def _write(self, values: tuple[bytes, ...]) -> Columns:
        rng = self._column_rng
        now_us = self.clock_us() + TIME_ZERO_US
        stamps = [now_us - int(rng.random() * RECORD_AGE_US) for _ in values]
        return Columns(values, [rng.choice(KEYS) for _ in values], stamps)

    def _try(self, operation: Operation[R, A]) -> None:
        operation.tries += 1
        operation.run = self.driver.start(
            self.procedure(operation),
            lambda outcome: self._ended(operation, outcome),
            self.patience_ms * MS,
        )

    def _ended(self, operation: Operation[R, A], outcome: AppendOutcome) -> None:
        world = self.world
        world.count(f"append.{type(outcome).__name__}")
        self.trace(f"append {operation.token.request}: {outcome}")
        operation.outcome = outcome
        self.ended(operation, outcome)
        if isinstance(outcome, AppendUnknown) and self._is_retried(operation, outcome):
            world.count("append.retried")
            is_late = self.rng.random() < 0.3 and not self.is_stopping
            self.later(LATE_RETRY_US if is_late else RETRY_US, self._try, operation)
            return
        del self.under_way[operation.token]
        if isinstance(outcome, Appended):
            self.acknowledged += 1
            if operation.tries > 1:
                world.count("append.resolved")
        self._think()

    def _is_retried(self, operation: Operation[R, A], outcome: AppendUnknown) -> bool:
        if self.is_hopeless(operation, outcome):
            self.world.count("append.trimmed_unknown")
            return False
        return self.is_stopping or self.rng.random() < RETRY_SHARE


def append_under_way(writers: Iterable[AppendingClient[Any, Any]]) -> str | None:
    """Of somebody who still appends: what he waits for."""
    for writer in writers:
        for token, operation in writer.under_way.items():
            waits_for = operation.run.waits_for if operation.run is not None else "nothing"
            return (
                f"{writer.name} still appends {token}: waits for {waits_for}, {operation.outcome}"
            )
    return None


class Writer(AppendingClient[AppendRecord, Append]):
    """Appends to chain logs."""

    @property
    def logs(self) -> Sequence[LogId]:
        return self.world.log_ids

    def operation(
        self, log: LogId, token: Token, ack: Ack, draft: Draft, written: Columns
    ) -> Operation[AppendRecord, Append]:
        record = self.world.ledger.began(log, token, ack, self.name, written)

        def place(first: Lsn, epoch: Epoch) -> Block:
            block = blocks.place(draft, log, epoch, first, token)
            record.placed[first] = block.checksum
            return block

        return Operation(log, token, record, Append(log, draft.count, token, ack, place))

    def procedure(self, operation: Operation[AppendRecord, Append]) -> Procedure[AppendOutcome]:
        return run_append(operation, self.driver)

    def ended(self, operation: Operation[AppendRecord, Append], outcome: AppendOutcome) -> None:
        self.world.ledger.ended(operation.record, outcome)

    def is_hopeless(
        self, operation: Operation[AppendRecord, Append], outcome: AppendUnknown
    ) -> bool:
        return outcome.first < self.world.ledger.truth(operation.log).trim_end


def run_append(
    operation: Operation[AppendRecord, Append], driver: Driver
) -> Procedure[AppendOutcome]:
    """The append with the projection it needs, as the client library finds it."""
    log = operation.log
    projection = driver.projections.get(log)
    try:
        while projection is None:
            found: Projection | Failure = yield Refresh(log, Epoch(0))
            if isinstance(found, Projection):
                projection = found
            elif operation.outcome is None:
                return NotAppended(NotAppendedReason.UNAVAILABLE, found.detail)
            else:
                return operation.outcome
    except DeadlinePassed:
        return operation.outcome or NotAppended(NotAppendedReason.DEADLINE)
    return (yield from operation.append.run(projection))
