"""What every store must do (`millrace.store.contract`), whatever it is made of.

A test module subclasses `StoreSuite` and gives it a fixture `open_rig`: a function that takes the
room in bytes and returns a `StoreRig`.  The LMDB store and the simulator's disk run the same tests.
"""

import random

import pytest

from millrace.codec.blocks import junk
from millrace.core.log_state import Fence
from millrace.core.messages import Refusal, Standing
from millrace.errors import CorruptBlock
from millrace.limits import KIB, MIB
from millrace.store.contract import StoreFailed
from millrace.types import LSN_MAX, Ack, EntryKind, Epoch, LogId, Lsn, Token
from tests.conformance.store_commit_model_suite import StoreCommitModelSuite
from tests.conformance.store_model_suite import StoreModelSuite
from tests.conformance.store_rig import (
    LOG,
    MEMBER,
    OTHER,
    PLACEMENT,
    SMALL_ROOM_BYTES,
    OpenRig,
    StoreRig,
    held,
    known,
    make_block,
    scanned,
)

__all__ = [
    "LOG",
    "MEMBER",
    "OTHER",
    "PLACEMENT",
    "OpenRig",
    "StoreRig",
    "StoreSuite",
    "held",
    "known",
    "make_block",
]


class StoreSuite(StoreModelSuite, StoreCommitModelSuite):
    # -- Putting and reading --------------------------------------------------------------------

    def test_a_block_can_be_read_before_it_is_durable(self, rig: StoreRig) -> None:
        block = make_block(1, 3)
        rig.store.put(block, PLACEMENT, Ack.DISK)
        found = rig.store.block_at(LOG, Lsn(2))
        assert found is not None
        assert bytes(found.data) == bytes(block.data)
        assert scanned(rig.store, 1, 4) == [bytes(block.data)]
        assert known(rig.store).contiguous_end == 4

    @pytest.mark.parametrize("is_reopened", [False, True], ids=["fresh", "reopened"])
    def test_what_was_put_is_what_is_read(self, rig: StoreRig, is_reopened: bool) -> None:
        blocks = [make_block(1 + 10 * i, 10, size=1 + 700 * i) for i in range(20)]
        for block in blocks:
            rig.store.put(block, PLACEMENT, Ack.DISK)
        assert rig.settle() is None
        if is_reopened:
            rig.reopen()
        store = rig.store
        assert scanned(store, 1, LSN_MAX) == [bytes(block.data) for block in blocks]
        assert scanned(store, 15, 32) == [bytes(block.data) for block in blocks[1:4]]
        assert store.index(LOG, Lsn(15), Lsn(32), 2) == [one.extent() for one in blocks[1:3]]
        state = known(store)
        assert (state.blocks, state.bytes) == (20, sum(block.size for block in blocks))
        assert (state.contiguous_end, state.end, state.sparse) == (201, 201, [])
        assert store.block_at(LOG, Lsn(201)) is None
        assert store.logs() == [LOG]

    @pytest.mark.parametrize("is_reopened", [False, True], ids=["fresh", "reopened"])
    def test_a_scan_stops_at_its_budget_but_gives_one_block(
        self, rig: StoreRig, is_reopened: bool
    ) -> None:
        blocks = [make_block(i, size=1000) for i in range(1, 6)]
        for block in blocks:
            rig.store.put(block, PLACEMENT, Ack.DISK)
        rig.settle()
        if is_reopened:
            rig.reopen()
        size = blocks[0].size
        assert len(scanned(rig.store, 1, 6, bytes_max=1)) == 1
        assert len(scanned(rig.store, 1, 6, bytes_max=3 * size)) == 3
        assert len(scanned(rig.store, 1, 6, bytes_max=4 * size - 1)) == 3
        assert scanned(rig.store, 6, 6) == []

    def test_an_unknown_log_is_empty(self, rig: StoreRig) -> None:
        store = rig.store
        assert store.state(LOG) is None
        assert store.block_at(LOG, Lsn(1)) is None
        assert scanned(store, 1, 100) == []
        assert store.index(LOG, Lsn(1), Lsn(9), 10) == []

    @pytest.mark.parametrize("is_reopened", [False, True], ids=["fresh", "reopened"])
    def test_holes_are_seen_and_closed(self, rig: StoreRig, is_reopened: bool) -> None:
        for first in (1, 21, 41):
            rig.store.put(make_block(first, 10), PLACEMENT, Ack.DISK)
        rig.settle()
        if is_reopened:
            rig.reopen()
        state = known(rig.store)
        assert (state.contiguous_end, state.end) == (11, 51)
        assert [extent.first for extent in state.sparse] == [21, 41]
        assert rig.store.block_at(LOG, Lsn(15)) is None
        rig.store.put(junk(LOG, Lsn(11), 10, EntryKind.HOLE), PLACEMENT, Ack.DISK)
        assert known(rig.store).contiguous_end == 31
        assert held(rig.store) == [1, 11, 21, 41]
        rig.settle()
        rig.reopen()
        state = known(rig.store)
        assert (state.contiguous_end, len(state.sparse), state.blocks) == (31, 1, 4)
        filled = rig.store.block_at(LOG, Lsn(15))
        assert filled is not None
        assert filled.kind is EntryKind.HOLE

    @pytest.mark.parametrize(("first", "count"), [(5, 1), (1, 10), (10, 5), (18, 5), (15, 40)])
    def test_overlapping_puts_are_a_fault_of_the_caller(
        self, rig: StoreRig, first: int, count: int
    ) -> None:
        rig.store.put(make_block(1, 10), PLACEMENT, Ack.DISK)
        rig.store.put(make_block(20, 10), PLACEMENT, Ack.DISK)
        with pytest.raises(AssertionError):
            rig.store.put(make_block(first, count), PLACEMENT, Ack.DISK)

    def test_logs_do_not_mix(self, rig: StoreRig) -> None:
        for log in (LOG, OTHER, LogId(1)):
            for first in (1, 2, 3):
                rig.store.put(make_block(first, log=log, size=log), PLACEMENT, Ack.DISK)
        rig.settle()
        rig.reopen()
        assert rig.store.logs() == [1, LOG, OTHER]
        for log in rig.store.logs():
            scan = rig.store.scan(log, Lsn(1), LSN_MAX, MIB)
            assert [(block.log, block.first) for block in scan.blocks] == [
                (log, 1),
                (log, 2),
                (log, 3),
            ]
            scan.release()

    # -- Barriers and crashes -------------------------------------------------------------------

    def test_done_is_not_called_from_inside_barrier(self, rig: StoreRig) -> None:
        answers: list[StoreFailed | None] = []
        for number, ack in enumerate(Ack):
            rig.store.put(make_block(number + 1), PLACEMENT, ack)
            rig.store.barrier(ack, answers.append)
            assert len(answers) == number
            rig.settle()
            assert len(answers) == number + 1

    def test_barriers_are_answered_in_order(self, rig: StoreRig) -> None:
        answered: list[int] = []
        for number in range(50):
            rig.store.put(make_block(number + 1), PLACEMENT, Ack.DISK)
            rig.store.barrier(Ack.DISK, lambda failure, number=number: answered.append(number))  # type: ignore[misc]
        rig.settle()
        assert answered == list(range(50))

    def test_acknowledged_blocks_survive_a_crash(self, rig: StoreRig) -> None:
        """I1: a prefix, and at least what was acknowledged."""
        choices = random.Random(4)
        acknowledged, first = 0, 1
        for _ in range(8):
            for _ in range(choices.randrange(1, 20)):
                rig.store.put(make_block(first, size=2000), PLACEMENT, Ack.DISK)
                first += 1
                if choices.random() < 0.2:
                    assert rig.settle() is None
                    acknowledged = first - 1
            rig.crash()
            stored = held(rig.store)
            assert stored == list(range(1, len(stored) + 1))
            assert len(stored) >= acknowledged
            first = len(stored) + 1
            state = known(rig.store)
            assert (state.contiguous_end, state.blocks) == (first, len(stored))

    def test_fence_trim_and_removal_survive_a_crash(self, rig: StoreRig) -> None:
        for first in (1, 2, 3, 4):
            rig.store.put(make_block(first), PLACEMENT, Ack.DISK)
        rig.store.set_fence(LOG, MEMBER)
        rig.store.trim(LOG, Lsn(2))
        rig.store.remove(LOG, [Lsn(3)])
        assert rig.settle() is None
        rig.crash()
        state = known(rig.store)
        assert state.fence == MEMBER
        assert (state.trim_end, state.contiguous_end, state.end) == (2, 3, 5)
        assert held(rig.store) == [2, 4]

    def test_a_memory_acknowledged_log_opens_dirty_after_a_crash(self, rig: StoreRig) -> None:
        """I4."""
        for log in (LOG, OTHER):
            rig.store.set_fence(log, MEMBER)
        rig.store.put(make_block(1), PLACEMENT, Ack.MEMORY)
        rig.store.put(make_block(1, log=OTHER), PLACEMENT, Ack.DISK)
        assert rig.settle(Ack.MEMORY) is None
        rig.store.put(make_block(2), PLACEMENT, Ack.MEMORY)
        assert rig.settle(Ack.MEMORY) is None
        rig.crash()
        assert known(rig.store).fence.standing is Standing.DIRTY
        assert known(rig.store, OTHER).fence == MEMBER
        rig.reopen()
        assert known(rig.store).fence.standing is Standing.DIRTY
        rig.store.set_fence(LOG, MEMBER)
        rig.settle()
        rig.crash()
        assert known(rig.store).fence == MEMBER

    def test_a_log_closed_in_order_does_not_open_dirty(self, rig: StoreRig) -> None:
        rig.store.set_fence(LOG, MEMBER)
        for first in (1, 2, 3):
            rig.store.put(make_block(first), PLACEMENT, Ack.MEMORY)
            assert rig.settle(Ack.MEMORY) is None
        rig.reopen()
        assert known(rig.store).fence == MEMBER
        assert held(rig.store) == [1, 2, 3]
        rig.crash()
        assert known(rig.store).fence == MEMBER

    def test_a_log_that_never_was_a_member_stays_blank(self, rig: StoreRig) -> None:
        rig.store.put(make_block(1), PLACEMENT, Ack.MEMORY)
        rig.settle(Ack.MEMORY)
        rig.crash()
        assert known(rig.store).fence.standing is Standing.BLANK

    # -- Trim, remove, drop ---------------------------------------------------------------------

    @pytest.mark.parametrize("is_reopened", [False, True], ids=["fresh", "reopened"])
    @pytest.mark.parametrize(
        ("end", "left", "contiguous_end"),
        [
            (11, [11, 21, 41], 31),
            (15, [11, 21, 41], 31),
            (31, [41], 31),
            (35, [41], 35),
            (41, [41], 51),
            (45, [41], 51),
            (51, [], 51),
            (90, [], 90),
        ],
    )
    def test_trim_removes_whole_blocks_below_it(
        self, rig: StoreRig, end: int, left: list[int], contiguous_end: int, is_reopened: bool
    ) -> None:
        for first in (1, 11, 21, 41):
            rig.store.put(make_block(first, 10), PLACEMENT, Ack.DISK)
        if is_reopened:
            rig.reopen()
        rig.store.trim(LOG, Lsn(end))
        for _ in range(2):
            state = known(rig.store)
            assert held(rig.store) == left
            assert (state.trim_end, state.contiguous_end) == (end, contiguous_end)
            assert state.end == max(51, end)
            assert rig.store.block_at(LOG, Lsn(end - 1)) is None
            assert len(scanned(rig.store, 1, 100)) == len(left)
            assert rig.settle() is None
            rig.reopen()
        assert known(rig.store).blocks == len(left)

    def test_the_trim_point_only_moves_up(self, rig: StoreRig) -> None:
        rig.store.trim(LOG, Lsn(10))
        rig.store.trim(LOG, Lsn(5))
        assert known(rig.store).trim_end == 10

    def test_a_block_across_the_trim_point_can_still_arrive(self, rig: StoreRig) -> None:
        rig.store.trim(LOG, Lsn(5))
        rig.store.put(make_block(1, 10), PLACEMENT, Ack.DISK)
        rig.settle()
        rig.reopen()
        assert known(rig.store).contiguous_end == 11
        assert held(rig.store) == [1]

    @pytest.mark.parametrize("is_reopened", [False, True], ids=["fresh", "reopened"])
    def test_a_block_across_the_trim_point_takes_the_place_of_trimmed_ones(
        self, rig: StoreRig, is_reopened: bool
    ) -> None:
        for first in (1, 2, 3):
            rig.store.put(make_block(first), PLACEMENT, Ack.DISK)
        if is_reopened:
            rig.reopen()
        rig.store.trim(LOG, Lsn(4))
        rig.store.put(make_block(2, 4), PLACEMENT, Ack.DISK)
        for _ in range(2):
            assert held(rig.store) == [2]
            assert rig.store.block_at(LOG, Lsn(4)) is not None
            assert rig.settle() is None
            rig.reopen()
        assert known(rig.store).blocks == 1

    @pytest.mark.parametrize("is_reopened", [False, True], ids=["fresh", "reopened"])
    def test_removed_blocks_leave_holes_that_can_be_written(
        self, rig: StoreRig, is_reopened: bool
    ) -> None:
        for first in (1, 2, 3, 4, 6):
            rig.store.put(make_block(first), PLACEMENT, Ack.DISK)
        if is_reopened:
            rig.reopen()
        rig.store.remove(LOG, [Lsn(2), Lsn(6), Lsn(99)])
        state = known(rig.store)
        assert (state.contiguous_end, state.end, state.blocks) == (2, 5, 3)
        assert [extent.first for extent in state.sparse] == [3, 4]
        assert rig.store.block_at(LOG, Lsn(2)) is None
        replacement = make_block(2, epoch=4)
        rig.store.put(replacement, PLACEMENT, Ack.DISK)
        for _ in range(2):
            found = rig.store.block_at(LOG, Lsn(2))
            assert found is not None
            assert found.epoch == 4
            assert known(rig.store).contiguous_end == 5
            assert len(scanned(rig.store, 1, 10)) == 4
            rig.settle()
            rig.reopen()
        assert known(rig.store).blocks == 4

    def test_a_dropped_log_is_gone_and_can_be_made_again(self, rig: StoreRig) -> None:
        for first in range(1, 30):
            rig.store.put(make_block(first), PLACEMENT, Ack.DISK)
        rig.settle()
        rig.store.drop(LOG)
        assert rig.store.state(LOG) is None
        assert held(rig.store) == []
        rig.store.put(make_block(5), PLACEMENT, Ack.DISK)
        assert held(rig.store) == [5]
        rig.settle()
        rig.crash()
        assert held(rig.store) == [5]
        assert known(rig.store).blocks == 1
        rig.store.drop(LOG)
        rig.settle()
        rig.crash()
        assert rig.store.logs() == []

    # -- Damage and full disks ------------------------------------------------------------------

    def test_a_damaged_block_is_reported_and_never_served(self, rig: StoreRig) -> None:
        """I2."""
        blocks = [make_block(first, size=5000) for first in range(1, 6)]
        for block in blocks:
            rig.store.put(block, PLACEMENT, Ack.DISK)
        rig.settle()
        rig.damage(blocks[2])
        with pytest.raises(CorruptBlock):
            rig.store.block_at(LOG, Lsn(3))
        assert len(scanned(rig.store, 1, 6)) == 2
        with pytest.raises(CorruptBlock):
            rig.store.scan(LOG, Lsn(3), Lsn(6), MIB)
        assert len(scanned(rig.store, 4, 6)) == 2
        rig.store.remove(LOG, [Lsn(3)])
        rig.store.put(blocks[2], PLACEMENT, Ack.DISK)
        rig.settle()
        rig.reopen()
        assert scanned(rig.store, 1, 6) == [bytes(block.data) for block in blocks]

    def test_a_full_store_refuses_blocks_and_keeps_the_rest(self, open_rig: OpenRig) -> None:
        """I3, and trimming makes room again."""
        rig = open_rig(SMALL_ROOM_BYTES)
        rig.store.set_fence(LOG, MEMBER)
        first, failure = 1, None
        while failure is None:
            rig.store.put(make_block(first, size=256 * KIB), PLACEMENT, Ack.DISK)
            failure = rig.settle()
            first += 1
        assert failure.reason is Refusal.DISK_FULL
        assert 20 < first < 64
        assert rig.store.usage().is_full
        refused = first - 1
        state = known(rig.store)
        assert (state.end, state.blocks) == (refused, refused - 1)
        assert rig.store.block_at(LOG, Lsn(refused)) is None

        raised = Fence(Epoch(4), Token(1, 3), Standing.MEMBER)
        rig.store.put(make_block(refused, size=256 * KIB), PLACEMENT, Ack.DISK)
        rig.store.set_fence(LOG, raised)
        rig.store.trim(LOG, Lsn(refused - 5))
        assert rig.settle() is not None
        rig.crash()
        state = known(rig.store)
        assert (state.fence, state.trim_end, state.end) == (raised, refused - 5, refused)
        for more in range(refused, refused + 10):
            rig.store.put(make_block(more, size=256 * KIB), PLACEMENT, Ack.DISK)
            assert rig.settle() is None
        assert not rig.store.usage().is_full
        rig.reopen()
        assert held(rig.store) == list(range(refused - 5, refused + 10))

    def test_a_failed_block_is_told_to_one_barrier_only(self, open_rig: OpenRig) -> None:
        rig = open_rig(SMALL_ROOM_BYTES)
        answers: list[StoreFailed | None] = []
        rig.store.put(make_block(1, size=15 * MIB), PLACEMENT, Ack.DISK)
        rig.store.barrier(Ack.DISK, answers.append)
        rig.store.set_fence(OTHER, MEMBER)
        rig.store.barrier(Ack.DISK, answers.append)
        assert rig.settle() is None
        assert answers[0] is not None
        assert answers[1] is None
        assert known(rig.store, OTHER).fence == MEMBER
        assert known(rig.store).blocks == 0

    def test_losing_memory_acknowledged_blocks_to_a_full_disk_makes_the_log_dirty(
        self, open_rig: OpenRig
    ) -> None:
        rig = open_rig(SMALL_ROOM_BYTES)
        rig.store.set_fence(LOG, MEMBER)
        rig.store.put(make_block(1), PLACEMENT, Ack.MEMORY)
        assert rig.settle(Ack.MEMORY) is None
        rig.store.put(make_block(2, size=15 * MIB), PLACEMENT, Ack.MEMORY)
        assert rig.settle(Ack.MEMORY) is None
        rig.settle()
        assert known(rig.store).fence.standing is Standing.DIRTY
        assert held(rig.store) == [1]
        rig.reopen()
        assert known(rig.store).fence.standing is Standing.DIRTY
