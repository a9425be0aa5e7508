"""Scattered logs in LMDB: what they cost in memory, in reads and in commits."""

import gc
import tracemalloc
from collections.abc import Callable

import msgspec

from millrace.core.log_state import Marks
from millrace.limits import KIB, MIB, SCANS_OUTSTANDING_MAX
from millrace.store.layout import block_key, number_key
from millrace.store.weighing import RUNS_MAX
from millrace.types import LSN_MAX, Ack, Copy, Lsn
from tests.conformance.store_scattered_suite import ONE, at, placed
from tests.conformance.store_suite import LOG, OTHER, held, known, make_block
from tests.store.rig import LmdbRig

OpenRig = Callable[..., LmdbRig]

MANY = 20_000


def filled(open_rig: OpenRig, count: int, size: int = 10 * KIB, **options: int) -> LmdbRig:
    rig = open_rig(256 * MIB, **options)
    rig.store.scatter(LOG)
    for number in range(count):
        rig.store.put(make_block(at(1, 1 + 3 * number), size=size), ONE, Ack.DISK)
    assert rig.settle() is None
    return rig


def everything(copy: Copy) -> bool:
    return True


def nothing(copy: Copy) -> bool:
    return False


def kept_bytes(work: Callable[[], object]) -> int:
    """What the memory that is held has grown by."""
    gc.collect()
    tracemalloc.start()
    work()
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return kept


# -- Memory ---------------------------------------------------------------------------------------


def test_holes_take_no_memory(open_rig: OpenRig) -> None:
    rig = filled(open_rig, 10, size=1, tail_bytes=0)

    def fill() -> None:
        for number in range(10, MANY):
            rig.store.put(make_block(at(1, 1 + 3 * number), size=1), ONE, Ack.DISK)
            if number % 1_000 == 0:
                rig.settle()
        rig.settle()

    assert kept_bytes(fill) < MANY  # Less than a byte for each of them.
    assert known(rig.store).blocks == MANY


def test_opening_takes_no_memory_for_each_block(open_rig: OpenRig) -> None:
    small, large = filled(open_rig, 10, size=1), filled(open_rig, MANY, size=1)
    grown = [kept_bytes(rig.reopen) for rig in (small, large)]
    assert grown[1] < grown[0] + MANY
    assert known(large.store).end == at(1, 1 + 3 * (MANY - 1) + 1)


# -- Reads ----------------------------------------------------------------------------------------


def test_a_node_that_ships_nothing_reads_no_data(open_rig: OpenRig) -> None:
    rig = filled(open_rig, 50)
    rig.reopen()
    rig.store.ship(LOG, Lsn(1), LSN_MAX, MIB, nothing).release()
    rig.store.copies(LOG, Lsn(1), LSN_MAX, 100)
    rig.store.weigh(LOG, Lsn(1), LSN_MAX, 4)
    assert rig.store.blocks_read == 0
    third = at(1, 7)
    rig.store.ship(LOG, Lsn(1), LSN_MAX, MIB, lambda copy: copy.extent.first == third).release()
    assert rig.store.blocks_read == 1
    rig.store.scan(LOG, Lsn(1), LSN_MAX, MIB).release()
    assert rig.store.blocks_read == 51
    assert rig.store.block_at(LOG, third) is not None
    assert rig.store.blocks_read == 52


def test_fresh_blocks_are_shipped_without_a_transaction(open_rig: OpenRig) -> None:
    rig = filled(open_rig, 5)
    shipment = rig.store.ship(LOG, Lsn(1), LSN_MAX, MIB, everything)
    assert (len(shipment.blocks), shipment.is_mapped) == (5, False)
    assert rig.store.scans_outstanding == 0


def test_shipped_blocks_lie_in_the_map_until_released(open_rig: OpenRig) -> None:
    rig = filled(open_rig, 5)
    rig.reopen()
    rig.store.put(make_block(at(2, 1)), ONE, Ack.DISK)  # The last one comes from memory.
    shipment = rig.store.ship(LOG, Lsn(1), LSN_MAX, MIB, everything)
    assert shipment.is_mapped
    assert [isinstance(one.data, memoryview) for one in shipment.blocks] == [True] * 5 + [False]
    rig.store.close()
    expected = bytes(make_block(at(1, 1), size=10 * KIB).data)
    assert bytes(shipment.blocks[0].data) == expected
    shipment.release()
    assert rig.store.scans_outstanding == 0
    rig.store = rig.open()


def test_a_shipment_of_nothing_holds_no_transaction(open_rig: OpenRig) -> None:
    rig = filled(open_rig, 5)
    rig.reopen()
    assert not rig.store.ship(LOG, Lsn(1), LSN_MAX, MIB, nothing).is_mapped
    assert rig.store.scans_outstanding == 0


