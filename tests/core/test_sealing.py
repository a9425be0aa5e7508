"""Telling the epoch store that a log is sealed for good."""

from typing import Any

import msgspec
import pytest

from millrace.core import procedure as p
from millrace.core.epochs import EpochRecord
from millrace.core.replication import Replication
from millrace.core.sequenced.activation import NotMine
from millrace.core.sequenced.sealing import ATTEMPTS_MAX, mark_sealed
from millrace.lsn import lsn_of
from millrace.types import Epoch, LogId, Lsn, NodeId
from tests.core.core_samples import DEADLINE, Run

RECORD = EpochRecord(
    LogId(7), Epoch(4), NodeId(1), (NodeId(1), NodeId(2)), Replication.of(2), Epoch(1)
)
LAST = lsn_of(Epoch(4), 17)
MARKED = msgspec.structs.replace(RECORD, is_sealed=True, tail=LAST)
DOWN = p.Failure(p.FailureKind.METADATA, "it does not answer")


def start(last: Lsn = LAST, **current: Any) -> Run:
    """A sealing that has read the epoch store."""
    found = msgspec.structs.replace(RECORD, **current)
    return Run(mark_sealed(RECORD, last)).answer((found, 20))


def test_the_epoch_store_is_told_with_the_last_record() -> None:
    run = start()
    assert run.last == p.ReplaceEpochs(MARKED, 20)
    assert run.answer(True).result == MARKED


def test_what_recovery_has_found_meanwhile_is_kept() -> None:
    tail = lsn_of(Epoch(3), 5)
    run = start(Lsn(0), clean=Epoch(3), tail=tail).answer(True)
    assert (run.result.clean, run.result.tail, run.result.is_sealed) == (3, tail, True)


def test_a_log_that_is_marked_already_is_left_alone() -> None:
    assert start(is_sealed=True, tail=LAST).result == MARKED


def test_a_later_epoch_is_not_sealed_by_the_one_before() -> None:
    assert start(epoch=Epoch(5), sequencer=NodeId(2)).result == NotMine(NodeId(2), Epoch(5))


def test_somebody_was_faster_so_it_looks_again() -> None:
    run = start().answer(False, None, (RECORD, 21))
    assert run.last == p.ReplaceEpochs(MARKED, 21)


def test_it_gives_up_when_others_are_faster_every_time() -> None:
    run = Run(mark_sealed(RECORD, LAST))
    for version in range(ATTEMPTS_MAX):
        run.answer((RECORD, version), False, None)
    assert run.result.kind is p.FailureKind.METADATA


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        pytest.param(DOWN, p.FailureKind.METADATA, id="away"),
        pytest.param((None, 0), p.FailureKind.UNKNOWN_LOG, id="removed"),
        pytest.param(DEADLINE, p.FailureKind.TIMED_OUT, id="too late"),
    ],
)
def test_without_the_epoch_store_it_fails(answer: Any, kind: p.FailureKind) -> None:
    assert Run(mark_sealed(RECORD, LAST)).answer(answer).result.kind is kind
