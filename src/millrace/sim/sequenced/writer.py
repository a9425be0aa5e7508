"""Clients that append to sequenced logs, as the client library does it."""

from collections.abc import Sequence

from millrace.codec.drafts import Draft
from millrace.core.append import AppendOutcome, AppendUnknown
from millrace.core.procedure import Procedure
from millrace.core.sequenced.append import Seats, SequencedAppend
from millrace.lsn import epoch_of
from millrace.sim.selecting import Columns
from millrace.sim.sequenced.ledger import AppendRecord
from millrace.sim.writer import AppendingClient, Operation, unplaced
from millrace.types import Ack, LogId, Token

BURST_SHARE = 0.7

Appending = Operation[AppendRecord, SequencedAppend]


class SequencedWriter(AppendingClient[AppendRecord, SequencedAppend]):
    STOPPING_MS = 20_000  # Dead nodes are waited for before it is known what became of an append.

    def on_start(self) -> None:
        self._seats = Seats()
        super().on_start()

    @property
    def logs(self) -> Sequence[LogId]:
        return self.world.sequenced.log_ids

    @property
    def think_us(self) -> int:
        """In bursts, so that blocks overtake each other, and for as long as faults strike."""
        shape = self.world.shape
        if self.rng.random() < BURST_SHARE or self.world.sequenced.nemesis.has_muted:
            return 1
        mean_us = shape.chaos_us * shape.appends_in_flight // shape.appends_max
        return max(shape.think_us, int(mean_us / (1 - BURST_SHARE)))

    def operation(
        self, log: LogId, token: Token, ack: Ack, draft: Draft, written: Columns
    ) -> Appending:
        block = unplaced(draft, log, token)
        record = self.world.sequenced.ledger.began(block, ack, self.name, written)
        return Operation(log, token, record, SequencedAppend(block, ack, self._seats))

    def procedure(self, operation: Appending) -> Procedure[AppendOutcome]:
        return operation.append.run()

    def ended(self, operation: Appending, outcome: AppendOutcome) -> None:
        self.world.sequenced.ledger.ended(operation.record, outcome)

    def is_hopeless(self, operation: Appending, outcome: AppendUnknown) -> bool:
        """The epoch that may hold the block was trimmed, or copies of the log are lost."""
        ledger = self.world.sequenced.ledger
        is_trimmed = outcome.epoch <= epoch_of(ledger.truth(operation.log).trim_end)
        return is_trimmed or ledger.may_have_lost(operation.log)
