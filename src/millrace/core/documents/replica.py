"""A replica as the consumer of its master's stream: its partition is what it keeps (R-G, R-N).

It needs no ring buffer: the documents by seq, in the write queue and on disk, say what changed
above a seq.  Before it undoes them it offers its own versions to the master, who takes those that
it did not change since (U7); what was taken comes back in the stream, with new seqs.

  I1  No key gets an older version than an undo has fetched, be it a tombstone on disk alone.  A
      stream may show an older version before the current one (`snapshot_walk.py`): if it broke off
      between them and the replica were promoted, memory and disk would tell two stories.
"""

from collections.abc import Sequence
from typing import Final

from millrace.core.documents.backing import Offset
from millrace.core.documents.change_stream import ChangeSource
from millrace.core.documents.consumer_effects import BackingEffect
from millrace.core.documents.document import NO_SEQ, Document, Seq
from millrace.core.documents.failover_log import FailoverLog
from millrace.core.documents.messages import SeqAck
from millrace.core.documents.partition import Partition
from millrace.core.documents.rollback import Place
from millrace.core.documents.undoing import UNDO_KEYS_MAX

READ_BYTES_MAX: Final = 1 << 20


class ReplicaBacking:
    def __init__(self, partition: Partition, source: ChangeSource) -> None:
        """`source` is the replica's own node."""
        self.partition = partition
        self._source = source

    @property
    def place(self) -> Place:
        return self.partition.place

    @property
    def offset(self) -> Offset:
        partition = self.partition
        if partition.seen <= partition.complete:
            return Offset(partition.seen, partition.seen, partition.seen)
        last = max(partition.running, partition.seen)
        return Offset(partition.seen, partition.complete, Seq(last))

    @property
    def undo(self) -> Seq | None:
        return self.partition.undo

    def undo_needed(self, start: Seq, log: FailoverLog) -> bool:
        return self.partition.undo_needed(start, log)

    def keys_above(self, start: Seq) -> list[bytes] | None:
        """From a view of its own, which shows all it has, whole or not.  A deletion whose tombstone
        was purged here left no trace: below that not everything is known."""
        if start < self.partition.purged:
            return None
        view = self._source.open_view(self.partition.number, start)
        keys: dict[bytes, None] = {}
        after = start
        while documents := view.read(after, READ_BYTES_MAX):
            keys.update((document.key, None) for document in documents)
            after = documents[-1].seq
            if len(keys) > UNDO_KEYS_MAX:
                break
        view.close()
        return None if len(keys) > UNDO_KEYS_MAX else list(keys)

    def offers(self, keys: Sequence[bytes], start: Seq) -> list[Document]:
        found = self._source.newest(self.partition.number, keys)
        return [document for document in found if document.seq > start]

    def begin_undo(self, start: Seq) -> None:
        self.partition.begin_undo(start)

    def undo_documents(
        self, documents: Sequence[Document], missing: Sequence[bytes]
    ) -> list[BackingEffect]:
        self.partition.undo_documents(documents, missing)
        return []

    def wipe(self) -> list[BackingEffect]:
        self.partition.wipe()
        return []

    def finish_undo(self, log: FailoverLog, purged: Seq) -> None:
        self.partition.finish_undo(log, purged)

    def is_blind_to(self, purged: Seq) -> bool:
        return self.partition.seen < purged and self.partition.purged < purged

    def begin_at(self, seq: Seq) -> None:
        raise AssertionError("a replica wants everything")

    def begin_snapshot(self, first: Seq, last: Seq) -> None:
        self.partition.begin_snapshot(first, last)

    def apply(self, documents: Sequence[Document]) -> list[BackingEffect]:
        partition = self.partition
        if partition.high <= partition.seen or not documents:
            partition.apply(documents)
            return []
        # An undo has fetched versions that lie ahead.  Keeps I1.
        unknown = [document.key for document in documents if document.key not in partition.table]
        ahead = {held.key: held.seq for held in self._source.newest(partition.number, unknown)}
        known = [one for one in documents if ahead.get(one.key, NO_SEQ) <= one.seq]
        partition.apply(known)
        partition.advance(documents[-1].seq)
        return []

    def advance(self, seq: Seq) -> list[BackingEffect]:
        self.partition.advance(seq)
        return []


def ack_of(partition: Partition) -> SeqAck:
    """What the replica tells its master whenever it has more (R-H.7)."""
    id = partition.log.newest
    return SeqAck(partition.number, id, partition.complete, partition.persisted_complete)
