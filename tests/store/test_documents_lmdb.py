"""What is LMDB's own about the store of documents: its thread, its tables, its folder."""

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from millrace.core.documents.document import Document, PartitionId, Seq
from millrace.core.messages import Refusal
from millrace.errors import CorruptStore, WrongDataDirectory
from millrace.limits import KIB, MIB
from millrace.store.contract import StoreFailed
from millrace.store.directory import DATA_FILE
from millrace.store.documents.contract import CorruptDocument, PartitionBatch
from millrace.store.documents.directory import FORMAT_KEY
from millrace.store.documents.layout import SLOT_BYTES, find_slot, row_key, slot_prefix
from millrace.store.documents.lmdb_documents import open_documents
from tests.conformance.document_store_rig import (
    BUCKET,
    OTHER,
    PARTITION,
    UNBOUNDED,
    batch,
    doc,
    drop,
    names,
    row_at,
    scanned,
    tombstone,
    write,
)
from tests.store.documents_rig import WAIT_S, LmdbDocumentRig
from tests.store.rig import REPOSITORY

MAP_BYTES = 64 * MIB
THIRD = PartitionId(7)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[LmdbDocumentRig]:
    opened = LmdbDocumentRig(tmp_path / "documents", MAP_BYTES)
    yield opened
    opened.store.close()


def with_documents(documents: Iterable[Document], high: int) -> PartitionBatch:
    return PartitionBatch(BUCKET, PARTITION, row_at(high), documents)


class Gate:
    """Documents that keep the writer's thread waiting until it is opened."""

    def __init__(self) -> None:
        self._opened = threading.Event()

    def __iter__(self) -> Iterator[Document]:
        assert self._opened.wait(WAIT_S)
        yield doc("gate", 1)

    def open(self) -> None:
        self._opened.set()


class Broken:
    """Documents that cannot be gone through."""

    def __iter__(self) -> Iterator[Document]:
        raise OSError("the queue is broken")


# -- The thread ---------------------------------------------------------------------------------


def test_writes_that_wait_together_share_a_transaction(rig: LmdbDocumentRig) -> None:
    gate, answers = Gate(), list[StoreFailed | None]()
    rig.store.write([with_documents(gate, 1)], answers.append)
    for at in range(50):
        rig.store.write([batch(doc(f"k{at}", at + 2))], answers.append)
    gate.open()
    rig.run_until(lambda: len(answers) == 51)
    assert answers == [None] * 51
    assert rig.store.commits <= 2
    assert len(scanned(rig)) == 51


def test_a_write_that_fails_takes_along_only_what_rests_on_it(rig: LmdbDocumentRig) -> None:
    """All are in one transaction, which is done again write by write."""
    write(rig, batch(doc("a", 1)))
    damage_row(rig)
    gate, answers = Gate(), list[StoreFailed | None]()
    for one in (
        [PartitionBatch(BUCKET, OTHER, row_at(1), gate)],
        [batch(doc("b", 2)), batch(doc("b", 2), partition=THIRD)],
        [batch(doc("c", 3), partition=THIRD)],
        [batch(doc("d", 4), partition=OTHER)],
    ):
        rig.store.write(one, answers.append)
    gate.open()
    rig.run_until(lambda: len(answers) == 4)
    waited, damaged, behind, beside = answers
    assert (waited, beside) == (None, None)
    assert damaged is not None
    assert "row of partition 5 of bucket 3 is damaged" in damaged.detail
    assert behind == damaged
    assert rig.store.failure is None
    assert scanned(rig, THIRD) == []
    assert names(scanned(rig, OTHER)) == [("gate", 1), ("d", 4)]


def test_a_key_that_cannot_be_filed_fails_its_own_write_alone(rig: LmdbDocumentRig) -> None:
    """One of 600 bytes ended the store until a restart, for all buckets."""
    gate, answers = Gate(), list[StoreFailed | None]()
    for one in (
        PartitionBatch(BUCKET, OTHER, row_at(1), gate),
        batch(doc("k" * 600, 1)),
        batch(doc("a", 1), partition=THIRD),
    ):
        rig.store.write([one], answers.append)
    gate.open()
    rig.run_until(lambda: len(answers) == 3)
    assert [failure is None for failure in answers] == [True, False, True]
    assert rig.store.failure is None
    assert write(rig, batch(doc("a", 1))) is None


