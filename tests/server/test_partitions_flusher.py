"""The flusher: one write at a time, nothing lost when one fails, whoever waits is told in order."""

from hypothesis import given
from hypothesis import strategies as st

from millrace.core.documents.document import PartitionId, PartitionState
from millrace.core.documents.partition import Partition
from millrace.server.partitions.flusher import RETRY_MS, Flusher
from millrace.sim.documents.disk import SimDocuments
from tests.support.partition_nodes import CAFE, EPOCH_US, World

BUCKET = 1


class Rig:
    def __init__(self, partitions: int = 1) -> None:
        self.world = World()
        self.store = SimDocuments(self.world.later)
        self.flusher = Flusher(self.store, lambda ms, call: self.world.later(ms * 1000, call))
        self.partitions = [Partition(PartitionId(number)) for number in range(partitions)]
        for partition in self.partitions:
            partition.promote(1, CAFE, is_takeover=False)

    def put(self, key: bytes, at: int = 0) -> None:
        self.partitions[at].store(key, b"value", 0, 0, EPOCH_US)
        self.flusher.touch(BUCKET, self.partitions[at])

    def on_disk(self, at: int = 0) -> set[bytes]:
        stored = self.store.disk.partitions.get((BUCKET, PartitionId(at)))
        return set() if stored is None else set(stored.documents)

    def break_disk(self) -> None:
        self.store.disk.capacity_bytes = 0

    def mend_disk(self) -> None:
        self.store.disk.capacity_bytes = 1 << 30


def test_what_changed_in_one_event_is_one_write() -> None:
    rig = Rig(partitions=3)
    for at in range(30):
        rig.put(b"%d" % at, at % 3)
    rig.world.pass_ms(100)
    assert rig.store.commits == 1
    assert [len(rig.on_disk(at)) for at in range(3)] == [10, 10, 10]


def test_what_changes_while_a_write_runs_gathers_for_the_next() -> None:
    rig = Rig()
    rig.put(b"first")
    rig.world.until(lambda: rig.flusher._is_writing)
    for at in range(10):
        rig.put(b"%d" % at)
        rig.world.later(10, lambda: None)
    rig.world.pass_ms(100)
    assert rig.store.commits == 2
    assert len(rig.on_disk()) == 11


def test_a_flush_leaves_the_queue_only_when_it_is_durable() -> None:
    rig = Rig()
    rig.put(b"k")
    rig.world.until(lambda: rig.flusher._is_writing)
    assert rig.partitions[0].queue.count == 1
    rig.world.until(lambda: rig.flusher.flushes == 1)
    assert rig.partitions[0].queue.count == 0
    assert rig.partitions[0].persisted == 1


def test_a_failed_flush_is_tried_again_after_a_rest_with_all_of_it() -> None:
    rig = Rig(partitions=2)
    rig.put(b"a", 0)
    rig.put(b"b", 1)
    rig.break_disk()
    rig.world.pass_ms(RETRY_MS // 2)
    assert rig.flusher.failure is not None
    rig.put(b"c", 0)
    rig.mend_disk()
    rig.world.pass_ms(RETRY_MS // 4)
    assert rig.on_disk(0) == set(), "it rests"
    rig.world.pass_ms(RETRY_MS)
    assert rig.flusher.failure is None
    assert (rig.on_disk(0), rig.on_disk(1)) == ({b"a", b"c"}, {b"b"})


def test_whoever_waits_through_a_failure_is_told_once_in_the_order_of_asking() -> None:
    rig = Rig()
    told: list[int] = []
    rig.put(b"a")
    rig.break_disk()
    rig.flusher.durable(BUCKET, rig.partitions[0], lambda: told.append(1))
    rig.world.pass_ms(RETRY_MS // 2)
    rig.flusher.durable(BUCKET, rig.partitions[0], lambda: told.append(2))
    assert told == []
    rig.mend_disk()
    rig.world.pass_ms(2 * RETRY_MS)
    assert told == [1, 2]


def test_whoever_waits_for_nothing_new_is_told_without_a_write() -> None:
    rig = Rig()
    rig.put(b"a")
    rig.world.pass_ms(100)
    told: list[None] = []
    rig.flusher.durable(BUCKET, rig.partitions[0], lambda: told.append(None))
    assert not told, "never from inside the call"
    rig.world.pass_ms(1)
    assert told == [None]
    assert rig.store.commits == 1


def test_who_waits_for_a_partition_that_is_forgotten_is_told_and_nothing_is_written() -> None:
    rig = Rig()
    told: list[None] = []
    rig.partitions[0].set_state(PartitionState.DEAD, 2)
    rig.flusher.durable(BUCKET, rig.partitions[0], lambda: told.append(None))
    rig.flusher.forget(BUCKET, PartitionId(0))
    rig.world.pass_ms(100)
    assert told == [None]
    assert rig.store.commits == 0


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(0, 2)),
            st.tuples(st.just("wait"), st.integers(0, 2)),
            st.tuples(st.sampled_from(("break", "mend", "pass")), st.integers(0, 400)),
        ),
        max_size=40,
    )
)
def test_whatever_fails_when_everything_gets_to_the_disk(steps: list[tuple[str, int]]) -> None:
    rig = Rig(partitions=3)
    asked = 0
    told: list[bool] = []
    written: list[set[bytes]] = [set(), set(), set()]
    for number, (what, at) in enumerate(steps):
        match what:
            case "put":
                rig.put(b"%d" % number, at)
                written[at].add(b"%d" % number)
            case "wait":
                wanted, of = set(written[at]), at
                asked += 1
                rig.flusher.durable(
                    BUCKET,
                    rig.partitions[at],
                    lambda wanted=wanted, of=of: told.append(wanted <= rig.on_disk(of)),  # type: ignore[misc]
                )
            case "break":
                rig.break_disk()
            case "mend":
                rig.mend_disk()
            case _:
                rig.world.pass_ms(at)
    rig.mend_disk()
    rig.world.pass_ms(2 * RETRY_MS)
    assert [rig.on_disk(at) for at in range(3)] == written
    assert told == [True] * asked
