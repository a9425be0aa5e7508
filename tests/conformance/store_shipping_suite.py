"""What every store must do when blocks are chosen by their index entries alone."""

from collections.abc import Callable

import pytest

from millrace.codec.blocks import junk
from millrace.errors import CorruptBlock
from millrace.limits import MIB, SCAN_BLOCKS_MAX, SHIP_ENTRIES_MAX
from millrace.store.contract import Store
from millrace.types import LSN_MAX, Ack, Block, Copy, EntryKind, Extent, Lsn, NodeId
from tests.conformance.store_rig import LOG, OTHER, StoreRig, make_block
from tests.conformance.store_scattered_suite import ONE, REOPENED, StoreScatteredSuite, at, placed


def shipped(
    store: Store,
    first: int,
    end: int,
    ships: Callable[[Copy], bool] = lambda copy: True,
    bytes_max: int = 64 * MIB,
) -> tuple[list[int], int]:
    """Where the chosen blocks begin, and up to where was looked."""
    shipment = store.ship(LOG, Lsn(first), Lsn(end), bytes_max, ships)
    firsts = [int(block.first) for block in shipment.blocks]
    next_lsn = shipment.next_lsn
    shipment.release()
    return firsts, next_lsn


def by(node: int) -> Callable[[Copy], bool]:
    return lambda copy: copy.placement.copyset[0] == NodeId(node)


