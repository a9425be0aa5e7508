"""Ground truth about commit logs, and the checkers that compare with it at every event.

It sees every record that the repository held, every copy of every entry on every node, and every
answer.  A broken guarantee raises Violation at the event that broke it.

  G1  no committed entry is lost while a replica of its stream keeps it; nothing is committed that
      not all replicas of the stream hold
  G3  no gap lies                             G4  one value per position, for ever, and no hole
  G6  nothing that is not committed is delivered or acknowledged
  G7  seals hold, one committer per term, one set of replicas and one primary per generation
  G8  acknowledged order is real-time order, across all streams
  L6  outcomes of appends are true: "not appended" never shows up, nothing shows up twice
  M1  entries and context are in step on every disk, whatever write was cut off
"""

from typing import TYPE_CHECKING

from millrace.codec.blocks import records
from millrace.core.append import Appended, AppendOutcome, AppendUnknown, NotAppended
from millrace.core.commit.record import (
    CommitRecord,
    StreamCommit,
    StreamRecord,
    is_stream_log,
    log_of_stream,
    stream_log_of,
)
from millrace.core.commit.recovery import Quarantine, Quarantined, recover
from millrace.core.commit.replica import StreamReplica, facts_of
from millrace.core.messages import Message, ReplicaState, StreamAppended
from millrace.sim.commit.truth import AppendRecord, CommitTruth, EntryTruth, Place
from millrace.sim.open_log import OpenLog
from millrace.sim.selecting import Columns
from millrace.sim.violation import Violation
from millrace.types import Ack, Block, Epoch, Gap, GapKind, LogId, Lsn, NodeId, Token

if TYPE_CHECKING:
    from millrace.sim.node import Node
    from millrace.sim.world import World


