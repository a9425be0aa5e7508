"""A chain log's path: appends down the chain, questions to its tail and its sequencer."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from millrace.client.block_appends import BlockAppends
from millrace.client.chain_reading import ChainReading
from millrace.client.describe import LogDescription, describe_log
from millrace.client.outcomes import BlockAppend
from millrace.client.path import ReadingOptions
from millrace.client.questions import Questions
from millrace.codec.blocks import place
from millrace.codec.drafts import Draft
from millrace.core.append import Append, Appended, AppendUnknown
from millrace.core.follow import copy_elsewhere
from millrace.core.messages import Found, Read, Refusal, Refused
from millrace.core.procedure import DeadlinePassed, Failure
from millrace.core.projection import Projection, ReconfigureReason
from millrace.core.read_stream import Deliver, NeedCopy, ReadSettings
from millrace.core.reconfigure import Change
from millrace.core.repair import FillPolicy
from millrace.core.runs import Runs
from millrace.core.sequenced.verifying import Verdict
from millrace.core.trim import trim
from millrace.errors import UsageError
from millrace.runtime.hot_run import Waiter
from millrace.types import (
    Ack,
    EntryKind,
    Gap,
    GapKind,
    LogInfo,
    Lsn,
    Run,
    Selection,
    Weight,
)

if TYPE_CHECKING:
    from millrace.client.cluster import Client

TRIM_ATTEMPTS_MAX = 8


class ChainPath:
    def __init__(
        self, client: "Client", info: LogInfo, projection: Projection, forget: Callable[[], None]
    ) -> None:
        self._client = client
        self._info = info
        self._runner = client.runner
        self._runner.projections.setdefault(info.id, projection)
        self._appends = BlockAppends(client.runner, info.name, whereabouts)
        self.questions = Questions(client, info, forget)

    @property
    def projection(self) -> Projection:
        """The newest this client has seen."""
        return self._runner.projections[self._info.id]

    # -- Appending ----------------------------------------------------------------------------

    def begin_append(
        self, draft: Draft, ack: Ack, timeout_ms: int, waiter: Waiter[Appended]
    ) -> BlockAppend:
        token = self._appends.next_token()
        log = self._info.id
        append = Append(
            log,
            draft.count,
            token,
            ack,
            lambda first, epoch: place(draft, log, epoch, first, token),
        )
        return self._appends.begin(
            lambda: append.run(self.projection), draft.count, timeout_ms, waiter
        )

    async def run_append(self, block: BlockAppend, timeout_ms: int) -> Appended:
        return await self._appends.resume(block, timeout_ms)

    # -- Reading ------------------------------------------------------------------------------

    def reading(
        self,
        first: Lsn,
        end: Lsn,
        fill_after_ms: int | None,
        settings: ReadingOptions | None,
        selection: Selection | None,
    ) -> ChainReading:
        if settings is not None and not isinstance(settings, ReadSettings):
            raise UsageError(f"log {self._info.name!r} is a chain log: give it ReadSettings")
        return ChainReading(
            self._info.id,
            first,
            end,
            self._client.links,
            self._client.directory,
            self._runner,
            FillPolicy(fill_after_ms),
            settings,
            repr(self._info.name),
            selection,
        )

    async def part_at(self, lsn: Lsn, timeout_ms: int) -> Deliver | Gap:
        """One round trip to the tail."""
        answer = await self.questions.ask_tail(
            lambda p: Read(p.log, p.epoch, lsn), timeout_ms=timeout_ms
        )
        if isinstance(answer, Refused) and answer.reason is Refusal.CORRUPT:
            answer = await self._found_elsewhere(lsn, timeout_ms) or answer
        if isinstance(answer, Found):
            kind = answer.block.kind
            if kind is not EntryKind.DATA:
                gap = GapKind.HOLE if kind is EntryKind.HOLE else GapKind.DATALOSS
                return Gap(gap, lsn, lsn)
            return Deliver(answer.block, lsn, Lsn(lsn + 1))
        raise self.questions.refused(answer, lsn)

    async def _found_elsewhere(self, lsn: Lsn, timeout_ms: int) -> Found | None:
        """The tail's copy is damaged: one of another member."""
        need = NeedCopy(lsn, self.projection.tail)
        try:
            block = await self._runner.run(copy_elsewhere(self.projection, need), timeout_ms)
        except DeadlinePassed:
            return None
        return None if block is None else Found(block)

    async def peek(self, timeout_ms: int) -> Lsn:
        return await self.questions.peek(timeout_ms)

    async def bounds(self, timeout_ms: int) -> tuple[Lsn, Lsn]:
        described = await self.questions.describe_tail(timeout_ms)
        issued = await self.peek(timeout_ms)
        return described.trim_end, max(described.readable_end, Lsn(issued + 1))

    async def readable_bounds(self, timeout_ms: int) -> tuple[Lsn, Lsn]:
        described = await self.questions.describe_tail(timeout_ms)
        return described.trim_end, described.readable_end

    async def tail_lsn(self, timeout_ms: int) -> Lsn:
        """The last position that was given out: its writer may not have completed yet."""
        return Lsn((await self.bounds(timeout_ms))[1] - 1)

    async def sealed_end(self, timeout_ms: int) -> Lsn | None:
        """A seal changes the chain, which readers hear of: nobody is asked until then."""
        if not self.projection.is_sealed:
            return None
        return (await self.readable_bounds(timeout_ms))[1]

    async def back_from(self, start: Lsn, end: Lsn, count: int) -> Lsn:
        return max(Lsn(end - count), start)

    async def find_time(self, timestamp_us: int, timeout_ms: int) -> Lsn:
        return await self.questions.find_time(timestamp_us, timeout_ms)

    async def young_from(self, moment_us: int, timeout_ms: int) -> Lsn:
        return await self.find_time(moment_us, timeout_ms)

    async def weigh(self, first: Lsn, end: Lsn, pieces: int) -> list[Weight]:
        return await self.questions.weigh(first, end, pieces)

    async def runs(self, first: Lsn, end: Lsn) -> Runs:
        """Nobody is asked: positions are consecutive."""
        return Runs([Run(first, end)])

    # -- Looking after ------------------------------------------------------------------------

    async def trim_nodes(self, point: Lsn, timeout_ms: int) -> str | None:
        problem = None
        for _ in range(TRIM_ATTEMPTS_MAX):
            refused = await self._runner.run(trim(self.projection, point), timeout_ms)
            if refused is None:
                return None
            problem = f"node {refused[0]} did not trim: {refused[1]}"
            await self.questions.describe_tail()  # Follows the chain if it has changed.
        return problem

    async def seal(self, timeout_ms: int) -> Projection:
        change = Change(self._info.id, ReconfigureReason.SEALED, seal_for_good=True)
        result = await self._runner.change_chain(change, timeout_ms)
        if isinstance(result, Failure):
            raise self.questions.unavailable(result, "could not be sealed: ")
        return result

    async def describe(self, timeout_ms: int) -> LogDescription:
        return await describe_log(self._client, self._info, self.projection, timeout_ms)

    async def verify(self, timeout_ms: int) -> Verdict:
        name = self._info.name
        raise UsageError(
            f"log {name!r} is a chain log, whose nodes all hold the same: `millrace log info "
            f"{name}` shows how much; sequenced and commit logs are verified"
        )

    def show(self, lsn: Lsn) -> str:
        return str(lsn)


def whereabouts(unknown: AppendUnknown) -> str:
    """It has its position before it is sent."""
    return f" at {unknown.first}"
