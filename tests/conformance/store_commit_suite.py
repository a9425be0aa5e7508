"""What every store must do for the streams of commit logs: runs, contexts, reading by position."""

import pytest

from millrace.codec.blocks import records
from millrace.core.commit.record import StreamCommit
from millrace.core.messages import Standing
from millrace.errors import CorruptBlock
from millrace.limits import KIB, MIB, SCAN_BLOCKS_MAX, SHIP_ENTRIES_MAX
from millrace.types import LSN_MAX, Ack, LogId, Lsn
from tests.conformance.commit_rig import (
    COMMIT_LOG,
    ONE,
    TWO,
    CommitLog,
    context_of,
    emptied,
    run,
    runs_of,
    shipped,
)
from tests.conformance.store_finding_suite import StoreFindingSuite
from tests.conformance.store_rig import (
    LOG,
    MEMBER,
    PLACEMENT,
    SMALL_ROOM_BYTES,
    OpenRig,
    StoreRig,
    held,
    known,
    make_block,
)

REOPENED = pytest.mark.parametrize("is_reopened", [False, True], ids=["fresh", "reopened"])


class StoreCommitSuite(StoreFindingSuite):
    @pytest.fixture
    def log(self, rig: StoreRig) -> CommitLog:
        return CommitLog(rig)

    def interleaved(self, rig: StoreRig) -> CommitLog:
        """Stream one has 1..5, 9..10 and 14..15 of the log, in blocks at 1, 4, 9, 14 and 15."""
        log = CommitLog(rig)
        log.append(ONE, 3, 2)
        log.append(TWO, 3)
        log.append(ONE, 2)
        log.append(TWO, 1, 2)
        log.append(ONE, 1, 1)
        assert rig.settle() is None
        return log

    # -- Committing -----------------------------------------------------------------------------

    def test_what_is_committed_is_known_at_once(self, log: CommitLog) -> None:
        log.write(ONE, 3, 2)
        assert known(log.store, ONE).context is None
        commit = log.commit(ONE)
        state = known(log.store, ONE)
        assert state.context == context_of(commit)
        assert (state.first_run, state.last_run) == (commit, commit)
        assert runs_of(log.store, ONE) == [run(1, 1, 1, 5)]

    def test_what_is_committed_survives_a_crash(self, rig: StoreRig) -> None:
        log = self.interleaved(rig)
        before = {
            stream: (known(log.store, stream), runs_of(log.store, stream)) for stream in log.end
        }
        rig.crash()
        for stream, told in before.items():
            assert (known(log.store, stream), runs_of(log.store, stream)) == told

    @REOPENED
    def test_commits_of_a_log_with_one_stream_are_one_run(
        self, log: CommitLog, is_reopened: bool
    ) -> None:
        for count in range(1, 30):
            log.append(ONE, count)
            if is_reopened and count % 10 == 0:
                log.rig.reopen()
        assert runs_of(log.store, ONE) == [run(29, 1, 1, 435)]
        state = known(log.store, ONE)
        assert state.context is not None
        assert (state.context.version, state.context.local_end) == (29, 436)

    @REOPENED
    def test_runs_are_one_only_if_they_continue_in_both_numbers(
        self, rig: StoreRig, is_reopened: bool
    ) -> None:
        log = self.interleaved(rig)
        if is_reopened:
            rig.reopen()
        assert runs_of(log.store, ONE) == [run(1, 1, 1, 5), run(3, 6, 9, 2), run(5, 8, 14, 2)]
        assert runs_of(log.store, TWO) == [run(2, 1, 6, 3), run(4, 4, 11, 3)]
        state = known(log.store, ONE)
        assert (state.first_run, state.last_run) == (run(1, 1, 1, 5), run(5, 8, 14, 2))

    def test_several_runs_can_be_committed_together(self, rig: StoreRig) -> None:
        """As a replica does that is brought up to date."""
        runs = [run(1, 1, 1, 3), run(2, 4, 4, 2), run(4, 6, 11, 1), run(5, 7, 12, 1)]
        rig.store.commit(ONE, context_of(runs[-1]), runs)
        for _ in range(2):
            assert runs_of(rig.store, ONE) == [run(2, 1, 1, 5), run(5, 6, 11, 2)]
            rig.settle()
            rig.crash()

    def test_runs_with_a_hole_between_them_are_two(self, rig: StoreRig) -> None:
        """Next to one another in the log, but not in the stream."""
        runs = [run(1, 1, 1, 3), run(2, 9, 4, 2)]
        rig.store.commit(ONE, context_of(runs[-1]), runs)
        assert runs_of(rig.store, ONE) == runs
        assert [rig.store.locate(ONE, Lsn(local)) for local in (3, 4, 8, 9)] == [3, None, None, 4]

    def test_a_replica_that_is_brought_up_to_date_has_runs_and_no_context(
        self, rig: StoreRig
    ) -> None:
        log = self.interleaved(rig)
        log.store.commit(ONE, None, [run(7, 10, 30, 4)])
        for _ in range(2):
            state = known(log.store, ONE)
            assert (state.context, state.last_run) == (None, run(7, 10, 30, 4))
            rig.settle()
            rig.crash()

    @pytest.mark.parametrize(
        "late",
        [
            pytest.param(run(6, 10, 15, 1), id="global position given before"),
            pytest.param(run(6, 9, 16, 1), id="local position committed before"),
            pytest.param(run(6, 10, 16, 0), id="nothing"),
        ],
    )
    def test_a_run_out_of_order_is_a_fault_of_the_caller(
        self, rig: StoreRig, late: StreamCommit
    ) -> None:
        log = self.interleaved(rig)
        with pytest.raises(AssertionError):
            log.store.commit(ONE, context_of(late), [late])

    # -- Empty commits --------------------------------------------------------------------------

    def test_an_empty_commit_replaces_the_context_alone(self, log: CommitLog) -> None:
        commit = log.append(ONE, 3)
        empty = emptied(context_of(commit), 2, 7)
        log.store.commit(ONE, empty, [])
        for _ in range(2):
            assert known(log.store, ONE).context == empty
            assert runs_of(log.store, ONE) == [commit]
            log.rig.reopen()

    def test_an_empty_commit_is_kept_with_the_next_transaction(self, log: CommitLog) -> None:
        context = context_of(log.append(ONE, 3))
        log.rig.settle()
        for version in range(2, 9):
            context = emptied(context, version, 3 + version)
            log.store.commit(ONE, context, [])
        log.store.put(make_block(1, log=LOG), PLACEMENT, Ack.DISK)
        log.rig.settle()
        log.rig.crash()
        assert known(log.store, ONE).context == context

    def test_a_commit_is_not_undone_by_an_empty_one_before_it(self, log: CommitLog) -> None:
        context = context_of(log.append(ONE, 3))
        log.rig.settle()
        log.store.commit(ONE, emptied(context, 2, 9), [])
        log.version, log.high_watermark = 2, 9
        commit = log.append(ONE, 2)
        log.rig.settle()
        log.rig.crash()
        state = known(log.store, ONE)
        assert (state.context, state.last_run) == (context_of(commit), commit)

    def test_a_stream_may_begin_with_an_empty_commit(self, rig: StoreRig) -> None:
        empty = emptied(context_of(run(0, 1, 1, 0)), 4, 12)
        rig.store.commit(ONE, empty, [])
        rig.reopen()
        state = known(rig.store, ONE)
        assert (state.context, state.first_run, state.last_run) == (empty, None, None)
        assert runs_of(rig.store, ONE) == []

    # -- Finding --------------------------------------------------------------------------------

    @REOPENED
    @pytest.mark.parametrize(
        ("first", "end", "firsts"),
        [
            pytest.param(1, LSN_MAX, [1, 9, 14], id="all"),
            pytest.param(5, 6, [1], id="the last of one"),
            pytest.param(6, 9, [], id="between"),
            pytest.param(6, 10, [9], id="into one"),
            pytest.param(3, 10, [1, 9], id="from one into the next"),
            pytest.param(9, 9, [], id="empty"),
            pytest.param(16, LSN_MAX, [], id="above"),
        ],
    )
    def test_runs_of_a_range(
        self, rig: StoreRig, first: int, end: int, firsts: list[int], is_reopened: bool
    ) -> None:
        self.interleaved(rig)
        if is_reopened:
            rig.reopen()
        found = runs_of(rig.store, ONE, first, end)
        assert [each.first for each in found] == firsts
        assert rig.store.commit_runs(ONE, Lsn(first), Lsn(end), 1) == found[:1]

    @REOPENED
    def test_where_an_entry_of_a_stream_lies(self, rig: StoreRig, is_reopened: bool) -> None:
        log = self.interleaved(rig)
        log.write(ONE, 4)
        if is_reopened:
            rig.reopen()
        found = [log.store.locate(ONE, Lsn(local)) for local in range(1, 12)]
        assert found == [1, 2, 3, 4, 5, 9, 10, 14, 15, None, None]
        found = [log.store.locate(TWO, Lsn(local)) for local in range(1, 8)]
        assert found == [6, 7, 8, 11, 12, 13, None]

    def test_nothing_is_committed_of_an_unknown_log(self, rig: StoreRig) -> None:
        assert runs_of(rig.store, ONE) == []
        assert rig.store.locate(ONE, Lsn(1)) is None
        assert shipped(rig.store, 1, 9) == ([], 9)
        assert rig.store.index_committed([ONE], Lsn(1), Lsn(9), 10) == []
        rig.store.uncommit(ONE)
        assert rig.store.logs() == []

    # -- Forgetting -----------------------------------------------------------------------------

    @REOPENED
    @pytest.mark.parametrize(
        ("end", "left"),
        [
            pytest.param(1, [1, 9, 14], id="nothing"),
            pytest.param(5, [1, 9, 14], id="a part of a run"),
            pytest.param(6, [9, 14], id="a run"),
            pytest.param(9, [14], id="a run and a part"),
            pytest.param(10, [], id="all"),
            pytest.param(20, [], id="more than all"),
        ],
    )
    def test_trim_removes_the_runs_that_lie_below(
        self, rig: StoreRig, end: int, left: list[int], is_reopened: bool
    ) -> None:
        log = self.interleaved(rig)
        context = known(log.store, ONE).context
        if is_reopened:
            rig.reopen()
        log.store.trim(ONE, Lsn(end))
        for _ in range(2):
            runs = runs_of(log.store, ONE)
            assert [each.first for each in runs] == left
            state = known(log.store, ONE)
            assert (state.first_run, state.last_run) == (
                (runs[0], runs[-1]) if runs else (None, None)
            )
            assert state.context == context
            assert log.store.locate(ONE, Lsn(end - 1)) is None
            assert len(runs_of(log.store, TWO)) == 2
            rig.settle()
            rig.crash()

    @REOPENED
    def test_a_stream_goes_on_when_all_of_it_is_trimmed(
        self, rig: StoreRig, is_reopened: bool
    ) -> None:
        log = self.interleaved(rig)
        log.store.trim(ONE, Lsn(10))
        if is_reopened:
            rig.reopen()
        commit = log.append(ONE, 2)
        for _ in range(2):
            assert runs_of(log.store, ONE) == [commit]
            assert known(log.store, ONE).first_run == commit
            assert shipped(log.store, streams=(ONE,)) == ([16], LSN_MAX)
            rig.settle()
            rig.crash()

    @REOPENED
    def test_uncommit_keeps_the_blocks(self, rig: StoreRig, is_reopened: bool) -> None:
        log = self.interleaved(rig)
        blocks = held(log.store, ONE)
        log.store.commit(ONE, emptied(context_of(run(5, 8, 14, 2)), 6, 20), [])
        if is_reopened:
            rig.reopen()
        log.store.uncommit(ONE)
        for _ in range(2):
            state = known(log.store, ONE)
            assert (state.context, state.first_run, state.last_run) == (None, None, None)
            assert runs_of(log.store, ONE) == []
            assert log.store.locate(ONE, Lsn(1)) is None
            assert held(log.store, ONE) == blocks
            assert shipped(log.store) == ([6, 11, 12], LSN_MAX)
            rig.settle()
            rig.crash()

    def test_what_was_uncommitted_can_be_committed_elsewhere(self, rig: StoreRig) -> None:
        log = self.interleaved(rig)
        log.store.uncommit(ONE)
        again = run(9, 1, 3, 9)
        log.store.commit(ONE, context_of(again), [again])
        for _ in range(2):
            assert runs_of(log.store, ONE) == [again]
            assert shipped(log.store, streams=(ONE,)) == ([3, 6, 8, 10, 11], LSN_MAX)
            rig.settle()
            rig.crash()

    def test_a_dropped_stream_is_gone_with_its_runs(self, rig: StoreRig) -> None:
        log = self.interleaved(rig)
        log.store.commit(ONE, emptied(context_of(run(5, 8, 14, 2)), 6, 20), [])
        log.store.drop(ONE)
        assert runs_of(log.store, ONE) == []
        log.store.put(make_block(1, log=ONE), PLACEMENT, Ack.DISK)
        for _ in range(2):
            state = known(log.store, ONE)
            assert (state.context, state.first_run) == (None, None)
            assert runs_of(log.store, ONE) == []
            rig.settle()
            rig.crash()

    # -- Reading by the positions of the log ----------------------------------------------------

    @REOPENED
    def test_streams_are_merged_in_the_order_of_the_log(
        self, rig: StoreRig, is_reopened: bool
    ) -> None:
        log = self.interleaved(rig)
        log.write(TWO, 2)
        if is_reopened:
            rig.reopen()
        shipment = log.store.ship_committed([TWO, ONE], Lsn(1), LSN_MAX, MIB)
        assert [(one.log, one.first, one.count, one.last) for one in shipment.blocks] == [
            (COMMIT_LOG, 1, 3, 3),
            (COMMIT_LOG, 4, 2, 5),
            (COMMIT_LOG, 6, 3, 8),
            (COMMIT_LOG, 9, 2, 10),
            (COMMIT_LOG, 11, 1, 11),
            (COMMIT_LOG, 12, 2, 13),
            (COMMIT_LOG, 14, 1, 14),
            (COMMIT_LOG, 15, 1, 15),
        ]
        for block in shipment.blocks:
            assert bytes(block.data) == bytes(log.placed[block.first].data)
            assert [each.lsn for each in records(block)] == list(range(block.first, block.end))
        shipment.release()

    @REOPENED
    @pytest.mark.parametrize(
        ("first", "end", "firsts"),
        [
            pytest.param(2, 4, [1], id="inside a block"),
            pytest.param(3, 5, [1, 4], id="two blocks"),
            pytest.param(8, 12, [6, 9, 11], id="both streams"),
            pytest.param(15, 99, [15], id="the last"),
            pytest.param(16, 99, [], id="above"),
            pytest.param(9, 9, [], id="empty"),
        ],
    )
    def test_a_range_of_the_log_is_shipped(
        self, rig: StoreRig, first: int, end: int, firsts: list[int], is_reopened: bool
    ) -> None:
        self.interleaved(rig)
        if is_reopened:
            rig.reopen()
        assert shipped(rig.store, first, end) == (firsts, end)
        found = rig.store.index_committed([ONE, TWO], Lsn(first), Lsn(end), 99)
        assert [each.first for each in found] == firsts

    def test_an_end_below_the_first_ships_nothing(self, rig: StoreRig) -> None:
        self.interleaved(rig)
        assert shipped(rig.store, 9, 3) == ([], 9)

    def test_only_the_streams_that_are_named_are_shipped(self, rig: StoreRig) -> None:
        log = self.interleaved(rig)
        assert shipped(log.store, streams=(TWO,)) == ([6, 11, 12], LSN_MAX)
        assert shipped(log.store, streams=()) == ([], LSN_MAX)

    @REOPENED
    def test_what_is_trimmed_is_not_shipped(self, rig: StoreRig, is_reopened: bool) -> None:
        log = self.interleaved(rig)
        log.store.trim(ONE, Lsn(5))
        if is_reopened:
            rig.reopen()
        assert shipped(log.store, 1, 9) == ([4, 6], 9), "the block across the trim point stays"
        log.store.trim(ONE, Lsn(8))
        assert shipped(log.store) == ([6, 11, 12, 14, 15], LSN_MAX)

    @REOPENED
    def test_what_ships_is_bounded_but_one_block(self, rig: StoreRig, is_reopened: bool) -> None:
        log = CommitLog(rig)
        for _ in range(4):
            log.append(ONE, 1, size=1000)
            log.append(TWO, 1, size=1000)
        if is_reopened:
            rig.reopen()
        size = log.placed[1].size
        assert shipped(log.store, bytes_max=1) == ([1], 2)
        assert shipped(log.store, 3, bytes_max=3 * size) == ([3, 4, 5], 6)
        assert shipped(log.store, 3, bytes_max=4 * size - 1) == ([3, 4, 5], 6)

    def test_a_shipment_has_a_bounded_number_of_blocks(self, log: CommitLog) -> None:
        log.append(ONE, *[1] * (SCAN_BLOCKS_MAX + 5), size=1)
        firsts, next_lsn = shipped(log.store)
        assert (len(firsts), next_lsn) == (SCAN_BLOCKS_MAX, SCAN_BLOCKS_MAX + 1)
        assert shipped(log.store, next_lsn) == (
            list(range(next_lsn, SCAN_BLOCKS_MAX + 6)),
            LSN_MAX,
        )

    @REOPENED
    def test_runs_without_blocks_are_looked_at_in_portions(
        self, rig: StoreRig, is_reopened: bool
    ) -> None:
        """A replica that has lost its blocks has such."""
        count = SHIP_ENTRIES_MAX + 10
        runs = [run(version, version, 2 * version, 1) for version in range(1, count + 1)]
        rig.store.commit(ONE, context_of(runs[-1]), runs)
        if is_reopened:
            rig.reopen()
        assert shipped(rig.store) == ([], 2 * (SHIP_ENTRIES_MAX + 1))
        assert shipped(rig.store, 2 * (SHIP_ENTRIES_MAX + 1)) == ([], LSN_MAX)
        assert rig.store.locate(ONE, Lsn(count)) == 2 * count
        assert rig.store.locate(ONE, Lsn(count // 3)) == 2 * (count // 3)

    def test_a_shipment_stops_before_a_damaged_block_of_any_stream(self, rig: StoreRig) -> None:
        """I2."""
        log = CommitLog(rig)
        for _ in range(3):
            log.append(ONE, 2, size=5_000)
            log.append(TWO, 2, size=7_000)
        rig.settle()
        rig.damage(log.placed[7])
        assert shipped(log.store) == ([1, 3, 5], 7)
        with pytest.raises(CorruptBlock):
            log.store.ship_committed([ONE, TWO], Lsn(7), LSN_MAX, MIB)
        (damaged,) = log.store.index_committed([ONE, TWO], Lsn(7), LSN_MAX, 1)
        assert (damaged.first, damaged.last) == (7, 8)
        assert shipped(log.store, damaged.last + 1) == ([9, 11], LSN_MAX)
        assert shipped(log.store, streams=(ONE,)) == ([1, 5, 9], LSN_MAX)

    # -- Crashes and full disks -----------------------------------------------------------------

    def test_commits_are_kept_when_there_is_no_room_for_blocks(self, open_rig: OpenRig) -> None:
        """I3."""
        rig = open_rig(SMALL_ROOM_BYTES)
        log = CommitLog(rig)
        log.append(TWO, 1)
        log.write(ONE, 2)
        assert rig.settle() is None
        rig.store.put(make_block(1, log=LOG, size=15 * MIB), PLACEMENT, Ack.DISK)
        commit = log.commit(ONE)
        assert rig.settle() is not None
        rig.crash()
        state = known(log.store, ONE)
        assert (state.context, state.last_run) == (context_of(commit), commit)

    def test_commits_of_entries_that_found_no_room_are_not_kept(self, open_rig: OpenRig) -> None:
        """They were acknowledged from memory, and their commits came while they waited."""
        rig = open_rig(SMALL_ROOM_BYTES)
        rig.store.set_fence(ONE, MEMBER)
        kept, lost = run(1, 1, 1, 1), run(2, 2, 2, 1)
        rig.store.put(make_block(1, log=ONE), PLACEMENT, Ack.MEMORY)
        rig.store.commit(ONE, context_of(kept), [kept])
        assert rig.settle() is None
        rig.store.put(make_block(2, log=ONE, size=15 * MIB), PLACEMENT, Ack.MEMORY)
        rig.store.commit(ONE, context_of(lost), [lost])
        rig.settle()
        rig.store.commit(ONE, emptied(context_of(lost), 3, 9), [])
        rig.store.set_fence(TWO, MEMBER)
        rig.settle()
        rig.crash()
        state = known(rig.store, ONE)
        assert (state.context, state.last_run) == (context_of(kept), kept)
        self.is_in_step(rig, ONE)

    def test_commits_never_lie_above_the_blocks_of_a_log_acknowledged_from_memory(
        self, rig: StoreRig
    ) -> None:
        """And that they may be lost is noticed (I4)."""
        rig.store.set_fence(ONE, MEMBER)
        for first in range(1, 20):
            commit = run(first, first, 2 * first, 1)
            rig.store.put(make_block(first, log=ONE, size=4 * KIB), PLACEMENT, Ack.MEMORY)
            rig.store.commit(ONE, context_of(commit), [commit])
            assert rig.settle(Ack.MEMORY) is None
        rig.crash()
        state = known(rig.store, ONE)
        assert state.fence.standing is Standing.DIRTY
        self.is_in_step(rig, ONE)

    def is_in_step(self, rig: StoreRig, stream: LogId) -> None:
        """I6, and runs have their blocks."""
        state = known(rig.store, stream)
        committed = 1 if state.last_run is None else state.last_run.local_end
        assert (1 if state.context is None else state.context.local_end) == committed
        assert state.contiguous_end >= committed
