"""What becomes of documents when the process dies, the disk is full, or bytes change on it."""

import pytest

from millrace.core.documents.document import SEQ_MAX, Document, Seq
from millrace.core.messages import Refusal
from millrace.limits import KIB
from millrace.store.contract import StoreFailed
from millrace.store.documents.contract import CorruptDocument
from tests.conformance.document_store_rig import (
    BUCKET,
    OTHER,
    PARTITION,
    ROOM_BYTES,
    SMALL_ROOM_BYTES,
    UNBOUNDED,
    DocumentRig,
    OpenDocumentRig,
    batch,
    doc,
    drop,
    names,
    row_at,
    scanned,
    tombstone,
    write,
)

LARGE = b"v" * (400 * KIB)
SMALL = b"v" * (2 * KIB)
TOO_LARGE = b"v" * SMALL_ROOM_BYTES


def fill(rig: DocumentRig, value: bytes = LARGE, after: int = 0) -> list[Document]:
    """Write until no more of such values fit; what was taken."""
    taken: list[Document] = []
    while True:
        seq = after + len(taken) + 1
        document = doc(f"k{seq}", seq, value)
        failure = write(rig, batch(document))
        if failure is not None:
            assert failure.reason is Refusal.DISK_FULL
            return taken
        taken.append(document)
        assert len(taken) < 1_000, "it never gets full"


