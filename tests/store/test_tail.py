"""The tail buffer: order, eviction, and no memory kept by what is gone."""

import gc
import weakref

from millrace.limits import KIB, MIB
from millrace.store.layout import IndexEntry
from millrace.store.tail import LogTail, TailBuffer, TailEntry
from millrace.types import Ack, Epoch, Lsn
from tests.conformance.store_suite import make_block


def entry_of(tail: LogTail, first: int, count: int = 1, size: int = 10) -> TailEntry:
    block = make_block(first, count, size=size)
    return TailEntry(block, IndexEntry(block.extent(), Epoch(1), 0, ()), Ack.DISK, tail)


def firsts(tail: LogTail, first: int = 1, end: int = 1000) -> list[int]:
    found = [entry.block.first for entry in tail.within(Lsn(first), Lsn(end))]
    backward = [entry.block.first for entry in tail.within_backward(Lsn(first), Lsn(end))]
    assert backward == found[::-1]
    return [int(one) for one in found]


def test_entries_are_in_order_however_they_came() -> None:
    tail = LogTail(Lsn(1))
    for first in (10, 30, 20, 5, 40):
        tail.add(entry_of(tail, first, 5))
    assert firsts(tail) == [5, 10, 20, 30, 40]
    assert firsts(tail, 14, 31) == [10, 20, 30]
    assert firsts(tail, 15, 30) == [20]
    held = tail.holding(Lsn(24))
    assert held is not None
    assert held.block.first == 20
    assert tail.holding(Lsn(25)) is None
    assert tail.get(Lsn(24)) is None


def test_committed_entries_leave_in_the_order_they_came() -> None:
    buffer, tail = TailBuffer(40 * KIB), LogTail(Lsn(1))
    entries = [entry_of(tail, first, size=10 * KIB) for first in range(1, 11)]
    for entry in entries:
        buffer.add(entry)
    buffer.evict()
    assert firsts(tail) == list(range(1, 11))  # I1: none is committed.
    for entry in entries[:4]:
        entry.is_committed = True
    buffer.evict()
    assert (firsts(tail), tail.floor) == (list(range(5, 11)), 5)
    for entry in entries:
        entry.is_committed = True
    buffer.evict()
    assert buffer.bytes <= 40 * KIB
    assert firsts(tail, tail.floor) == firsts(tail) != []


def test_evicted_blocks_are_free_at_once() -> None:
    buffer, tail = TailBuffer(0), LogTail(Lsn(1))
    alive = []
    for first in range(1, 100):
        entry = entry_of(tail, first)
        entry.block.data = memoryview(entry.block.data)
        alive.append(weakref.ref(entry.block.data))
        buffer.add(entry)
        entry.is_committed = first < 40
    del entry
    buffer.evict()
    gc.collect()
    assert [one() is None for one in alive] == [True] * 39 + [False] * 60


def test_a_block_across_the_floor_raises_it() -> None:
    tail = LogTail(Lsn(50))
    tail.add(entry_of(tail, 48, 5))
    assert tail.floor == 53


def test_forgotten_blocks_do_not_stay_behind_an_older_one() -> None:
    buffer, quiet, busy = TailBuffer(MIB), LogTail(Lsn(1)), LogTail(Lsn(1))
    buffer.add(entry_of(quiet, 1))
    alive = []
    for first in range(1, 400):
        entry = entry_of(busy, first, size=20 * KIB)
        entry.block.data = memoryview(entry.block.data)
        alive.append(weakref.ref(entry.block.data))
        buffer.add(entry)
        buffer.forget(entry)
        buffer.evict()
    del entry
    gc.collect()
    assert sum(one() is not None for one in alive) * 20 * KIB < 2 * MIB
    assert len(quiet) == 1
    assert len(busy) == 0
