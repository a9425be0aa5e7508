"""What every store of documents must do (`millrace.store.documents.contract`).

A test module subclasses `DocumentStoreSuite` and gives it a fixture `open_rig`: a function that
takes the room in bytes and returns a `DocumentRig`.  LMDB and the simulated disk run the same
tests.
"""

import pytest

from millrace.core.documents.document import (
    SEQ_MAX,
    Cas,
    ChangeKind,
    Document,
    FailoverId,
    PartitionId,
    PartitionState,
    Seq,
)
from millrace.core.documents.failover_log import FailoverEntry, FailoverLog
from millrace.core.documents.partition_row import PartitionRow
from millrace.limits import KIB, MIB
from millrace.store.contract import StoreFailed
from tests.conformance.document_store_failures_suite import DocumentStoreFailuresSuite
from tests.conformance.document_store_model_suite import DocumentStoreModelSuite
from tests.conformance.document_store_rig import (
    BUCKET,
    OTHER,
    PARTITION,
    UNBOUNDED,
    DocumentRig,
    batch,
    doc,
    drop,
    names,
    row_at,
    scanned,
    tombstone,
    write,
)

ODD_DOCUMENTS = {
    "empty value": Document(b"k", b"", Seq(1), Cas(1)),
    "longest key": Document(b"k" * 250, b"v", Seq(1), Cas(1)),
    "key of any bytes": Document(bytes(range(250)), b"v", Seq(1), Cas(1)),
    "largest numbers": Document(
        b"k", b"v", SEQ_MAX, Cas(2**64 - 1), 2**32 - 1, 2**40, ChangeKind.MUTATION, 255
    ),
    "deletion": Document(b"k", b"", Seq(1), Cas(1), 0, 77, ChangeKind.DELETION),
    "expiration": Document(b"k", b"", Seq(1), Cas(1), 0, 77, ChangeKind.EXPIRATION),
    "larger than a page": Document(b"k", b"v" * 5_000, Seq(1), Cas(1)),
    "largest value": Document(b"k", b"v" * (20 * MIB), Seq(1), Cas(1)),
}


