"""A server that holds partitions, and a disk which does what the store of documents promises.

It flushes when it is told to.  What was not flushed is gone after a crash.
"""

from collections.abc import Iterable, Sequence
from functools import partial

from millrace.core.documents.change_stream import view_of
from millrace.core.documents.document import Document, PartitionId, PartitionState, Seq
from millrace.core.documents.messages import Control, Open
from millrace.core.documents.partition import Flush, Partition
from millrace.core.documents.partition_row import PartitionRow
from millrace.core.documents.producer import Producer
from millrace.core.documents.snapshot_walk import MergedView
from millrace.scenario import document_words as dw


class PartitionDisk:
    """One partition.  A write is whole or not there."""

    def __init__(self) -> None:
        self.row = PartitionRow()
        self.documents: dict[bytes, Document] = {}

    @property
    def by_seq(self) -> list[Document]:
        return sorted(self.documents.values(), key=lambda document: document.seq)

    def write(self, flush: Flush) -> None:
        if flush.is_wipe:
            self.documents.clear()
        for key in flush.removed:
            self.documents.pop(key, None)
        for document in flush.snapshot:
            self.documents[document.key] = document
        self.row = flush.row

    def view(self) -> "DiskView":
        return DiskView(self.by_seq)


class DiskView:
    def __init__(self, documents: list[Document]) -> None:
        self._documents = documents

    def scan(self, after: Seq, last: Seq, count_max: int, bytes_max: int) -> list[Document]:
        found: list[Document] = []
        for document in self._documents:
            if after < document.seq <= last:
                if found and (len(found) >= count_max or bytes_max <= 0):
                    break
                found.append(document)
                bytes_max -= document.size
        return found

    def close(self) -> None:
        self._documents = []


class HeldView:
    """Its server knows how many are held."""

    def __init__(self, server: "DocumentServer", view: MergedView) -> None:
        self.last = view.last
        self.pinned_bytes = view.pinned_bytes
        self.is_from_disk = view.is_from_disk
        self.read = view.read
        self._server = server
        self._view = view

    def close(self) -> None:
        self._server.views_held -= 1
        self._view.close()


class DocumentServer:
    def __init__(self, name: str, numbers: Iterable[int]) -> None:
        self.name = name
        self.is_up = True
        self.partitions = {
            PartitionId(number): Partition(PartitionId(number)) for number in numbers
        }
        self.disks = {number: PartitionDisk() for number in self.partitions}
        self.views_held = 0

    # -- What a producer needs ----------------------------------------------------------------

    def partition(self, number: PartitionId) -> Partition | None:
        return self.partitions.get(number)

    def open_view(self, number: PartitionId, after: Seq) -> "HeldView":
        self.views_held += 1
        return HeldView(self, view_of(self.partitions[number], after, self.disks[number].view))

    def newest(self, number: PartitionId, keys: Sequence[bytes]) -> list[Document]:
        table, on_disk = self.partitions[number].table, self.disks[number].documents
        found = (table.get(key) or on_disk.get(key) for key in keys)
        return [document for document in found if document is not None]

    def open_producer(self, name: str, states: str, now_ms: int) -> Producer:
        """Of a new connection; it is told what changes."""
        producer = Producer(self, now_ms)
        producer.handle(Open(name), now_ms)
        producer.handle(Control("states", states), now_ms)
        for number, held in self.partitions.items():
            held.on_change.append(partial(producer.changed, number))
        return producer

    # -- Disk ---------------------------------------------------------------------------------

    def flush(self, number: PartitionId) -> str:
        """Says what was written."""
        flush = self.partitions[number].take_flush()
        if flush is None:
            return f"{self.name} has nothing to write"
        self.disks[number].write(flush)
        self.partitions[number].flushed(flush)
        return f"{self.name} writes {show_flush(flush)}"

    def crash(self) -> None:
        self.is_up = False

    def restart(self, term: int) -> None:
        """With what is on its disk, as somebody's replica."""
        self.is_up = True
        for number, disk in self.disks.items():
            live = [document for document in disk.by_seq if not document.is_deleted]
            self.partitions[number] = Partition(number)
            self.partitions[number].load(live, disk.row)
            self.partitions[number].set_state(PartitionState.REPLICA, term)

    # -- For people ---------------------------------------------------------------------------

    def show_state(self, number: PartitionId) -> str:
        disk = self.disks[number]
        on_disk = dw.show_seqs([document.seq for document in disk.by_seq])
        shown_disk = f"disk {on_disk} snapshot {disk.row.complete}"
        if not self.is_up:
            return f"{self.name} gone {shown_disk}"
        held = self.partitions[number]
        queued = dw.show_seqs([document.seq for document in held.queue.snapshot()])
        log = dw.show_log(held.log)
        return (
            f"{self.name} {held.state.value} log {log} {_place(held)} queue {queued} {shown_disk}"
        )


def show_flush(flush: Flush) -> str:
    parts = ["everything away"] if flush.is_wipe else []
    if flush.removed:
        parts.append(f"forgotten {dw.show_keys(flush.removed)}")
    stored = [document.seq for document in flush.snapshot]
    if stored:
        parts.append(dw.show_seqs(stored))
    return ", ".join(parts) or "its row alone"


def _place(held: Partition) -> str:
    if held.state is PartitionState.ACTIVE:
        return f"high {held.high}"
    shown = f"snapshot {held.complete} seen {held.seen}"
    shown += f" of {held.running}" if held.running > held.seen else ""
    shown += f" high {held.high}" if held.high > held.seen else ""
    return shown + (f" undo to {held.undo}" if held.undo is not None else "")
