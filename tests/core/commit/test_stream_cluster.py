"""Replicas of a stream together: appending, committing, dying, returning, learning, reading."""

import pytest

from millrace.codec import blocks
from millrace.core import messages as m
from millrace.core.commit.record import StreamCommit
from millrace.core.commit.syncing import sync
from millrace.core.procedure import Ask
from millrace.types import LSN_MAX, Epoch, GapKind, LogId, Lsn, NodeId, Token, Version
from tests.core.commit.commit_samples import run
from tests.core.commit.stream_cluster import Cluster, runs_of
from tests.core.commit.stream_samples import LOG, STREAM, STREAM_LOG, entry

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)


def cluster_with(*counts: int, nodes: int = 3, replicas: int = 3) -> Cluster:
    """One commit for each append."""
    cluster = Cluster(nodes, replicas)
    for number, count in enumerate(counts, 1):
        cluster.append(number, count)
        cluster.commit()
    return cluster


def test_an_append_is_stored_reported_committed_and_answered() -> None:
    cluster = Cluster()
    cluster.append(1, 3)
    cluster.append(2)
    assert cluster.appended == {}
    cluster.commit()
    assert cluster.appended == {Token(5, 1): 1, Token(5, 2): 4}
    for node in cluster.nodes.values():
        assert runs_of(node) == [run(1, 1, 1, 4)]
    cluster.check()
    cluster.check_answers()


def test_commits_that_were_reported_by_all_leave_the_history() -> None:
    cluster = cluster_with(1, 1, 1)
    cluster.append(9)
    cluster.run()
    cluster.decide()
    assert [each.version for each in cluster.stream.history] == [4]


def test_a_replica_that_missed_commits_gets_them_with_the_next() -> None:
    cluster = cluster_with(2)
    for number in (2, 3):
        cluster.append(number)
        cluster.run()
        cluster.decide()
    cluster.tell()
    cluster.run()
    assert cluster.appended.keys() == {Token(5, each) for each in (1, 2, 3)}
    cluster.check_answers()


def test_a_dead_backup_is_left_out_and_nothing_is_lost() -> None:
    cluster = cluster_with(1, 2)
    cluster.nodes[TWO].crash()
    cluster.append(7)
    cluster.commit()
    assert Token(5, 7) not in cluster.appended
    assert cluster.primary.replica.report().suspects == (TWO,)
    assert cluster.reform()
    cluster.commit()
    assert cluster.appended[Token(5, 7)] == 4
    cluster.check_answers()


def test_a_dead_primary_is_replaced_and_what_all_others_have_is_committed() -> None:
    cluster = cluster_with(1)
    cluster.append(7)
    cluster.run()
    cluster.nodes[ONE].crash()
    cluster.reform()
    assert cluster.primary.id == TWO
    cluster.commit()
    found = cluster.ask(
        TWO, m.FindStreamToken(LOG, STREAM, cluster.stream.generation, Token(5, 7), Lsn(1))
    )
    assert found == m.StreamTokenFound(Lsn(2), 1, Lsn(2), Lsn(3))


def test_what_only_a_dead_primary_had_is_certainly_nowhere() -> None:
    cluster = cluster_with(1)
    cluster.append(7)
    cluster.work()
    cluster.nodes[ONE].crash()
    cluster.queue.clear()
    cluster.reform()
    find = m.FindStreamToken(LOG, STREAM, cluster.stream.generation, Token(5, 7), Lsn(1))
    assert cluster.ask(TWO, find) == m.StreamTokenFound(Lsn(0), 0, Lsn(0), Lsn(2))
    cluster.append(8)
    cluster.commit()
    cluster.nodes[ONE].start()
    cluster.run()
    assert cluster.reform(joining=ONE)
    cluster.commit()
    cluster.check()
    tokens = [token for _, token in cluster.nodes[ONE].committed()]
    assert tokens == [Token(5, 1), Token(5, 8)], "what it had alone is gone"


