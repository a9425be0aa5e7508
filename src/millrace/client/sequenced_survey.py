"""Where the records of a sequenced log lie, and how heavy they are: asked of its storage nodes.

No node knows the log.  Each tells of the blocks that it holds, and what they say is put together:
the run of an epoch reaches from the first block that anybody holds to the last, and the bytes of
one copy are those of all nodes divided by the copies.

  I1  A hint.  Nodes that do not answer are passed over: what they hold is taken to be like what the
      others do.  Whatever is read by it is complete.
  I2  Each node is asked for at most PAGES_MAX pages, and waited for no longer than TIMEOUT_MS each.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from millrace.client.epoch_history import EpochHistory, Known
from millrace.core.epochs import range_of
from millrace.core.messages import FindRuns, Message, Refused, RunsFound, Weigh, Weighed
from millrace.core.runs import Runs, joined
from millrace.errors import Unavailable
from millrace.lsn import epoch_of, lsn_of
from millrace.types import AuthoritativeStatus, Epoch, LogInfo, Lsn, NodeId, Run, Weight

if TYPE_CHECKING:
    from millrace.client.cluster import Client

TIMEOUT_MS: Final = 3_000
PAGES_MAX: Final = 16


class SequencedSurvey:
    def __init__(self, client: "Client", info: LogInfo, history: EpochHistory) -> None:
        self._client = client
        self._info = info
        self._history = history

    async def runs(self, first: Lsn, end: Lsn) -> Runs:
        if first >= end:
            return Runs()
        newest = epoch_of(end)
        if epoch_of(first) == newest == self._history.record.epoch:
            return Runs([_to_the_end(first, end)])  # Most often: it is arithmetic.
        known = await self._history.known(epoch_of(first))
        nodes = _holders(known, first, end)
        answers = await asyncio.gather(*(self._runs_of(node, first, end) for node in nodes))
        told = [runs for runs in answers if runs is not None]
        if not told:
            raise self._silent(nodes)
        found = joined(run for runs in told for run in runs)
        if newest == known.record.epoch:  # Nodes may hear of what was released a moment later.
            older = [run for run in found if epoch_of(run.first) < newest]
            return Runs([*older, _to_the_end(first, end)])
        return Runs(found)

    async def weigh(self, first: Lsn, end: Lsn, pieces: int) -> list[Weight]:
        if first >= end:
            return []
        known = await self._history.known(epoch_of(first))
        nodes = _holders(known, first, end)
        asks = (self._weights_of(node, first, end, pieces) for node in nodes)
        runs, answers = await asyncio.gather(self.runs(first, end), asyncio.gather(*asks))
        pairs = zip(nodes, answers, strict=True)
        told = {node: weights for node, weights in pairs if weights is not None}
        if not told:
            raise self._silent(nodes)
        return merged(runs, known, told, pieces)

    async def _runs_of(self, node: NodeId, first: Lsn, end: Lsn) -> list[Run] | None:
        """None: it does not say."""
        found: list[Run] = []
        at = first
        for _ in range(PAGES_MAX):
            answer = await self._ask(node, FindRuns(self._info.id, at, end))
            if not isinstance(answer, RunsFound):
                return found or None
            found += answer.runs
            at = answer.next_lsn
            if not at:
                break
        return found

    async def _weights_of(
        self, node: NodeId, first: Lsn, end: Lsn, pieces: int
    ) -> Sequence[Weight] | None:
        answer = await self._ask(node, Weigh(self._info.id, Epoch(0), first, end, pieces))
        if isinstance(answer, Refused):  # It has never heard of the log.
            return ()
        return answer.pieces if isinstance(answer, Weighed) else None

    async def _ask(self, node: NodeId, request: Message) -> Message | None:
        try:
            return await self._client.ask_node(node, request, TIMEOUT_MS)
        except Unavailable:
            return None

    def _silent(self, nodes: Sequence[NodeId]) -> Unavailable:
        return Unavailable(f"log {self._info.name!r}: none of the nodes {list(nodes)} answers")


def _to_the_end(first: Lsn, end: Lsn) -> Run:
    """Of the newest epoch all that lies below its end was given to records."""
    return Run(max(first, lsn_of(epoch_of(end), 1)), end)


def _holders(known: Known, first: Lsn, end: Lsn) -> list[NodeId]:
    """Who may have something of [first, end)."""
    low, high = epoch_of(first), epoch_of(end)
    ranges = [each for each in known.ranges if each.first <= high and low <= each.last]
    return sorted({node for each in ranges for node in each.nodeset if _may_hold(known, node)})


def _may_hold(known: Known, node: NodeId) -> bool:
    return known.statuses.get(node) is not AuthoritativeStatus.AUTHORITATIVE_EMPTY


def merged(
    runs: Runs, known: Known, told: Mapping[NodeId, Sequence[Weight]], pieces: int
) -> list[Weight]:
    """At most `pieces` with equally many records, which tile the runs.  Each node has cut its own
    blocks as it saw fit: within a piece of its they are taken to be spread evenly."""
    count = min(pieces, runs.count)
    if not count:
        return []
    flats = [runs.begin + runs.count * at // count for at in range(count + 1)]
    edges = [runs.lsn(flat) for flat in flats]
    curves = {node: _Curve(runs, weights) for node, weights in told.items()}
    weights: list[Weight] = []
    for at in range(count):
        copies, members, silent = _copies_at(known, epoch_of(edges[at]), curves)
        size = sum(curves[node].between(flats[at], flats[at + 1]) for node in members)
        whole = size * (len(members) + silent) // max(1, len(members) * copies)
        weights.append(Weight(edges[at], edges[at + 1], whole))
    return weights


def _copies_at(
    known: Known, epoch: Epoch, told: Mapping[NodeId, object]
) -> tuple[int, list[NodeId], int]:
    """How many copies a block of the epoch has, who has told of it, and how many have not."""
    found = range_of(known.ranges, epoch) or known.ranges[-1]
    holders = [node for node in found.nodeset if _may_hold(known, node)]
    members = [node for node in holders if node in told]
    copies = min(found.replication.copies, max(1, len(holders)))
    return copies, members, len(holders) - len(members)


class _Curve:
    """How many bytes a node has up to each flat position."""

    def __init__(self, runs: Runs, weights: Sequence[Weight]) -> None:
        self._flats = [runs.flat(weight.first) for weight in weights]
        self._ends = [runs.flat(weight.end) for weight in weights]
        self._sizes = [weight.bytes for weight in weights]
        self._before = [0, *accumulate(self._sizes)]

    def between(self, begin: int, end: int) -> int:
        return self._up_to(end) - self._up_to(begin)

    def _up_to(self, flat: int) -> int:
        at = bisect_right(self._flats, flat) - 1
        if at < 0:
            return 0
        length = self._ends[at] - self._flats[at]
        passed = min(flat, self._ends[at]) - self._flats[at]
        return self._before[at] + (self._sizes[at] * passed // length if length else 0)