def test_an_unforeseen_error_ends_writing_and_everybody_is_told(rig: LmdbDocumentRig) -> None:
    write(rig, batch(doc("a", 1)))
    failures = [
        write(rig, with_documents(Broken(), 2)),
        write(rig, batch(doc("b", 3), partition=OTHER)),
        drop(rig),
    ]
    assert {failure.reason for failure in failures if failure} == {Refusal.UNAVAILABLE}
    assert None not in failures
    assert rig.store.failure is not None
    assert "OSError: the queue is broken" in rig.store.failure.detail
    assert names(scanned(rig)) == [("a", 1)]
    rig.reopen()
    assert write(rig, batch(doc("b", 2))) is None


def test_closing_tells_even_if_the_loop_is_closed(tmp_path: Path) -> None:
    def refuse(call: object) -> None:
        raise RuntimeError("Event loop is closed")

    store = open_documents(tmp_path / "documents", refuse, MAP_BYTES)
    answers: list[StoreFailed | None] = []
    store.write([batch(doc("a", 1))], answers.append)
    store.close()
    assert answers == [None]


def test_a_view_may_be_closed_after_its_store(rig: LmdbDocumentRig) -> None:
    write(rig, batch(doc("a", 1)))
    view = rig.store.view(BUCKET, PARTITION)
    rig.store.close()
    view.close()


# -- The tables ---------------------------------------------------------------------------------


def entries(rig: LmdbDocumentRig) -> dict[str, int]:
    """How many there are in each table."""
    tables = rig.store.folder.tables
    with rig.store.folder.environment.begin() as transaction:
        return {name: transaction.stat(getattr(tables, name))["entries"] for name in tables._fields}


def settle_reclaiming(rig: LmdbDocumentRig) -> None:
    """Each write deletes a portion of what is doomed."""
    answers = (write(rig, batch(partition=OTHER)) for _ in range(1_000))
    assert any(answer is None and not entries(rig)["doomed"] for answer in answers)


@pytest.mark.parametrize("is_crashed", [False, True], ids=["running", "after a crash"])
@pytest.mark.parametrize("is_wiped", [False, True], ids=["dropped", "wiped"])
def test_nothing_of_a_partition_that_is_gone_stays_on_disk(
    rig: LmdbDocumentRig, is_wiped: bool, is_crashed: bool
) -> None:
    count = 10_000  # More than one portion.
    live = [doc(f"k{at}", at + 1) for at in range(count)]
    dead = [tombstone(f"t{at}", count + at) for at in range(100)]
    write(rig, batch(*live, *dead), batch(doc("a", 1), partition=OTHER))
    assert (write(rig, batch(is_wipe=True)) if is_wiped else drop(rig)) is None
    if is_crashed:
        rig.crash()
    settle_reclaiming(rig)
    held = entries(rig)
    assert (held["keys"], held["seqs"], held["tombstones"]) == (1, 1, 0)
    assert names(scanned(rig, OTHER)) == [("a", 1)]


def test_updates_and_removals_leave_nothing_behind(rig: LmdbDocumentRig) -> None:
    write(rig, batch(doc("a", 1), tombstone("b", 2), doc("c", 3)))
    write(rig, batch(doc("a", 4), doc("b", 5), tombstone("c", 6)))
    write(rig, batch(removed=[b"b"], purged=[tombstone("c", 6)]))
    held = entries(rig)
    assert (held["keys"], held["seqs"], held["tombstones"]) == (1, 1, 0)


def damage_row(rig: LmdbDocumentRig) -> None:
    with rig.tampering() as (transaction, tables):
        key = row_key(BUCKET, PARTITION)
        record = transaction.get(key, b"", db=tables.rows)
        transaction.put(key, b"\xff" * SLOT_BYTES + record[SLOT_BYTES:], db=tables.rows)


def test_a_damaged_row_is_reported_and_dropping_heals_it(rig: LmdbDocumentRig) -> None:
    write(rig, batch(doc("z", 1), partition=OTHER), batch(doc("a", 1)))
    damage_row(rig)
    assert rig.store.damaged(BUCKET) == [PARTITION]
    assert rig.store.rows(BUCKET).keys() == {OTHER}
    with pytest.raises(CorruptDocument, match="partition 5 of bucket 3"):
        rig.store.get(BUCKET, PARTITION, b"a")
    with pytest.raises(CorruptDocument):
        rig.store.view(BUCKET, PARTITION)
    assert drop(rig) is None
    assert rig.store.damaged(BUCKET) == []
    write(rig, batch(doc("b", 2)))
    assert names(scanned(rig)) == [("b", 2)]
    assert names(scanned(rig, OTHER)) == [("z", 1)]