def test_after_all_restart_at_once_what_was_stored_goes_on() -> None:
    cluster = cluster_with(1, 2)
    cluster.append(7)
    cluster.run()
    for node in cluster.nodes.values():
        node.crash()
    for node in cluster.nodes.values():
        node.start()
    cluster.run()
    assert all(node.replica.state is m.ReplicaState.SEALED for node in cluster.nodes.values())
    cluster.reform()
    cluster.commit()
    cluster.check()
    assert [token for _, token in cluster.primary.committed()][-1] == Token(5, 7)


def test_what_a_replica_holds_that_missed_an_opening_is_not_taken_for_the_streams() -> None:
    cluster = Cluster()
    cluster.append(1)
    cluster.step()
    cluster.lose()
    cluster.work()
    cluster.reform(opened_max=1)
    assert cluster.refused == {Token(5, 1)}, "node 3 has not got it, so it was cut off"
    cluster.append(2)
    cluster.nodes[THREE].crash()
    cluster.reform()
    sealed = cluster.ask(TWO, m.SealStream(LOG, STREAM, Epoch(9)))
    assert isinstance(sealed, m.StreamSealed) and sealed.opened == 3
    cluster.reform()
    cluster.commit()
    cluster.check()
    cluster.check_answers()


# -- Learning -------------------------------------------------------------------------------------


def test_a_node_joins_by_a_sync_and_has_all_afterwards() -> None:
    cluster = cluster_with(1, 2, 3, nodes=3, replicas=2)
    cluster.reform(joining=THREE)
    assert cluster.stream.replicas == (ONE, TWO, THREE)
    assert cluster.nodes[THREE].committed() == cluster.primary.committed()
    cluster.append(9)
    cluster.commit()
    assert Token(5, 9) in cluster.appended
    cluster.check_answers()
    cluster.check()


def test_a_replica_is_silent_while_it_learns_and_survives_a_crash_then() -> None:
    cluster = cluster_with(1, 1, 1, nodes=3, replicas=2)
    cluster.ask(THREE, m.SealStream(LOG, STREAM, Epoch(1)))
    cluster.nodes[ONE].ask(m.SyncStream(LOG, STREAM, Epoch(1), THREE), lambda answer: None)
    while cluster.nodes[THREE].replica.state is not m.ReplicaState.LEARNING:
        cluster.work()
        cluster.step()
    report = cluster.nodes[THREE].replica.report()
    assert (report.state, report.local) == (m.ReplicaState.LEARNING, 0)
    cluster.nodes[THREE].crash()
    cluster.run()
    cluster.nodes[THREE].start()
    cluster.run()
    cluster.reform(joining=THREE)
    assert cluster.nodes[THREE].committed() == cluster.primary.committed()


def test_a_sync_that_broke_off_goes_on_where_it_stopped() -> None:
    """Batch by batch by hand: one block each."""
    cluster = cluster_with(1, 1, 1, nodes=3, replicas=2)
    cluster.ask(THREE, m.SealStream(LOG, STREAM, Epoch(1)))
    context = cluster.primary.replica.committed.context()
    offer = m.SyncInit(LOG, STREAM, Epoch(1), ONE, Lsn(1), Lsn(4), context)
    assert cluster.ask(THREE, offer) == m.SyncRange(Lsn(1), Lsn(4))
    page = cluster.ask(ONE, m.FetchStream(LOG, STREAM, Lsn(1), Lsn(2), 1))
    assert isinstance(page, m.StreamPage)
    batch = m.SyncReplicate(LOG, STREAM, Epoch(1), ONE, page.blocks, (run(1, 1, 1, 1),))
    assert cluster.ask(THREE, batch) == m.SyncTaken(Lsn(2))
    assert cluster.ask(THREE, batch) == m.SyncTaken(Lsn(2)), "sent again, it is answered as it was"
    cluster.nodes[THREE].crash()
    cluster.nodes[THREE].start()
    cluster.run()
    assert cluster.nodes[THREE].replica.state is m.ReplicaState.QUARANTINED
    assert cluster.ask(THREE, offer) == m.SyncRange(Lsn(2), Lsn(4))
    synced = cluster.ask(ONE, m.SyncStream(LOG, STREAM, Epoch(1), THREE))
    assert synced == m.StreamSynced(Lsn(4))
    assert cluster.ask(THREE, offer) == m.SyncRange(Lsn(4), Lsn(4), is_complete=True)
    assert cluster.nodes[THREE].committed() == cluster.primary.committed()


