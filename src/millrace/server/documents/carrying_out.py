"""A command, carried out: here if this node is the master, else there.

I1  Nothing is read or changed on a node that is not serving: its lease may be over, and another
    node the master.
I2  A change whose durability was asked for is answered with OK only when it is as safe as that.
    When this cannot be said the answer is AMBIGUOUS, because the change stands here and may last.
I3  The values of one answer are at most ANSWER_BYTES_MAX together.
I4  A node that is congested reads, and changes nothing; if that is because its disk is full it
    deletes, too: else it would be full for ever.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Final

from millrace.core.documents.document import PartitionId
from millrace.core.documents.messages import MutationToken
from millrace.core.documents.operations import (
    AMBIGUOUS,
    NOT_MY_PARTITION,
    TEMPORARY_FAILURE,
    Command,
    DurabilityLevel,
    Outcome,
    ValueUnavailable,
    Verb,
)
from millrace.core.documents.waits import Durability, WaitOutcome
from millrace.limits import DOCUMENT_FRAME_BYTES_MAX
from millrace.server.documents.backend import BucketHost

ANSWER_BYTES_MAX: Final = DOCUMENT_FRAME_BYTES_MAX
FORWARDED_TOGETHER: Final = 32  # Of the commands of one request.

Later = Coroutine[Any, Any, Outcome]
Many = list[Outcome] | None  # None: the values are too much for one answer.

CONDITIONS: Final = {
    DurabilityLevel.MAJORITY: Durability.MAJORITY,
    DurabilityLevel.MAJORITY_AND_PERSIST_ON_MASTER: Durability.MAJORITY_AND_PERSIST_ON_MASTER,
    DurabilityLevel.PERSIST_TO_MAJORITY: Durability.PERSIST_TO_MAJORITY,
}


def carry_out(host: BucketHost, number: PartitionId, command: Command) -> Outcome | Later:
    """On this node; NOT_MY_PARTITION if it is not the partition's master."""
    partition = host.active(number)
    if partition is None:
        return NOT_MY_PARTITION
    if not host.is_serving or not _is_let_through(host, number, command.verb):
        return TEMPORARY_FAILURE
    try:
        outcome = host.operations.execute(partition, command, host.now_us())
    except ValueUnavailable:
        return TEMPORARY_FAILURE
    if command.level and outcome.id:
        return _when_durable(host, number, command, outcome)
    return outcome


def _is_let_through(host: BucketHost, number: PartitionId, verb: Verb) -> bool:
    """Keeps I4.  What deletes a document takes the place of one, so there is an end to it; the
    deletion of another cluster's may be of a key that was never here."""
    if verb is Verb.GET:
        return True
    makes_room = verb is Verb.DELETE and host.operations.is_disk_full
    return not host.is_damaged(number) and (makes_room or not host.is_congested)


def carry_out_anywhere(host: BucketHost, command: Command) -> Outcome | Later:
    """Wherever the key's partition is: for clients that do not know the map."""
    number = host.partition_of(command.key)
    outcome = carry_out(host, number, command)
    if outcome is NOT_MY_PARTITION:
        return host.forward(number, command)
    return outcome


async def _when_durable(
    host: BucketHost, number: PartitionId, command: Command, outcome: Outcome
) -> Outcome:
    document = outcome.document
    assert document is not None, "a change has its document"
    token = MutationToken(number, outcome.id, document.seq, document.cas)
    ended = await host.wait(number, token, CONDITIONS[command.level], command.timeout_ms)
    if ended is WaitOutcome.OK:
        return outcome
    return AMBIGUOUS  # Keeps I2.


async def forward_all(
    host: BucketHost, commands: Sequence[tuple[PartitionId, Command]], bytes_max: int
) -> list[Outcome]:
    """Outcomes in the order of the commands; fewer of them if the values are more than that."""
    outcomes: list[Outcome] = []
    for first in range(0, len(commands), FORWARDED_TOGETHER):
        if sum(map(_weight, outcomes)) > bytes_max:
            break
        part = commands[first : first + FORWARDED_TOGETHER]
        outcomes += await asyncio.gather(*(host.forward(*each) for each in part))
    return outcomes


class ManyReads:
    """The reads of one request.  Those of this node are done when it is made, and `forward` has
    the others done.  A get-and-touch is a read too."""

    def __init__(
        self,
        host: BucketHost,
        commands: Sequence[Command],
        partitions: Iterable[int],
        is_forwarding: bool,
    ) -> None:
        self._host = host
        self._outcomes: list[Outcome] = []
        self._bytes = 0
        self._elsewhere: list[int] = []
        self._commands: list[tuple[PartitionId, Command]] = []
        for command, number in zip(commands, partitions, strict=True):
            partition = PartitionId(number)
            outcome = carry_out(host, partition, command)
            assert isinstance(outcome, Outcome), "a read waits for nothing"
            if outcome is NOT_MY_PARTITION and is_forwarding:
                self._elsewhere.append(len(self._outcomes))
                self._commands.append((partition, command))
            self._outcomes.append(outcome)
            self._bytes += _weight(outcome)
            if self._bytes > ANSWER_BYTES_MAX:
                break

    @property
    def is_complete(self) -> bool:
        return not self._elsewhere or self._bytes > ANSWER_BYTES_MAX

    @property
    def outcomes(self) -> Many:
        """In the order of the commands."""
        return self._outcomes if self._bytes <= ANSWER_BYTES_MAX else None  # Keeps I3.

    async def forward(self) -> Many:
        room = ANSWER_BYTES_MAX - self._bytes
        outcomes = await forward_all(self._host, self._commands, room)
        for at, outcome in zip(self._elsewhere, outcomes, strict=False):
            self._outcomes[at] = outcome
            self._bytes += _weight(outcome)
        return self.outcomes


def _weight(outcome: Outcome) -> int:
    return 0 if outcome.document is None else outcome.document.size
