"""A partition as one node holds it: as the master that changes it, or as a replica that follows.

The same object serves the node, the simulator and the scenario files.  Its documents are in
`memory.py`, what of it is written next in `flushing.py`.  Here is what it may become and when: who
gives seqs, what makes a snapshot whole, and where a promotion or a rollback leaves it.

  I1  complete <= seen <= high, and seen <= running.  Of a master all four are the same.
  I2  A master gives seqs above everything stored here, even above what was seen (U3).
  I3  No key gets an older version than one of the same history that was here before: a change for
      a key that an undo has fetched in a later version is left out, for the later one comes
      again at its own seq.  Such versions may have to be undone although nothing above the start
      was streamed: `undo_needed` knows.
  I4  Until the end of an undo is on disk the partition is neither promoted nor whole, and while it
      runs nothing is applied.
  I5  A master gives a CAS above every one that was here before, wherever it was made, also after a
      restart.
"""

from collections.abc import Callable, Sequence
from typing import Final

from millrace.core.documents.document import (
    NO_CAS,
    NO_SEQ,
    Cas,
    ChangeKind,
    Document,
    FailoverId,
    PartitionId,
    PartitionState,
    Seq,
)
from millrace.core.documents.failover_log import FailoverLog
from millrace.core.documents.flushing import Flush as Flush
from millrace.core.documents.flushing import Flushing
from millrace.core.documents.memory import DocumentMemory
from millrace.core.documents.partition_row import PartitionRow
from millrace.core.documents.rollback import Place

MICROSECONDS: Final = 1_000_000  # In a second.
EMPTY_ROW: Final = PartitionRow()
# Names of their own, for every change asks for them, and an enum finds its members slowly.
_ACTIVE: Final = PartitionState.ACTIVE
_MUTATION: Final = ChangeKind.MUTATION

NewDocument = tuple[bytes, bytes, int, int]  # Key, value, flags, expiry in seconds.


class OutOfOrder(ValueError):
    """A change that cannot follow what is here: the stream is to be opened anew."""


class UndoPending(ValueError):
    """The partition holds changes of a history that is over: it can serve nobody yet (U2)."""


class NotWhole(ValueError):
    """It was to be taken over as it is, but is in the middle of a snapshot."""


class UsedId(ValueError):
    """A history that may be another one from here on needs an id of its own."""