BAD_BATCHES = {
    "nothing": ((), (), False),
    "a-gap": ((3,), (run(3, 3, 3, 1),), False),
    "without-its-run": ((1,), (), False),
    "with-another-run": ((1,), (run(1, 2, 2, 1),), False),
    "context-too-early": ((1,), (run(1, 1, 1, 1),), True),
}


@pytest.mark.parametrize(
    ("locals_", "runs", "has_context"), BAD_BATCHES.values(), ids=BAD_BATCHES.keys()
)
def test_a_batch_that_does_not_fit_ends_the_attempt(
    locals_: tuple[int, ...], runs: tuple[StreamCommit, ...], has_context: bool
) -> None:
    cluster = cluster_with(1, 1, 1, nodes=3, replicas=2)
    cluster.ask(THREE, m.SealStream(LOG, STREAM, Epoch(1)))
    context = cluster.primary.replica.committed.context()
    cluster.ask(THREE, m.SyncInit(LOG, STREAM, Epoch(1), ONE, Lsn(1), Lsn(4), context))
    sent = [cluster.primary.store.block_at(STREAM_LOG, Lsn(each)) for each in locals_]
    batch = m.SyncReplicate(
        LOG,
        STREAM,
        Epoch(1),
        ONE,
        tuple(each for each in sent if each is not None),
        runs,
        context if has_context else None,
    )
    answer = cluster.ask(THREE, batch)
    assert isinstance(answer, m.Refused) and answer.reason is m.Refusal.BAD_REQUEST
    assert cluster.nodes[THREE].replica.state is m.ReplicaState.QUARANTINED
    assert cluster.ask(ONE, m.SyncStream(LOG, STREAM, Epoch(1), THREE)) == m.StreamSynced(Lsn(4))


def test_an_open_replica_does_not_learn_and_one_that_is_not_whole_does_not_teach() -> None:
    cluster = cluster_with(1, nodes=3, replicas=2)
    refused = cluster.ask(ONE, m.SyncStream(LOG, STREAM, Epoch(1), TWO))
    assert isinstance(refused, m.Refused) and "an open replica does not learn" in refused.detail
    cluster.ask(THREE, m.SealStream(LOG, STREAM, Epoch(1)))
    refused = cluster.ask(THREE, m.SyncStream(LOG, STREAM, Epoch(1), ONE))
    assert isinstance(refused, m.Refused) and refused.reason is m.Refusal.INCOMPLETE


def test_a_sync_says_why_it_failed() -> None:
    cluster = cluster_with(1, nodes=3, replicas=2)
    offer = m.SyncInit(LOG, STREAM, Epoch(1), ONE, Lsn(1), Lsn(2), None)
    running = sync(offer, THREE)
    next(running)
    with pytest.raises(StopIteration) as stop:
        running.send(m.Refused(m.Refusal.EPOCH, Epoch(4), "sealed for generation 4"))
    refused = stop.value.value
    assert isinstance(refused, m.Refused) and "sealed for generation 4" in refused.detail
    assert cluster.nodes[THREE].is_up


# -- Reading, trimming, retiring ------------------------------------------------------------------


def start(first: int = 1) -> m.Start:
    shipping = m.Shipping(is_single_copy=False)
    place = Epoch(0), 5, 1, Lsn(first), LSN_MAX, 1_000_000
    return m.Start(LOG, *place, shipping=shipping, window_last=LSN_MAX)


