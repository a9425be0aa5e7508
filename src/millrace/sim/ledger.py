"""Ground truth, and the checkers that compare with it at every event.

The ledger sees what no process can see: every copy on every node, every projection, every answer.
A broken guarantee raises Violation at the event that broke it, which is the best place to look.

  G1  no acknowledged record is lost          G6  nothing uncommitted is delivered
  G2  records and gaps tile                   G7  fences hold, one sequencer per epoch
  G3  no gap lies                             G8  acknowledged order is real-time order
  G4  one value per position, for ever        G13 buffers keep their bounds
  L6  outcomes of appends are true: "not appended" never shows up, nothing shows up twice
"""

from typing import TYPE_CHECKING

from millrace.core.append import Appended, AppendOutcome, AppendUnknown, NotAppended
from millrace.core.messages import Message
from millrace.core.procedure import Note
from millrace.core.projection import Projection
from millrace.sim.selecting import Columns
from millrace.sim.violation import Violation
from millrace.types import (
    Ack,
    Block,
    EntryKind,
    Epoch,
    Gap,
    GapKind,
    LogId,
    Lsn,
    NodeId,
    Token,
)

if TYPE_CHECKING:
    from millrace.sim.node import Node
    from millrace.sim.world import World

HOLE_VALUE = 0  # Stand in for a checksum where a position holds no record.
LOSS_VALUE = -1
BRIDGE_VALUE = -3
Range = tuple[Lsn, Lsn]
_DIVERGED = ("append.diverged", "chain.diverged")


class AppendRecord:
    """What is known of one append."""

    __slots__ = ("ack", "count", "floor", "log", "outcome", "placed", "token", "writer", "written")

    def __init__(
        self,
        log: LogId,
        token: Token,
        ack: Ack,
        floor: Lsn,
        writer: str,
        written: Columns,
    ) -> None:
        self.log = log
        self.token = token
        self.count = len(written.values)
        self.ack = ack
        self.floor = floor  # The highest position acknowledged before this began.
        self.writer = writer
        self.written = written
        self.placed: dict[Lsn, int] = {}  # Checksum of the block at each position it was given.
        self.outcome: AppendOutcome | None = None

    @property
    def is_settled(self) -> bool:
        return isinstance(self.outcome, Appended | NotAppended)


class LogTruth:
    def __init__(self) -> None:
        self.values: dict[Lsn, int] = {}  # Committed: acknowledged, or delivered to somebody.
        self.acked_last = Lsn(0)
        self.trim_end = Lsn(1)  # The highest that anybody asked for.
        self.projections: list[Projection] = []
        self.holders: dict[tuple[Lsn, int], set[NodeId]] = {}
        self.durable_holders: dict[tuple[Lsn, int], set[NodeId]] = {}
        self.committed: set[tuple[Lsn, int]] = set()
        self.issued_most = Lsn(1)  # No sequencer ever stood above it.
        self.issued_end: dict[Epoch, tuple[NodeId, Lsn]] = {}
        self.may_lose = False  # A blackout may have taken every copy of something.
        self.lost_blocks: set[tuple[Lsn, int]] = set()  # Acknowledgements may still be under way.


