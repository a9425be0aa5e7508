"""What an audit makes of copies: sound logs, however they are cut, and each kind of harm."""

from collections.abc import Callable
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.auditing import CopyState, Evidence, Part, SeenCopy, judge
from millrace.core.epochs import EpochRange
from millrace.core.replication import Replication
from millrace.core.sequenced.verifying import Verdict, Wrong
from millrace.lsn import lsn_of
from millrace.types import (
    AuthoritativeStatus,
    Copy,
    EntryKind,
    Epoch,
    Extent,
    LogId,
    Lsn,
    NodeId,
    Placement,
    Token,
)

NODES = tuple(map(NodeId, (1, 2, 3, 4)))
SIZES = (1, 5, 3, 1, 4, 2, 6, 1)  # Positions of each block.
VICTIM = 3  # The block that is harmed.
Held = dict[NodeId, list[SeenCopy]]


class Log:
    """Blocks one behind the other, with three copies each; of a chain or stream on nodes 1 to 3."""

    def __init__(self, *, is_scattered: bool) -> None:
        self.is_scattered = is_scattered
        self.nodes = NODES if is_scattered else NODES[:3]
        self.first = lsn_of(Epoch(1), 1) if is_scattered else Lsn(1)
        self.held: Held = {node: [] for node in self.nodes}
        self.trim_end = Lsn(0)
        self.silence: dict[NodeId, str] = {}
        self.statuses: dict[NodeId, AuthoritativeStatus] = {}
        at = self.first
        for number, size in enumerate(SIZES):
            copyset = self.copyset(number)
            extent = Extent(at, Lsn(at + size - 1), EntryKind.DATA, Token(1, number), number, 100)
            for node in copyset:
                self.held[node].append(SeenCopy(Copy(extent, Placement(copyset, 1))))
            at = Lsn(at + size)
        self.end = at

    def copyset(self, number: int) -> tuple[NodeId, ...]:
        if not self.is_scattered:
            return self.nodes
        return tuple(sorted(NODES[(number + each) % 4] for each in range(3)))

    def first_of(self, number: int) -> Lsn:
        return Lsn(self.first + sum(SIZES[:number]))

    def change(self, node: NodeId, number: int, change: Callable[[SeenCopy], SeenCopy]) -> None:
        at = self._index(node, number)
        self.held[node][at] = change(self.held[node][at])

    def lose(self, node: NodeId, number: int) -> None:
        del self.held[node][self._index(node, number)]

    def _index(self, node: NodeId, number: int) -> int:
        firsts = [each.copy.extent.first for each in self.held[node]]
        return firsts.index(self.first_of(number))

    def judge(self, first: Lsn, end: Lsn) -> Verdict:
        """As a node answers: what intersects the part."""
        spans = (EpochRange(Epoch(1), Epoch(1), NODES, Replication.of(3)),)
        part = Part(
            "log",
            LogId(1),
            first,
            end,
            self.nodes,
            is_first=first == self.first,
            spans=spans if self.is_scattered else (),
        )
        told = [
            Evidence(
                node,
                tuple(
                    each
                    for each in self.held[node]
                    if each.copy.extent.first < end
                    and each.copy.extent.last >= max(first, self.trim_end)
                ),
                self.trim_end,
                self.silence.get(node, ""),
            )
            for node in self.nodes
        ]
        return judge(part, told, dict.fromkeys(NODES, ""), self.statuses)

    def judge_whole(self) -> Verdict:
        return self.judge(self.first, self.end)


BOTH = pytest.mark.parametrize("is_scattered", [True, False], ids=["sequenced", "replicated"])


@BOTH
@given(cuts=st.sets(st.integers(1, sum(SIZES) - 1)))
def test_a_sound_log_is_sound_however_it_is_cut(is_scattered: bool, cuts: set[int]) -> None:
    log = Log(is_scattered=is_scattered)
    edges = [log.first, *(Lsn(log.first + cut) for cut in sorted(cuts)), log.end]
    verdicts = [log.judge(first, end) for first, end in pairwise(edges)]
    assert all(each.is_sound for each in verdicts), verdicts
    assert sum(each.blocks for each in verdicts) == len(SIZES)
    assert sum(each.copies for each in verdicts) == 3 * len(SIZES)
    assert sum(each.records for each in verdicts) == sum(SIZES)


@BOTH
@given(offset=st.integers(1, sum(SIZES) - 1))
def test_what_is_trimmed_is_not_missed(is_scattered: bool, offset: int) -> None:
    """The block that reaches across the trim point stays, whole."""
    log = Log(is_scattered=is_scattered)
    log.trim_end = Lsn(log.first + offset)
    for node in log.nodes:
        held = log.held[node]
        log.held[node] = [each for each in held if each.copy.extent.last >= log.trim_end]
    verdict = log.judge_whole()
    assert verdict.is_sound, verdict
    assert verdict.records == sum(SIZES) - offset


def a_holder(log: Log) -> NodeId:
    return log.copyset(VICTIM)[1]


def lose_a_copy(log: Log) -> None:
    log.lose(a_holder(log), VICTIM)


def lose_all_copies(log: Log) -> None:
    for node in log.copyset(VICTIM):
        log.lose(node, VICTIM)


def lose_the_last_block(log: Log) -> None:
    for node in log.copyset(len(SIZES) - 1):
        log.lose(node, len(SIZES) - 1)


