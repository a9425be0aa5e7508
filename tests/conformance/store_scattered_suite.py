"""What every store must do with a scattered log: one of which it holds blocks here and there."""

import pytest

from millrace.codec.blocks import junk
from millrace.core.log_state import Marks
from millrace.core.messages import Refusal, Standing
from millrace.errors import CorruptBlock
from millrace.limits import MIB, WEIGH_ENTRIES_MAX
from millrace.lsn import lsn_of
from millrace.store.contract import Store, StoreFailed
from millrace.types import LSN_MAX, Ack, EntryKind, Epoch, LogId, Lsn, NodeId, Placement
from tests.conformance.store_finding_suite import StoreFindingSuite
from tests.conformance.store_rig import (
    LOG,
    MEMBER,
    OTHER,
    SMALL_ROOM_BYTES,
    OpenRig,
    StoreRig,
    held,
    known,
    make_block,
    scanned,
)

REOPENED = pytest.mark.parametrize("is_reopened", [False, True], ids=["fresh", "reopened"])


def at(epoch: int, offset: int) -> Lsn:
    return lsn_of(Epoch(epoch), offset)


def placed(*nodes: int, wave: int = 1, recovery: int = 0) -> Placement:
    return Placement(tuple(NodeId(node) for node in nodes), wave, Epoch(recovery))


def placements(store: Store, log: LogId = LOG) -> dict[Lsn, Placement]:
    copies = store.copies(log, Lsn(0), LSN_MAX, 1_000_000)
    return {copy.extent.first: copy.placement for copy in copies}


ONE = placed(1, 2, 3)


