"""Pages of the documents' file that are not what was written there: who lies there is damaged, and
nobody else."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct

import pytest

from millrace.core.documents.document import SEQ_MAX, PartitionId, Seq
from millrace.core.documents.map import BucketAttributes
from millrace.core.documents.partition import Partition
from millrace.limits import KIB, MIB
from millrace.server.partitions.bucket import BucketPartitions
from millrace.server.partitions.flusher import Flusher
from millrace.server.partitions.warming import warm_up
from millrace.store.directory import DATA_FILE
from millrace.store.documents.contract import CorruptDocument
from millrace.store.documents.layout import row_key
from tests.conformance.document_store_rig import (
    BUCKET,
    OTHER,
    PARTITION,
    UNBOUNDED,
    batch,
    doc,
    drop,
    row_at,
    scanned,
    tombstone,
    write,
)
from tests.store.documents_rig import LmdbDocumentRig
from tests.support.partition_nodes import CAFE, EPOCH_US, ONE, Node, World

MAP_BYTES = 64 * MIB
PAGE_BYTES = 4 * KIB
HEADER_BYTES = 16
BRANCH, LEAF = 0x01, 0x02  # Of the flags, which stand at byte 10 of a page.
U16 = Struct("<H")
MARK = b"of the page that is to be damaged"
COUNT = 400


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[LmdbDocumentRig]:
    opened = LmdbDocumentRig(tmp_path / "documents", MAP_BYTES)
    yield opened
    opened.store.close()


def value_at(at: int, mark_at: int) -> bytes:
    return MARK if at == mark_at else b"v" * 100


def fill(rig: LmdbDocumentRig, mark_at: int = COUNT // 2) -> None:
    """Two partitions; one document of PARTITION has the mark."""
    for partition in (PARTITION, OTHER):
        marked = mark_at if partition == PARTITION else -1
        documents = [doc(f"k{at:04}", at + 1, value_at(at, marked)) for at in range(COUNT)]
        assert write(rig, batch(*documents, partition=partition, row=row_at(COUNT))) is None


def damage_pages(rig: LmdbDocumentRig, mark: bytes = MARK) -> None:
    """Whatever leads to a leaf that has the mark leads nowhere."""
    rig.store.close()
    path = rig.path / DATA_FILE
    data = bytearray(path.read_bytes())
    starts = range(2 * PAGE_BYTES, len(data), PAGE_BYTES)
    leaves = {
        start // PAGE_BYTES
        for start in starts
        if data[start + 10] & LEAF and mark in data[start : start + PAGE_BYTES]
    }
    hit = 0
    for start in starts:
        for node in branch_nodes(data, start):
            low, high = U16.unpack_from(data, node)[0], U16.unpack_from(data, node + 2)[0]
            if low | high << 16 in leaves:
                U16.pack_into(data, node + 2, 0xFFFF)
                hit += 1
    assert hit
    path.write_bytes(data)
    rig.store = rig.open()


def branch_nodes(data: bytearray, start: int) -> list[int]:
    """Where the entries of a page begin, each with a page number."""
    if data[start + 10] != BRANCH:
        return []
    (end,) = U16.unpack_from(data, start + 12)
    return [start + U16.unpack_from(data, start + at)[0] for at in range(HEADER_BYTES, end, 2)]


def test_what_lies_on_a_damaged_page_is_a_damaged_document(rig: LmdbDocumentRig) -> None:
    fill(rig)
    damage_pages(rig)
    store = rig.store
    with pytest.raises(CorruptDocument, match="page"):
        store.get(BUCKET, PARTITION, f"k{COUNT // 2:04}".encode())
    assert store.get(BUCKET, PARTITION, b"k0000") is not None
    for with_values in (True, False):
        before = store.load(BUCKET, PARTITION, Seq(0), 10 * COUNT, with_values)
        assert 0 < len(before) < COUNT // 2
        with pytest.raises(CorruptDocument, match="page"):
            store.load(BUCKET, PARTITION, before[-1].seq, 10 * COUNT, with_values)
    assert len(scanned(rig, OTHER)) == COUNT


def test_a_view_ends_before_a_damaged_page_and_says_so_as_often_as_it_is_asked(
    rig: LmdbDocumentRig,
) -> None:
    fill(rig)
    damage_pages(rig)
    view = rig.store.view(BUCKET, PARTITION)
    found = view.scan(Seq(0), SEQ_MAX, UNBOUNDED, UNBOUNDED)
    assert 0 < len(found) < COUNT // 2
    for _ in range(2):
        with pytest.raises(CorruptDocument):
            view.scan(found[-1].seq, SEQ_MAX, UNBOUNDED, UNBOUNDED)
    view.close()


def test_a_damaged_page_isolates_one_partition_and_the_others_are_loaded(
    rig: LmdbDocumentRig,
) -> None:
    """The node was never warm, and looked healthy: nobody took over."""
    fill(rig)
    damage_pages(rig)
    around = Node(World(), ONE).around
    flusher = Flusher(rig.store, around.later)
    bucket = BucketPartitions(BUCKET, "b", BucketAttributes(), rig.store, flusher, around)
    assert asyncio.run(warm_up(bucket, rig.store)) >= COUNT
    assert bucket.is_warm
    assert bucket.held.keys() == {OTHER}
    assert len(bucket.held[OTHER].partition.table) == COUNT


def test_damaged_tombstones_are_told_as_such(rig: LmdbDocumentRig) -> None:
    tombstones = [tombstone(f"gone{at:04}", at + 1) for at in range(COUNT)]
    write(rig, batch(*tombstones, row=row_at(COUNT)))
    damage_pages(rig, b"gone0000")
    with pytest.raises(CorruptDocument):
        rig.store.tombstones(BUCKET, PARTITION, 10**9, 10)


def test_a_partition_on_a_damaged_page_is_dropped_and_made_anew(rig: LmdbDocumentRig) -> None:
    """Its remains stay where they are; the store goes on."""
    fill(rig)
    damage_pages(rig)
    assert drop(rig) is None
    assert write(rig, batch(doc("new", 1), partition=PartitionId(9))) is None
    rig.run_until(lambda: rig.calls.empty())
    assert write(rig, batch(doc("again", 1))) is None
    assert len(scanned(rig)) == 1
    assert rig.store.failure is None


def test_a_row_that_is_damaged_while_it_is_in_use_keeps_no_other_partition_from_the_disk(
    rig: LmdbDocumentRig,
) -> None:
    fill(rig)
    rows = rig.store.rows(BUCKET)
    with rig.tampering() as (transaction, tables):
        key = row_key(BUCKET, PARTITION)
        record = transaction.get(key, b"", db=tables.rows)
        transaction.put(key, record[:-1] + bytes([record[-1] ^ 1]), db=tables.rows)

    def later(delay_ms: int, call: Callable[[], None]) -> None:
        if not delay_ms:
            rig.calls.put(call)

    flusher = Flusher(rig.store, later)
    partitions = [Partition(number, rows[number]) for number in (PARTITION, OTHER)]
    for partition in partitions:
        partition.promote(2, CAFE, is_takeover=False)
        partition.store(b"new", b"v", 0, 0, EPOCH_US)
        flusher.touch(BUCKET, partition)
    rig.run_until(lambda: bool(flusher.damaged))
    assert flusher.damaged.keys() == {(BUCKET, PARTITION)}
    assert rig.store.failure is None
    for at in range(3):
        last = partitions[1].store(b"%d" % at, b"v", 0, 0, EPOCH_US)
        flusher.touch(BUCKET, partitions[1])
        rig.run_until(lambda: partitions[1].queue.count == 0)
        assert partitions[1].persisted == last.seq
