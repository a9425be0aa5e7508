"""A sequenced log's path: appends to its sequencer, questions to it and to the storage nodes."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from millrace.client.block_appends import BlockAppends
from millrace.client.counting_back import count_back
from millrace.client.describe_sequenced import SequencedDescription, describe_sequenced
from millrace.client.epoch_history import EpochHistory
from millrace.client.outcomes import BlockAppend
from millrace.client.path import ReadingOptions
from millrace.client.reader import Reader
from millrace.client.sequenced_reading import SequencedReading, settings_of
from millrace.client.sequenced_survey import SequencedSurvey
from millrace.client.sequencer_questions import SequencerQuestions
from millrace.client.verifying import verify_sequenced_log
from millrace.codec.blocks import place
from millrace.codec.drafts import Draft
from millrace.core.append import Appended, AppendUnknown
from millrace.core.epochs import EpochRecord
from millrace.core.messages import (
    Copies,
    CopiesPage,
    FindTime,
    Message,
    Position,
    Trimmed,
    TrimSequenced,
)
from millrace.core.read_effects import Deliver
from millrace.core.replication import Authority, authority
from millrace.core.runs import Runs
from millrace.core.sequenced.append import Seat, Seats, SequencedAppend
from millrace.core.sequenced.verifying import Verdict, Wrong
from millrace.errors import PositionBeyondTail, PositionTrimmed, TimedOut, Unavailable
from millrace.lsn import first_of, lsn_of, offset_of, show
from millrace.runtime.hot_run import Waiter
from millrace.types import (
    FIRST_LSN,
    LSN_MAX,
    Ack,
    Epoch,
    Gap,
    GapKind,
    LogInfo,
    Lsn,
    NodeId,
    Selection,
    Weight,
)

if TYPE_CHECKING:
    from millrace.client.cluster import Client

ASK_TIMEOUT_MS = 3_000
END_TIMEOUT_MS = 10_000  # For a recovery, unless nodes that it needs are away.


class SequencedPath:
    def __init__(
        self, client: "Client", info: LogInfo, record: EpochRecord, forget: Callable[[], None]
    ) -> None:
        self._client = client
        self._info = info
        self._runner = client.runner
        self._questions = SequencerQuestions(client, info, forget)
        self._history = EpochHistory(client, info, record)
        self._survey = SequencedSurvey(client, info, self._history)
        self._seats: Seats = client.seats
        self._appends = BlockAppends(client.runner, info.name, whereabouts)
        if record.sequencer:
            self._seats.learn(info.id, Seat(record.sequencer, record.epoch))

    @property
    def record(self) -> EpochRecord:
        """The newest this client has seen."""
        return self._history.record

    # -- Appending ----------------------------------------------------------------------------

    def begin_append(
        self,
        draft: Draft,
        ack: Ack,
        timeout_ms: int,
        waiter: Waiter[Appended],
        if_tail: Lsn | None = None,
    ) -> BlockAppend:
        token = self._appends.next_token()
        block = place(draft, self._info.id, Epoch(0), FIRST_LSN, token)
        append = SequencedAppend(block, ack, self._seats, if_tail)
        return self._appends.begin(append.run, draft.count, timeout_ms, waiter)

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
    ) -> SequencedReading:
        chosen = settings_of(self._info, settings)
        return SequencedReading(
            self._info.id,
            first,
            end,
            self._client.links,
            self._client.directory,
            self._history,
            chosen,
            repr(self._info.name),
            selection,
            self._client.session,
            self._client.location,
            self._client.status_watch,
        )

    async def part_at(self, lsn: Lsn, timeout_ms: int) -> Deliver | Gap:
        tail = await self._questions.tail(timeout_ms)
        if lsn > max(tail.issued, tail.released):
            raise PositionBeyondTail(
                f"position {show(lsn)} of log {self._info.name!r} is not written yet"
            )
        reading = self.reading(lsn, Lsn(lsn + 1), None, None, None)
        async with Reader(reading) as reader:
            part = await reader.take(timeout_ms)
        if isinstance(part, Deliver):
            return part
        assert part is not None
        if part.kind is GapKind.TRIM:
            raise PositionTrimmed(
                f"position {show(lsn)} of log {self._info.name!r} was trimmed; "
                f"`millrace log info {self._info.name}` shows where it begins"
            )
        return part

    # -- The tail -----------------------------------------------------------------------------

    async def peek(self, timeout_ms: int) -> Lsn:
        return (await self._questions.tail(timeout_ms)).issued

    async def tail_lsn(self, timeout_ms: int) -> Lsn:
        return await self._questions.last_record(timeout_ms)

    async def sealed_end(self, timeout_ms: int) -> Lsn | None:
        record = await self._history.refresh()
        return Lsn(record.tail + 1) if record.is_sealed else None

    async def bounds(self, timeout_ms: int) -> tuple[Lsn, Lsn]:
        tail = await self._questions.tail(timeout_ms)
        start = await self._start()
        end = Lsn(tail.issued + 1) if offset_of(tail.issued) else first_of(tail.epoch)
        return start, max(start, end)

    async def readable_bounds(self, timeout_ms: int) -> tuple[Lsn, Lsn]:
        tail = await self._questions.tail(timeout_ms)
        start = await self._start()
        return start, max(start, Lsn(tail.released + 1) if tail.released else start)

    async def _start(self) -> Lsn:
        """Where the first record can be: nobody wants to hear that epoch 0 is empty."""
        return max(await self._client.directory.trim_end(self._info.id), lsn_of(Epoch(1), 1))

    # -- The nodes ----------------------------------------------------------------------------

    async def back_from(self, start: Lsn, end: Lsn, count: int) -> Lsn:
        nodes: list[NodeId] = []

        async def ask(request: Copies) -> list[CopiesPage]:
            if not nodes:  # Most often it is arithmetic, and nobody is asked.
                nodes.extend(await self._nodes())
            asks = (self._client.ask_node(node, request, ASK_TIMEOUT_MS) for node in nodes)
            answers = await asyncio.gather(*asks, return_exceptions=True)
            return [answer for answer in answers if isinstance(answer, CopiesPage)]

        return await count_back(self._info.id, start, end, count, ask)

    async def _nodes(self) -> list[NodeId]:
        """Of all the log's epochs."""
        known = await self._history.known(Epoch(1))
        return sorted({node for each in known.ranges for node in each.nodeset})

    async def find_time(self, timestamp_us: int, timeout_ms: int) -> Lsn:
        request = FindTime(self._info.id, Epoch(0), timestamp_us)
        answers = await self._ask_all(request, Position, timeout_ms)
        first = min((answer.lsn for answer in answers.values()), default=LSN_MAX)
        return (await self.bounds(timeout_ms))[1] if first == LSN_MAX else first

    async def _ask_all(
        self, request: Message, kind: type[Position], timeout_ms: int
    ) -> dict[NodeId, Position]:
        """Every node of the log's epochs; enough of them must answer."""
        known = await self._history.known(Epoch(1))
        nodes = sorted({node for each in known.ranges for node in each.nodeset})
        results = await asyncio.gather(
            *(self._client.ask_node(node, request, timeout_ms) for node in nodes),
            return_exceptions=True,
        )
        answers = {
            node: result
            for node, result in zip(nodes, results, strict=True)
            if isinstance(result, kind)
        }
        for each in known.ranges:
            said = authority(
                each.replication, each.nodeset, known.locations, known.statuses, answers.keys()
            )
            if said is Authority.NONE:
                silent = sorted(set(each.nodeset) - answers.keys())
                raise Unavailable(f"log {self._info.name!r}: nodes {silent} do not answer")
        return answers

    async def young_from(self, moment_us: int, timeout_ms: int) -> Lsn:
        return await self.find_time(moment_us, timeout_ms)

    async def weigh(self, first: Lsn, end: Lsn, pieces: int) -> list[Weight]:
        return await self._survey.weigh(first, end, pieces)

    async def runs(self, first: Lsn, end: Lsn) -> Runs:
        return await self._survey.runs(first, end)

    async def trim_nodes(self, point: Lsn, timeout_ms: int) -> str | None:
        nodes = await self._nodes()
        request = TrimSequenced(self._info.id, point)
        results = await asyncio.gather(
            *(self._client.ask_node(node, request, timeout_ms) for node in nodes),
            return_exceptions=True,
        )
        silent = [
            node
            for node, result in zip(nodes, results, strict=True)
            if not isinstance(result, Trimmed)
        ]
        return f"nodes {silent} did not trim" if silent else None

    async def seal(self, timeout_ms: int) -> EpochRecord:
        await self._questions.seal(timeout_ms)
        return await self._history.refresh()

    async def describe(self, timeout_ms: int) -> SequencedDescription:
        return await describe_sequenced(self._client, self._info, self._history, timeout_ms)

    async def verify(self, timeout_ms: int) -> Verdict:
        # A sequencer that has just begun knows of nothing released: wait until it has the end.
        try:
            await self._questions.last_record(min(timeout_ms, END_TIMEOUT_MS))
        except TimedOut as error:
            verdict, start = Verdict(), await self._start()
            detail = f"where the log ends is not known, and nothing was compared: {error}"
            verdict.add(Wrong.END_UNKNOWN, start, start, detail)
            return verdict
        readable = await self.readable_bounds(timeout_ms)
        return await verify_sequenced_log(
            self._client, self._info, self.record, readable, timeout_ms
        )

    def show(self, lsn: Lsn) -> str:
        return show(lsn)


def whereabouts(unknown: AppendUnknown) -> str:
    """Its position is known to the sequencer that was asked, if to anybody."""
    return f" that the sequencer of epoch {unknown.epoch} was asked for"
