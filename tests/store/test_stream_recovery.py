"""Replicas of streams on real disks: the table of `test_commit_recovery.py`, through LMDB.

Each case is put on disk, the store is closed and opened again, and a node finds its replica there.
"""

from collections.abc import Callable

import pytest

from millrace.core import effects as e
from millrace.core import messages as m
from millrace.core.commit.recovery import Valid, recover
from millrace.core.commit.replica import StreamReplica, facts_of
from millrace.core.log_state import Fence
from millrace.limits import MIB
from millrace.server.shell import NodeShell, Release
from millrace.types import LSN_MAX, Ack, Epoch, Lsn, Placement, Token, Version
from tests.core.commit.commit_samples import context, run
from tests.core.commit.recovery_cases import QUARANTINED, VALID, Kept, RecoveryCase
from tests.core.commit.stream_samples import (
    LOG,
    ME,
    SECOND,
    STREAM,
    STREAM_LOG,
    entry,
    opening,
    seal,
)
from tests.store.cutting import cut
from tests.store.rig import LmdbRig

OpenRig = Callable[..., LmdbRig]
SESSION = 1
ALONE = (ME,)
END = 22  # Of what a source has: more than any case knows of.
CLOSING = context(END, END - 1, END, END, 0, END - 1)


class Node:
    """A node that has found its replica on the disk."""

    def __init__(self, rig: LmdbRig) -> None:
        self.rig = rig
        self.outward: list[e.OutwardEffect] = []
        self._answers: dict[int, m.Message] = {}
        self._requests = 0
        self.shell = NodeShell(rig.store, self, lambda order: None, me=ME)
        self.shell.begin_streams(self.outward.append)

    @property
    def replica(self) -> StreamReplica:
        (replica,) = self.shell.core.replicas(LOG)
        return replica

    def ask(self, message: m.Message) -> m.Message:
        self._requests += 1
        number = self._requests
        self.shell.handle(SESSION, number, message)
        self.rig.run_until(lambda: number in self._answers)
        return self._answers[number]

    def answer(
        self, session: int, request: int, message: m.Message, release: Release | None = None
    ) -> None:
        self._answers[request] = message

    def push(self, session: int, message: m.Message, release: Release | None = None) -> None:
        raise AssertionError("nobody reads")

    def is_writable(self, session: int) -> bool:
        return True

    def after_others(self, call: Callable[[], None]) -> None:
        raise AssertionError("nobody reads")


def lay_down(rig: LmdbRig, kept: Kept) -> None:
    """What the store is told by a replica that is open in generation 1."""
    store = rig.store
    store.set_fence(STREAM_LOG, Fence(Epoch(1), Token(1, 0), m.Standing.MEMBER))
    firsts = [*range(1, kept.end), *([] if kept.above is None else [kept.above])]
    for first in firsts:
        store.put(entry(first), Placement(()), Ack.DISK)
    if kept.context is not None:
        store.commit(STREAM_LOG, kept.context, kept.runs)
    if kept.trim_end > 1:
        store.trim(STREAM_LOG, Lsn(kept.trim_end))
    assert rig.settle() is None


def find(open_rig: OpenRig, case: RecoveryCase) -> Node:
    rig = open_rig(64 * MIB)
    lay_down(rig, case.kept)
    rig.store.close()
    cut(rig.data_file, STREAM_LOG, case.cuts)
    rig.store = rig.open()
    return Node(rig)


def on_disk(rig: LmdbRig) -> tuple[object, ...]:
    """Context, runs, and where entries begin."""
    state = rig.store.state(STREAM_LOG)
    assert state is not None
    runs = rig.store.commit_runs(STREAM_LOG, Lsn(1), LSN_MAX, 1_000)
    entries = rig.store.index(STREAM_LOG, Lsn(1), LSN_MAX, 1_000)
    return state.context, state.trim_end, runs, [each.first for each in entries]


def first_report(node: Node) -> m.StreamReport:
    (report,) = next(
        each.message.reports for each in node.outward if isinstance(each, e.AskCommitter)
    )
    return report


@pytest.mark.parametrize("case", [*VALID, *QUARANTINED], ids=str)
def test_the_disk_says_what_the_table_says_and_nothing_is_removed(
    open_rig: OpenRig, case: RecoveryCase
) -> None:
    node = find(open_rig, case)
    state = node.rig.store.state(STREAM_LOG)
    assert state is not None and facts_of(state) == case.found
    before = on_disk(node.rig)
    node.rig.reopen()
    assert on_disk(node.rig) == before


@pytest.mark.parametrize("case", VALID, ids=str)
def test_a_replica_whose_disk_fits_together_goes_on_where_it_was(
    open_rig: OpenRig, case: RecoveryCase
) -> None:
    expected = case.expected
    assert isinstance(expected, Valid)
    node = find(open_rig, case)
    assert node.replica.state is m.ReplicaState.SEALED
    assert first_report(node).local == 0, "it is silent until it is opened"
    assert node.ask(seal(2)) == m.StreamSealed(
        Epoch(2),
        expected.version,
        expected.local_end,
        expected.end,
        True,
        "",
        Epoch(1),
        expected.last,
    )
    opened = node.ask(opening(2, expected.end, ALONE))
    assert isinstance(opened, m.StreamOpened)
    report = opened.report
    uncommitted = expected.end - expected.local_end
    assert (report.version, report.local, report.count) == (
        expected.version,
        expected.local_end,
        uncommitted,
    )


