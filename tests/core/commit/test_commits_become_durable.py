"""When what a Commit says is durable on a node, when that is answered, and when it is reported."""

from itertools import count

import pytest

from millrace.codec import blocks
from millrace.core import effects as e
from millrace.core import messages as m
from millrace.core.commit.committed import UNSAFE_MAX
from millrace.core.commit.log_part import LogPart
from millrace.types import Ack, Epoch, Lsn, NodeId, Version
from tests.core.commit.stream_samples import (
    LOG,
    ME,
    STREAM,
    TICKET,
    commits,
    entry,
    of,
    opening,
    seal,
    sent,
)

COMMITTER = NodeId(9)


class Rig:
    """A backup of one stream.  What it orders to be made safe is so when a test says it."""

    def __init__(self) -> None:
        self.part = LogPart(LOG, lambda log: None, ME, blocks.move, count(1))
        self._unsafe: list[e.Settle] = []
        self._asked: list[e.AskCommitter] = []
        self._perform(self.part.step(TICKET, seal(1), None))
        self._perform(self.part.step(TICKET, opening(1), None))
        self.make_safe()
        self._entries = self._version = 0

    def take(self, ack: Ack = Ack.DISK) -> None:
        """A block of one entry, from the primary."""
        self._entries += 1
        block = sent(entry(self._entries), ack=ack)
        self._perform(self.part.step(TICKET, block, None))

    def commit(self, versions: int = 1) -> m.CommitTaken | None:
        """So many, of one entry each; what is answered at once."""
        fresh = range(self._version + 1, self._version + versions + 1)
        self._version = at = fresh[-1]
        told = (commits(*((each, each, each, 1) for each in fresh)),)
        term, version, high = Epoch(1), Version(at), Lsn(at)
        message = m.Commit(LOG, term, COMMITTER, version, high, Lsn(1), told, Lsn(at))
        return self._answer(self._perform(self.part.commit(TICKET, message)))

    def make_safe(self) -> m.CommitTaken | None:
        """All that was ordered, at one moment; what is answered of a Commit then."""
        unsafe, self._unsafe = self._unsafe, []
        effects: list[e.NodeEffect] = []
        for each in unsafe:
            is_of_log = each.log == LOG
            settled = self.part.commit_settled if is_of_log else self._block_settled
            effects += self._perform(settled(each))
        for _ in of(effects, e.ReportSoon):
            self._perform(self.part.report_due())
        return self._answer(effects)

    def answer_reports(self) -> list[m.Report]:
        """Until none is under way; those that were answered."""
        answered: list[m.Report] = []
        while self._asked:
            order = self._asked.pop()
            answered.append(order.message)
            self._perform(self.part.reported(order, m.Reported(Epoch(1))))
        return answered

    @property
    def reported(self) -> tuple[int, int]:
        """The version and the end that the replica would report."""
        (report,) = self.part.reports()
        return report.version, report.end

    def _block_settled(self, settle: e.Settle) -> list[e.NodeEffect]:
        return self.part.settled(STREAM, settle)

    def _perform(self, effects: list[e.NodeEffect]) -> list[e.NodeEffect]:
        self._unsafe += of(effects, e.Settle)
        self._asked += of(effects, e.AskCommitter)
        return effects

    def _answer(self, effects: list[e.NodeEffect]) -> m.CommitTaken | None:
        answers = [each.message for each in of(effects, e.Reply)]
        return next((each for each in answers if isinstance(each, m.CommitTaken)), None)


def rig_holding(entries: int) -> Rig:
    rig = Rig()
    for _ in range(entries):
        rig.take()
    rig.make_safe()
    return rig


def test_a_commit_that_leaves_nothing_uncommitted_is_answered_when_it_is_durable() -> None:
    rig = rig_holding(1)
    assert rig.commit() is None
    taken = rig.make_safe()
    assert taken is not None and taken.reports[0].version == 1


def test_one_that_leaves_entries_is_answered_at_once_and_reports_what_is_durable() -> None:
    rig = rig_holding(2)
    taken = rig.commit()
    assert taken is not None and taken.refused == ()
    assert (taken.reports[0].version, taken.reports[0].end) == (0, 3)


@pytest.mark.parametrize(
    ("ack", "version"),
    [pytest.param(Ack.DISK, 1, id="disk"), pytest.param(Ack.MEMORY, 0, id="memory says nothing")],
)
def test_its_version_is_reported_with_the_next_block_that_is_on_disk(
    ack: Ack, version: int
) -> None:
    rig = rig_holding(2)
    rig.commit()
    rig.take(ack)
    assert rig.reported == (0, 3)
    rig.make_safe()
    assert rig.reported == (version, 4)


def test_a_block_that_was_ordered_before_the_commit_says_nothing_of_it() -> None:
    rig = rig_holding(1)
    rig.take()
    assert rig.commit() is not None
    rig.make_safe()
    assert rig.reported == (0, 3)


def test_the_last_commit_makes_those_before_it_durable() -> None:
    rig = rig_holding(2)
    rig.commit()
    assert rig.commit() is None
    taken = rig.make_safe()
    assert taken is not None and taken.reports[0].version == 2


def test_no_more_than_so_many_commits_wait_for_a_block() -> None:
    """A replica that is ahead of the others gets commits and no blocks: its stream would come to
    rest with a full history."""
    rig = rig_holding(UNSAFE_MAX + 1)
    answers = [rig.commit() for _ in range(UNSAFE_MAX)]
    assert None not in answers[:-1] and answers[-1] is None
    rig.make_safe()
    assert rig.reported == (UNSAFE_MAX, UNSAFE_MAX + 2)


def test_commits_that_come_together_count_one_by_one() -> None:
    rig = rig_holding(UNSAFE_MAX + 1)
    assert rig.commit(UNSAFE_MAX) is None


def test_a_commit_of_entries_in_memory_does_not_vouch_for_one_that_needs_the_disk() -> None:
    rig = rig_holding(1)
    rig.take(Ack.MEMORY)
    rig.make_safe()
    assert rig.commit() is not None
    rig.commit()
    (settle,) = rig._unsafe
    assert settle.ack is Ack.DISK


def test_blocks_that_become_safe_at_one_moment_are_one_report() -> None:
    rig = Rig()
    rig.answer_reports()
    for _ in range(3):
        rig.take()
    rig.make_safe()
    (report,) = rig.answer_reports()
    assert report.reports[0].end == 4
