"""What every store must do when it is asked where something is: by time, by size, by weight."""

import pytest

from millrace.codec.blocks import junk
from millrace.codec.cuts import cut
from millrace.limits import MIB, SCAN_BLOCKS_MAX, WEIGH_ENTRIES_MAX
from millrace.types import LSN_MAX, Ack, EntryKind, Lsn, Selection
from tests.conformance.store_rig import (
    LOG,
    OTHER,
    PLACEMENT,
    ROOM_BYTES,
    OpenRig,
    StoreRig,
    make_block,
    scanned,
)


class StoreFindingSuite:
    @pytest.fixture
    def rig(self, open_rig: OpenRig) -> StoreRig:
        return open_rig(ROOM_BYTES)

    @pytest.mark.parametrize("is_reopened", [False, True], ids=["fresh", "reopened"])
    def test_find_by_time(self, rig: StoreRig, is_reopened: bool) -> None:
        for number in range(20):
            if number % 5 == 3:
                block = junk(LOG, Lsn(1 + 10 * number), 10, EntryKind.HOLE)
            else:
                block = make_block(1 + 10 * number, 10, timestamp_us=1000 * number)
            rig.store.put(block, PLACEMENT, Ack.DISK)
        if is_reopened:
            rig.reopen()
        find = rig.store.find_time
        assert [find(LOG, stamp) for stamp in (0, 1, 1000, 1001, 2001, 19_000)] == [
            1, 11, 11, 21, 41, 191,
        ]  # fmt: skip
        assert find(LOG, 19_001) == 201
        rig.store.trim(LOG, Lsn(25))
        assert find(LOG, 0) == 25

    def test_find_by_time_among_timestamps_that_do_not_grow(self, rig: StoreRig) -> None:
        """Retention trims below the answer: an old record in between must not hide young ones."""
        for number, stamp in enumerate((5000, 9000, 1, 7000, 7001)):
            block = make_block(1 + number, timestamp_us=stamp)
            rig.store.put(block, PLACEMENT, Ack.DISK)
        find = rig.store.find_time
        assert [find(LOG, stamp) for stamp in (0, 5000, 5001, 9000, 9001)] == [1, 1, 2, 2, 6]

    @pytest.mark.parametrize("is_reopened", [False, True], ids=["fresh", "reopened"])
    def test_find_by_size(self, rig: StoreRig, is_reopened: bool) -> None:
        blocks = [make_block(first, size=1000) for first in range(1, 41)]
        for block in blocks:
            rig.store.put(block, PLACEMENT, Ack.DISK)
        if is_reopened:
            rig.reopen()
        size, find = blocks[0].size, rig.store.find_size
        kept = [0, 1, size, size + 1, 10 * size, 30 * size, 39 * size, 40 * size, 99 * size]
        assert [find(LOG, one) for one in kept] == [41, 40, 40, 39, 31, 11, 2, 1, 1]
        rig.store.trim(LOG, Lsn(21))
        assert [find(LOG, one * size) for one in (5, 15, 20, 30)] == [36, 26, 21, 21]

    # -- Weighing -------------------------------------------------------------------------------

    @pytest.mark.parametrize("is_reopened", [False, True], ids=["fresh", "reopened"])
    def test_pieces_tile_the_range_and_weigh_what_lies_in_them(
        self, rig: StoreRig, is_reopened: bool
    ) -> None:
        blocks = [make_block(1 + 10 * at, 10, size=1 + 500 * at) for at in range(12)]
        for block in blocks:
            rig.store.put(block, PLACEMENT, Ack.DISK)
        if is_reopened:
            rig.reopen()
        sizes = [block.size for block in blocks]
        weigh = rig.store.weigh
        (whole,) = weigh(LOG, Lsn(1), Lsn(121), 1)
        assert (whole.first, whole.end, whole.bytes) == (1, 121, sum(sizes))
        thirds = weigh(LOG, Lsn(1), Lsn(121), 3)
        assert [(one.first, one.end) for one in thirds] == [(1, 41), (41, 81), (81, 121)]
        assert [one.bytes for one in thirds] == [sum(sizes[at : at + 4]) for at in (0, 4, 8)]
        halves = weigh(LOG, Lsn(111), Lsn(121), 2)
        assert [one.bytes for one in halves] == [sizes[-1] // 2] * 2

    @pytest.mark.parametrize(
        ("first", "end", "pieces", "ranges"),
        [
            (1, 4, 64, [(1, 2), (2, 3), (3, 4)]),
            (1, 11, 3, [(1, 4), (4, 7), (7, 11)]),
            (5, 6, 1, [(5, 6)]),
            (5, 5, 9, []),
            (9, 5, 9, []),
        ],
    )
    def test_pieces_are_about_equal_and_none_is_empty(
        self, rig: StoreRig, first: int, end: int, pieces: int, ranges: list[tuple[int, int]]
    ) -> None:
        rig.store.put(make_block(1, 10), PLACEMENT, Ack.DISK)
        found = rig.store.weigh(LOG, Lsn(first), Lsn(end), pieces)
        assert [(one.first, one.end) for one in found] == ranges

    @pytest.mark.parametrize("is_reopened", [False, True], ids=["fresh", "reopened"])
    def test_many_blocks_are_weighed_by_a_few(self, rig: StoreRig, is_reopened: bool) -> None:
        """Some at several places stand for the rest: a heavy back is noticed."""
        count = 4 * WEIGH_ENTRIES_MAX
        light, heavy = make_block(1, size=10), make_block(1, size=1000)
        for first in range(1, count + 1):
            size = 1000 if first > 2 * WEIGH_ENTRIES_MAX else 10
            rig.store.put(make_block(first, size=size), PLACEMENT, Ack.DISK)
        if is_reopened:
            rig.reopen()
        weigh = rig.store.weigh
        assert [one.bytes for one in weigh(LOG, Lsn(1), Lsn(count + 1), 1)] == [
            (light.size + heavy.size) * count // 2
        ]
        assert [one.bytes for one in weigh(LOG, Lsn(1), Lsn(count + 1), 2)] == [
            light.size * count // 2,
            heavy.size * count // 2,
        ]

    def test_holes_weigh_nothing_and_junk_next_to_nothing(self, rig: StoreRig) -> None:
        for block in (make_block(1, 10), make_block(21, 10)):
            rig.store.put(block, PLACEMENT, Ack.DISK)
        filled = junk(LOG, Lsn(31), 1_000, EntryKind.HOLE)
        rig.store.put(filled, PLACEMENT, Ack.DISK)
        weights = [one.bytes for one in rig.store.weigh(LOG, Lsn(1), Lsn(31), 3)]
        assert weights == [make_block(1, 10).size, 0, make_block(21, 10).size]
        (junk_weight,) = rig.store.weigh(LOG, Lsn(31), Lsn(1_031), 1)
        assert junk_weight.bytes == filled.size

    def test_a_log_that_is_not_there_weighs_nothing(self, rig: StoreRig) -> None:
        rig.store.put(make_block(1), PLACEMENT, Ack.DISK)
        assert rig.store.weigh(OTHER, Lsn(1), Lsn(10), 3) == []

    # -- Bounds ---------------------------------------------------------------------------------

    @pytest.mark.parametrize("is_reopened", [False, True], ids=["fresh", "reopened"])
    def test_a_scan_gives_a_bounded_number_of_blocks(
        self, rig: StoreRig, is_reopened: bool
    ) -> None:
        for first in range(1, SCAN_BLOCKS_MAX + 11):
            rig.store.put(make_block(first, size=1), PLACEMENT, Ack.DISK)
        if is_reopened:
            rig.reopen()
        assert len(scanned(rig.store, 1, LSN_MAX)) == SCAN_BLOCKS_MAX
        assert len(scanned(rig.store, SCAN_BLOCKS_MAX, LSN_MAX, MIB)) == 11

    def test_no_store_takes_what_was_cut_for_a_reader(self, rig: StoreRig) -> None:
        cut_block = cut(make_block(1, 10), Selection(columns=()))
        assert cut_block.is_cut
        with pytest.raises(AssertionError, match="was cut for a reader"):
            rig.store.put(cut_block, PLACEMENT, Ack.DISK)