@pytest.mark.parametrize(
    "case", [case for case in VALID if case.found.end > case.expected.local_end], ids=str
)
def test_what_was_not_committed_is_restored_and_can_be(
    open_rig: OpenRig, case: RecoveryCase
) -> None:
    expected = case.expected
    assert isinstance(expected, Valid)
    node = find(open_rig, case)
    node.ask(seal(2))
    node.ask(opening(2, expected.end, ALONE))
    made = run(
        expected.version + 1,
        expected.local_end,
        expected.high_watermark + 1,
        expected.end - expected.local_end,
    )
    told = m.StreamCommits(STREAM, Epoch(2), (made,))
    marks = made.version, Lsn(made.end - 1), Lsn(1)
    taken = node.ask(m.Commit(LOG, Epoch(1), SECOND, *marks, (told,)))
    assert isinstance(taken, m.CommitTaken) and taken.refused == ()
    node.rig.reopen()
    state = node.rig.store.state(STREAM_LOG)
    assert state is not None
    assert recover(facts_of(state)) == Valid(
        made.version, Lsn(made.end - 1), expected.end, expected.end, Lsn(made.end - 1)
    )


@pytest.mark.parametrize("case", QUARANTINED, ids=str)
def test_a_replica_whose_disk_does_not_fit_reports_zeros_refuses_commits_and_keeps_what_it_has(
    open_rig: OpenRig, case: RecoveryCase
) -> None:
    node = find(open_rig, case)
    before = on_disk(node.rig)
    assert node.replica.state is m.ReplicaState.QUARANTINED
    assert node.replica.why.startswith(f"{case.expected.value}: ")
    report = first_report(node)
    assert (report.state, report.version, report.local, report.count) == (
        m.ReplicaState.QUARANTINED, 0, 0, 0,
    )  # fmt: skip
    told = m.StreamCommits(STREAM, Epoch(1), (run(40, 11, 40, 1),))
    marks = Version(40), Lsn(40), Lsn(1)
    taken = node.ask(m.Commit(LOG, Epoch(1), SECOND, *marks, (told,)))
    assert isinstance(taken, m.CommitTaken)
    assert taken.refused == (m.RefusedCommit(STREAM, m.CommitVerdict.NOT_VALID),)
    sealed = node.ask(seal(2))
    assert isinstance(sealed, m.StreamSealed) and not sealed.is_valid
    refused = node.ask(opening(2, 1, ALONE))
    assert isinstance(refused, m.Refused) and refused.reason is m.Refusal.INCOMPLETE
    node.rig.reopen()
    assert on_disk(node.rig) == before


@pytest.mark.parametrize("case", QUARANTINED, ids=str)
def test_a_sync_repairs_it_and_keeps_what_can_be_kept(
    open_rig: OpenRig, case: RecoveryCase
) -> None:
    node = find(open_rig, case)
    node.ask(seal(2))
    offer = m.SyncInit(LOG, STREAM, Epoch(2), SECOND, Lsn(1), Lsn(END), CLOSING)
    trim_end = case.found.trim_end
    first = case.left[1] if case.left[0] <= trim_end else trim_end
    assert node.ask(offer) == m.SyncRange(Lsn(first), Lsn(END))
    sent = tuple(entry(each) for each in range(first, END))
    batch = m.SyncReplicate(
        LOG, STREAM, Epoch(2), SECOND, sent, (run(END, first, first, END - first),), CLOSING
    )
    assert node.ask(batch) == m.SyncTaken(Lsn(END))
    node.rig.reopen()
    assert Node(node.rig).replica.state is m.ReplicaState.SEALED
    state = node.rig.store.state(STREAM_LOG)
    assert state is not None
    assert recover(facts_of(state)) == Valid(
        Version(END), Lsn(END - 1), Lsn(END), Lsn(END), Lsn(END - 1)
    )
    *_, entries = on_disk(node.rig)
    assert entries == list(range(trim_end, END))


def test_a_node_that_died_with_entries_in_memory_does_not_count_for_them(
    open_rig: OpenRig,
) -> None:
    rig = open_rig(64 * MIB)
    lay_down(rig, VALID[2].kept)
    rig.store.put(entry(11), Placement(()), Ack.MEMORY)
    assert rig.settle(Ack.MEMORY) is None
    rig.crash()
    node = Node(rig)
    assert node.replica.state is m.ReplicaState.QUARANTINED
    assert node.replica.why.startswith("memory_lost: ")
    sealed = node.ask(seal(2))
    assert isinstance(sealed, m.StreamSealed)
    assert (sealed.is_valid, sealed.version, sealed.local_end) == (True, 10, 11)