class StoreScatteredSuite(StoreFindingSuite):
    @pytest.fixture
    def scattered(self, rig: StoreRig) -> StoreRig:
        rig.store.scatter(LOG)
        return rig

    # -- What is held ---------------------------------------------------------------------------

    @REOPENED
    def test_holes_mean_nothing(self, scattered: StoreRig, is_reopened: bool) -> None:
        rig = scattered
        blocks = [make_block(first, 3) for first in (at(1, 4), at(1, 90), at(3, 1))]
        for block in blocks:
            rig.store.put(block, ONE, Ack.DISK)
        rig.settle()
        if is_reopened:
            rig.reopen()
        state = known(rig.store)
        assert state.is_scattered
        assert (state.trim_end, state.contiguous_end, state.end) == (1, 1, at(3, 4))
        assert state.sparse == []
        assert (state.blocks, state.bytes) == (3, sum(block.size for block in blocks))
        assert scanned(rig.store, 1, LSN_MAX) == [bytes(block.data) for block in blocks]
        assert scanned(rig.store, at(1, 5), at(1, 91)) == [bytes(one.data) for one in blocks[:2]]
        assert rig.store.block_at(LOG, at(1, 50)) is None
        assert rig.store.block_at(LOG, at(1, 92)) is not None

    def test_blocks_may_come_in_any_order(self, scattered: StoreRig) -> None:
        for first in (at(2, 5), at(1, 1), at(2, 1), at(1, 9)):
            scattered.store.put(make_block(first), ONE, Ack.DISK)
        assert held(scattered.store) == [at(1, 1), at(1, 9), at(2, 1), at(2, 5)]
        assert known(scattered.store).end == at(2, 6)

    def test_being_scattered_survives_a_crash(self, scattered: StoreRig) -> None:
        assert scattered.settle() is None
        scattered.crash()
        assert known(scattered.store).is_scattered

    def test_a_log_with_blocks_cannot_become_scattered(self, rig: StoreRig) -> None:
        rig.store.put(make_block(1), ONE, Ack.DISK)
        with pytest.raises(AssertionError, match="too late"):
            rig.store.scatter(LOG)

    def test_scattering_twice_changes_nothing(self, scattered: StoreRig) -> None:
        scattered.store.put(make_block(at(1, 5)), ONE, Ack.DISK)
        scattered.store.scatter(LOG)
        assert held(scattered.store) == [at(1, 5)]

    def test_a_fence_and_a_trim_may_come_before(self, rig: StoreRig) -> None:
        rig.store.set_fence(LOG, MEMBER)
        rig.store.trim(LOG, at(2, 0))
        rig.store.scatter(LOG)
        rig.store.put(make_block(at(2, 7)), ONE, Ack.DISK)
        for _ in range(2):
            state = known(rig.store)
            assert state.fence == MEMBER
            assert (state.trim_end, state.contiguous_end, state.end) == (
                at(2, 0), at(2, 0), at(2, 8),
            )  # fmt: skip
            rig.reopen()

    def test_a_dropped_log_can_be_made_again_of_another_kind(self, scattered: StoreRig) -> None:
        scattered.store.put(make_block(at(1, 5)), ONE, Ack.DISK)
        scattered.store.set_marks(LOG, Marks(at(1, 5)))
        scattered.store.drop(LOG)
        scattered.store.put(make_block(1), ONE, Ack.DISK)
        for _ in range(2):
            state = known(scattered.store)
            assert (state.is_scattered, state.marks, state.contiguous_end) == (False, Marks(), 2)
            scattered.settle()
            scattered.reopen()

    # -- Precedence (I5) ------------------------------------------------------------------------

    @REOPENED
    @pytest.mark.parametrize(
        ("held_by", "put_by", "is_replaced"),
        [
            pytest.param((0, 1), (0, 2), True, id="later wave"),
            pytest.param((0, 2), (0, 1), False, id="earlier wave"),
            pytest.param((0, 2), (0, 2), True, id="same wave"),
            pytest.param((0, 9), (4, 0), True, id="recovery over appender"),
            pytest.param((4, 0), (0, 9), False, id="appender under recovery"),
            pytest.param((4, 0), (6, 0), True, id="later recovery"),
            pytest.param((6, 0), (4, 0), False, id="earlier recovery"),
        ],
    )
    @pytest.mark.parametrize(
        ("first", "count"),
        [(10, 5), (8, 3), (14, 3), (12, 1), (5, 20)],
        ids=["equal", "front", "back", "inside", "around"],
    )
    def test_of_two_that_overlap_the_higher_precedence_stays(
        self,
        scattered: StoreRig,
        held_by: tuple[int, int],
        put_by: tuple[int, int],
        is_replaced: bool,
        first: int,
        count: int,
        is_reopened: bool,
    ) -> None:
        rig = scattered
        old, new = make_block(at(1, 10), 5), make_block(at(1, first), count, epoch=9)
        beside = make_block(at(1, 2))
        rig.store.put(beside, ONE, Ack.DISK)
        rig.store.put(old, placed(1, 2, recovery=held_by[0], wave=held_by[1]), Ack.DISK)
        if is_reopened:
            rig.reopen()
        rig.store.put(new, placed(3, 4, recovery=put_by[0], wave=put_by[1]), Ack.DISK)
        stays = new if is_replaced else old
        nodes = (3, 4) if is_replaced else (1, 2)
        for _ in range(2):
            assert scanned(rig.store, 1, LSN_MAX) == [bytes(beside.data), bytes(stays.data)]
            assert placements(rig.store)[stays.first].copyset == nodes
            state = known(rig.store)
            assert (state.end, state.blocks) == (stays.end, 2)
            assert state.bytes == beside.size + stays.size
            assert rig.settle() is None
            rig.reopen()

    @REOPENED
    def test_a_hole_takes_the_place_of_all_it_covers(
        self, scattered: StoreRig, is_reopened: bool
    ) -> None:
        rig = scattered
        for offset in range(1, 30, 2):
            rig.store.put(make_block(at(1, offset), 2), ONE, Ack.DISK)
        if is_reopened:
            rig.reopen()
        plug = junk(LOG, at(1, 6), 10, EntryKind.HOLE)
        rig.store.put(plug, placed(1, 2, wave=0, recovery=2), Ack.DISK)
        left = [at(1, one) for one in (1, 3, 6, 17, 19, 21, 23, 25, 27, 29)]
        for _ in range(2):
            assert held(rig.store) == left
            assert known(rig.store).blocks == len(left)
            rig.settle()
            rig.reopen()

    def test_one_of_higher_precedence_among_many_is_enough(self, scattered: StoreRig) -> None:
        store = scattered.store
        store.put(make_block(at(1, 1), 2), placed(1, wave=1), Ack.DISK)
        store.put(make_block(at(1, 3), 2), placed(1, wave=7), Ack.DISK)
        store.put(make_block(at(1, 1), 6, epoch=9), placed(2, wave=3), Ack.DISK)
        assert held(store) == [at(1, 1), at(1, 3)]

    @REOPENED
    def test_the_same_block_is_not_stored_again(
        self, scattered: StoreRig, is_reopened: bool
    ) -> None:
        """A later wave or a recovery may send a node what it holds: only its placement is new."""
        rig = scattered
        block = make_block(at(1, 5), 3)
        rig.store.put(block, placed(1, 2), Ack.DISK)
        if is_reopened:
            rig.reopen()
        for placement in (placed(1, 4, wave=2), placed(1, 5, wave=0, recovery=3)):
            rig.store.put(make_block(at(1, 5), 3), placement, Ack.DISK)
            rig.store.put(make_block(at(1, 5), 3), placed(1, 2), Ack.DISK)  # Too late.
            assert rig.settle() is None
            assert placements(rig.store) == {at(1, 5): placement}
            assert known(rig.store).blocks == 1
            rig.crash()
            assert placements(rig.store) == {at(1, 5): placement}
        assert scanned(rig.store, 1, LSN_MAX) == [bytes(block.data)]

    def test_the_same_block_mends_a_damaged_one(self, scattered: StoreRig) -> None:
        block = make_block(at(1, 5), size=5_000)
        scattered.store.put(block, ONE, Ack.DISK)
        scattered.settle()
        scattered.damage(block)
        with pytest.raises(CorruptBlock):
            scattered.store.block_at(LOG, at(1, 5))
        scattered.store.put(make_block(at(1, 5), size=5_000), ONE, Ack.DISK)
        for _ in range(2):
            assert scanned(scattered.store, 1, LSN_MAX) == [bytes(block.data)]
            scattered.settle()
            scattered.reopen()

    def test_what_rests_on_a_block_that_fails_fails_too(self, open_rig: OpenRig) -> None:
        """Passed over, sent again or amended: none is true without the block itself."""
        rig = open_rig(SMALL_ROOM_BYTES)
        rig.store.scatter(LOG)
        assert rig.settle() is None
        large = make_block(at(1, 5), 3, size=15 * MIB)
        answers: list[StoreFailed | None] = []
        rig.store.put(large, placed(1, 2, wave=2), Ack.DISK)
        rig.store.barrier(Ack.DISK, answers.append)
        rig.store.put(make_block(at(1, 6)), placed(1, 2), Ack.DISK)
        rig.store.barrier(Ack.DISK, answers.append)
        rig.store.put(large, placed(1, 3, wave=3), Ack.DISK)
        rig.store.barrier(Ack.DISK, answers.append)
        assert rig.store.amend(LOG, [(at(1, 5), placed(1, 3, wave=4))]) == []
        rig.store.barrier(Ack.DISK, answers.append)
        assert rig.settle() is None
        assert [answer and answer.reason for answer in answers] == [Refusal.DISK_FULL] * 4
        assert held(rig.store) == []
        assert known(rig.store).end == 1

    def test_a_block_that_is_replaced_and_fails_leaves_the_log_readable(
        self, open_rig: OpenRig
    ) -> None:
        rig = open_rig(SMALL_ROOM_BYTES)
        rig.store.scatter(LOG)
        for offset in (1, 5):
            rig.store.put(make_block(at(1, offset)), ONE, Ack.DISK)
        assert rig.settle() is None
        large = make_block(at(1, 5), 4, size=15 * MIB)
        rig.store.put(large, placed(1, recovery=2), Ack.DISK)
        assert rig.settle() is not None
        for _ in range(2):
            assert held(rig.store) == [at(1, 1)]
            assert known(rig.store).end == at(1, 2)
            rig.reopen()

    # -- Amending -------------------------------------------------------------------------------

    @REOPENED
    @pytest.mark.parametrize(
        ("placement", "is_taken"),
        [
            pytest.param(placed(7, wave=1), False, id="earlier wave"),
            pytest.param(placed(7, wave=2), True, id="same wave"),
            pytest.param(placed(7, wave=3), True, id="later wave"),
            pytest.param(placed(7, wave=0, recovery=2), True, id="recovery"),
        ],
    )
    def test_a_block_is_amended_unless_its_precedence_is_higher(
        self, scattered: StoreRig, placement: Placement, is_taken: bool, is_reopened: bool
    ) -> None:
        rig, before = scattered, placed(1, 2, 3, wave=2)
        block = make_block(at(1, 5), 3)
        rig.store.put(block, before, Ack.DISK)
        if is_reopened:
            rig.reopen()
        assert rig.store.amend(LOG, [(at(1, 5), placement)]) == []
        for _ in range(2):
            assert placements(rig.store) == {at(1, 5): placement if is_taken else before}
            assert rig.settle() is None
            rig.crash()
        assert scanned(rig.store, 1, LSN_MAX) == [bytes(block.data)]

    def test_amending_tells_which_blocks_are_missing(self, scattered: StoreRig) -> None:
        store, new = scattered.store, placed(9, wave=2)
        for offset in (1, 5, 20, 30):
            store.put(make_block(at(1, offset), 3), ONE, Ack.DISK)
        scattered.settle()
        store.remove(LOG, [at(1, 20)])
        store.trim(LOG, at(1, 4))
        firsts = [at(1, one) for one in (1, 5, 6, 20, 30, 40)]
        missing = store.amend(LOG, [(first, new) for first in firsts])
        assert missing == [at(1, 1), at(1, 6), at(1, 20), at(1, 40)]
        assert placements(store) == {at(1, 5): new, at(1, 30): new}
        assert store.amend(OTHER, [(at(1, 1), new)]) == [at(1, 1)]
        assert store.state(OTHER) is None

    def test_the_last_amendment_stands(self, scattered: StoreRig) -> None:
        scattered.store.put(make_block(at(1, 1)), ONE, Ack.DISK)
        for wave in (2, 3, 4):
            scattered.store.amend(LOG, [(at(1, 1), placed(wave, wave=wave))])
        assert scattered.settle() is None
        scattered.crash()
        assert placements(scattered.store) == {at(1, 1): placed(4, wave=4)}

    @REOPENED
    def test_an_amended_block_can_be_removed_and_written_again(
        self, scattered: StoreRig, is_reopened: bool
    ) -> None:
        rig = scattered
        rig.store.put(make_block(at(1, 1), 4), ONE, Ack.DISK)
        if is_reopened:
            rig.reopen()
        rig.store.amend(LOG, [(at(1, 1), placed(9, wave=9))])
        rig.store.remove(LOG, [at(1, 1)])
        rig.store.put(make_block(at(1, 1), 2), ONE, Ack.DISK)
        for _ in range(2):
            assert placements(rig.store) == {at(1, 1): ONE}
            assert known(rig.store).end == at(1, 3)
            rig.settle()
            rig.reopen()

    # -- Marks ----------------------------------------------------------------------------------

    def test_marks_are_kept_with_the_next_commit(self, scattered: StoreRig) -> None:
        scattered.settle()
        marks = Marks(at(2, 7), (at(3, 1), at(4, 2)))
        scattered.store.set_marks(LOG, marks)
        assert known(scattered.store).marks == marks
        scattered.store.put(make_block(1, log=OTHER), ONE, Ack.DISK)
        assert scattered.settle() is None
        scattered.crash()
        assert known(scattered.store).marks == marks

    def test_marks_are_kept_by_closing_in_order(self, scattered: StoreRig) -> None:
        scattered.settle()
        for released in (at(1, 3), at(2, 7)):
            scattered.store.set_marks(LOG, Marks(released))
        scattered.reopen()
        assert known(scattered.store).marks == Marks(at(2, 7))

    # -- Trim, remove, standing -----------------------------------------------------------------

    @REOPENED
    @pytest.mark.parametrize(
        ("trim_end", "left"),
        [
            pytest.param(at(1, 5), [(1, 4), (1, 90), (3, 1)], id="inside a block"),
            pytest.param(at(1, 7), [(1, 90), (3, 1)], id="behind a block"),
            pytest.param(at(2, 0), [(3, 1)], id="an epoch"),
            pytest.param(at(9, 0), [], id="everything"),
        ],
    )
    def test_trim(
        self, scattered: StoreRig, trim_end: Lsn, left: list[tuple[int, int]], is_reopened: bool
    ) -> None:
        rig = scattered
        for first in (at(1, 4), at(1, 90), at(3, 1)):
            rig.store.put(make_block(first, 3), ONE, Ack.DISK)
        if is_reopened:
            rig.reopen()
        rig.store.trim(LOG, trim_end)
        for _ in range(2):
            state = known(rig.store)
            assert held(rig.store) == [at(*one) for one in left]
            assert (state.trim_end, state.contiguous_end) == (trim_end, trim_end)
            assert state.end == max(at(3, 4), trim_end)
            assert rig.settle() is None
            rig.reopen()
        assert known(rig.store).blocks == len(left)

    def test_what_was_trimmed_does_not_come_back(self, scattered: StoreRig) -> None:
        rig = scattered
        rig.store.put(make_block(at(1, 1), 3), ONE, Ack.DISK)
        rig.store.trim(LOG, at(1, 6))
        rig.store.put(make_block(at(1, 1), 3), ONE, Ack.DISK)
        rig.store.put(make_block(at(1, 4), 2), ONE, Ack.DISK)
        rig.store.put(make_block(at(1, 2), 8), ONE, Ack.DISK)  # Reaches across the trim point.
        for _ in range(2):
            assert held(rig.store) == [at(1, 2)]
            assert known(rig.store).end == at(1, 10)
            assert rig.settle() is None
            rig.reopen()
        assert known(rig.store).blocks == 1

    @REOPENED
    def test_removed_blocks_are_gone(self, scattered: StoreRig, is_reopened: bool) -> None:
        rig = scattered
        for offset in (1, 5, 9):
            rig.store.put(make_block(at(1, offset), 2), ONE, Ack.DISK)
        if is_reopened:
            rig.reopen()
        rig.store.remove(LOG, [at(1, 9), at(1, 2), at(4, 4)])
        for _ in range(2):
            assert held(rig.store) == [at(1, 1), at(1, 5)]
            state = known(rig.store)
            assert (state.end, state.blocks) == (at(1, 7), 2)
            rig.settle()
            rig.reopen()
        rig.store.remove(LOG, [at(1, 1), at(1, 5)])
        assert known(rig.store).end == 1

    def test_memory_acknowledged_blocks_make_it_dirty_after_a_crash(
        self, scattered: StoreRig
    ) -> None:
        """I4."""
        scattered.store.set_fence(LOG, MEMBER)
        for offset in (3, 1):
            scattered.store.put(make_block(at(1, offset)), ONE, Ack.MEMORY)
            assert scattered.settle(Ack.MEMORY) is None
        scattered.crash()
        assert known(scattered.store).fence.standing is Standing.DIRTY

    # -- Finding --------------------------------------------------------------------------------

    @REOPENED
    def test_find_in_a_scattered_log(self, scattered: StoreRig, is_reopened: bool) -> None:
        rig = scattered
        firsts = [at(1, 4), at(1, 90), at(3, 1)]
        blocks = [
            make_block(first, 3, timestamp_us=1000 * number)
            for number, first in enumerate(firsts, start=1)
        ]
        for block in blocks:
            rig.store.put(block, ONE, Ack.DISK)
        if is_reopened:
            rig.reopen()
        find_time, find_size = rig.store.find_time, rig.store.find_size
        assert [find_time(LOG, one) for one in (0, 1001, 2001, 3001)] == [*firsts, at(3, 4)]
        size = blocks[0].size
        assert [find_size(LOG, one * size) for one in range(4)] == [at(3, 4), *firsts[::-1]]

    @REOPENED
    def test_epochs_are_weighed_without_what_lies_between_them(
        self, scattered: StoreRig, is_reopened: bool
    ) -> None:
        rig = scattered
        size = make_block(1, 10).size
        for epoch, blocks in ((1, 8), (2, 4), (9, 4)):
            for number in range(blocks):
                rig.store.put(make_block(at(epoch, 1 + 10 * number), 10), ONE, Ack.DISK)
        if is_reopened:
            rig.reopen()
        first, end = at(1, 0), at(10, 0)
        pieces = rig.store.weigh(LOG, first, end, 4)
        assert [(one.first, one.end) for one in pieces] == [
            (at(1, 0), at(1, 41)),
            (at(1, 41), at(2, 1)),
            (at(2, 1), at(9, 1)),
            (at(9, 1), at(10, 0)),
        ]
        assert [one.bytes for one in pieces] == [4 * size] * 4
        (whole,) = rig.store.weigh(LOG, first, end, 1)
        assert (whole.first, whole.end, whole.bytes) == (first, end, 16 * size)
        (part,) = rig.store.weigh(LOG, at(1, 41), at(2, 21), 1)
        assert part.bytes == 6 * size
        (nothing,) = rig.store.weigh(LOG, at(3, 0), at(8, 0), 5)
        assert nothing.bytes == 0
        assert rig.store.weigh(LOG, at(3, 0), at(3, 0), 5) == []

    @REOPENED
    def test_runs_are_where_the_blocks_of_each_epoch_lie(
        self, scattered: StoreRig, is_reopened: bool
    ) -> None:
        rig = scattered
        for first in (at(1, 4), at(1, 90), at(3, 1), at(7, 5)):
            rig.store.put(make_block(first, 3), ONE, Ack.DISK)
        for first in (at(1, 93), at(5, 1)):
            bridge = junk(LOG, first, 4, EntryKind.BRIDGE)
            rig.store.put(bridge, placed(1, 2, wave=0, recovery=8), Ack.DISK)
        if is_reopened:
            rig.reopen()
        runs = [(at(1, 4), at(1, 93)), (at(3, 1), at(3, 4)), (at(5, 1),) * 2, (at(7, 5), at(7, 8))]
        everything = rig.store.runs(LOG, Lsn(1), LSN_MAX, 10)
        assert [(run.first, run.end) for run in everything] == runs
        assert rig.store.runs(LOG, Lsn(1), LSN_MAX, 2) == everything[:2]
        (part,) = rig.store.runs(LOG, at(1, 6), at(1, 91), 10)
        assert (part.first, part.end) == (at(1, 6), at(1, 91))
        assert rig.store.runs(LOG, at(3, 4), at(5, 0), 10) == []
        assert rig.store.runs(OTHER, Lsn(1), LSN_MAX, 10) == []

    def test_many_scattered_blocks_are_weighed_by_a_few(self, scattered: StoreRig) -> None:
        count = 8 * WEIGH_ENTRIES_MAX
        for number in range(count):
            block = make_block(at(5, 1 + 3 * number), size=100)  # Others hold two of three.
            scattered.store.put(block, ONE, Ack.DISK)
        pieces = scattered.store.weigh(LOG, at(1, 0), at(9, 0), 2)
        assert pieces[0].end == pieces[1].first
        half = make_block(1, size=100).size * count // 2
        assert all(abs(one.bytes - half) < half // 10 for one in pieces)