def damage(log: Log) -> None:
    log.change(
        a_holder(log), VICTIM, lambda seen: SeenCopy(seen.copy, CopyState.DAMAGED, "a bit flipped")
    )


def misfile(log: Log) -> None:
    log.change(a_holder(log), VICTIM, lambda seen: SeenCopy(seen.copy, CopyState.MISFILED, "x"))


def differ(log: Log) -> None:
    def change(seen: SeenCopy) -> SeenCopy:
        extent = msgspec.structs.replace(seen.copy.extent, checksum=4711)
        return SeenCopy(Copy(extent, seen.copy.placement))

    log.change(a_holder(log), VICTIM, change)


def overlap(log: Log) -> None:
    """The block before it reaches into it, on one node."""

    def change(seen: SeenCopy) -> SeenCopy:
        extent = msgspec.structs.replace(seen.copy.extent, last=Lsn(seen.copy.extent.last + 1))
        return SeenCopy(Copy(extent, seen.copy.placement))

    log.change(a_holder(log), VICTIM - 1, change)


def be_silent(log: Log) -> None:
    log.silence[a_holder(log)] = "it is down"
    log.held[a_holder(log)] = []


def place(*copyset: int) -> Callable[[Log], None]:
    def harm(log: Log) -> None:
        placement = Placement(tuple(map(NodeId, copyset)), 1)
        log.change(a_holder(log), VICTIM, lambda seen: SeenCopy(Copy(seen.copy.extent, placement)))

    return harm


# Block 3 of the sequenced log lies on nodes 1, 2 and 4; its second holder is node 2.
@pytest.mark.parametrize(
    ("is_scattered", "harm", "wrongs"),
    [
        pytest.param(True, lose_a_copy, {Wrong.TOO_FEW_COPIES, Wrong.NOT_HELD}, id="lost copy"),
        pytest.param(True, lose_all_copies, {Wrong.NOT_TILED}, id="lost block"),
        pytest.param(True, lose_the_last_block, {Wrong.NOT_TILED}, id="lost end"),
        pytest.param(True, damage, {Wrong.DAMAGED}, id="damage"),
        pytest.param(True, misfile, {Wrong.MISFILED}, id="misfiled"),
        pytest.param(
            True,
            differ,
            {Wrong.DIFFERENT, Wrong.TOO_FEW_COPIES, Wrong.NOT_HELD},
            id="differs",
        ),
        pytest.param(True, place(1, 2, 3), {Wrong.NOT_HELD}, id="names a stranger"),
        pytest.param(True, place(1, 2), {Wrong.TOO_FEW_NAMED}, id="names too few"),
        pytest.param(False, lose_a_copy, {Wrong.NOT_HELD}, id="replica: lost copy"),
        pytest.param(False, lose_all_copies, {Wrong.NOT_TILED}, id="replica: lost block"),
        pytest.param(False, lose_the_last_block, {Wrong.NOT_TILED}, id="replica: lost end"),
        pytest.param(False, damage, {Wrong.DAMAGED}, id="replica: damage"),
        pytest.param(False, differ, {Wrong.DIFFERENT}, id="replica: differs"),
        pytest.param(False, overlap, {Wrong.OVERLAP, Wrong.DIFFERENT}, id="replica: overlap"),
        pytest.param(False, be_silent, {Wrong.SILENT_NODE}, id="replica: silent"),
        pytest.param(False, place(1, 3), {Wrong.TOO_FEW_NAMED}, id="replica: not itself"),
    ],
)
def test_each_harm_is_found(
    is_scattered: bool, harm: Callable[[Log], None], wrongs: set[Wrong]
) -> None:
    log = Log(is_scattered=is_scattered)
    harm(log)
    assert set(log.judge_whole().counts) == wrongs


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda log: place(2, 4, 1)(log), id="another order of delivery"),
        pytest.param(
            lambda log: log.change(
                a_holder(log),
                VICTIM,
                lambda seen: SeenCopy(Copy(seen.copy.extent, Placement((NodeId(2), NodeId(3)), 0))),
            ),
            id="an earlier wave",
        ),
    ],
)
def test_what_harms_no_reader_is_no_deviation(change: Callable[[Log], None]) -> None:
    log = Log(is_scattered=True)
    change(log)
    assert log.judge_whole().is_sound


def test_a_node_whose_data_was_copied_elsewhere_may_be_silent() -> None:
    log = Log(is_scattered=True)
    for number in range(len(SIZES)):  # Its copies lie on the other three.
        held = {node for node in NODES[:3] if log.first_of(number) in firsts(log, node)}
        source = log.held[min(held)]
        seen = next(s for s in source if s.copy.extent.first == log.first_of(number))
        moved = SeenCopy(Copy(seen.copy.extent, Placement(NODES[:3], 1)))
        for node in NODES[:3]:
            rest = [s for s in log.held[node] if s.copy.extent.first != log.first_of(number)]
            log.held[node] = sorted([*rest, moved], key=lambda s: s.copy.extent.first)
    log.held[NodeId(4)] = []
    log.silence[NodeId(4)] = "it is gone"
    assert set(log.judge_whole().counts) == {Wrong.SILENT_NODE}
    log.statuses[NodeId(4)] = AuthoritativeStatus.AUTHORITATIVE_EMPTY
    assert log.judge_whole().is_sound


def firsts(log: Log, node: NodeId) -> list[Lsn]:
    return [seen.copy.extent.first for seen in log.held[node]]