class DocumentStoreSuite(DocumentStoreFailuresSuite, DocumentStoreModelSuite):
    # -- Writing and reading --------------------------------------------------------------------

    @pytest.mark.parametrize("is_reopened", [False, True], ids=["fresh", "reopened"])
    @pytest.mark.parametrize("document", ODD_DOCUMENTS.values(), ids=ODD_DOCUMENTS)
    def test_what_was_written_is_what_is_read(
        self, rig: DocumentRig, document: Document, is_reopened: bool
    ) -> None:
        assert write(rig, batch(document)) is None
        if is_reopened:
            rig.reopen()
        assert rig.store.get(BUCKET, PARTITION, document.key) == document
        assert rig.store.get_many(BUCKET, PARTITION, [document.key]) == [document]
        assert scanned(rig) == [document]

    def test_what_is_not_there_is_not_found(self, rig: DocumentRig) -> None:
        store = rig.store
        assert (store.buckets(), store.rows(BUCKET)) == ([], {})
        assert store.get(BUCKET, PARTITION, b"k") is None
        assert scanned(rig) == []
        assert store.load(BUCKET, PARTITION, Seq(0), 10, True) == []
        assert store.tombstones(BUCKET, PARTITION, 10**9, 10) == []
        assert write(rig, batch(doc("a", 1))) is None
        assert store.get(BUCKET, PARTITION, b"k") is None
        assert store.get(BUCKET, OTHER, b"a") is None
        assert store.get(BUCKET + 1, PARTITION, b"a") is None

    def test_many_are_got_in_the_order_asked_for(self, rig: DocumentRig) -> None:
        write(rig, batch(doc("a", 1), doc("b", 2), tombstone("c", 3)))
        found = rig.store.get_many(BUCKET, PARTITION, [b"c", b"x", b"a", b"b"])
        assert names(found) == [("c", 3), ("a", 1), ("b", 2)]

    @pytest.mark.parametrize("is_reopened", [False, True], ids=["fresh", "reopened"])
    def test_rows_are_kept_by_bucket_and_partition(
        self, rig: DocumentRig, is_reopened: bool
    ) -> None:
        log = FailoverLog(tuple(FailoverEntry(FailoverId(2**64 - at), Seq(99)) for at in (1, 2)))
        row = PartitionRow(
            PartitionState.REPLICA, 7, log, Seq(9), Seq(8), Seq(7), Seq(10), Seq(3), Seq(2), True
        )
        write(rig, batch(row=row_at(1)), batch(row=row_at(2), partition=OTHER))
        write(rig, batch(row=row), batch(row=row_at(3), bucket=BUCKET + 2))
        if is_reopened:
            rig.reopen()
        assert rig.store.buckets() == [BUCKET, BUCKET + 2]
        assert rig.store.rows(BUCKET) == {PARTITION: row, OTHER: row_at(2)}
        assert rig.store.rows(BUCKET + 1) == {}
        assert rig.store.rows(BUCKET + 2) == {PARTITION: row_at(3)}

    def test_documents_may_come_from_whatever_is_gone_through_once(self, rig: DocumentRig) -> None:
        documents = [doc("a", 1), doc("b", 2)]
        one = batch(row=row_at(2))
        answers: list[StoreFailed | None] = []
        lazy = type(one)(one.bucket, one.partition, one.row, iter(documents))
        rig.store.write([lazy], answers.append)
        rig.run_until(lambda: bool(answers))
        assert scanned(rig) == documents

    def test_writes_are_answered_in_order_and_not_from_inside_the_call(
        self, rig: DocumentRig
    ) -> None:
        told: list[int] = []
        for at in range(10):
            rig.store.write([batch(doc("a", at + 1))], lambda _, at=at: told.append(at))  # type: ignore[misc]
        assert told == []
        rig.run_until(lambda: len(told) == 10)
        assert told == list(range(10))
        assert names(scanned(rig)) == [("a", 10)]

    def test_closing_writes_and_tells_what_is_queued(self, rig: DocumentRig) -> None:
        answers: list[StoreFailed | None] = []
        for at in range(5):
            rig.store.write([batch(doc("a", at + 1))], answers.append)
        rig.reopen()
        assert answers == [None] * 5
        assert names(scanned(rig)) == [("a", 5)]

    # -- By seq ---------------------------------------------------------------------------------

    @pytest.mark.parametrize("seq", [9, 2, 5], ids=["higher", "lower", "same"])
    def test_an_update_takes_the_place_of_the_old_version(self, rig: DocumentRig, seq: int) -> None:
        write(rig, batch(doc("a", 5), doc("b", 6)))
        write(rig, batch(doc("a", seq, b"new")))
        assert names(scanned(rig)) == sorted([("a", seq), ("b", 6)], key=lambda one: one[1])
        found = rig.store.get(BUCKET, PARTITION, b"a")
        assert found is not None
        assert found.value == b"new"

    def test_of_two_documents_with_one_key_the_latter_counts(self, rig: DocumentRig) -> None:
        write(rig, batch(doc("a", 1), doc("b", 2), tombstone("a", 3), doc("a", 4)))
        assert names(scanned(rig)) == [("b", 2), ("a", 4)]
        assert rig.store.tombstones(BUCKET, PARTITION, 10**9, 9) == []

    def test_a_rollback_may_swap_the_seqs_of_two_keys(self, rig: DocumentRig) -> None:
        write(rig, batch(doc("a", 1), doc("b", 2)))
        write(rig, batch(doc("b", 1), doc("a", 2)))
        assert names(scanned(rig)) == [("b", 1), ("a", 2)]

    def test_a_rollback_in_steps_loses_nothing_on_the_way(self, rig: DocumentRig) -> None:
        """The first step takes the seq of a document that is still to be undone."""
        write(rig, batch(doc("a", 12), doc("c", 11)))
        write(rig, batch(doc("a", 11)))
        assert names(scanned(rig)) == [("a", 11), ("c", 11)]
        assert rig.store.get(BUCKET, PARTITION, b"c") == doc("c", 11)
        write(rig, batch(doc("c", 12)))
        assert names(scanned(rig)) == [("a", 11), ("c", 12)]

    # -- Forgetting -----------------------------------------------------------------------------

    def test_removed_keys_are_as_if_they_had_never_been(self, rig: DocumentRig) -> None:
        write(rig, batch(doc("a", 1), tombstone("b", 2), doc("c", 3)))
        assert write(rig, batch(removed=[b"a", b"b", b"x"])) is None
        assert names(scanned(rig)) == [("c", 3)]
        assert rig.store.get_many(BUCKET, PARTITION, [b"a", b"b"]) == []
        assert rig.store.tombstones(BUCKET, PARTITION, 10**9, 9) == []

    def test_a_batch_first_wipes_then_removes_then_stores(self, rig: DocumentRig) -> None:
        write(rig, batch(doc("a", 1), doc("b", 2)), batch(doc("a", 1), partition=OTHER))
        write(rig, batch(doc("b", 3), doc("c", 4), removed=[b"b"], is_wipe=True))
        assert names(scanned(rig)) == [("b", 3), ("c", 4)]
        assert rig.store.get(BUCKET, PARTITION, b"a") is None
        assert names(scanned(rig, OTHER)) == [("a", 1)]

    @pytest.mark.parametrize("is_reopened", [False, True], ids=["fresh", "reopened"])
    def test_a_dropped_partition_is_made_anew_without_its_past(
        self, rig: DocumentRig, is_reopened: bool
    ) -> None:
        old = [doc(f"k{at}", at + 1) for at in range(100)]
        write(rig, batch(*old), batch(doc("a", 1), partition=OTHER))
        assert drop(rig) is None
        assert rig.store.rows(BUCKET).keys() == {OTHER}
        assert scanned(rig) == []
        if is_reopened:
            rig.reopen()
        write(rig, batch(doc("k5", 3)))
        assert names(scanned(rig)) == [("k5", 3)]
        assert rig.store.get(BUCKET, PARTITION, b"k6") is None
        assert names(scanned(rig, OTHER)) == [("a", 1)]

    def test_what_was_never_there_can_be_dropped(self, rig: DocumentRig) -> None:
        assert drop(rig) is None

    # -- Tombstones -----------------------------------------------------------------------------

    def test_tombstones_are_told_up_to_the_first_that_is_too_young(self, rig: DocumentRig) -> None:
        write(
            rig,
            batch(
                doc("live", 1),
                tombstone("b", 2, made_s=10),
                tombstone("a", 3, made_s=20),
                tombstone("c", 4, made_s=30),
                tombstone("d", 5, made_s=15),
            ),
            batch(tombstone("z", 1, made_s=1), partition=OTHER),
        )
        tombstones = rig.store.tombstones
        assert names(tombstones(BUCKET, PARTITION, 30, 9)) == [("b", 2), ("a", 3)]
        assert names(tombstones(BUCKET, PARTITION, 31, 9))[2:] == [("c", 4), ("d", 5)]
        assert names(tombstones(BUCKET, PARTITION, 31, 1)) == [("b", 2)]
        assert tombstones(BUCKET, PARTITION, 10, 9) == []

    def test_a_document_that_is_made_again_is_no_tombstone(self, rig: DocumentRig) -> None:
        write(rig, batch(tombstone("a", 1), tombstone("b", 2)))
        write(rig, batch(doc("a", 3)))
        assert names(rig.store.tombstones(BUCKET, PARTITION, 10**9, 9)) == [("b", 2)]

    def test_purging_forgets_tombstones_but_not_what_came_since(self, rig: DocumentRig) -> None:
        old = [tombstone("a", 1), tombstone("b", 2), tombstone("c", 3)]
        write(rig, batch(*old))
        write(rig, batch(doc("a", 4), tombstone("b", 6)))
        write(rig, batch(purged=old, row=row_at(6)))
        assert names(scanned(rig)) == [("a", 4), ("b", 6)]
        assert rig.store.get(BUCKET, PARTITION, b"c") is None

    # -- Views ----------------------------------------------------------------------------------

    def test_a_view_shows_one_moment(self, rig: DocumentRig) -> None:
        before = [doc(f"k{at}", at + 1) for at in range(50)]
        write(rig, batch(*before))
        view = rig.store.view(BUCKET, PARTITION)
        first = view.scan(Seq(0), SEQ_MAX, 10, UNBOUNDED)
        write(rig, batch(doc("k3", 60), doc("k40", 61), removed=[b"k30"]))
        write(rig, batch(doc("new", 1), is_wipe=True))
        drop(rig)
        assert first + view.scan(Seq(10), SEQ_MAX, 100, UNBOUNDED) == before
        view.close()
        assert scanned(rig) == []

    @pytest.mark.parametrize(
        ("after", "last", "count_max", "bytes_max", "expected"),
        [
            pytest.param(0, SEQ_MAX, 99, UNBOUNDED, [2, 4, 6, 8, 10], id="all"),
            pytest.param(4, 8, 99, UNBOUNDED, [6, 8], id="after excluded, last included"),
            pytest.param(3, 9, 99, UNBOUNDED, [4, 6, 8], id="between"),
            pytest.param(10, SEQ_MAX, 99, UNBOUNDED, [], id="at the end"),
            pytest.param(4, 4, 99, UNBOUNDED, [], id="nothing wanted"),
            pytest.param(0, SEQ_MAX, 2, UNBOUNDED, [2, 4], id="count"),
            pytest.param(0, SEQ_MAX, 99, 1, [2], id="at least one"),
            pytest.param(0, SEQ_MAX, 99, 2_500, [2, 4], id="bytes"),
        ],
    )
    def test_a_scan_keeps_its_bounds(
        self,
        rig: DocumentRig,
        after: int,
        last: int,
        count_max: int,
        bytes_max: int,
        expected: list[int],
    ) -> None:
        documents = [doc(f"k{seq}", seq, b"v" * KIB) for seq in (2, 4, 6, 8, 10)]
        write(rig, batch(*documents), batch(doc("k", 3), partition=OTHER))
        view = rig.store.view(BUCKET, PARTITION)
        found = view.scan(Seq(after), Seq(last), count_max, bytes_max)
        assert [document.seq for document in found] == expected
        view.close()

    def test_those_that_share_a_seq_are_scanned_together(self, rig: DocumentRig) -> None:
        write(rig, batch(doc("a", 1), doc("b", 3)))
        write(rig, batch(doc("c", 3)))
        write(rig, batch(doc("d", 4)))
        view = rig.store.view(BUCKET, PARTITION)
        assert names(view.scan(Seq(0), SEQ_MAX, 2, UNBOUNDED)) == [("a", 1), ("b", 3), ("c", 3)]
        assert names(view.scan(Seq(1), SEQ_MAX, 99, 1)) == [("b", 3), ("c", 3)]
        view.close()

    # -- Warming up -----------------------------------------------------------------------------

    @pytest.mark.parametrize("with_values", [True, False], ids=["values", "metadata"])
    def test_loading_leaves_tombstones_out(self, rig: DocumentRig, with_values: bool) -> None:
        live = {seq: doc(f"k{seq}", seq, b"v" * 9_000, flags=seq) for seq in (1, 30, 31, 32, 60)}
        dead = [tombstone(f"k{seq}", seq) for seq in range(2, 70) if seq not in live]
        write(rig, batch(*sorted([*live.values(), *dead], key=lambda one: one.seq)))
        found: list[Document] = []
        after = Seq(0)
        while page := rig.store.load(BUCKET, PARTITION, after, 2, with_values):
            assert len(page) <= 2
            found += page
            after = page[-1].seq
        assert [one.seq for one in found] == list(live)
        assert [one.flags for one in found] == list(live)
        assert [one.value for one in found] == [b"v" * 9_000 if with_values else None] * 5

    def test_numbers_of_partitions_and_buckets_do_not_run_together(self, rig: DocumentRig) -> None:
        homes = [(bucket, PartitionId(at)) for bucket in (0, 1, 256) for at in (0, 1, 1023)]
        for seq, (bucket, at) in enumerate(homes, 1):
            write(rig, batch(doc("k", seq), bucket=bucket, partition=at))
        for seq, (bucket, at) in enumerate(homes, 1):
            assert rig.store.get(bucket, at, b"k") == doc("k", seq)
        assert rig.store.buckets() == [0, 1, 256]