def test_readers_get_blocks_with_their_places_in_the_log_as_they_are_committed() -> None:
    cluster = cluster_with(2, 1)
    node = cluster.nodes[TWO]
    cluster.ask(TWO, start())
    cluster.append(9)
    cluster.commit()
    pushed = [each for each in node.pushed if isinstance(each, m.Blocks)]
    assert [each.firsts for each in pushed] == [(1, 3), (4,)]
    assert [each.next_lsn for each in pushed] == [4, 5]
    for each in pushed:
        for block, first in zip(each.blocks, each.firsts, strict=True):
            assert (block.first, block.log) == (first, LOG)
            assert blocks.parse(block.data).log == STREAM_LOG


def test_a_damaged_block_is_told_and_passed() -> None:
    cluster = cluster_with(2, 1)
    cluster.nodes[TWO].store.damage(STREAM_LOG, Lsn(1))
    cluster.ask(TWO, start())
    kinds = [type(each) for each in cluster.nodes[TWO].pushed]
    assert kinds == [m.Damaged, m.Blocks]


def test_any_replica_answers_with_pages_of_the_stream() -> None:
    cluster = cluster_with(2, 1, 1)
    page = cluster.ask(THREE, m.FetchStream(LOG, STREAM, Lsn(2), Lsn(4), 1_000_000))
    assert isinstance(page, m.StreamPage)
    assert [each.first for each in page.blocks] == [1, 3]
    assert (page.low, page.high, page.firsts) == (1, 5, (1, 3))
    nothing = cluster.ask(THREE, m.FetchStream(LOG, STREAM, Lsn(5), Lsn(9), 1_000_000))
    assert isinstance(nothing, m.StreamPage) and nothing.blocks == ()


def test_what_is_not_committed_is_not_read() -> None:
    cluster = cluster_with(1)
    cluster.append(9)
    cluster.run()
    page = cluster.ask(ONE, m.FetchStream(LOG, STREAM, Lsn(1), Lsn(9), 1_000_000))
    assert isinstance(page, m.StreamPage) and len(page.blocks) == 1


def test_a_trim_of_the_log_removes_what_lies_below_everywhere_and_is_told_to_readers() -> None:
    cluster = cluster_with(1, 1, 1)
    cluster.trim(3)
    cluster.append(9)
    cluster.commit()
    for node in cluster.nodes.values():
        state = node.store.state(STREAM_LOG)
        assert state is not None and state.trim_end == 3
    cluster.nodes[TWO].crash()
    cluster.nodes[TWO].start()
    cluster.ask(TWO, start())
    gap = next(each for each in cluster.nodes[TWO].pushed if isinstance(each, m.GapFound))
    assert gap == m.GapFound(5, 1, GapKind.TRIM, Lsn(1), Lsn(2)), "also after a restart"
    page = cluster.ask(ONE, m.FetchStream(LOG, STREAM, Lsn(1), Lsn(9), 1_000_000))
    assert isinstance(page, m.StreamPage) and page.low == 3


def test_a_trimmed_stream_is_learned_from_where_it_begins() -> None:
    cluster = cluster_with(1, 1, 1, nodes=3, replicas=2)
    cluster.trim(3)
    cluster.append(9)
    cluster.commit()
    cluster.reform(joining=THREE)
    assert cluster.nodes[THREE].committed() == cluster.primary.committed()
    assert cluster.nodes[THREE].replica.trim_end == 3
    cluster.nodes[THREE].crash()
    cluster.nodes[THREE].start()
    assert cluster.nodes[THREE].replica.is_valid