class DocumentStoreFailuresSuite:
    @pytest.fixture
    def rig(self, open_rig: OpenDocumentRig) -> DocumentRig:
        return open_rig(ROOM_BYTES)

    @pytest.fixture
    def small_rig(self, open_rig: OpenDocumentRig) -> DocumentRig:
        return open_rig(SMALL_ROOM_BYTES)

    # -- Crashes --------------------------------------------------------------------------------

    def test_a_crash_keeps_what_was_acknowledged(self, rig: DocumentRig) -> None:
        write(rig, batch(doc("a", 1), row=row_at(1)))
        write(rig, batch(doc("b", 2), row=row_at(2)), batch(doc("z", 1), partition=OTHER))
        rig.crash()
        assert names(scanned(rig)) == [("a", 1), ("b", 2)]
        assert names(scanned(rig, OTHER)) == [("z", 1)]
        assert rig.store.rows(BUCKET)[PARTITION] == row_at(2)

    def test_a_crash_leaves_a_beginning_of_the_writes_each_whole(self, rig: DocumentRig) -> None:
        told: list[StoreFailed | None] = []
        for at in range(1, 21):
            first = batch(doc("a", 2 * at - 1), doc("b", 2 * at), row=row_at(2 * at))
            rig.store.write([first, batch(doc("z", at), partition=OTHER)], told.append)
        rig.run_until(lambda: bool(told))
        rig.crash()
        kept = rig.store.rows(BUCKET)[PARTITION].high // 2
        assert len(told) <= kept <= 20
        assert names(scanned(rig)) == [("a", 2 * kept - 1), ("b", 2 * kept)]
        assert names(scanned(rig, OTHER)) == [("z", kept)]

    # -- A full disk ----------------------------------------------------------------------------

    def test_a_full_disk_refuses_documents_and_changes_nothing(
        self, small_rig: DocumentRig
    ) -> None:
        rig = small_rig
        taken = fill(rig)
        assert rig.store.usage().is_full
        assert scanned(rig) == taken
        assert rig.store.rows(BUCKET)[PARTITION] == row_at(len(taken))
        rig.reopen()
        assert scanned(rig) == taken

    def test_a_full_disk_takes_rows_deletions_and_whatever_makes_room(
        self, small_rig: DocumentRig
    ) -> None:
        rig = small_rig
        count = len(fill(rig))
        assert write(rig, batch(row=row_at(count, term=2))) is None
        assert rig.store.rows(BUCKET)[PARTITION].term == 2
        assert write(rig, batch(tombstone("k1", count + 1))) is None
        assert write(rig, batch(removed=[b"k2", b"k3", b"k4"])) is None
        assert write(rig, batch(doc("again", count + 2, LARGE))) is None
        assert not rig.store.usage().is_full
        fill_again = batch(*[doc(f"more{at}", at, LARGE) for at in range(10)])
        assert write(rig, fill_again) is not None
        assert write(rig, batch(is_wipe=True)) is None
        assert scanned(rig) == []

    def test_deletions_find_room_longer_than_mutations_do(self, small_rig: DocumentRig) -> None:
        count = len(fill(small_rig))
        count += len(fill(small_rig, SMALL, count))
        for at in range(50):
            assert write(small_rig, batch(tombstone(f"gone{at}", count + at))) is None
        assert len(small_rig.store.tombstones(BUCKET, PARTITION, 10**9, 100)) == 50

    def test_dropping_makes_room_by_and_by(self, small_rig: DocumentRig) -> None:
        taken = fill(small_rig)
        assert drop(small_rig) is None
        writes = (write(small_rig, batch(*taken, partition=OTHER)) for _ in range(100))
        assert None in writes
        assert scanned(small_rig, OTHER) == taken

    def test_what_rests_on_a_failed_write_fails_with_it(self, small_rig: DocumentRig) -> None:
        """The row behind it would speak of documents that are not there."""
        store, answers = small_rig.store, list[tuple[str, bool]]()
        writes = {
            "too large": batch(doc("a", 1, TOO_LARGE)),
            "same partition": batch(row=row_at(1)),
            "another": batch(doc("b", 1), partition=OTHER),
        }
        for name, one in writes.items():
            store.write([one], lambda failure, name=name: answers.append((name, failure is None)))  # type: ignore[misc]
        small_rig.run_until(lambda: len(answers) == 3)
        assert answers == [("too large", False), ("same partition", False), ("another", True)]
        assert store.rows(BUCKET).keys() == {OTHER}
        assert write(small_rig, batch(row=row_at(0))) is None

    def test_what_is_queued_when_a_failure_is_told_waits_for_all_before_it(
        self, small_rig: DocumentRig
    ) -> None:
        """Two writes fail.  Whoever hears of the first, and writes again, is still behind the
        second."""
        store, answers = small_rig.store, list[tuple[str, bool]]()

        def again(failure: StoreFailed | None) -> None:
            answers.append(("first", failure is None))
            store.write([batch(row=row_at(3))], lambda one: answers.append(("again", one is None)))

        store.write([batch(doc("a", 1, TOO_LARGE))], again)
        store.write([batch(row=row_at(2))], lambda one: answers.append(("second", one is None)))
        small_rig.run_until(lambda: len(answers) == 3)
        assert answers == [("first", False), ("second", False), ("again", False)]
        assert write(small_rig, batch(row=row_at(4))) is None
        assert store.rows(BUCKET) == {PARTITION: row_at(4)}

    # -- Damage ---------------------------------------------------------------------------------

    def test_a_damaged_document_is_never_served(self, rig: DocumentRig) -> None:
        write(rig, batch(*[doc(f"k{seq}", seq, b"value" * 9) for seq in (1, 2, 3, 4)]))
        rig.damage(b"k3")
        with pytest.raises(CorruptDocument, match="k3"):
            rig.store.get(BUCKET, PARTITION, b"k3")
        with pytest.raises(CorruptDocument, match="k3"):
            rig.store.get_many(BUCKET, PARTITION, [b"k1", b"k3"])
        with pytest.raises(CorruptDocument, match="k3"):
            rig.store.load(BUCKET, PARTITION, Seq(2), 9, True)
        view = rig.store.view(BUCKET, PARTITION)
        assert names(view.scan(Seq(0), SEQ_MAX, 9, UNBOUNDED)) == [("k1", 1), ("k2", 2)]
        with pytest.raises(CorruptDocument, match="k3"):
            view.scan(Seq(2), SEQ_MAX, 9, UNBOUNDED)
        assert names(view.scan(Seq(3), SEQ_MAX, 9, UNBOUNDED)) == [("k4", 4)]
        view.close()

    def test_a_damaged_document_is_not_passed_over_beside_one_of_the_same_seq(
        self, rig: DocumentRig
    ) -> None:
        write(rig, batch(doc("a", 1), doc("c", 3)))
        write(rig, batch(doc("b", 3)))
        rig.damage(b"c")
        view = rig.store.view(BUCKET, PARTITION)
        assert names(view.scan(Seq(0), SEQ_MAX, 9, UNBOUNDED)) == [("a", 1)]
        with pytest.raises(CorruptDocument):
            view.scan(Seq(1), SEQ_MAX, 9, UNBOUNDED)
        view.close()

    def test_another_version_heals_a_damaged_document(self, rig: DocumentRig) -> None:
        write(rig, batch(doc("a", 1), doc("b", 2)))
        rig.damage(b"a")
        assert write(rig, batch(doc("a", 3))) is None
        assert names(scanned(rig)) == [("b", 2), ("a", 3)]
