"""Where `-3` is when the epochs of a log end early."""

import asyncio
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.client.counting_back import ROUNDS_MAX, count_back
from millrace.core.messages import Copies, CopiesPage
from millrace.lsn import epoch_of, first_of, lsn_of, show
from millrace.types import (
    NO_TOKEN,
    Copy,
    EntryKind,
    Epoch,
    Extent,
    LogId,
    Lsn,
    Placement,
)

LOG = LogId(1)
START = lsn_of(Epoch(1), 1)
PAGE = 4  # Small, so that one answer is not the whole truth.


class Node:
    """Holds blocks of one position each."""

    def __init__(self, held: Iterable[tuple[Lsn, EntryKind]]) -> None:
        self.held = sorted(held)

    def answer(self, request: Copies) -> CopiesPage:
        found = [(at, kind) for at, kind in self.held if request.first <= at < request.end][:PAGE]
        copies = tuple(
            Copy(Extent(at, at, kind, NO_TOKEN, 0, 64), Placement(())) for at, kind in found
        )
        next_lsn = Lsn(found[-1][0] + 1) if len(found) == PAGE else request.end
        return CopiesPage(copies, next_lsn, START)


class Cluster:
    """Epochs of so many records each, spread over nodes; the last of them is the newest."""

    def __init__(self, *epochs: int, nodes: int = 3) -> None:
        self.records = [
            lsn_of(Epoch(epoch), offset)
            for epoch, count in enumerate(epochs, 1)
            for offset in range(1, count + 1)
        ]
        bridges = [lsn_of(Epoch(epoch), count + 1) for epoch, count in enumerate(epochs, 1)]
        held = [(lsn, EntryKind.DATA) for lsn in self.records]
        held += [(lsn, EntryKind.BRIDGE) for lsn in bridges[:-1]]
        self.nodes = [Node(held[at::nodes]) for at in range(nodes)]
        newest = Epoch(len(epochs))
        self.end = lsn_of(newest, epochs[-1] + 1) if epochs[-1] else first_of(newest)
        self.rounds = 0

    async def ask(self, request: Copies) -> list[CopiesPage]:
        self.rounds += 1
        return [node.answer(request) for node in self.nodes]

    def back(self, count: int, start: Lsn = START) -> Lsn:
        return asyncio.run(count_back(LOG, start, self.end, count, self.ask))


@pytest.mark.parametrize(
    ("epochs", "count", "expected"),
    [
        pytest.param((9,), 3, "e1n7", id="in the newest epoch"),
        pytest.param((9,), 9, "e1n1", id="all of it"),
        pytest.param((9,), 99, "e1n1", id="more than there is"),
        pytest.param((0,), 3, "e1n1", id="nothing there"),
        pytest.param((5, 2), 3, "e1n5", id="into the epoch before"),
        pytest.param((5, 0), 2, "e1n4", id="an epoch without records yet"),
        pytest.param((5, 0, 0, 0, 1), 2, "e1n5", id="over empty epochs"),
        pytest.param((3, 3, 3), 8, "e1n2", id="over several"),
        pytest.param((0, 0, 4), 9, "e3n1", id="nothing before"),
    ],
)
def test_counting_back(epochs: tuple[int, ...], count: int, expected: str) -> None:
    assert show(Cluster(*epochs).back(count)) == expected


def test_nobody_is_asked_about_the_newest_epoch() -> None:
    cluster = Cluster(5, 9)
    cluster.back(9)
    assert cluster.rounds == 0


def test_what_was_trimmed_is_not_counted() -> None:
    start = lsn_of(Epoch(1), 4)
    assert Cluster(5, 2).back(99, start) == start


def test_without_answers_it_begins_with_the_newest_epoch() -> None:
    assert show(Cluster(5, 2, nodes=1).back(2)) == "e2n1"
    silent = Cluster(5, 2)
    silent.nodes = []
    assert show(silent.back(3)) == "e2n1"


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.integers(1, 120))
def test_so_many_records_lie_behind_it(epochs: list[int], count: int) -> None:
    cluster = Cluster(*epochs)
    position = cluster.back(count)
    behind = [lsn for lsn in cluster.records if lsn >= position]
    assert len(behind) == min(count, len(cluster.records))
    assert cluster.rounds <= ROUNDS_MAX * len(epochs)
    assert epoch_of(position) >= 1
