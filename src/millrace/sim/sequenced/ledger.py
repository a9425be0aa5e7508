"""Ground truth about sequenced logs, and the checkers that compare with it at every event.

The counterpart of `sim/ledger.py`.  It sees every block that a sequencer sends, every copy on every
node, every record of the epoch store, and every answer.  A broken guarantee raises Violation at the
event that broke it.

  G1  no acknowledged record is lost while at most R-1 of its copies are
  G3  no gap lies                             G4  one value per position, for ever
  G6  nothing unreleased is delivered, and nothing is released that is not stored or not recovered
  G7  seals hold, one sequencer per epoch     G8  acknowledged order is real-time order
  L6  outcomes of appends are true: "not appended" never shows up, nothing shows up twice
"""

from typing import TYPE_CHECKING

from millrace.codec.blocks import move
from millrace.core.append import Appended, AppendOutcome, AppendUnknown, NotAppended
from millrace.core.epochs import EpochRecord
from millrace.core.messages import AppendBlock, BlockAppended, Message, Release, Store, Tail
from millrace.core.replication import can_replicate
from millrace.lsn import epoch_of, last_of, show
from millrace.sim.selecting import Columns
from millrace.sim.sequenced.rebuilds import note_short
from millrace.sim.sequenced.truth import BlockTruth, LogTruth, reach_of
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
    Placement,
    Token,
)

if TYPE_CHECKING:
    from millrace.sim.node import Node
    from millrace.sim.world import World


class AppendRecord:
    """What is known of one append."""

    __slots__ = (
        "_checksums",
        "ack",
        "block",
        "floor",
        "log",
        "outcome",
        "writer",
        "written",
    )

    def __init__(self, block: Block, ack: Ack, floor: Lsn, writer: str, written: Columns) -> None:
        self.log = block.log
        self.block = block
        self.ack = ack
        self.floor = floor  # The highest position acknowledged before this began.
        self.writer = writer
        self.written = written
        self.outcome: AppendOutcome | None = None
        self._checksums: dict[Lsn, int] = {}

    @property
    def token(self) -> Token:
        return self.block.token

    def checksum_at(self, first: Lsn) -> int:
        """Of the block as it must be there."""
        checksum = self._checksums.get(first)
        if checksum is None:
            checksum = move(self.block, epoch_of(first), first).checksum
            self._checksums[first] = checksum
        return checksum


