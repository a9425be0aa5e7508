"""What several nodes say of the bytes of a sequenced log, put together."""

import pytest

from millrace.client.epoch_history import Known
from millrace.client.sequenced_survey import merged
from millrace.core.epochs import EpochRange, EpochRecord
from millrace.core.replication import Replication
from millrace.core.runs import Runs
from millrace.lsn import lsn_of
from millrace.types import AuthoritativeStatus, Epoch, LogId, Lsn, NodeId, Run, Weight

NODES = tuple(NodeId(number) for number in range(1, 5))
TWICE = Replication.of(2)


def at(epoch: int, offset: int) -> Lsn:
    return lsn_of(Epoch(epoch), offset)


RUNS = Runs([Run(at(1, 1), at(1, 101)), Run(at(3, 1), at(3, 101))])


def known(*empty: int) -> Known:
    record = EpochRecord(LogId(1), Epoch(3), NodeId(1), NODES, TWICE, Epoch(1))
    gone = {NodeId(node): AuthoritativeStatus.AUTHORITATIVE_EMPTY for node in empty}
    return Known((EpochRange(Epoch(1), Epoch(3), NODES, TWICE),), record, {}, gone)


def whole(size: int) -> list[Weight]:
    return [Weight(at(1, 0), at(4, 0), size)]


def test_a_block_counts_once_however_many_copies_it_has() -> None:
    told = {node: whole(1_000) for node in NODES}
    assert merged(RUNS, known(), told, 1) == [Weight(at(1, 1), at(3, 101), 2_000)]


def test_pieces_have_equally_many_records_and_tile_the_runs() -> None:
    told = {node: whole(1_000) for node in NODES}
    assert merged(RUNS, known(), told, 4) == [
        Weight(at(1, 1), at(1, 51), 500),
        Weight(at(1, 51), at(1, 101), 500),
        Weight(at(1, 101), at(3, 51), 500),
        Weight(at(3, 51), at(3, 101), 500),
    ]


def test_nodes_may_have_cut_their_blocks_as_they_like() -> None:
    told = {
        NODES[0]: [Weight(at(1, 0), at(1, 51), 600), Weight(at(1, 51), at(4, 0), 0)],
        NODES[1]: [Weight(at(1, 0), at(3, 51), 300), Weight(at(3, 51), at(4, 0), 700)],
        NODES[2]: [],
        NODES[3]: [],
    }
    sizes = [piece.bytes for piece in merged(RUNS, known(), told, 4)]
    assert sizes == [(600 + 100) // 2, 50, 50, 350]


@pytest.mark.parametrize(
    ("told", "empty", "size"),
    [
        pytest.param(NODES, (), 2_000, id="all"),
        pytest.param(NODES[:2], (), 2_000, id="half of them are silent"),
        pytest.param(NODES[:3], (4,), 1_500, id="one holds nothing"),
        pytest.param((), (), 0, id="nobody"),
    ],
)
def test_the_silent_are_taken_to_hold_what_the_others_do(
    told: tuple[NodeId, ...], empty: tuple[int, ...], size: int
) -> None:
    (piece,) = merged(RUNS, known(*empty), {node: whole(1_000) for node in told}, 1)
    assert piece.bytes == size


def test_no_more_pieces_than_records() -> None:
    runs = Runs([Run(at(2, 5), at(2, 7))])
    assert [(each.first, each.end) for each in merged(runs, known(), {}, 64)] == [
        (at(2, 5), at(2, 6)),
        (at(2, 6), at(2, 7)),
    ]
    assert merged(Runs(), known(), {}, 64) == []