class Partition:
    def __init__(self, number: PartitionId, row: PartitionRow = EMPTY_ROW) -> None:
        self.number = number
        self.memory = DocumentMemory()
        self.table = self.memory.table
        self.queue = self.memory.queue
        self.on_change: list[Callable[[], None]] = []
        self.last_cas = NO_CAS
        self.is_clean = False  # Set before the last flush of a shutdown in order.
        self._announced = NO_SEQ  # The last seq of the snapshot that was begun last.
        self._fetched_high = NO_SEQ  # The largest seq that the present undo has fetched.
        self._flushing = Flushing(number, self.memory, row)
        self._take_row(row)

    def _take_row(self, row: PartitionRow) -> None:
        self.state = row.state
        self.term = row.term
        self.log = row.log
        self.high = row.high
        self.seen = row.seen
        self.complete = row.complete
        self.running = row.running
        self.purged = row.purged
        self.undo = row.undo
        self.created = row.created
        self.last_cas = max(self.last_cas, row.last_cas)  # Keeps I5: tombstones are not loaded.
        self.persisted = row.seen  # All up to it is on disk.
        self.disk_high = row.high  # Nothing on disk is above: an undo fetches beyond `seen`.
        self._flushing.row_on_disk = row

    def row(self) -> PartitionRow:
        return PartitionRow(
            self.state,
            self.term,
            self.log,
            self.high,
            self.seen,
            self.complete,
            self.running,
            self.purged,
            self.undo,
            self.is_clean,
            self.created,
            self.last_cas,
        )

    @property
    def place(self) -> Place:
        """Where it stands as a client of its master."""
        return Place(self.log, self.complete, self.seen, self.running)

    @property
    def has_undo(self) -> bool:
        """One is pending, or its end is not on disk yet: what it undoes may still lie there."""
        return self.undo is not None or self._flushing.row_on_disk.undo is not None

    @property
    def is_whole(self) -> bool:
        """It holds a complete snapshot and nothing beyond, so it may be viewed (U4)."""
        return self.high <= self.complete and not self.has_undo

    @property
    def persisted_complete(self) -> Seq:
        """The last complete snapshot that is on disk whole: what a replica acknowledges (U6)."""
        return min(self._flushing.row_on_disk.complete, self.complete)

    @property
    def memory_bytes(self) -> int:
        return self.memory.size_bytes

    # -- Master --------------------------------------------------------------------------------

    def peek(self, key: bytes) -> Document | None:
        """The live document, expired or not; its value is None if it is on disk alone."""
        document = self.table.get(key)
        return None if document is None or document.kind else document

    def find(self, key: bytes, now_us: int) -> Document | None:
        """As `peek`, but one that has expired is gone; a master makes that a change."""
        document = self.table.get(key)
        if document is None or document.kind:
            return None
        if document.expiry_s and document.expiry_s * MICROSECONDS <= now_us:
            if self.state is PartitionState.ACTIVE:
                self._bury(key, now_us, ChangeKind.EXPIRATION)
            return None
        return document

    def store(
        self, key: bytes, value: bytes, flags: int, expiry_s: int, now_us: int, datatype: int = 0
    ) -> Document:
        cas = self._next_cas(now_us)
        seq = Seq(self.high + 1)
        document = Document(key, value, seq, cas, flags, expiry_s, _MUTATION, datatype)
        self._change(document)
        return document

    def store_many(self, items: Sequence[NewDocument], now_us: int) -> list[Document]:
        """As `store` for each, told as one change."""
        assert self.state is _ACTIVE, "only a master gives seqs"
        put = self.memory.put
        cas = max(now_us, self.last_cas + 1)
        seq = self.high
        stored = []
        for key, value, flags, expiry_s in items:
            seq = Seq(seq + 1)
            document = Document(key, value, seq, Cas(cas), flags, expiry_s)
            put(document)
            stored.append(document)
            cas += 1
        if stored:
            self.last_cas = Cas(cas - 1)
            self.high = self.seen = self.complete = self.running = seq
            self._tell()
        return stored

    def store_revision(
        self,
        key: bytes,
        value: bytes,
        cas: Cas,
        flags: int,
        expiry_s: int,
        kind: ChangeKind,
        datatype: int = 0,
    ) -> Document:
        """A version or a tombstone with the CAS that it has elsewhere; `revisions.py` knows whether
        it is to be taken."""
        document = Document(key, value, Seq(self.high + 1), cas, flags, expiry_s, kind, datatype)
        self.last_cas = max(self.last_cas, cas)  # Keeps I5.
        self._change(document)
        return document

    def delete(
        self, key: bytes, now_us: int, kind: ChangeKind = ChangeKind.DELETION
    ) -> Document | None:
        """Its tombstone; None if there was nothing live.  One that had expired is not live, unless
        it is the expiry that is carried out."""
        is_expiry = kind is ChangeKind.EXPIRATION
        held = self.peek(key) if is_expiry else self.find(key, now_us)
        return None if held is None else self._bury(key, now_us, kind)

    def repair(
        self,
        rollback: Seq,
        documents: Sequence[Document],
        fetch_seq: Callable[[bytes], Seq],
        now_us: int,
    ) -> list[bytes]:
        """Takes, as new changes, those whose version here is not newer than `rollback` (U7).

        One step, so no other write comes between the question and the change.  `fetch_seq`
        tells the seq of a tombstone that is on disk alone, 0 if there is none."""
        taken = []
        for document in documents:
            held = self.table.get(document.key)
            if (fetch_seq(document.key) if held is None else held.seq) > rollback:
                continue
            if document.is_deleted:
                if self.peek(document.key) is None:
                    continue  # Both have deleted it.
                self._bury(document.key, now_us, document.kind)
            else:
                assert document.value is not None, "a document to repair comes with its value"
                self.store(
                    document.key,
                    document.value,
                    document.flags,
                    document.expiry_s,
                    now_us,
                    document.datatype,
                )
            taken.append(document.key)
        return taken

    def _bury(self, key: bytes, now_us: int, kind: ChangeKind) -> Document:
        cas = self._next_cas(now_us)
        made_s = now_us // MICROSECONDS
        tombstone = Document(key, b"", Seq(self.high + 1), cas, 0, made_s, kind)
        self._change(tombstone)
        return tombstone

    def _next_cas(self, now_us: int) -> Cas:
        cas = self.last_cas + 1
        if now_us > cas:
            cas = now_us
        self.last_cas = Cas(cas)
        return self.last_cas

    def _change(self, document: Document) -> None:
        assert self.state is _ACTIVE, "only a master gives seqs"
        self.memory.put(document)
        self.high = self.seen = self.complete = self.running = document.seq
        self._tell()

    # -- Replica -------------------------------------------------------------------------------

    def begin_snapshot(self, first: Seq, last: Seq) -> None:
        """Changes of (first, last] follow.  The same first with a later last extends the one that
        runs, which is whole only there then."""
        assert self.state is not PartitionState.ACTIVE, "a master follows nobody"
        if first > self.seen or last < self.seen:
            detail = f"a snapshot of ({first}, {last}] cannot follow {self.seen}"
            raise OutOfOrder(f"partition {self.number}: {detail}")
        self._announced = last

    def apply(self, documents: Sequence[Document]) -> None:
        """Changes of the snapshot that runs, with the master's seqs.  All of them or none."""
        assert self.undo is None and self.state is not PartitionState.ACTIVE
        seen = self.seen
        for document in documents:
            if document.seq <= seen:
                raise OutOfOrder(f"partition {self.number}: {document.seq} came after {seen}")
            seen = document.seq
        self._check_announced(seen)
        table, put, last_cas = self.table, self.memory.put, self.last_cas
        for document in documents:
            held = table.get(document.key)
            if held is None or held.seq <= document.seq:  # Keeps I3.
                put(document)
            if document.cas > last_cas:
                last_cas = document.cas
        self.last_cas = last_cas
        self._arrived(seen)

    def advance(self, seq: Seq) -> None:
        """All up to `seq` was sent, though perhaps nothing stands there any more."""
        assert self.undo is None and self.state is not PartitionState.ACTIVE
        if seq > self.seen:
            self._check_announced(seq)
            self._arrived(seq)

    def _check_announced(self, seq: Seq) -> None:
        if seq > self._announced:
            detail = f"{seq} lies beyond the snapshot, which ends at {self._announced}"
            raise OutOfOrder(f"partition {self.number}: {detail}")

    def _arrived(self, seq: Seq) -> None:
        self.seen = seq
        self.high = max(self.high, seq)
        # A snapshot that broke off is whole only where it was to end, wherever the next one ends.
        self.running = max(self.running, self._announced)
        if seq >= self.running:
            self.complete = seq
        self._tell()

    # -- Masters change ------------------------------------------------------------------------

    def promote(self, term: int, id: FailoverId, is_takeover: bool) -> None:
        """It is the master from now on.  Unless it took over all there was, under the id of the
        one before, its history is another one from the last complete snapshot on (U3)."""
        self._check_undone()
        if id != self.log.newest:
            self.log = self.log.begin(id, self.complete)
        elif not is_takeover:
            raise UsedId(f"partition {self.number}: {id:016x} names the history before")
        elif not self.is_whole:
            detail = f"only {self.complete} is whole of what goes on to {self.high}"
            raise NotWhole(f"partition {self.number}: {detail}")
        self._lead(term)

    def set_state(self, state: PartitionState, term: int) -> None:
        """Anything but a promotion; ACTIVE again if it was the master and nothing came since."""
        if state is PartitionState.ACTIVE:
            self._check_undone()
            assert self.is_whole, "a replica becomes the master by promotion"
            self._lead(term)
        else:
            self._set_state(state, term)

    def _check_undone(self) -> None:
        if self.has_undo:
            to = "" if self.undo is None else f" to {self.undo}"
            raise UndoPending(f"partition {self.number}: its undo{to} is not over, or not on disk")

    def _lead(self, term: int) -> None:
        self.seen = self.complete = self.running = self.high  # Keeps I1, I2.
        self._set_state(PartitionState.ACTIVE, term)

    def _set_state(self, state: PartitionState, term: int) -> None:
        assert term >= self.term, "an order of an earlier term is for the caller to refuse"
        self.state = state
        self.term = term
        self._announced = NO_SEQ
        self._tell()

    # -- Rolling back --------------------------------------------------------------------------

    def undo_needed(self, start: Seq, log: FailoverLog) -> bool:
        """Whether something here is of a history that the master does not share from `start` on.

        Versions that an earlier undo fetched lie above what was streamed: they are the master's
        as long as it is the same one."""
        return self.seen > start or (self.high > start and log.newest != self.log.newest)

    def begin_undo(self, start: Seq) -> None:
        """The intent.  It is to be durable before anything is undone (U2)."""
        assert self.state is not PartitionState.ACTIVE, "a master is not rolled back"
        self.undo = start if self.undo is None else min(self.undo, start)
        self.seen = min(self.seen, start)
        if start <= self.complete:
            self.complete = self.running = start
        self.persisted = min(self.persisted, self.seen)
        self._announced = NO_SEQ
        self._fetched_high = NO_SEQ
        self._tell()

    def undo_documents(self, documents: Sequence[Document], missing: Sequence[bytes]) -> None:
        """Takes the master's versions with their seqs, and forgets what the master does not have.
        Doing so twice does nothing more.  All in one step, which `finish_undo` ends and tells."""
        assert self.undo is not None, "an undo begins with its intent"
        self._flushing.is_undoing = True
        # The disk forgets the keys first: other documents may stand at their seqs there.
        self._flushing.remove(document.key for document in documents)
        self._flushing.remove(missing)
        for document in documents:
            self.memory.overwrite(document)
            self._fetched_high = max(self._fetched_high, document.seq)
            self.last_cas = max(self.last_cas, document.cas)
        for key in missing:
            self.memory.forget(key)

    def wipe(self) -> None:
        """Forgets everything: what the master never had may have left no tombstone there."""
        assert self.undo == NO_SEQ, "only an undo to 0 wipes"
        self.memory.clear()
        self._flushing.wipe()
        self._flushing.is_undoing = False
        self._fetched_high = NO_SEQ
        self.high = self.purged = NO_SEQ
        self._tell()

    def finish_undo(self, log: FailoverLog, purged: Seq = NO_SEQ) -> None:
        """From now on it is of the master's history.  Also where there was nothing to undo.

        `purged` is the master's: deletions that it forgot will never come here either (U9)."""
        if self.undo is not None:
            self.high = max(self.seen, self._fetched_high)
        self.undo = None
        self._flushing.is_undoing = False
        self.log = log
        self.purged = max(self.purged, purged)
        self._tell()

    def purge(self, tombstones: Sequence[Document]) -> None:
        """These, which were just read from disk, are forgotten there by the next flush (U9)."""
        for tombstone in tombstones:
            if tombstone.key not in self.table:  # Else it lives again, or is deleted again.
                self._flushing.remove((tombstone.key,))
                self.purged = max(self.purged, tombstone.seq)
        self._tell()

    # -- Flushing ------------------------------------------------------------------------------

    def take_flush(self) -> Flush | None:
        """What is to be written now, one at a time.  None: all that may be on disk is there."""
        return self._flushing.take(self.row())

    def flushed(self, flush: Flush) -> None:
        """It is on disk.  What changed since stays queued."""
        self._flushing.succeeded(flush)
        self.disk_high = flush.row.high
        # An undo may have begun meanwhile: then less of it counts.
        self.persisted = max(self.persisted, min(flush.row.seen, self.seen))
        self._tell()

    def flush_failed(self, flush: Flush) -> None:
        """Nothing is lost: the next flush has it all again."""
        self._flushing.failed(flush)

    # -- Memory --------------------------------------------------------------------------------

    def evict(self, bytes_wanted: int) -> int:
        return self.memory.evict(bytes_wanted)

    def restore(self, document: Document) -> None:
        self.memory.restore(document)

    def load(self, documents: Sequence[Document], row: PartitionRow) -> None:
        """Warm-up: another batch of what is on disk, before anything changes."""
        assert not self.queue.count, "it is loaded before it is changed"
        self._take_row(row)
        self.memory.load(documents)
        self.last_cas = max([self.last_cas, *(document.cas for document in documents)])

    def _tell(self) -> None:
        for call in tuple(self.on_change):
            call()
