"""Storage nodes and an epoch store as plain dicts, to run activations and recoveries against."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from millrace.core import messages as m
from millrace.core import procedure as p
from millrace.core.epochs import EpochRecord, NodesetChange
from millrace.core.messages import Message, Refusal, Refused, Standing
from millrace.core.replication import Replication
from millrace.lsn import epoch_of, first_of, lsn_of, offset_of
from millrace.types import (
    FIRST_LSN,
    NO_LSN,
    NO_TOKEN,
    AuthoritativeStatus,
    Block,
    Copy,
    EntryKind,
    Epoch,
    LogId,
    Lsn,
    NodeId,
    NodeInfo,
    Placement,
    Token,
)

LOG = LogId(1)
EFFECTS_MAX = 2_000  # More than any procedure here needs.
PAGE_COPIES = 3  # Small, so that indexes take several pages.
FAILED = p.Failure(p.FailureKind.TIMED_OUT, "it is down")


def nodes(*numbers: int) -> tuple[NodeId, ...]:
    return tuple(map(NodeId, numbers))


def data(epoch: int, offset: int, count: int = 1) -> Block:
    first = lsn_of(Epoch(epoch), offset)
    return Block(
        LOG, first, count, Epoch(epoch), EntryKind.DATA, Token(1, first), first % 997, b"x" * count
    )


def junk(log: LogId, first: Lsn, count: int, kind: EntryKind) -> Block:
    return Block(log, first, count, Epoch(0), kind, NO_TOKEN, count, b"")


def copy(block: Block, *copyset: int, wave: int = 1, recovery: int = 0) -> Copy:
    return Copy(block.extent(), Placement(nodes(*copyset), wave, Epoch(recovery)))


class ModelNode:
    def __init__(self, id: NodeId) -> None:
        self.id = id
        self.fence = Epoch(0)
        self.standing = Standing.MEMBER
        self.trim_end = FIRST_LSN
        self.released = NO_LSN
        self.closed = Epoch(1)
        self.good: dict[Epoch, Lsn] = {}
        self.blocks: dict[Lsn, tuple[Block, Placement]] = {}
        self.damaged: set[Lsn] = set()
        self.refuses_stores = False

    def ask(self, message: Message) -> Message:
        if self._is_late(message):
            return Refused(Refusal.EPOCH, self.fence)
        match message:
            case m.Rebuild(_, block, placement, released):
                if self.refuses_stores:
                    return Refused(Refusal.DISK_FULL, self.fence)
                assert block.last <= released
                self.put(block, placement)
                return m.Stored()
            case m.Store(_, _, block, placement):
                if self.refuses_stores:
                    return Refused(Refusal.DISK_FULL, self.fence)
                self.put(block, placement)
                return m.Stored()
            case m.TrimSequenced(_, end):
                self.trim_end = max(self.trim_end, end)
                return m.Trimmed(self.trim_end)
            case m.Amend(_, _, changes):
                return m.Amended(tuple(lsn for lsn, place in changes if not self.amend(lsn, place)))
            case m.SealEpochs(_, epoch):
                self.fence = epoch
                good = tuple(self.good[each] for each in sorted(self.good))
                return m.EpochsSealed(self.standing, self.trim_end, self.released, good, self.end)
            case m.CloseEpochs(_, epoch, first):
                self.closed = epoch if self.closed >= first else self.closed
                return m.EpochsClosed()
            case m.Copies(_, first, end):
                return self._page(first, end)
            case m.FetchCopies(_, first, end):
                return self._fetch(first, end)
        raise AssertionError(f"a model node does not know {message}")

    def _is_late(self, message: Message) -> bool:
        if isinstance(message, m.Amend) and message.is_rebuilding:
            return False
        if isinstance(message, m.Store | m.Amend | m.SealEpochs):
            return message.epoch < self.fence
        return False

    @property
    def end(self) -> Lsn:
        return max((block.end for block, _ in self.blocks.values()), default=FIRST_LSN)

    def copies(self) -> list[Copy]:
        held = sorted(self.blocks.values(), key=lambda each: each[0].first)
        return [Copy(block.extent(), placement) for block, placement in held]

    def put(self, block: Block, placement: Placement) -> None:
        """The store's rule: no overlap, and the highest precedence stays."""
        overlapped = [
            first
            for first, (other, _) in self.blocks.items()
            if other.first < block.end and block.first < other.end
        ]
        if any(self.blocks[at][1].precedence > placement.precedence for at in overlapped):
            return
        for at in overlapped:
            del self.blocks[at]
        self.blocks[block.first] = block, placement

    def amend(self, first: Lsn, placement: Placement) -> bool:
        held = self.blocks.get(first)
        if held is not None and placement.precedence >= held[1].precedence:
            self.blocks[first] = held[0], placement
        return held is not None

    def _page(self, first: Lsn, end: Lsn) -> Message:
        found = [
            each for each in self.copies() if each.extent.last >= first and each.extent.first < end
        ]
        page = tuple(found[:PAGE_COPIES])
        next_lsn = Lsn(page[-1].extent.last + 1) if len(found) > PAGE_COPIES else end
        return m.CopiesPage(page, next_lsn, self.trim_end)

    def _fetch(self, first: Lsn, end: Lsn) -> Message:
        held = [self.blocks[at][0] for at in sorted(self.blocks)]
        found = tuple(block for block in held if block.end > first and block.first < end)
        if found and found[0].first in self.damaged:
            return Refused(Refusal.CORRUPT)
        return m.Fetched(found, end)


