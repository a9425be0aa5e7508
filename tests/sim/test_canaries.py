"""Every planted bug is caught by some checker, within a bounded number of seeds."""

import pytest

from millrace.sim.canaries import CANARIES, CHAIN, CHANGES, COMMIT, DOCUMENTS, SEQUENCED
from millrace.sim.run import run_seed

SEEDS_MAX = {"documents": 600}  # Its worlds are small.
SEEDS_MAX_ELSE = 250
CAUGHT_LAST_TIME = {  # Tried first, to save time; any other seed of its kind will do.
    "receipts_of_earlier_batches_count": 30562,
    "attempts_that_came_further_are_forgotten": 31807,
    "recovery_keeps_found_blocks_where_they_are": 44,
    "retry_takes_a_new_position": 5,
    "unknown_is_not_appended": 5,
    "write_once_ignores_islands": 6,
    "dirty_opens_as_member": 165,
    "trim_moves_down": 5,
    "sequencer_goes_back": 47,
    "reconcile_skips_completing": 80,
    "members_without_a_seal": 15,
    "sequencer_starts_low": 12,
    "learner_keeps_surplus": 94,
    "grows_without_learning": 94,
    "seal_by_two_proposers": 5,
    "positions_outlive_their_sequencer": 67,
    "stores_below_its_seal": 1,
    "wiped_node_votes": 14,
    "good_jumps_over_holes": 10,
    "tokens_are_forgotten": 6,
    "racks_are_not_looked_at": 30,
    "epochs_without_comparing": 39,
    "nodeset_is_not_recorded": 24,
    "append_in_whichever_epoch": 10,
    "bridge_covers_the_last_record": 10,
    "empty_epochs_are_left_open": 2,
    "gap_believed_in_single_copy_delivery": 7,
    "unavailable_nodes_are_ignored": 5,
    "claims_of_old_versions_count": 2,
    "rewind_resets_the_position": 2,
    "seal_lives_in_memory": 51,
    "recovery_trusts_one_node": 14,
    "drained_before_its_copies_are_elsewhere": 135,
    "donor_takes_silence_for_stored": 23,
    "old_epochs_move_as_well": 48,
    "short_blocks_are_left_short": 146,
    "donors_that_have_finished_never_look_again": 17490,
    "wiped_node_counts_before_its_copies_are_back": 13,
    "unknown_is_appended_again": 3,
    "commits_without_comparing": 12,
    "history_is_forgotten_early": 1,
    "positions_overlap": 8,
    "goes_on_with_whoever_answers": 2,
    "an_opening_cuts_nothing_off": 13,
    "reports_what_is_not_safe": 1,
    "the_context_comes_before_its_entries": 51,
    "blocks_are_taken_in_any_order": 63,
    "a_sync_says_it_is_done": 2,
    "primaries_forget_tokens": 1,
    "readers_believe_every_loss": 19,
    "a_learner_keeps_what_it_had": 10,
    "commits_what_most_replicas_hold": 1,
    "the_larger_seq_is_the_start": 0,
    "a_stale_master_is_followed": 16,
    "a_running_snapshot_always_counts": 37,
    "strangers_are_trusted": 271,
    "the_log_is_stored_before_the_undo": 47,
    "an_undo_to_zero_keeps_what_was_there": 16,
    "promoted_in_the_middle_of_an_undo": 275,
    "those_that_undo_are_passed_over": 30281,
    "the_ring_is_kept_after_the_state": 5,
    "the_ring_forgets_what_was_fetched": 699,
    "a_consumer_knows_of_all_deletions": 30556,
    "an_undo_forgets_no_key": 243,
    "nothing_is_undone": 5,
    "the_entry_is_at_the_high_seq": 47,
    "an_unclean_restart_keeps_its_id": 11,
    "a_new_lease_is_as_good_as_the_old": 116,
    "a_takeover_before_it_has_all": 2057,
    "seqs_go_on_from_what_was_seen": 349,
    "failover_without_a_quorum": 45,
    "a_deposed_master_is_not_waited_for": 51,
    "orders_of_earlier_terms_are_taken": 30,
    "a_replica_acknowledges_seqs": 15,
    "every_change_ends_a_snapshot": 16,
    "a_replica_streams_parts_of_snapshots": 143,
    "the_queue_hides_the_disk": 4,
    "a_renewed_view_extends_nothing": 24,
    "purged_tombstones_leave_no_trace": 26,
    "streams_from_zero_end_at_the_purge_seq": 114,
    "the_disk_is_viewed_before_the_queue": 43,
    "the_row_is_written_before_its_documents": 11,
    "the_furthest_attempt_counts": 146,
    "half_an_undo_counts": 142,
    "attempts_do_not_look_at_each_other": 162,
    "a_replica_acknowledges_before_its_disk": 1,
    "a_flush_counts_when_it_begins": 1,
    "nothing_is_compensated": 25,
    "the_ring_is_not_written": 25,
    "a_cut_range_passes_over_a_change": 8,
}


def kind_of(name: str) -> str:
    kinds = {
        "sequenced": SEQUENCED,
        "commit": COMMIT,
        "documents": DOCUMENTS,
        "changes": CHANGES,
    }
    return next((kind for kind, canaries in kinds.items() if name in canaries), "chain")


@pytest.mark.parametrize("name", CANARIES)
def test_a_canary_is_caught(name: str) -> None:
    kind = kind_of(name)
    seeds_max = SEEDS_MAX.get(kind, SEEDS_MAX_ELSE)
    for seed in (CAUGHT_LAST_TIME.get(name, 0), *range(seeds_max)):
        if not run_seed(f"{kind}:{seed}", canary=name).ok:
            return
    pytest.fail(f"no checker sees {name} in {seeds_max} seeds")


def test_there_are_enough_canaries() -> None:
    assert len(CHAIN) >= 12
    assert len(SEQUENCED) >= 15
    assert len(COMMIT) >= 15
    assert len(DOCUMENTS) >= 25
    assert len(CHANGES) >= 7


def test_a_canary_leaves_nothing_behind() -> None:
    healthy = run_seed("chain:1")
    assert not run_seed("chain:1", canary="written_before_durable").ok
    assert run_seed("chain:1") == healthy