class SequencedLedger:
    def __init__(self, world: "World") -> None:
        self._world = world
        self.logs: dict[LogId, LogTruth] = {}
        self.appends: dict[Token, AppendRecord] = {}
        self._seals: dict[tuple[NodeId, LogId], Epoch] = {}

    def truth(self, log: LogId) -> LogTruth:
        truth = self.logs.get(log)
        if truth is None:
            truth = self.logs[log] = LogTruth()
        return truth

    # -- The epoch store ------------------------------------------------------------------------

    def epochs_set(self, record: EpochRecord) -> None:
        truth = self.truth(record.log)
        self._world.trace.add(
            self._world.schedule.now_us,
            "meta",
            f"log {record.log} epoch {record.epoch} of node {record.sequencer}, clean up to "
            f"{record.clean}, tail {show(record.tail)}, nodes {record.nodeset}",
        )
        owner = truth.sequencers.setdefault(record.epoch, record.sequencer)
        if owner != record.sequencer:
            raise Violation(
                "G7", f"epoch {record.epoch} belongs to nodes {owner} and {record.sequencer}"
            )
        if truth.records and record.epoch > truth.record.epoch:
            self._world.count("epochs.begun")
        closed = truth.record.clean if truth.records else Epoch(0)
        truth.records.append(record)
        if record.clean > closed and not self.may_have_lost(record.log):
            self._check_bridged(record.log, range(closed + 1, record.clean + 1))
        note_short(self._world, record.log, range(closed + 1, record.clean + 1))

    def _check_bridged(self, log: LogId, epochs: range) -> None:
        """However many nodes are lost later on, those left can tell where an epoch ended."""
        truth = self.truth(log)
        bridged = {epoch_of(first) for first, _, kind in truth.junk if kind is EntryKind.BRIDGE}
        for epoch in map(Epoch, epochs):
            if epoch not in bridged and truth.trim_end <= last_of(epoch):
                raise Violation("G3", f"log {log}: epoch {epoch} was closed without a bridge")

    # -- Storage nodes --------------------------------------------------------------------------

    def held(self, node: NodeId, block: Block) -> None:
        truth = self.truth(block.log)
        if block.kind is EntryKind.DATA:
            known = truth.blocks.get(block.first)
            if known is None or known.key != (block.first, block.checksum):
                raise Violation("G4", f"node {node} stores {block!r}, which no sequencer sent")
            known.held.add(node)
            self._world.sequenced.nemesis.stored(node, block)
            return
        first, last = reach_of(block)
        if (first, last, block.kind) in truth.junk:
            return
        truth.junk.add((first, last, block.kind))
        self._world.count(f"junk.{block.kind.name.lower()}")
        covered = truth.acked_within(first, last)
        if covered is not None and block.kind is not EntryKind.LOSS:
            raise Violation(
                "G3",
                f"node {node} stores {block!r} of kind {block.kind.name}, which covers the "
                f"acknowledged {show(covered.first)}",
            )

    def durable(self, node: NodeId, block: Block) -> None:
        known = self.truth(block.log).blocks.get(block.first)
        if known is not None and known.key[1] == block.checksum:
            known.durable.add(node)

    def removed(self, node: NodeId, block: Block) -> None:
        """A copy that was not needed, or that something of a higher precedence replaced."""
        known = self.truth(block.log).blocks.get(block.first)
        if known is not None and known.key[1] == block.checksum:
            known.held.discard(node)
            known.durable.discard(node)

    def sealed(self, node: NodeId, log: LogId, epoch: Epoch) -> None:
        key = (node, log)
        self._seals[key] = max(self._seals.get(key, Epoch(0)), epoch)

    def sealed_by(self, log: LogId, epoch: Epoch) -> list[NodeId]:
        """Who takes nothing of that epoch any more."""
        return sorted(
            node for (node, of), seal in self._seals.items() if of == log and seal > epoch
        )

    def accepted(self, node: NodeId, log: LogId, epoch: Epoch) -> None:
        seal = self._seals.get((node, log), Epoch(0))
        if epoch < seal:
            raise Violation(
                "G7", f"node {node} accepted log {log} in epoch {epoch}, it had sealed {seal}"
            )

    def agrees(self, node: "Node", message: Message) -> None:
        """The core's idea of a log and the store's are the same."""
        log: LogId | None = getattr(message, "log", None)
        opened = None if log is None else node.store.opened(log)
        if opened is None or log is None:
            return
        storage = node.shell.core.storage(log)
        core = (storage.trim_end, storage.fence.epoch, storage.marks)
        store = (opened.picture.trim_end, opened.fence.epoch, opened.marks)
        if core != store:
            raise Violation(
                "G4", f"node {node.node}, log {log}: the core thinks {core}, the store has {store}"
            )

    # -- What nodes lose ------------------------------------------------------------------------

    def loses_disk(self, node: "Node") -> None:
        """Also of logs that it held nothing of: nobody can know that any more."""
        for log, truth in self.logs.items():
            truth.lossy.add(node.node)
            stored = node.disk.logs.get(log)
            for first in () if stored is None else list(stored.blocks):
                self.loses_block(node.node, log, first)
        for key in [key for key in self._seals if key[0] == node.node]:
            del self._seals[key]

    def loses_block(self, node: NodeId, log: LogId, first: Lsn) -> None:
        truth = self.truth(log)
        truth.lossy.add(node)
        known = truth.blocks.get(first)
        if known is not None and node in known.durable:
            known.lost.add(node)

    def loses_memory(self, node: "Node") -> None:
        """It crashed: what was acknowledged from memory and is not on the disk is gone."""
        for log, truth in self.logs.items():
            stored = node.disk.logs.get(log)
            if stored is not None and stored.is_volatile:
                truth.lossy.add(node.node)  # It cannot tell what it lost.
            for block in truth.blocks.values():
                is_kept = stored is not None and block.first in stored.blocks
                if node.node in block.held and not is_kept:
                    block.held.discard(node.node)
                    block.lost_memory.add(node.node)
                    if block.ack is Ack.MEMORY:
                        truth.lossy.add(node.node)

    def survivors(self, log: LogId, block: BlockTruth) -> list[NodeId]:
        """Who has a good copy: on its disk, or in the memory of a process that lives."""
        return [node.node for node in self._world.nodes if self._has_copy(node, log, block)]

    def _has_copy(self, node: "Node", log: LogId, block: BlockTruth) -> bool:
        if block.first in node.disk.rotten.get(log, ()):
            return False
        copy = self._copy(node, log, block.first)
        return copy is not None and copy[0].checksum == block.key[1]

    def _copy(self, node: "Node", log: LogId, first: Lsn) -> tuple[Block, Placement] | None:
        """As a node's memory has it, or the disk of one that is dead."""
        known = node.store.opened(log) if node.is_up else node.disk.logs.get(log)
        if known is None or first not in known.blocks:
            return None
        return known.blocks[first], known.placements[first]

    def may_have_lost(self, log: LogId) -> bool:
        """Enough nodes lost something that all copies of a block may be gone."""
        truth = self.truth(log)
        replication = truth.record.replication
        return can_replicate(replication, truth.lossy, self._world.locations)

    # -- Sequencers -----------------------------------------------------------------------------

    def released(self, node: NodeId, message: Store | Release) -> None:
        """A sequencer tells storage nodes how far readers may see."""
        truth = self.truth(message.log)
        epoch = message.epoch
        if truth.sequencers.get(epoch) != node:
            raise Violation("G7", f"node {node} sequences epoch {epoch} of log {message.log}")
        if isinstance(message, Store):
            known = truth.blocks.get(message.block.first)
            if known is None:
                known = truth.blocks[message.block.first] = BlockTruth(message.block)
            known.sent(message.placement, message.ack)
            if message.placement.wave > 1:
                self._world.count("store.later_wave")
        if message.good > truth.good.get(epoch, Lsn(0)):
            self._check_good(message.log, epoch, message.good)
            truth.good[epoch] = message.good
        if message.released > truth.released:
            self._check_released(message)
            truth.released = message.released

    def told_tail(self, node: NodeId, log: LogId, tail: Tail) -> None:
        """Whoever asks may hear of a release before those who are told."""
        good = tail.released if epoch_of(tail.released) == tail.epoch else Lsn(0)
        self.released(node, Release(log, tail.epoch, good, tail.released))

    def _check_good(self, log: LogId, epoch: Epoch, good: Lsn) -> None:
        """Everything up to there is stored, with its sync leaders."""
        truth = self.truth(log)
        record = truth.record
        at = truth.good.get(epoch, Lsn(epoch << 32))
        while at < good:
            block = truth.blocks.get(Lsn(at + 1))
            if block is None:
                raise Violation("G6", f"log {log}: {show(Lsn(at + 1))} is good, nobody sent it")
            leaders = min(record.settings.sync_leaders, record.replication.copies)
            kept = block.kept | block.lost | block.lost_memory
            is_led = any(kept.issuperset(copyset[:leaders]) for copyset in block.copysets)
            if not is_led or not can_replicate(record.replication, kept, self._world.locations):
                raise Violation(
                    "G6",
                    f"log {log}: {show(block.first)} is good, and is on {sorted(kept)} of "
                    f"{block.copysets}",
                )
            at = block.last

    def _check_released(self, message: Store | Release) -> None:
        truth = self.truth(message.log)
        epoch = epoch_of(message.released)
        if truth.record.clean < message.epoch - 1:
            raise Violation(
                "G6",
                f"log {message.log}: {show(message.released)} is released, but only epochs up to "
                f"{truth.record.clean} are recovered",
            )
        if epoch == message.epoch and message.released > truth.good.get(epoch, Lsn(0)):
            raise Violation("G6", f"log {message.log}: {show(message.released)} is not good")

    def acknowledged(self, node: NodeId, request: AppendBlock, answer: BlockAppended) -> None:
        """A sequencer says that the block is in the log."""
        truth = self.truth(request.log)
        epoch = epoch_of(answer.first)
        if truth.sequencers.get(epoch) != node:
            raise Violation("G7", f"node {node} acknowledges {show(answer.first)}")
        block = truth.blocks.get(answer.first)
        if block is None or block.last != answer.last or block.token != request.block.token:
            raise Violation("L6", f"{request.block.token} was never placed at {answer}")
        kept = block.kept | block.lost | block.lost_memory
        if not can_replicate(truth.record.replication, kept, self._world.locations):
            raise Violation(
                "G1",
                f"log {request.log}: {show(block.first)} was acknowledged ({block.ack.value}), and "
                f"is on {sorted(kept)} of {block.copysets}",
            )
        self._ack(request.log, block)

    def _ack(self, log: LogId, block: BlockTruth) -> None:
        if block.is_acked:
            return
        block.is_acked = True
        for first, last, kind in self.truth(log).junk:
            is_there = first <= block.last and last >= block.first and kind is not EntryKind.LOSS
            if is_there and self._holds_junk(log, first, kind, block.first):
                raise Violation(
                    "G3", f"log {log}: {show(block.first)} was acknowledged; it is a {kind.name}"
                )

    def _holds_junk(self, log: LogId, first: Lsn, kind: EntryKind, data: Lsn) -> bool:
        """Still, on any node, and not overruled: what an attempt wrote that was not finished may
        have been replaced by what a later one found, or never have reached a disk."""
        junk = self._highest(log, first, kind)
        record = self._highest(log, data, EntryKind.DATA)
        return junk is not None and (record is None or record < junk)

    def _highest(self, log: LogId, first: Lsn, kind: EntryKind) -> tuple[int, int] | None:
        """The precedence of the copies of this kind that begin there."""
        copies = [self._copy(node, log, first) for node in self._world.nodes]
        held = [placement for block, placement in filter(None, copies) if block.kind is kind]
        return max((placement.precedence for placement in held), default=None)

    # -- Appends --------------------------------------------------------------------------------

    def began(self, block: Block, ack: Ack, writer: str, written: Columns) -> AppendRecord:
        record = AppendRecord(block, ack, self.truth(block.log).acked_last, writer, written)
        self.appends[block.token] = record
        return record

    def ended(self, record: AppendRecord, outcome: AppendOutcome) -> None:
        record.outcome = outcome
        match outcome:
            case Appended(first, last):
                self._appended(record, first, last)
            case NotAppended():
                if record.token in self.truth(record.log).places:
                    raise Violation("L6", f"{record.token} was not appended, and is in the log")
            case AppendUnknown():
                pass

    def _appended(self, record: AppendRecord, first: Lsn, last: Lsn) -> None:
        truth = self.truth(record.log)
        block = truth.blocks.get(first)
        if block is None or block.token != record.token or block.last != last:
            raise Violation("L6", f"{record.token} was never placed at {show(first)}")
        self._check_order(record, block)
        if not block.is_acked and epoch_of(first) > truth.record.clean:
            raise Violation("G1", f"{record.token}: {show(first)} is not recovered yet")
        self._ack(record.log, block)
        self._fix(record.log, first, Lsn(last + 1), record.checksum_at(first))
        self._see(record, first)
        truth.acked_last = max(truth.acked_last, last)

    def _check_order(self, record: AppendRecord, block: BlockTruth) -> None:
        """Of appends that their sequencer acknowledged.  One that was found by a recovery may have
        been stored by a node that was not sealed yet, after others began in the next epoch."""
        if block.first > record.floor:
            return
        if block.is_acked:
            raise Violation(
                "G8",
                f"log {record.log}: {show(block.first)} was acknowledged to {record.writer}; when "
                f"it began, {show(record.floor)} was acknowledged already",
            )
        self._world.count("ledger.overtaken")

    def _fix(self, log: LogId, first: Lsn, end: Lsn, value: int) -> None:
        """From now on these positions have this value (G4)."""
        truth = self.truth(log)
        for lsn in range(first, end):
            known = truth.values.setdefault(Lsn(lsn), value)
            if known != value:
                raise Violation("G4", f"log {log}: {show(Lsn(lsn))} is {value:#x}, was {known:#x}")
        # With the disks of a copyset what a recovery decided may be lost as well.
        for gap in () if self.may_have_lost(log) else truth.gaps:
            if gap.first < end and gap.last >= first:
                raise Violation("G3", f"log {log}: {show(first)} is a record, told was {gap}")

    def _see(self, record: AppendRecord, first: Lsn) -> None:
        before = self.truth(record.log).places.setdefault(record.token, first)
        if before != first:
            places = f"{show(before)} and {show(first)}"
            raise Violation("L6", f"{record.token} is in the log twice: at {places}")
        if isinstance(record.outcome, NotAppended):
            raise Violation("L6", f"{record.token} was not appended, and is at {show(first)}")

    # -- Readers --------------------------------------------------------------------------------

    def delivered(self, reader: str, block: Block, first: Lsn, end: Lsn) -> None:
        record = self.appends.get(block.token)
        if record is None or record.log != block.log or block.count != record.block.count:
            raise Violation("G4", f"{reader} was given {block!r}, which nobody wrote")
        checksum = record.checksum_at(block.first)
        if not block.is_cut and block.checksum != checksum:
            raise Violation("G4", f"{reader} was given {block!r} with other records")
        truth = self.truth(block.log)
        if block.last > truth.released:
            raise Violation(
                "G6", f"{reader} was given {block!r}; released is {show(truth.released)}"
            )
        self._fix(block.log, first, end, checksum)
        self._see(record, block.first)

    def written(self, block: Block) -> Columns:
        return self.appends[block.token].written

    def gap(self, reader: str, log: LogId, gap: Gap) -> None:
        truth = self.truth(log)
        self._world.count(f"sequenced.gap.{gap.kind.value}")
        match gap.kind:
            case GapKind.TRIM:
                if gap.last >= truth.trim_end:
                    raise Violation(
                        "G3", f"{reader} was told {gap}; log {log} is trimmed to {truth.trim_end}"
                    )
            case GapKind.HOLE | GapKind.BRIDGE:
                self._check_empty(reader, log, gap)
                truth.gaps.append(gap)
            case GapKind.DATALOSS:
                self._check_lost(reader, log, gap)
            case _:
                raise Violation("G3", f"{reader} was told {gap}, which this log never has")

    def _check_empty(self, reader: str, log: LogId, gap: Gap) -> None:
        """Nothing was ever acknowledged or delivered there; a trimmed position is nobody's."""
        truth = self.truth(log)
        covered = truth.acked_within(gap.first, gap.last)
        if covered is not None and covered.last >= truth.trim_end:
            raise Violation(
                "G3",
                f"{reader} was told {_shown(gap)}; {show(covered.first)} was acknowledged, and is "
                f"on {self.survivors(log, covered)}",
            )
        read = [lsn for lsn in truth.values if gap.first <= lsn <= gap.last]
        if read and max(read) >= truth.trim_end:
            raise Violation("G4", f"{reader} was told {_shown(gap)}; {show(max(read))} was read")
        if truth.released < gap.first and epoch_of(gap.first):
            released = show(truth.released)
            raise Violation("G6", f"{reader} was told {_shown(gap)}; released is {released}")

    def _check_lost(self, reader: str, log: LogId, gap: Gap) -> None:
        """A node that was wiped once has no vote any more: what it took since may be told as lost
        while it is away."""
        truth, without_vote = self.truth(log), self._world.sequenced.without_vote()
        is_declared = any(
            kind is EntryKind.LOSS and first <= gap.first and gap.last <= last
            for first, last, kind in truth.junk
        )
        if not is_declared and not self.may_have_lost(log):
            lossy = sorted(truth.lossy)
            raise Violation(
                "G3", f"{reader} was told {_shown(gap)}; only nodes {lossy} lost something"
            )
        for block in truth.overlapping(gap.first, gap.last):
            is_known = block.is_acked or block.first in truth.values
            left = self.survivors(log, block)
            if is_known and block.last >= truth.trim_end and set(left) - without_vote:
                raise Violation(
                    "G3",
                    f"{reader} was told {_shown(gap)}; {show(block.first)} is on nodes {left}",
                )


def _shown(gap: Gap) -> str:
    return f"{gap.kind.value} {show(gap.first)}..{show(gap.last)}"
