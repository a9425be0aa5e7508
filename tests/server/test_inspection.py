"""What a node tells an audit: index entries with their blocks, by pages; damage instead of data."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.codec.blocks import draft, place
from millrace.core.effects import AnswerInspection
from millrace.core.messages import Inspected
from millrace.limits import MIB
from millrace.server.answers import answer
from millrace.types import LSN_MAX, Ack, Block, Epoch, LogId, Lsn, NodeId, Placement, Token
from tests.store.rig import LmdbRig

LOG = LogId(7)
BLOCKS, RECORDS = 6, 10
PLACEMENT = Placement((NodeId(1), NodeId(2)), 3)


def a_block(number: int) -> Block:
    values = [bytes([number]) * 500] * RECORDS
    made = draft(values, timestamps_us=1, compress=False)
    return place(made, LOG, Epoch(1), Lsn(1 + number * RECORDS), Token(1, number))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[LmdbRig]:
    rig = LmdbRig(tmp_path / "node", 64 * MIB)
    for number in range(BLOCKS):
        rig.store.put(a_block(number), PLACEMENT, Ack.DISK)
    assert rig.settle() is None
    rig.reopen()  # So that all of it is read from the disk.
    yield rig
    rig.store.close()


def inspect(rig: LmdbRig, first: int = 1, bytes_max: int = MIB, log: LogId = LOG) -> Inspected:
    page, release = answer(rig.store, AnswerInspection((1, 1), log, Lsn(first), LSN_MAX, bytes_max))
    assert isinstance(page, Inspected)
    if release is not None:
        page = Inspected(page.copies, (), page.next_lsn, page.trim_end, page.damage)
        release()
    return page


def firsts(page: Inspected) -> list[int]:
    return [int(copy.extent.first) for copy in page.copies]


def test_each_block_comes_with_its_index_entry(rig: LmdbRig) -> None:
    page, release = answer(rig.store, AnswerInspection((1, 1), LOG, Lsn(1), LSN_MAX, MIB))
    assert isinstance(page, Inspected)
    assert [copy.extent for copy in page.copies] == [block.extent() for block in page.blocks]
    assert {copy.placement for copy in page.copies} == {PLACEMENT}
    assert [bytes(block.data) for block in page.blocks] == [
        bytes(a_block(number).data) for number in range(BLOCKS)
    ]
    assert release is not None
    release()


def test_a_page_is_bounded_and_says_where_the_next_begins(rig: LmdbRig) -> None:
    seen: list[int] = []
    at, pages = 1, 0
    while at < LSN_MAX:
        page = inspect(rig, at, bytes_max=11_000)
        assert len(page.copies) <= 2
        seen += firsts(page)
        at, pages = int(page.next_lsn), pages + 1
    assert seen == [1 + number * RECORDS for number in range(BLOCKS)]
    assert pages >= BLOCKS // 2


def test_a_damaged_block_is_told_alone_and_not_served(rig: LmdbRig) -> None:
    rig.damage(a_block(2))
    before = inspect(rig)
    assert (firsts(before), before.damage) == ([1, 11], "")
    damaged = inspect(rig, int(before.next_lsn))
    assert firsts(damaged) == [21]
    assert damaged.blocks == ()
    assert damaged.damage
    behind = inspect(rig, int(damaged.next_lsn))
    assert firsts(behind) == [31, 41, 51]


def test_what_is_trimmed_is_told(rig: LmdbRig) -> None:
    rig.store.trim(LOG, Lsn(25))
    page = inspect(rig)
    assert (firsts(page)[0], page.trim_end) == (21, 25)


def test_a_log_that_is_not_here_has_no_copies(rig: LmdbRig) -> None:
    page = inspect(rig, log=LogId(99))
    assert (page.copies, page.next_lsn) == ((), LSN_MAX)