class ModelCluster:
    """Nodes 1..size of one log in its first epoch, and its epoch store.  `fails` draws the fate of
    a request: lost before it is carried out (-1), its answer lost (1), or neither (0)."""

    def __init__(
        self, size: int = 5, replication: int = 3, locations: Mapping[NodeId, str] | None = None
    ) -> None:
        self.nodes = {NodeId(n): ModelNode(NodeId(n)) for n in range(1, size + 1)}
        self.locations = dict(locations or {})
        self.down: set[NodeId] = set()
        self.statuses: dict[NodeId, AuthoritativeStatus] = {}
        self.record: EpochRecord | None = EpochRecord(
            LOG,
            Epoch(1),
            NodeId(1),
            tuple(self.nodes),
            Replication.of(replication),
            Epoch(1),
            is_recorded=True,
        )
        self.version = 1
        self.changes: list[NodesetChange] = []
        self.fails: Callable[[], int] = lambda: 0
        self.paused: Callable[[], None] = lambda: None
        self.asked: list[tuple[NodeId, Message]] = []
        self.notes: list[str] = []
        self.renewed: list[tuple[NodeId, ...]] = []
        self.as_renewed: Callable[[], None] = lambda: None  # What happens at that moment.

    # -- Appending ------------------------------------------------------------------------------

    def append(
        self, block: Block, on: Iterable[int], copyset: Sequence[int] = (), wave: int = 1
    ) -> None:
        """As a sequencer would: the nodes in `on` got it before it ended, those that are sealed
        did not."""
        on = tuple(on)
        placement = Placement(nodes(*(copyset or on)), wave)
        for node in nodes(*on):
            if self.nodes[node].fence <= block.epoch:
                self.nodes[node].put(block, placement)

    def claim(self, epoch: int) -> EpochRecord:
        assert self.record is not None
        self.record = msgspec.structs.replace(self.record, epoch=Epoch(epoch))
        self.version += 1
        return self.record

    # -- Running procedures ---------------------------------------------------------------------

    def run(
        self,
        running: Generator[p.Effect, Any, Any],
        effects_max: int = EFFECTS_MAX,
        answer: Any = None,
    ) -> Any:
        """The result; p.DeadlinePassed is thrown in after `effects_max` effects.  `answer` is the
        one that it waits for."""
        try:
            for _ in range(effects_max):
                answer = self.perform(running.send(answer))
            running.throw(p.DeadlinePassed())
        except StopIteration as stop:
            return stop.value
        raise AssertionError("it goes on after its deadline")

    def interrupt(self, running: Generator[p.Effect, Any, Any], effects: int) -> Any:
        """As `run`, but the process dies after so many effects."""
        answer: Any = None
        try:
            for _ in range(effects):
                answer = self.perform(running.send(answer))
        except StopIteration as stop:
            return stop.value
        running.close()
        return None

    def perform(self, effect: p.Effect) -> Any:
        match effect:
            case p.Ask(node, message):
                return self._ask(node, message)
            case p.AskAll(asks):
                return [self._ask(each.node, each.message) for each in asks]
            case p.Pause():
                return self.paused()
            case p.Note(event, _):
                return self.notes.append(event)
            case p.ReadEpochs():
                return self.record, self.version
            case p.ReplaceEpochs(record, expected):
                return self.replace(record, expected)
            case p.AppendNodesetChange(_, change):
                self.changes.append(change)
                return True
            case p.ReadNodesetChanges():
                return tuple(self.changes)
            case p.ReadStatuses():
                return dict(self.statuses)
            case p.RenewRebuilds(nodes):
                self.renewed.append(nodes)
                self.as_renewed()
                return dict(self.statuses)
            case p.ListNodes():
                return self.view()
        raise AssertionError(f"no procedure of a sequenced log orders {effect}")

    def view(self) -> p.ClusterView:
        infos = (NodeInfo(n, f"host{n}:1", self.locations.get(n, "")) for n in self.nodes)
        return p.ClusterView(tuple(infos), frozenset(self.nodes.keys() - self.down))

    def _ask(self, node: NodeId, message: Message) -> Message | p.Failure:
        self.asked.append((node, message))
        fate = self.fails()
        if node in self.down or fate < 0:
            return FAILED
        answer = self.nodes[node].ask(message)
        return FAILED if fate > 0 else answer

    def replace(self, record: EpochRecord, expected: int) -> bool:
        if expected != self.version:
            return False
        self.record, self.version = record, self.version + 1
        return True

    # -- Reading --------------------------------------------------------------------------------

    def seen_by(self, asked: Iterable[NodeId], epoch: int) -> list[str]:
        """The epoch as a reader of these nodes sees it, one word for each offset from 1: the copy
        of the highest precedence, up to the first BRIDGE."""
        held = [
            (place.precedence, block)
            for node in asked
            for block, place in self.nodes[node].blocks.values()
            if epoch_of(block.first) == epoch
        ]
        seen: list[str] = []
        at = Lsn(first_of(Epoch(epoch)) + 1)
        while any(block.end > at for _, block in held):
            here = [each for each in held if each[1].first <= at < each[1].end]
            block = max(here, key=lambda each: each[0])[1] if here else None
            seen.append(show(block))
            if block is not None and block.kind is EntryKind.BRIDGE:
                break
            at = Lsn(at + 1)
        return seen


def show(block: Block | None) -> str:
    if block is None:
        return "-"
    is_data = block.kind is EntryKind.DATA
    return f"d{offset_of(block.first)}" if is_data else block.kind.name