def test_too_many_shipments_copy(open_rig: OpenRig) -> None:
    rig = filled(open_rig, 3)
    rig.reopen()
    shipments = [
        rig.store.ship(LOG, Lsn(1), LSN_MAX, MIB, everything)
        for _ in range(SCANS_OUTSTANDING_MAX + 5)
    ]
    assert sum(one.is_mapped for one in shipments) == SCANS_OUTSTANDING_MAX
    assert len({bytes(one.blocks[2].data) for one in shipments}) == 1
    for one in shipments:
        one.release()
    assert rig.store.scans_outstanding == 0


def test_more_epochs_than_are_looked_at_weigh_like_the_others(open_rig: OpenRig) -> None:
    rig = open_rig(256 * MIB)
    rig.store.scatter(LOG)
    epochs = RUNS_MAX + 44
    for epoch in range(1, epochs + 1):
        rig.store.put(make_block(at(epoch, 1), 4), ONE, Ack.DISK)
    pieces = rig.store.weigh(LOG, at(1, 0), at(epochs + 1, 0), 8)
    assert sum(one.bytes for one in pieces) == epochs * make_block(1, 4).size
    assert pieces[0].bytes == RUNS_MAX // 8 * make_block(1, 4).size


# -- Commits --------------------------------------------------------------------------------------


def test_marks_make_no_commit(open_rig: OpenRig) -> None:
    rig = filled(open_rig, 3)
    commits = rig.store.commits
    rig.store.set_marks(LOG, Marks(at(1, 4)))
    assert rig.settle() is None
    assert rig.settle(Ack.MEMORY) is None
    assert rig.store.commits == commits
    rig.crash()
    assert known(rig.store).marks == Marks()
    rig.store.set_marks(LOG, Marks(at(1, 7)))
    rig.store.put(make_block(1, log=OTHER), ONE, Ack.DISK)
    assert rig.settle() is None
    rig.crash()
    assert known(rig.store).marks == Marks(at(1, 7))


def test_a_block_that_is_sent_again_makes_no_commit(open_rig: OpenRig) -> None:
    rig = filled(open_rig, 3)
    commits = rig.store.commits
    rig.store.put(make_block(at(1, 4), size=10 * KIB), ONE, Ack.DISK)
    assert rig.settle() is None
    assert (rig.store.commits, rig.store.unsynced_bytes) == (commits, 0)


def test_placements_can_be_amended_when_the_disk_is_full(open_rig: OpenRig) -> None:
    rig = open_rig(8 * MIB)
    rig.store.scatter(LOG)
    offset = 1
    while True:
        rig.store.put(make_block(at(1, offset), size=300 * KIB), ONE, Ack.DISK)
        if rig.settle() is not None:
            break
        offset += 1
    new = placed(4, 5, wave=2)
    assert rig.store.amend(LOG, [(at(1, 1), new)]) == []
    assert rig.settle() is None
    rig.crash()
    assert rig.store.copies(LOG, at(1, 1), at(1, 2), 1)[0].placement == new


# -- Rows of older versions -----------------------------------------------------------------------


def test_what_an_older_version_wrote_is_read(open_rig: OpenRig) -> None:
    """Rows without the fields that scattered logs brought."""
    rig = open_rig(64 * MIB)
    block = make_block(1, 3)
    extent = [1, 3, 0, [9, 1], block.checksum, block.size]
    entry = [extent, 3, 77, [1, 2, 3]]
    row = [LOG, 1, [3, [1, 2], "member"], 1, 4, 1, block.size, False]
    directory = rig.store.directory
    with directory.environment.begin(write=True) as transaction:
        tables = directory.tables
        transaction.put(block_key(1, 1), block.data, db=tables.blocks)
        transaction.put(block_key(1, 1), msgspec.msgpack.encode(entry), db=tables.index)
        transaction.put(number_key(LOG), msgspec.msgpack.encode(row), db=tables.logs)
    rig.reopen()
    state = known(rig.store)
    assert (state.contiguous_end, state.blocks, state.is_scattered) == (4, 1, False)
    assert state.marks == Marks()
    assert rig.store.copies(LOG, Lsn(1), Lsn(9), 9) == [
        Copy(block.extent(), placed(1, 2, 3, wave=0))
    ]
    rig.store.put(make_block(4), ONE, Ack.DISK)
    rig.settle()
    rig.reopen()
    assert held(rig.store) == [1, 4]


def test_an_older_version_can_read_what_this_one_writes(open_rig: OpenRig) -> None:
    """Fields are only added at the end of a row."""
    rig = open_rig(64 * MIB)
    block = make_block(1, 3, timestamp_us=77)
    rig.store.put(block, placed(1, 2, 3, wave=0), Ack.DISK)
    rig.settle()
    directory = rig.store.directory
    with directory.environment.begin() as transaction:
        tables = directory.tables
        entry = msgspec.msgpack.decode(transaction.get(block_key(1, 1), db=tables.index))
        row = msgspec.msgpack.decode(transaction.get(number_key(LOG), db=tables.logs))
    assert entry[:4] == [[1, 3, 0, [9, 1], block.checksum, block.size], 3, 77, [1, 2, 3]]
    assert row[:2] == [LOG, 1]
    assert row[3:8] == [1, 4, 1, block.size, False]
