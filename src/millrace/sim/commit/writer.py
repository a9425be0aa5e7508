"""Clients that append to commit logs, as the client library does it."""

from collections.abc import Sequence

from millrace.codec.drafts import Draft
from millrace.core.append import AppendOutcome, AppendUnknown
from millrace.core.commit.append import CommitAppend
from millrace.core.commit.streams_known import StreamsKnown
from millrace.core.procedure import Procedure
from millrace.sim.commit.truth import AppendRecord
from millrace.sim.schedule import MS
from millrace.sim.selecting import Columns
from millrace.sim.writer import AppendingClient, Operation, unplaced
from millrace.types import Ack, LogId, Token

Appending = Operation[AppendRecord, CommitAppend]


class CommitWriter(AppendingClient[AppendRecord, CommitAppend]):
    STOPPING_MS = 20_000  # What became of an append is known in a later generation of its stream.

    def on_start(self) -> None:
        self._known = StreamsKnown(self.rng.randrange(16))
        super().on_start()

    @property
    def logs(self) -> Sequence[LogId]:
        return self.world.commits.log_ids

    def operation(
        self, log: LogId, token: Token, ack: Ack, draft: Draft, written: Columns
    ) -> Appending:
        block = unplaced(draft, log, token)
        record = self.world.commits.ledger.began(block, ack, self.name, written)
        append = CommitAppend(block, ack, self._known, lambda: self.world.schedule.now_us // MS)
        return Operation(log, token, record, append)

    def procedure(self, operation: Appending) -> Procedure[AppendOutcome]:
        return operation.append.run()

    def ended(self, operation: Appending, outcome: AppendOutcome) -> None:
        self.world.commits.ledger.ended(operation.record, outcome)

    def is_hopeless(self, operation: Appending, outcome: AppendUnknown) -> bool:
        """Of some stream, where the block may lie was trimmed."""
        truth = self.world.commits.ledger.truth(operation.log)
        trimmed = (place for place in truth.order.values() if place.first < truth.trim_end)
        return any(place.entry.end > outcome.first for place in trimmed)
