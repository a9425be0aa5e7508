"""One partition's stream on a connection: where it stands, and the view it is read from.

A snapshot runs from its marker to its last seq.  The view behind it may be let go of before that
(it is too old, or pins too much): then the next one extends the snapshot, whose changes are whole
only at the new last seq.

  I1  What was sent is all of (where it began, `sent`], as of one of the views since.
  I2  It ends when what it stands on is gone: another partition object, a state nobody asked for, a
      history under another failover id, an undo, or deletions that were forgotten meanwhile.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from millrace.core.documents.document import (
    NO_SEQ,
    SEQ_MAX,
    Document,
    PartitionId,
    PartitionState,
    Seq,
)
from millrace.core.documents.messages import (
    EndReason,
    MarkerFlag,
    SnapshotMarker,
    StreamFlag,
)
from millrace.core.documents.partition import Partition
from millrace.core.documents.snapshot_walk import DiskDocuments, MergedView, View
from millrace.core.documents.stream_rules import Accepted, viewable

VIEW_MS_MAX: Final = (
    10_000  # A view keeps the disk from reusing pages, and memory from being freed.
)
VIEW_BYTES_MAX: Final = 32 << 20


class ChangeSource(Protocol):
    """What a producer needs of its node."""

    def partition(self, number: PartitionId) -> Partition | None: ...

    def open_view(self, number: PartitionId, after: Seq) -> View:
        """Of all that it holds above `after` (`view_of`)."""
        ...

    def newest(self, number: PartitionId, keys: Sequence[bytes]) -> list[Document]:
        """From memory or disk, tombstones included, with their values; missing ones left out."""
        ...


def view_of(partition: Partition, after: Seq, open_disk: Callable[[], DiskDocuments]) -> MergedView:
    """The queue's root first, then the disk, unless nothing there lies above `after`."""
    root = partition.queue.snapshot()
    disk = open_disk() if after < partition.disk_high else None
    return MergedView(root, disk, partition.high)


class ChangeStream:
    def __init__(
        self,
        source: ChangeSource,
        partition: Partition,
        accepted: Accepted,
        flags: StreamFlag,
        states: frozenset[PartitionState],
        prefix: bytes,
    ) -> None:
        self.number = partition.number
        self.partition = partition
        self.sent = accepted.start
        self.end = accepted.end
        self.first = self.last = accepted.start  # Of the snapshot; it runs while sent < last.
        self.view: View | None = None
        self.documents_sent = 0
        self._source = source
        self._flags = flags
        self._id = partition.log.newest
        self._states = states
        self._prefix = prefix
        self._doom: EndReason | None = None
        self._opened_ms = 0
        self._persisted = NO_SEQ  # When the view was opened.
        self._purged = partition.purged  # What was forgotten before it began is not missed.
        self._convert = self._converter()

    # -- Whether it goes on -------------------------------------------------------------------

    def notice(self) -> None:
        """Something changed.  An undo may be over before anybody looks again: keeps I2."""
        if self.partition.undo is not None:
            self._doom = EndReason.ROLLBACK

    def end_reason(self) -> EndReason | None:
        """Why it is over, None while it is not.  Keeps I2."""
        partition = self.partition
        if self._doom is not None:
            return self._doom
        if partition.undo is not None:
            return EndReason.ROLLBACK
        is_same = self._source.partition(self.number) is partition
        if not is_same or partition.state not in self._states or partition.log.newest != self._id:
            return EndReason.STATE_CHANGED
        has_forgotten = partition.purged > max(self._purged, self.sent)
        if self.view is None and has_forgotten:
            return EndReason.ROLLBACK
        return EndReason.OK if self._is_complete() else None

    def _is_complete(self) -> bool:
        if self.sent < self.last:
            return False
        if self._flags & StreamFlag.TAKEOVER and self.partition.state is PartitionState.DEAD:
            last = viewable(self.partition)
            return last is not None and self.sent >= last
        return self.end < SEQ_MAX and self.sent >= self.end

    @property
    def has_news(self) -> bool:
        """Whether there is anything to send that may be looked at now."""
        last = viewable(self.partition)
        return last is not None and (last > self.sent or self.sent < self.last)

    # -- Views --------------------------------------------------------------------------------

    def open(self, now_ms: int) -> SnapshotMarker | None:
        """Takes a view, and says what it shows unless the consumer knows already."""
        view = self._source.open_view(self.number, self.sent)
        self.view, self._opened_ms, self._persisted = view, now_ms, self.partition.persisted
        if view.last == self.last and self.sent < self.last:
            return None
        if self.sent >= self.last:
            self.first = self.sent
        self.last = view.last
        flag = MarkerFlag.DISK if view.is_from_disk else MarkerFlag.MEMORY
        return SnapshotMarker(self.number, self.first, self.last, flag)

    def close(self) -> None:
        if self.view is not None:
            self.view.close()
            self.view = None

    def close_if_old(self, now_ms: int) -> None:
        """What pins much is taken anew as soon as a flush makes that worth while."""
        if self.view is None:
            return
        is_large = self.view.pinned_bytes > VIEW_BYTES_MAX
        is_flushed = self.partition.persisted > self._persisted
        if now_ms >= self._opened_ms + VIEW_MS_MAX or (is_large and is_flushed):
            self.close()

    @property
    def view_until_ms(self) -> int | None:
        return None if self.view is None else self._opened_ms + VIEW_MS_MAX

    def read(self, bytes_max: int) -> list[Document] | None:
        """What is to be sent next; None: the snapshot is over."""
        assert self.view is not None
        documents = self.view.read(self.sent, bytes_max)
        if not documents:
            return None
        self.sent = documents[-1].seq
        if self._convert is not None:
            documents = self._convert(documents)
        self.documents_sent += len(documents)
        return documents

    def _converter(self) -> Callable[[list[Document]], list[Document]] | None:
        prefix = self._prefix
        is_keys_only = bool(self._flags & StreamFlag.KEYS_ONLY)
        if not prefix and not is_keys_only:
            return None

        def convert(documents: list[Document]) -> list[Document]:
            if prefix:
                documents = [found for found in documents if found.key.startswith(prefix)]
            return [without_value(found) for found in documents] if is_keys_only else documents

        return convert


def without_value(document: Document) -> Document:
    return Document(
        document.key,
        b"",
        document.seq,
        document.cas,
        document.flags,
        document.expiry_s,
        document.kind,
        document.datatype,
    )