class StoreShippingSuite(StoreScatteredSuite):
    def filled(self, rig: StoreRig, count: int = 9, size: int = 64) -> list[Block]:
        """Blocks of three positions at 1, 11, 21 ... of which node 1, 2, 3, 1 ... comes first."""
        blocks = [make_block(at(1, 1 + 10 * one), 3, size=size) for one in range(count)]
        for number, block in enumerate(blocks):
            rig.store.put(block, placed(1 + number % 3, 9), Ack.DISK)
        rig.settle()
        return blocks

    @REOPENED
    def test_the_chosen_blocks_are_given_in_order(
        self, scattered: StoreRig, is_reopened: bool
    ) -> None:
        blocks = self.filled(scattered)
        if is_reopened:
            scattered.reopen()
        store = scattered.store
        firsts = [block.first for block in blocks]
        assert shipped(store, 1, LSN_MAX) == (firsts, LSN_MAX)
        assert shipped(store, 1, LSN_MAX, by(2)) == (firsts[1::3], LSN_MAX)
        assert shipped(store, 1, at(1, 22), by(3)) == (firsts[2:3], at(1, 22))
        assert shipped(store, at(1, 13), at(1, 41)) == (firsts[1:4], at(1, 41))
        assert shipped(store, at(1, 14), at(1, 21)) == ([], at(1, 21))
        assert shipped(store, 1, LSN_MAX, by(4)) == ([], LSN_MAX)
        shipment = store.ship(LOG, Lsn(1), LSN_MAX, MIB, by(1))
        assert [bytes(one.data) for one in shipment.blocks] == [
            bytes(one.data) for one in blocks[::3]
        ]
        shipment.release()

    @REOPENED
    def test_a_shipment_goes_by_placements_as_amended(
        self, scattered: StoreRig, is_reopened: bool
    ) -> None:
        blocks = self.filled(scattered)
        if is_reopened:
            scattered.reopen()
        scattered.store.amend(LOG, [(blocks[1].first, placed(7, wave=2))])
        for _ in range(2):
            assert shipped(scattered.store, 1, LSN_MAX, by(7)) == ([blocks[1].first], LSN_MAX)
            assert shipped(scattered.store, 1, LSN_MAX, by(2))[0] == [
                blocks[4].first,
                blocks[7].first,
            ]
            scattered.settle()
            scattered.reopen()

    @REOPENED
    def test_a_shipment_stops_at_its_budget_but_gives_one_block(
        self, scattered: StoreRig, is_reopened: bool
    ) -> None:
        blocks = self.filled(scattered)
        if is_reopened:
            scattered.reopen()
        store, size = scattered.store, blocks[0].size
        firsts = [block.first for block in blocks]
        assert shipped(store, 1, LSN_MAX, bytes_max=1) == (firsts[:1], firsts[1])
        assert shipped(store, 1, LSN_MAX, bytes_max=3 * size) == (firsts[:3], firsts[3])
        assert shipped(store, 1, LSN_MAX, by(1), 2 * size) == ([firsts[0], firsts[3]], firsts[6])

    @REOPENED
    def test_a_shipment_looks_at_a_bounded_number_of_entries(
        self, scattered: StoreRig, is_reopened: bool
    ) -> None:
        """And gives a bounded number of blocks."""
        block = make_block(1, size=1)
        for offset in range(1, SHIP_ENTRIES_MAX + 11):
            block = make_block(at(1, offset), size=1)
            scattered.store.put(block, placed(1), Ack.DISK)
        if is_reopened:
            scattered.reopen()
        looked: list[Copy] = []
        none = shipped(scattered.store, 1, LSN_MAX, lambda copy: bool(looked.append(copy)))
        assert none == ([], at(1, SHIP_ENTRIES_MAX + 1))
        assert len(looked) == SHIP_ENTRIES_MAX
        assert shipped(scattered.store, none[1], LSN_MAX, by(2)) == ([], LSN_MAX)
        firsts, next_lsn = shipped(scattered.store, 1, LSN_MAX)
        assert (len(firsts), next_lsn) == (SCAN_BLOCKS_MAX, at(1, SCAN_BLOCKS_MAX + 1))

    def test_a_shipment_stops_before_a_damaged_block(self, scattered: StoreRig) -> None:
        """I2.  Whoever does not choose it never hears of it."""
        blocks = self.filled(scattered, size=5_000)
        scattered.damage(blocks[4])
        store = scattered.store
        firsts = [block.first for block in blocks]
        assert shipped(store, 1, LSN_MAX) == (firsts[:4], firsts[4])
        assert shipped(store, 1, LSN_MAX, by(1)) == (firsts[::3], LSN_MAX)
        asked: list[Lsn] = []

        def later(copy: Copy) -> bool:
            asked.append(copy.extent.first)
            return copy.extent.first > blocks[2].first and by(2)(copy)

        with pytest.raises(CorruptBlock):
            store.ship(LOG, Lsn(1), LSN_MAX, MIB, later)
        assert asked == firsts[:5]

    @pytest.mark.parametrize(
        ("first", "end", "next_lsn"),
        [
            pytest.param(at(1, 1), at(1, 12), at(1, 12), id="all trimmed"),
            pytest.param(at(1, 30), at(1, 30), at(1, 30), id="empty range"),
            pytest.param(at(1, 30), at(1, 20), at(1, 30), id="end below first"),
            pytest.param(at(2, 0), at(3, 0), at(3, 0), id="above the end"),
        ],
    )
    def test_nothing_to_ship(
        self, scattered: StoreRig, first: Lsn, end: Lsn, next_lsn: Lsn
    ) -> None:
        self.filled(scattered)
        scattered.store.trim(LOG, at(1, 12))
        for _ in range(2):
            assert shipped(scattered.store, first, end) == ([], next_lsn)
            scattered.reopen()

    def test_an_unknown_log_ships_nothing(self, rig: StoreRig) -> None:
        shipment = rig.store.ship(OTHER, Lsn(1), Lsn(9), MIB, lambda copy: True)
        assert (list(shipment.blocks), shipment.next_lsn) == ([], 9)
        shipment.release()
        assert rig.store.copies(OTHER, Lsn(1), Lsn(9), 10) == []

    @REOPENED
    def test_copies_are_the_index_with_placements(
        self, scattered: StoreRig, is_reopened: bool
    ) -> None:
        blocks = self.filled(scattered)
        if is_reopened:
            scattered.reopen()
        store = scattered.store
        copies = store.copies(LOG, at(1, 12), at(1, 60), 3)
        assert copies == [
            Copy(block.extent(), placed(1 + number % 3, 9))
            for number, block in enumerate(blocks[1:4], start=1)
        ]
        assert [copy.extent for copy in copies] == store.index(LOG, at(1, 12), at(1, 60), 3)

    def test_a_log_that_is_not_scattered_ships_too(self, rig: StoreRig) -> None:
        for first in range(1, 9):
            rig.store.put(make_block(first), placed(first % 2, wave=0), Ack.DISK)
        assert shipped(rig.store, 3, 8, by(1)) == ([3, 5, 7], 8)

    @REOPENED
    def test_a_bridge_is_about_all_that_follows_in_its_epoch(
        self, scattered: StoreRig, is_reopened: bool
    ) -> None:
        rig = scattered
        bridges = junk(LOG, at(1, 7), 3, EntryKind.BRIDGE), junk(LOG, at(4, 1), 1, EntryKind.BRIDGE)
        for bridge in bridges:
            rig.store.put(bridge, placed(1, 2, wave=0, recovery=8), Ack.DISK)
        for first in (at(1, 4), at(2, 1)):
            rig.store.put(make_block(first, 3), ONE, Ack.DISK)
        rig.settle()
        if is_reopened:
            rig.reopen()
            rig.damage(bridges[0])

        def bridge_over(lsn: Lsn) -> Extent | None:
            found = rig.store.bridge_over(LOG, lsn)
            return None if found is None else found.extent()

        assert bridge_over(at(1, 10)) == bridge_over(at(1, 1 << 30)) == bridges[0].extent()
        assert bridge_over(at(4, 2)) == bridges[1].extent()
        for lsn in (at(1, 5), at(1, 7), at(1, 9), at(2, 0), at(2, 9), at(4, 0), at(4, 1), at(5, 1)):
            assert bridge_over(lsn) is None
        assert rig.store.bridge_over(OTHER, at(1, 10)) is None
        rig.store.trim(LOG, at(4, 2))
        assert bridge_over(at(4, 3)) is None