def test_a_replica_that_is_retired_leaves_nothing_behind() -> None:
    cluster = cluster_with(1)
    cluster.ask(TWO, start())
    retire = m.RetireStream(LOG, STREAM, Epoch(0))
    refused = cluster.ask(TWO, retire)
    assert isinstance(refused, m.Refused) and refused.reason is m.Refusal.EPOCH
    assert cluster.ask(TWO, m.RetireStream(LOG, STREAM, Epoch(1))) == m.Dropped()
    assert cluster.nodes[TWO].store.state(STREAM_LOG) is None
    assert isinstance(cluster.nodes[TWO].pushed[-1], m.Ended)
    assert cluster.ask(TWO, m.RetireStream(LOG, STREAM, Epoch(1))) == m.Dropped()
    assert cluster.nodes[TWO].shell.core.logs_kept == 0


def test_a_replica_that_the_committer_does_not_know_is_dropped() -> None:
    cluster = cluster_with(1, 1)
    cluster.nodes[THREE].crash()
    cluster.reform()
    cluster.nodes[THREE].start()
    cluster.strangers[THREE] = (STREAM,)
    cluster.run()
    assert cluster.nodes[THREE].store.state(STREAM_LOG) is None


def test_an_open_replica_is_kept_whatever_a_late_answer_says() -> None:
    """Of a committer that was replaced since, and did not know it yet."""
    cluster = cluster_with(1, 1)
    cluster.strangers[THREE] = (STREAM,)
    cluster.append(3)
    cluster.run()
    assert cluster.nodes[THREE].replica.is_disowned
    cluster.strangers.clear()
    cluster.commit()
    assert not cluster.nodes[THREE].replica.is_disowned
    assert cluster.nodes[THREE].store.state(STREAM_LOG) is not None
    cluster.check()


def test_runs_of_a_sync_are_no_newer_than_its_context() -> None:
    """The source may have joined them with later ones meanwhile."""
    context = cluster_with(2).nodes[ONE].replica.committed.context()
    offer = m.SyncInit(LOG, STREAM, Epoch(1), ONE, Lsn(1), context.local_end, context)
    running = sync(offer, THREE)
    next(running)
    running.send(m.SyncRange(Lsn(1), context.local_end))
    later = Version(context.version + 5)
    block = entry(1, 2)
    page = m.StreamPage(Lsn(1), Lsn(9), (block,), (Lsn(1),), (later,))
    ask = running.send(page)
    assert isinstance(ask, Ask) and isinstance(ask.message, m.SyncReplicate)
    assert [each.version for each in ask.message.runs] == [context.version]


def test_one_that_was_sealed_again_since_it_reported_is_kept() -> None:
    cluster = cluster_with(1, 1)
    cluster.nodes[THREE].crash()
    cluster.reform()
    cluster.nodes[THREE].start()
    cluster.strangers[THREE] = (STREAM,)
    cluster.nodes[THREE].ask(m.SealStream(LOG, STREAM, Epoch(9)), lambda answer: None)
    cluster.step()  # What it reported before arrives, and is answered.
    cluster.strangers.clear()
    cluster.run()
    assert cluster.nodes[THREE].replica.generation == 9


def test_a_log_that_is_deleted_is_dropped_with_all_its_streams() -> None:
    cluster = cluster_with(1)
    assert cluster.ask(ONE, m.Drop(LOG)) == m.Dropped()
    assert cluster.nodes[ONE].store.logs() == []


def test_a_committer_of_an_earlier_term_is_refused() -> None:
    cluster = cluster_with(1)
    commit = m.Commit(LOG, Epoch(0), TWO, cluster.record.version, Lsn(9), Lsn(1), ())
    refused = cluster.ask(ONE, commit)
    assert isinstance(refused, m.Refused) and refused.epoch == cluster.record.term


def test_asking_about_streams_that_are_not_here_costs_no_memory() -> None:
    cluster = Cluster(3, 2)
    for number in range(5):
        stream = m.FetchStream(LogId(100 + number), STREAM, Lsn(1), Lsn(2), 1)
        refused = cluster.ask(THREE, stream)
        assert isinstance(refused, m.Refused) and refused.reason is m.Refusal.NOT_READY
    assert cluster.nodes[THREE].shell.core.logs_kept == 0
