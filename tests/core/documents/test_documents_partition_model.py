"""A master and its disk against a plain dictionary, in any order of writes, flushes and crashes."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millrace.core.documents.document import FailoverId
from millrace.core.documents.partition import Flush
from tests.core.documents.partition_samples import NOW_US, Disk, flush, master, values

KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
VALUES = st.binary(min_size=1, max_size=4)


class MasterAndDisk(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = Disk()
        self.partition = master()
        self.disk.write(flush(self.partition))
        self.expected: dict[bytes, bytes] = {}
        self.durable: dict[bytes, bytes] = {}
        self.taken: Flush | None = None
        self.taken_expected: dict[bytes, bytes] = {}
        self.term = 1

    @rule(key=KEYS, value=VALUES)
    def store(self, key: bytes, value: bytes) -> None:
        self.partition.store(key, value, 0, 0, NOW_US)
        self.expected[key] = value

    @rule(items=st.lists(st.tuples(KEYS, VALUES), max_size=4))
    def store_many(self, items: list[tuple[bytes, bytes]]) -> None:
        self.partition.store_many([(key, value, 0, 0) for key, value in items], NOW_US)
        self.expected |= dict(items)

    @rule(key=KEYS)
    def delete(self, key: bytes) -> None:
        is_there = self.partition.delete(key, NOW_US) is not None
        assert is_there is (self.expected.pop(key, None) is not None)

    @precondition(lambda self: self.taken is None)
    @rule()
    def begin_flush(self) -> None:
        self.taken = self.partition.take_flush()
        self.taken_expected = dict(self.expected)

    @precondition(lambda self: self.taken is not None)
    @rule(is_written=st.booleans())
    def end_flush(self, is_written: bool) -> None:
        taken, self.taken = self.taken, None
        assert taken is not None
        if is_written:
            self.disk.write(taken)
            self.durable = self.taken_expected
            self.partition.flushed(taken)
        else:
            self.partition.flush_failed(taken)

    @rule(bytes_wanted=st.integers(1, 8))
    def evict(self, bytes_wanted: int) -> None:
        self.partition.evict(bytes_wanted)

    @rule(key=KEYS)
    def restore(self, key: bytes) -> None:
        if key in self.disk.documents:
            self.partition.restore(self.disk.documents[key])

    @rule()
    def crash(self) -> None:
        self.taken = None
        self.partition = self.disk.start()
        self.expected = dict(self.durable)
        self.term += 1
        high = self.partition.high
        self.partition.promote(self.term, FailoverId(self.term), is_takeover=False)
        assert self.partition.log.entries[0].seq == high

    @invariant()
    def nothing_is_lost_and_nothing_else_is_there(self) -> None:
        there = values(self.partition)
        for key, value in there.items():
            if value is None:
                there[key] = self.disk.documents[key].value
        assert there == self.expected

    @invariant()
    def what_is_queued_is_what_the_table_holds(self) -> None:
        queued = list(self.partition.queue.snapshot())
        assert all(self.partition.table[document.key] is document for document in queued)

    @invariant()
    def what_is_not_queued_is_on_disk(self) -> None:
        queued = {document.key for document in self.partition.queue.snapshot()}
        for key, held in self.partition.table.items():
            assert key in queued or self.disk.documents[key].seq == held.seq

    @invariant()
    def memory_is_counted(self) -> None:
        held = sum(document.size for document in self.partition.table.values())
        assert self.partition.memory_bytes == held


TestMasterAndDisk = MasterAndDisk.TestCase
TestMasterAndDisk.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