class CommitLedger:
    def __init__(self, world: "World") -> None:
        self._world = world
        self.logs: dict[LogId, CommitTruth] = {}
        self.appends: dict[Token, AppendRecord] = {}
        self._seals: dict[tuple[NodeId, LogId], Epoch] = {}

    def truth(self, log: LogId) -> CommitTruth:
        """Of a commit log, or of the one that a stream belongs to."""
        log = log_of_stream(log) if is_stream_log(log) else log
        truth = self.logs.get(log)
        if truth is None:
            truth = self.logs[log] = CommitTruth()
        return truth

    # -- The repository -------------------------------------------------------------------------

    def commits_set(self, record: CommitRecord) -> None:
        truth = self.truth(record.log)
        before, truth.record = truth.record, record
        truth.trim_end = record.trim_end
        truth.note_ends(record)
        self._world.trace.add(self._world.schedule.now_us, "meta", _shown(record))
        if before is None:
            return
        self._check_succession(before, record)
        at = Lsn(before.high_watermark + 1)
        for stream in record.streams:
            for commit in _new_commits(before.stream(stream.stream), stream):
                at = self._follows(truth, before, stream, commit, at)
        if at != record.high_watermark + 1:
            raise Violation(
                "G4",
                f"log {record.log}: {at - 1} positions were given, not {record.high_watermark}",
            )

    def _check_succession(self, before: CommitRecord, record: CommitRecord) -> None:
        log = record.log
        if record.term < before.term or (
            record.term == before.term and record.committer != before.committer
        ):
            raise Violation("G7", f"log {log}: term {record.term} follows {before.term}")
        if record.trim_end < before.trim_end:
            raise Violation("G3", f"log {log}: the trim point falls to {record.trim_end}")
        grows = record.high_watermark > before.high_watermark
        if record.version != before.version + grows or (grows and before.is_sealed):
            raise Violation("G4", f"log {log}: {_shown(record)} follows {_shown(before)}")
        for stream in record.streams:
            old = before.stream(stream.stream)
            if old is None:
                continue
            is_same = stream.generation == old.generation > 0
            if stream.generation < old.generation or (is_same and stream.replicas != old.replicas):
                raise Violation("G7", f"log {log}: {stream} follows {old}")
            if stream.local_end < old.local_end:
                self._lose(log, old, stream)
            if stream.generation > old.generation:
                self._world.count("commit.reformed")
                self._check_heirs(log, stream)

    def may_lose(self, stream_log: LogId) -> None:
        self.truth(stream_log).lossy.add(stream_log)

    def is_lossy(self, stream_log: LogId) -> bool:
        return stream_log in self.truth(stream_log).lossy

    def _lose(self, log: LogId, before: StreamRecord, after: StreamRecord) -> None:
        """What was committed is given up: nobody must have it."""
        truth, stream_log = self.truth(log), stream_log_of(log, after.stream)
        self._world.count("commit.lost")
        for place in truth.order.values():
            entry = place.entry
            is_given_up = entry.stream_log == stream_log and entry.end > after.local_end
            if not is_given_up or place.is_lost:
                continue
            left = [node for node in before.replicas if self.has_copy(node, entry)]
            is_excused = stream_log in truth.lossy or place.last < truth.trim_end
            if not is_excused or (left and entry.ack is Ack.DISK):
                raise Violation("G1", f"log {log}: {place.first} is given up, and is on {left}")
            place.is_lost = True
            if not isinstance(self.appends[entry.token].outcome, Appended):
                truth.places.pop(entry.token, None)

    def _check_heirs(self, log: LogId, stream: StreamRecord) -> None:
        """Whoever is a replica now has, or had, all that is committed of the stream."""
        stream_log = stream_log_of(log, stream.stream)
        for place in self.truth(log).kept_places():
            entry = place.entry
            if entry.stream_log != stream_log:
                continue
            lacking = [node for node in stream.replicas if not self._may_have(node, entry)]
            if lacking:
                raise Violation("G1", f"log {log}: {place.first} is not on {lacking} of {stream}")

    def _may_have(self, number: NodeId, entry: EntryTruth) -> bool:
        """It has a copy, whole or rotten, or died since it said so."""
        is_rotten = entry.first in self._world.node(number).disk.rotten.get(entry.stream_log, ())
        return is_rotten or self.has_copy(number, entry) or not self._world.node(number).is_up

    def _follows(
        self,
        truth: CommitTruth,
        before: CommitRecord,
        stream: StreamRecord,
        commit: StreamCommit,
        at: Lsn,
    ) -> Lsn:
        """Where the log ends with this commit."""
        old = before.stream(stream.stream)
        if commit.first != at or old is None or commit.local != old.local_end:
            raise Violation("G4", f"log {before.log}: {commit} of {old} does not begin at {at}")
        stream_log = stream_log_of(before.log, stream.stream)
        local = commit.local
        while local < commit.local_end:
            entry = self._committable(truth, stream_log, stream, local)
            self._place(truth, Place(entry, Lsn(at + local - commit.local)))
            local = entry.end
        if local != commit.local_end:
            raise Violation("G4", f"log {before.log}: {commit} ends within a block")
        self._world.count("commit.committed")
        return commit.end

    def _committable(
        self, truth: CommitTruth, stream_log: LogId, stream: StreamRecord, local: Lsn
    ) -> EntryTruth:
        """The entry that all replicas hold there."""
        found = truth.entries_at(stream_log, local)
        for entry in reversed(found):
            if entry.kept.issuperset(stream.replicas):
                return entry
        held = [(one.generation, sorted(one.kept)) for one in found]
        raise Violation(
            "G1",
            f"stream {stream.stream}: {local} is committed, but not on all of {stream.replicas}: "
            f"(generation, nodes) {held}",
        )

    def _place(self, truth: CommitTruth, place: Place) -> None:
        truth.put_in_order(place)
        token = place.entry.token
        before = truth.places.setdefault(token, place.first)
        if before != place.first:
            raise Violation("L6", f"{token} is in the log twice: at {before} and {place.first}")
        if isinstance(self.appends[token].outcome, NotAppended):
            raise Violation("L6", f"{token} was not appended, and is at {place.first}")

    # -- Replicas -------------------------------------------------------------------------------

    def held(self, node: NodeId, block: Block) -> None:
        truth = self.truth(block.log)
        entry = truth.entry(block)
        if entry is None:
            entry = self._new_entry(truth, node, block)
        entry.held.add(node)

    def _new_entry(self, truth: CommitTruth, node: NodeId, block: Block) -> EntryTruth:
        append = self.appends.get(block.token)
        if append is None or append.log != log_of_stream(block.log):
            raise Violation("G4", f"node {node} stores {block!r}, which nobody wrote")
        written = append.written
        stored = [(one.value, one.key, one.timestamp) for one in records(block)]
        if stored != list(zip(written.values, written.keys, written.timestamps, strict=True)):
            raise Violation("G4", f"node {node} stores {block!r} with other records")
        entries = truth.entries_at(block.log, block.first)
        if any(one.generation == block.epoch for one in entries):
            raise Violation("G7", f"node {node} stores {block!r}: generation {block.epoch} has two")
        entry = EntryTruth(block, append.ack)
        entries.append(entry)
        entries.sort(key=lambda one: one.generation)
        return entry

    def durable(self, node: NodeId, block: Block) -> None:
        entry = self.truth(block.log).entry(block)
        if entry is not None:
            entry.durable.add(node)

    def removed(self, node: NodeId, block: Block) -> None:
        """A reform cut it off, or a sync begins anew."""
        entry = self.truth(block.log).entry(block)
        if entry is not None:
            for nodes in (entry.held, entry.durable, entry.lost):
                nodes.discard(node)

    def sealed(self, node: NodeId, stream_log: LogId, generation: Epoch) -> None:
        key = (node, stream_log)
        self._seals[key] = max(self._seals.get(key, Epoch(0)), generation)

    def accepted(self, node: NodeId, stream_log: LogId, generation: Epoch) -> None:
        seal = self._seals.get((node, stream_log), Epoch(0))
        if generation < seal:
            raise Violation(
                "G7", f"node {node} accepted a block of generation {generation}, sealed for {seal}"
            )

    def agrees(self, node: "Node", message: Message) -> None:
        """The core's idea of a stream and the store's are the same."""
        log: LogId | None = getattr(message, "log", None)
        for replica in () if log is None else node.shell.core.replicas(log):
            opened = node.store.opened(replica.stream_log)
            if opened is None or not replica.is_valid:
                continue
            context = opened.context
            core = (replica.generation, replica.local_end)
            store = (opened.fence.epoch, Lsn(1) if context is None else context.local_end)
            if core != store:
                raise Violation(
                    "M1",
                    f"node {node.node}, stream {replica.stream}: the core thinks {core}, the "
                    f"store has {store}",
                )
            self._check_end(node.node, replica)

    def _check_end(self, node: NodeId, replica: StreamReplica) -> None:
        """A replica that knows a version has taken all commits up to it."""
        truth = self.truth(replica.stream_log)
        stream = None if truth.record is None else truth.record.stream(replica.stream)
        end = truth.end_at(replica.stream_log, replica.version)
        if stream is None or end is None or replica.state is not ReplicaState.OPEN:
            return
        if stream.generation == replica.generation and replica.local_end != end:
            raise Violation(
                "M1",
                f"node {node}, stream {replica.stream}: at version {replica.version} it ends at "
                f"{replica.local_end}, not at {end}",
            )

    def restarted(self, node: "Node") -> None:
        """Keeps watch over M1: what is on the disk fits together, unless memory was lost, or a sync
        was cut off."""
        for log, stored in node.disk.logs.items():
            if not is_stream_log(log):
                continue
            found = recover(facts_of(OpenLog(stored).state()))
            if not isinstance(found, Quarantined):
                continue
            self._world.count(f"commit.quarantine.{found.cause.value}")
            is_syncing = stored.context is None and found.cause is Quarantine.CONTEXT_MISSING
            if not is_syncing and found.cause is not Quarantine.MEMORY_LOST:
                raise Violation("M1", f"node {node.node}, {log:#x}: {found.why}")

    # -- What nodes lose ------------------------------------------------------------------------

    def loses_disk(self, node: NodeId) -> None:
        for truth in self.logs.values():
            for entry in _entries(truth):
                if node in entry.kept:
                    entry.lost.add(node)
                entry.held.discard(node)
                entry.durable.discard(node)
        for key in [key for key in self._seals if key[0] == node]:
            del self._seals[key]

    def loses_memory(self, node: "Node") -> None:
        """It crashed: what was acknowledged from memory and is not on the disk is gone."""
        for truth in self.logs.values():
            for entry in _entries(truth):
                if node.node not in entry.held:
                    continue
                stored = node.disk.logs.get(entry.stream_log)
                copy = None if stored is None else stored.blocks.get(entry.first)
                if copy is None or copy.checksum != entry.checksum:
                    entry.held.discard(node.node)
                    if entry.ack is Ack.MEMORY:
                        entry.lost.add(node.node)

    def dirtied(self, node: "Node", stream_log: LogId) -> None:
        """The disk had no room for what was acknowledged from memory."""
        left = node.store.opened_blocks(stream_log)
        for entry in _entries(self.truth(stream_log)):
            copy = left.get(entry.first)
            is_kept = copy is not None and copy.checksum == entry.checksum
            if entry.stream_log == stream_log and node.node in entry.held and not is_kept:
                entry.held.discard(node.node)
                entry.lost.add(node.node)

    def survivors(self, entry: EntryTruth) -> list[NodeId]:
        """Replicas of its stream, as the record has them, with a good copy: on their disk, or in
        the memory of a process that lives."""
        return [node for node in self.replicas(entry.stream_log) if self.has_copy(node, entry)]

    def replicas(self, stream_log: LogId) -> tuple[NodeId, ...]:
        record = self.truth(stream_log).record
        assert record is not None
        found = (
            each.replicas
            for each in record.streams
            if stream_log_of(record.log, each.stream) == stream_log
        )
        return next(found)

    def has_copy(self, number: NodeId, entry: EntryTruth) -> bool:
        node = self._world.node(number)
        if entry.first in node.disk.rotten.get(entry.stream_log, ()):
            return False
        if node.is_up:
            copy = node.store.opened_blocks(entry.stream_log).get(entry.first)
        else:
            stored = node.disk.logs.get(entry.stream_log)
            copy = None if stored is None else stored.blocks.get(entry.first)
        return copy is not None and copy.checksum == entry.checksum

    # -- Appends --------------------------------------------------------------------------------

    def began(self, block: Block, ack: Ack, writer: str, written: Columns) -> AppendRecord:
        record = AppendRecord(block, ack, self.truth(block.log), writer, written)
        self.appends[block.token] = record
        return record

    def acknowledged(self, log: LogId, token: Token, answer: StreamAppended) -> None:
        """A primary says that the block has its place."""
        place = self.truth(log).order.get(answer.first)
        if place is None or place.entry.token != token or place.last != answer.last:
            raise Violation("G6", f"{token} has no place at {answer.first}..{answer.last}")

    def ended(self, record: AppendRecord, outcome: AppendOutcome) -> None:
        record.outcome = outcome
        truth = self.truth(record.log)
        match outcome:
            case Appended(first, last):
                self.acknowledged(record.log, record.token, StreamAppended(first, last, Lsn(0)))
                if first <= record.floor:
                    raise Violation(
                        "G8",
                        f"log {record.log}: {first} was acknowledged to {record.writer}; when it "
                        f"began, {record.floor} was acknowledged already",
                    )
                truth.acked_last = max(truth.acked_last, last)
            case NotAppended():
                if record.token in truth.places:
                    raise Violation("L6", f"{record.token} was not appended, and is in the log")
            case AppendUnknown():
                pass

    # -- Readers --------------------------------------------------------------------------------

    def delivered(self, reader: str, block: Block, first: Lsn, end: Lsn) -> None:
        place = self.truth(block.log).order.get(block.first)
        if place is None:
            raise Violation("G6", f"{reader} was given {block!r}, which has no place")
        entry = place.entry
        is_same = block.token == entry.token and block.last == place.last
        if not is_same or (not block.is_cut and block.checksum != entry.checksum):
            raise Violation("G4", f"{reader} was given {block!r}: {entry.token} is there")

    def written(self, block: Block) -> Columns:
        return self.appends[block.token].written

    def gap(self, reader: str, log: LogId, gap: Gap) -> None:
        truth = self.truth(log)
        self._world.count(f"commit.gap.{gap.kind.value}")
        match gap.kind:
            case GapKind.TRIM:
                if gap.last >= truth.trim_end:
                    raise Violation(
                        "G3", f"{reader} was told {gap}; log {log} is trimmed to {truth.trim_end}"
                    )
            case GapKind.DATALOSS:
                self._check_lost(reader, truth, gap)
            case _:
                raise Violation("G3", f"{reader} was told {gap}, which this log never has")

    def _check_lost(self, reader: str, truth: CommitTruth, gap: Gap) -> None:
        if gap.last > truth.high_watermark:
            raise Violation("G6", f"{reader} was told {gap}; {truth.high_watermark} is the last")
        for place in truth.within(gap.first, gap.last):
            left = [] if place.is_lost else self.survivors(place.entry)
            if place.last >= truth.trim_end and left:
                raise Violation("G3", f"{reader} was told {gap}; {place.first} is on {left}")


def _entries(truth: CommitTruth) -> list[EntryTruth]:
    return [
        entry
        for stream in truth.streams.values()
        for entries in stream.values()
        for entry in entries
    ]


def _new_commits(before: StreamRecord | None, stream: StreamRecord) -> list[StreamCommit]:
    end = Lsn(1) if before is None else before.local_end
    return [commit for commit in stream.history if commit.local_end > end]


def _shown(record: CommitRecord) -> str:
    streams = ", ".join(
        f"{each.stream}:{each.generation}{'' if each.is_open else ' closed'} on "
        f"{list(each.replicas)} to {each.local_end}"
        for each in record.streams
    )
    return (
        f"log {record.log} term {record.term} of node {record.committer}, version "
        f"{record.version}, up to {record.high_watermark}, trimmed to {record.trim_end}: {streams}"
    )