class Ledger:
    def __init__(self, world: "World") -> None:
        self._world = world
        self.logs: dict[LogId, LogTruth] = {}
        self.appends: dict[Token, AppendRecord] = {}
        self.places: dict[Token, Lsn] = {}  # Where each append was seen in the log.
        self._fences: dict[tuple[NodeId, LogId], Epoch] = {}

    def truth(self, log: LogId) -> LogTruth:
        truth = self.logs.get(log)
        if truth is None:
            truth = self.logs[log] = LogTruth()
        return truth

    # -- Nodes ----------------------------------------------------------------------------------

    def held(self, node: NodeId, block: Block) -> None:
        self.truth(block.log).holders.setdefault((block.first, block.checksum), set()).add(node)

    def durable(self, node: NodeId, block: Block) -> None:
        holders = self.truth(block.log).durable_holders
        holders.setdefault((block.first, block.checksum), set()).add(node)

    def removed(self, node: NodeId, block: Block) -> None:
        """Learning took the block out: the node no longer vouches for it."""
        truth = self.truth(block.log)
        key = (block.first, block.checksum)
        truth.holders.get(key, set()).discard(node)
        truth.durable_holders.get(key, set()).discard(node)

    def wiped(self, node: NodeId) -> None:
        """A node without a disk has no fence to keep.  What it held counts all the same: an
        append may be acknowledged between the loss and its discovery."""
        for key in [key for key in self._fences if key[0] == node]:
            del self._fences[key]

    def sealed(self, node: NodeId, log: LogId, epoch: Epoch) -> None:
        key = (node, log)
        self._fences[key] = max(self._fences.get(key, Epoch(0)), epoch)

    def accepted(self, node: NodeId, log: LogId, epoch: Epoch) -> None:
        fence = self._fences.get((node, log), Epoch(0))
        if epoch < fence:
            raise Violation(
                "G7", f"node {node} accepted log {log} in epoch {epoch}, it had sealed {fence}"
            )

    def issued(self, node: NodeId, log: LogId, epoch: Epoch, first: Lsn, count: int) -> None:
        issued_end = self.truth(log).issued_end
        before = issued_end.get(epoch)
        if before is not None and before[0] != node:
            raise Violation("G7", f"nodes {before[0]} and {node} both sequence epoch {epoch}")
        if before is not None and first < before[1]:
            raise Violation("G7", f"position {first} was issued twice in epoch {epoch}")
        issued_end[epoch] = (node, Lsn(first + count))
        self.bootstrapped(log, Lsn(first + count))

    def bootstrapped(self, log: LogId, next_lsn: Lsn) -> None:
        truth = self.truth(log)
        truth.issued_most = max(truth.issued_most, next_lsn)

    def agrees(self, node: "Node", message: Message) -> None:
        """The core's idea of a log and the store's are the same."""
        log: LogId | None = getattr(message, "log", None)
        if log is None:
            return
        opened = node.store.opened(log)
        if opened is None:
            return
        chain = node.shell.core.chain(log)
        picture, taken = opened.picture, chain.taken
        core = (taken.trim_end, taken.contiguous_end, taken.end)
        store = (picture.trim_end, picture.contiguous_end, picture.end)
        if core != store or chain.fence != opened.fence:
            raise Violation(
                "G4",
                f"node {node.node}, log {log}: the core thinks {core} {chain.fence}, "
                f"the store has {store} {opened.fence}",
            )

    def projected(self, projection: Projection) -> None:
        self._world.trace.add(
            self._world.schedule.now_us,
            "meta",
            f"log {projection.log} epoch {projection.epoch} chain {projection.chain} "
            f"sequencer {projection.sequencer} {projection.reason.value}",
        )
        self._world.count("projection.changed")
        self.truth(projection.log).projections.append(projection)

    def noted(self, process: str, note: Note) -> None:
        if note.event in _DIVERGED:
            raise Violation("G4", f"{process} notes {note.event} {note.fields}")

    def blacked_out(self, log: LogId) -> None:
        """No member of the chain is whole any more: what none of them has on disk is lost, and
        nobody is blamed for it.  All the rest must survive."""
        truth = self.truth(log)
        truth.may_lose = True
        kept: dict[int, int] = {}
        kept_blocks = set()
        for number in truth.projections[-1].chain:
            stored = self._world.node(number).disk.logs.get(log)
            for block in () if stored is None else stored.blocks.values():
                kept.update(dict.fromkeys(range(block.first, block.end), value_of(block)))
                kept_blocks.add((block.first, block.checksum))
        truth.lost_blocks |= truth.holders.keys() - kept_blocks
        lost = {
            lsn
            for lsn, value in truth.values.items()
            if lsn >= truth.trim_end and kept.get(lsn) != value
        }
        self._forgive(truth, lost)

    def _forgive(self, truth: LogTruth, lost: set[Lsn]) -> None:
        if lost:
            self._world.count("ledger.lost")
        for lsn in lost:
            del truth.values[lsn]
        for token in [token for token, first in self.places.items() if first in lost]:
            if self.truth(self.appends[token].log) is truth:
                del self.places[token]
        truth.acked_last = min(truth.acked_last, max(truth.values, default=Lsn(0)))
        for record in self.appends.values():
            if self.truth(record.log) is truth:
                record.floor = min(record.floor, truth.acked_last)

    # -- Appends --------------------------------------------------------------------------------

    def began(
        self,
        log: LogId,
        token: Token,
        ack: Ack,
        writer: str,
        written: Columns,
    ) -> AppendRecord:
        floor = self.truth(log).acked_last
        record = AppendRecord(log, token, ack, floor, writer, written)
        self.appends[token] = record
        return record

    def ended(self, record: AppendRecord, outcome: AppendOutcome) -> None:
        record.outcome = outcome
        match outcome:
            case Appended(first, last):
                self._acknowledged(record, first, last)
            case NotAppended():
                if record.token in self.places:
                    raise Violation("L6", f"{record.token} was not appended, and is in the log")
            case AppendUnknown():
                pass

    def _acknowledged(self, record: AppendRecord, first: Lsn, last: Lsn) -> None:
        truth = self.truth(record.log)
        checksum = record.placed.get(first)
        if checksum is None or last != first + record.count - 1:
            raise Violation("L6", f"{record.token} was never placed at {first}..{last}")
        if first <= record.floor:
            raise Violation(
                "G8",
                f"log {record.log}: {first} was acknowledged to {record.writer}; when it began, "
                f"{record.floor} was acknowledged already",
            )
        if first >= truth.trim_end and not self._is_committed(truth, first, checksum, record.ack):
            raise Violation(
                "G1",
                f"log {record.log}: {first}..{last} was acknowledged ({record.ack.value}) without "
                f"being on every member of a chain: {self._where(truth, first, checksum)}",
            )
        if (first, checksum) in truth.lost_blocks:
            return
        self._fix(record.log, first, Lsn(last + 1), checksum)
        self._see(record.token, first)
        truth.acked_last = max(truth.acked_last, last)

    def _where(self, truth: LogTruth, first: Lsn, checksum: int) -> str:
        chains = [(one.epoch, one.chain) for one in truth.projections[-3:]]
        held = sorted(truth.holders.get((first, checksum), ()))
        durable = sorted(truth.durable_holders.get((first, checksum), ()))
        return f"chains {chains}, held by {held}, durable on {durable}"

    def _is_committed(self, truth: LogTruth, first: Lsn, checksum: int, ack: Ack) -> bool:
        key = (first, checksum)
        if key in truth.committed:
            return True
        copies = truth.durable_holders if ack is Ack.DISK else truth.holders
        holders = copies.get(key)
        if holders is None:
            return False
        for projection in reversed(truth.projections):
            if holders.issuperset(projection.chain):
                truth.committed.add(key)
                return True
        return False

    def _fix(self, log: LogId, first: Lsn, end: Lsn, value: int) -> None:
        """From now on these positions have this value (G4)."""
        values = self.truth(log).values
        for lsn in range(first, end):
            known = values.setdefault(Lsn(lsn), value)
            if known != value:
                guarantee = "G3" if HOLE_VALUE in (known, value) else "G4"
                raise Violation(
                    guarantee, f"log {log}: {lsn} is {_named(value)}, before it was {_named(known)}"
                )

    def _see(self, token: Token, first: Lsn) -> None:
        before = self.places.setdefault(token, first)
        if before != first:
            raise Violation("L6", f"{token} is in the log twice: at {before} and {first}")
        if isinstance(self.appends[token].outcome, NotAppended):
            raise Violation("L6", f"{token} was not appended, and is in the log at {first}")

    # -- Readers --------------------------------------------------------------------------------

    def delivered(self, reader: str, block: Block, first: Lsn, end: Lsn) -> None:
        record = self.appends.get(block.token)
        checksum = None if record is None else record.placed.get(block.first)
        # A cut has checksums of its own: `selected` looks at what is in it.
        is_right = block.is_cut or checksum == block.checksum
        if record is None or checksum is None or not is_right or block.count != record.count:
            raise Violation("G4", f"{reader} was given {block!r}, which nobody wrote")
        truth = self.truth(block.log)
        if not self._is_committed(truth, block.first, checksum, record.ack):
            where = self._where(truth, block.first, checksum)
            raise Violation("G6", f"{reader} was given {block!r}, not committed: {where}")
        if (block.first, checksum) not in truth.lost_blocks:
            self._fix(block.log, first, end, checksum)
            self._see(block.token, block.first)

    def gap(self, reader: str, log: LogId, gap: Gap) -> None:
        truth = self.truth(log)
        self._world.count(f"gap.{gap.kind.value}")
        match gap.kind:
            case GapKind.TRIM:
                if gap.last >= truth.trim_end:
                    raise Violation(
                        "G3", f"{reader} was told {gap}; log {log} is trimmed to {truth.trim_end}"
                    )
            case GapKind.HOLE:
                if gap.last >= truth.issued_most:
                    raise Violation("G3", f"{reader} was told {gap}, which nobody was ever given")
                self._fix(log, gap.first, Lsn(gap.last + 1), HOLE_VALUE)
            case GapKind.DATALOSS:
                if not truth.may_lose:
                    raise Violation("G3", f"{reader} was told {gap}; nothing of log {log} is lost")
                self._fix(log, gap.first, Lsn(gap.last + 1), LOSS_VALUE)
            case _:
                raise Violation("G3", f"{reader} was told {gap}, which a chain log never has")


def value_of(block: Block) -> int:
    match block.kind:
        case EntryKind.DATA:
            return block.checksum
        case EntryKind.HOLE:
            return HOLE_VALUE
        case EntryKind.LOSS:
            return LOSS_VALUE
        case EntryKind.BRIDGE:
            return BRIDGE_VALUE


def _named(value: int) -> str:
    return {HOLE_VALUE: "a hole", LOSS_VALUE: "lost", BRIDGE_VALUE: "a bridge"}.get(
        value, f"{value:#010x}"
    )
