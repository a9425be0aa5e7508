"""Versions that come with the CAS they have elsewhere: which of them a master takes."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from partition_samples import CAFE, DEAD, NOW_US, NUMBER, Disk, flush

from millrace.core.documents.document import Cas, ChangeKind, Document, PartitionId, PartitionState
from millrace.core.documents.operations import (
    Command,
    Operations,
    OperationStatus,
    ValueUnavailable,
    Verb,
)
from millrace.core.documents.partition import Partition
from millrace.core.documents.revisions import CAS_AHEAD_US, Revision, revision_of

Status = OperationStatus
K = b"k"
MADE_S = NOW_US // 1_000_000


def value(
    cas: int, text: bytes = b"m", flags: int = 0, expiry_s: int = 0, datatype: int = 0
) -> Revision:
    return Revision(K, text, Cas(cas), flags, expiry_s, datatype)


def gone(cas: int) -> Revision:
    return Revision(K, None, Cas(cas))


class Master:
    """A partition with its disk."""

    def __init__(self) -> None:
        self.disk = Disk()
        self.partition = Partition(NUMBER)
        self.partition.promote(1, CAFE, is_takeover=False)
        self.operations = Operations(100, self._load, self._fetch)

    def _load(self, document: Document) -> Document:
        found = self.disk.documents.get(document.key)
        if found is None:
            raise ValueUnavailable(document.key)
        return found

    def _fetch(self, number: PartitionId, keys: Sequence[bytes]) -> list[Document]:
        return [self.disk.documents[key] for key in keys if key in self.disk.documents]

    def offer(self, *revisions: Revision) -> list[bool]:
        taken = self.operations.take_revisions(self.partition, revisions, NOW_US)
        return [document is not None for document in taken]

    def held(self, *keys: bytes) -> list[Revision | None]:
        found = self.operations.read_revisions(self.partition, keys or (K,))
        return [None if each is None else revision_of(each) for each in found]

    def to_disk(self) -> None:
        """Tombstones leave memory, and so do values."""
        self.disk.flush(self.partition)
        self.partition.evict(1 << 30)

    def restart(self) -> None:
        self.partition = self.disk.start()
        self.partition.promote(2, DEAD, is_takeover=False)


@pytest.fixture
def master() -> Master:
    return Master()


# -- Which wins -------------------------------------------------------------------------------

RANKED = [
    pytest.param(value(5), value(6), id="the higher cas"),
    pytest.param(value(5, b"z"), value(6, b"a"), id="the higher cas whatever the value"),
    pytest.param(gone(5), value(6), id="a value after a deletion"),
    pytest.param(value(5), gone(6), id="a deletion after a value"),
    pytest.param(value(5, b"z"), gone(5), id="a deletion above a value of the same cas"),
    pytest.param(value(5, b"a"), value(5, b"b"), id="of the same cas the higher bytes"),
    pytest.param(value(5, b"a", 1), value(5, b"a", 2), id="of the same value the higher flags"),
    pytest.param(value(5, b"a", 1, 8), value(5, b"a", 1, 9), id="and the later expiry"),
    pytest.param(value(5, b"a", 1, 8), value(5, b"a", 1, 8, 1), id="and the higher datatype"),
]


@pytest.mark.parametrize("is_on_disk", [False, True], ids=["in memory", "on disk"])
@pytest.mark.parametrize(("lower", "higher"), RANKED)
def test_the_higher_revision_wins_whichever_comes_first(
    lower: Revision, higher: Revision, is_on_disk: bool
) -> None:
    for first, second in ((lower, higher), (higher, lower)):
        master = Master()
        assert master.offer(first) == [True]
        if is_on_disk:
            master.to_disk()
        high = master.partition.high
        assert master.offer(second) == [second is higher]
        assert master.held() == [higher]
        assert master.partition.high == high + (second is higher), "who loses takes no seq"


@pytest.mark.parametrize("revision", [value(5), gone(5)], ids=["a value", "a deletion"])
def test_the_same_revision_again_changes_nothing(master: Master, revision: Revision) -> None:
    assert master.offer(revision, revision) == [True, False]
    master.to_disk()
    assert master.offer(revision) == [False]
    assert master.partition.high == 1


REVISIONS = st.builds(
    Revision,
    key=st.sampled_from([b"a", b"b"]),
    value=st.none() | st.sampled_from([b"", b"v", b"w"]),
    cas=st.integers(1, 4).map(Cas),
    flags=st.integers(0, 1),
    expiry_s=st.sampled_from([0, 2 * MADE_S]),
    datatype=st.integers(0, 1),
)


@given(st.lists(REVISIONS, max_size=8), st.data())
def test_in_any_order_and_any_number_of_times_the_same_documents_stay(
    revisions: list[Revision], data: st.DataObject
) -> None:
    again = data.draw(st.permutations(revisions + revisions[:3]))
    one, other = Master(), Master()
    one.offer(*revisions)
    for revision in again:
        other.offer(revision)
        if data.draw(st.booleans()):
            other.to_disk()
    assert one.held(b"a", b"b") == other.held(b"a", b"b")


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([None, b"v", b"w"])), max_size=12))
def test_two_masters_that_give_each_other_all_they_have_are_equal(
    writes: list[tuple[bool, bytes | None]],
) -> None:
    here, there = Master(), Master()
    for is_here, text in writes:
        partition = (here if is_here else there).partition
        if text is None:
            partition.delete(K, NOW_US)
        else:
            partition.store(K, text, 0, 0, NOW_US)
        here.to_disk()
    for source, target in ((here, there), (there, here)):
        target.offer(*(each for each in source.held() if each is not None))
    assert here.held() == there.held()
    high = here.partition.high
    here.offer(*(each for each in there.held() if each is not None))
    assert here.partition.high == high, "what comes back is no change"


# -- What it becomes --------------------------------------------------------------------------


def test_it_is_a_change_of_the_partition_with_its_next_seq(master: Master) -> None:
    master.partition.store(b"other", b"", 0, 0, NOW_US)
    (document,) = master.operations.take_revisions(master.partition, [value(5, b"v", 7, 9)], NOW_US)
    assert document == Document(K, b"v", 2, 5, 7, 9)
    assert flush(master.partition).row.high == 2


def test_a_tombstone_is_as_old_as_it_is_here(master: Master) -> None:
    """So it is purged no sooner than those that were made here."""
    (tombstone,) = master.operations.take_revisions(master.partition, [gone(5)], NOW_US)
    assert tombstone is not None
    assert (tombstone.kind, tombstone.expiry_s) == (ChangeKind.DELETION, MADE_S)


def test_of_a_key_that_was_never_there_nothing_is_known(master: Master) -> None:
    assert master.held() == [None]


def test_once_its_tombstone_is_purged_an_older_version_comes_back(master: Master) -> None:
    master.offer(gone(6))
    master.to_disk()
    master.partition.purge(list(master.disk.documents.values()))
    master.to_disk()
    assert master.offer(value(5)) == [True]


# -- The clock --------------------------------------------------------------------------------

AHEAD = Cas(NOW_US + CAS_AHEAD_US)


@pytest.mark.parametrize("revision", [value(AHEAD), gone(AHEAD)], ids=["a value", "a deletion"])
@pytest.mark.parametrize("is_restarted", [False, True], ids=["running", "restarted"])
def test_what_is_changed_here_afterwards_ranks_above(
    master: Master, revision: Revision, is_restarted: bool
) -> None:
    master.offer(revision)
    if is_restarted:
        master.to_disk()
        master.restart()
    assert master.partition.store(K, b"mine", 0, 0, NOW_US).cas > AHEAD


def test_a_replica_remembers_it_too(master: Master) -> None:
    master.offer(gone(AHEAD))
    replica = Partition(NUMBER)
    replica.set_state(PartitionState.REPLICA, 1)
    replica.finish_undo(master.partition.log)
    replica.begin_snapshot(0, 1)
    replica.apply(list(master.partition.table.values()))
    disk = Disk()
    disk.flush(replica)
    assert disk.start().last_cas == AHEAD


# -- As a command -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "revision", "cas", "status"),
    [
        pytest.param(Verb.SET_REVISION, 60, 0, Status.OK, id="a newer version"),
        pytest.param(Verb.DELETE_REVISION, 60, 0, Status.OK, id="a newer deletion"),
        pytest.param(Verb.DELETE_REVISION, 50, 0, Status.OK, id="a deletion of the same cas"),
        pytest.param(Verb.SET_REVISION, 50, 0, Status.EXISTS, id="the same version"),
        pytest.param(Verb.SET_REVISION, 40, 0, Status.EXISTS, id="an older version"),
        pytest.param(Verb.SET_REVISION, 60, 50, Status.OK, id="a newer one, with the cas there"),
        pytest.param(Verb.SET_REVISION, 60, 51, Status.EXISTS, id="a newer one, with another cas"),
        pytest.param(Verb.SET_REVISION, 0, 0, Status.INVALID, id="no cas"),
        pytest.param(Verb.SET_REVISION, AHEAD, 0, Status.OK, id="as far ahead as may be"),
        pytest.param(Verb.SET_REVISION, AHEAD + 1, 0, Status.INVALID, id="too far ahead"),
    ],
)
def test_a_command_is_taken_or_refused(
    master: Master, verb: Verb, revision: int, cas: int, status: Status
) -> None:
    master.offer(value(50))
    body = b"" if verb is Verb.DELETE_REVISION else b"m"
    command = Command(verb, K, body, cas=Cas(cas), revision=Cas(revision))
    outcome = master.operations.execute(master.partition, command, NOW_US)
    assert outcome.status == status
    assert master.partition.high == (2 if status == Status.OK else 1)
    if outcome.document is not None:
        assert outcome.document.cas == revision