def test_a_key_that_leads_nowhere_is_reported(rig: LmdbDocumentRig) -> None:
    write(rig, batch(doc("a", 1)))
    with rig.tampering() as (transaction, tables):
        slot = find_slot(transaction, tables, BUCKET, PARTITION)
        transaction.put(slot_prefix(slot) + b"a", bytes(9), db=tables.keys)
    with pytest.raises(CorruptDocument, match="is not there"):
        rig.store.get(BUCKET, PARTITION, b"a")


def test_metadata_are_loaded_without_looking_at_values(rig: LmdbDocumentRig) -> None:
    write(rig, batch(doc("a", 1, b"v" * 9_000), doc("b", 2)))
    rig.damage(b"a")
    loaded = rig.store.load(BUCKET, PARTITION, Seq(0), UNBOUNDED, False)
    assert [(one.key, one.value) for one in loaded] == [(b"a", None), (b"b", None)]


@pytest.mark.parametrize("at", [0, 12, 25, 29], ids=["cas", "flags", "value's checksum", "own"])
def test_damaged_metadata_are_not_loaded(rig: LmdbDocumentRig, at: int) -> None:
    write(rig, batch(doc("a", 1)))
    with rig.tampering() as (transaction, tables):
        with transaction.cursor(db=tables.seqs) as cursor:
            assert cursor.first()
            place, record = cursor.item()
        damaged = record[:at] + bytes([record[at] ^ 0x40]) + record[at + 1 :]
        transaction.put(place, damaged, db=tables.seqs)
    with pytest.raises(CorruptDocument, match="metadata of document b'a' at seq 1"):
        rig.store.load(BUCKET, PARTITION, Seq(0), UNBOUNDED, False)


# -- The folder ---------------------------------------------------------------------------------


def test_a_newer_format_is_refused(rig: LmdbDocumentRig) -> None:
    with (
        pytest.raises(WrongDataDirectory, match="format 99"),
        rig.tampering() as (transaction, tables),
    ):
        transaction.put(FORMAT_KEY, b"99", db=tables.identity)


def test_a_file_that_is_cut_short_is_refused(rig: LmdbDocumentRig) -> None:
    write(rig, batch(doc("a", 1, b"v" * MIB)))
    rig.store.close()
    os.truncate(rig.path / DATA_FILE, 64 * KIB)
    with pytest.raises(CorruptStore, match="cut short"):
        rig.open()


def test_a_folder_that_was_being_made_is_made_anew(tmp_path: Path) -> None:
    draft = tmp_path / "documents.new"
    draft.mkdir()
    (draft / DATA_FILE).write_bytes(b"half")
    calls: queue.SimpleQueue[object] = queue.SimpleQueue()
    store = open_documents(tmp_path / "documents", calls.put, MAP_BYTES)
    assert store.buckets() == []
    store.close()
    assert not draft.exists()


# -- A disk that really refuses -----------------------------------------------------------------

LIMITED_CHILD = """
import resource, sys
from pathlib import Path
from tests.store import test_documents_lmdb
resource.setrlimit(resource.RLIMIT_FSIZE, (24 << 20, 24 << 20))
test_documents_lmdb.fill_and_wipe(Path(sys.argv[1]))
print("survived")
"""


def fill_and_wipe(path: Path) -> None:
    """Fill the disk three times over, with a map that is far larger."""
    rig = LmdbDocumentRig(path / "documents", MAP_BYTES)
    for _ in range(3):
        seq = 1
        while (failure := write(rig, batch(doc(f"k{seq}", seq, b"v" * 300 * KIB)))) is None:
            seq += 1
        assert failure.reason is Refusal.DISK_FULL, failure
        assert rig.store.failure is None
        assert rig.store.usage().is_full
        assert seq > 40
        assert len(scanned(rig)) == seq - 1
        assert write(rig, batch(row=row_at(seq, term=2))) is None
        assert write(rig, batch(is_wipe=True)) is None
        settle_reclaiming(rig)
    rig.store.close()


def test_a_file_size_limit(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIMITED_CHILD, os.fspath(tmp_path)]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, cwd=REPOSITORY
    )
    assert result.stdout == "survived\n", result.stderr
