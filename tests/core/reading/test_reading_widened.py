"""Copies of old epochs move to nodes that the epochs did not have: readers go after them."""

import pytest

from millrace.core.epochs import EpochRange
from millrace.core.messages import Blocks, CaughtUp, Started
from millrace.core.reading.effects import DeliverGap, NeedEpochs
from millrace.core.reading.senders import Sender
from millrace.core.reading.stream import SequencedReadStream
from millrace.core.reading.validation import Misbehaviour, Rules
from millrace.core.replication import Replication
from millrace.types import LSN_MAX, AuthoritativeStatus, EntryKind, Epoch, GapKind, Lsn, NodeId
from tests.core.reading.read_cluster import LOG, Cluster, at, block, nodes, one_range
from tests.core.reading.reading_samples import SETTINGS, with_settings

EMPTY, LOST = AuthoritativeStatus.AUTHORITATIVE_EMPTY, AuthoritativeStatus.UNDERREPLICATION
WIDE = one_range([1, 2, 3, 4], 2)


def of(epoch: int, *nodeset: int) -> EpochRange:
    return EpochRange(Epoch(epoch), Epoch(epoch), nodes(*nodeset), Replication.of(2))


def test_a_reader_finds_what_all_nodes_it_knew_have_given_away() -> None:
    cluster = Cluster(WIDE, at(1), at(11), SETTINGS)
    cluster.ranges = one_range([1, 2], 2)
    for offset in range(1, 6):
        cluster.store(block(at(offset)), [1, 2])
    cluster.release(at(5))
    cluster.open()
    cluster.run(1_000)
    for offset in range(6, 11):
        cluster.store(block(at(offset)), [3, 4])
    cluster.kill(1, 2)
    cluster.ranges = WIDE
    cluster.release(at(10))
    cluster.set_statuses({NodeId(1): EMPTY, NodeId(2): EMPTY})
    cluster.run(10_000)
    assert cluster.shown() == [f"{offset}..{offset}" for offset in range(1, 11)]
    assert cluster.is_finished


@pytest.mark.parametrize("dead", [(1, 2), ()], ids=["they are off", "they still run"])
@pytest.mark.parametrize("later", [(of(3, 3, 4),), ()], ids=["a later epoch", "no later epoch"])
def test_a_reader_finds_what_nodes_of_a_later_epoch_have_given_away(
    later: tuple[EpochRange, ...], dead: tuple[int, ...]
) -> None:
    """They are emptied while it reads from others, and shows no interest in them."""
    wide = (of(1, 5, 6), of(2, 1, 2, 3, 4), *later)
    cluster = Cluster(wide, at(1), at(3, epoch=2), SETTINGS)
    cluster.ranges = (of(1, 5, 6), of(2, 1, 2), *later)
    cluster.store(block(at(1)), [5, 6])
    cluster.store(block(at(2), 1, EntryKind.BRIDGE), [5, 6])
    for offset in (1, 2):
        cluster.store(block(at(offset, epoch=2)), [3, 4])
    cluster.release(at(1), 5, 6)
    cluster.open()
    cluster.run(1_000)
    cluster.kill(*dead)
    cluster.ranges = wide
    cluster.set_statuses({NodeId(1): EMPTY, NodeId(2): EMPTY})
    cluster.run(1_000)
    assert cluster.rewinds == {}
    cluster.release(at(1, epoch=3) if later else at(2, epoch=2))
    cluster.run(10_000)
    assert cluster.shown() == ["1..1", "bridge 2..0", "1..1", "2..2"]
    assert cluster.is_finished


def test_or_have_given_away_while_it_asked_who_has_it() -> None:
    """The answer, which comes late, is from before."""
    cluster = Cluster(WIDE, at(1), at(3), SETTINGS)
    cluster.ranges = one_range([1, 2], 2)
    cluster.epochs_ms = 1_000
    for offset in (1, 2):
        cluster.store(block(at(offset)), [3, 4])
    cluster.release(at(2))
    cluster.open()
    cluster.run(500)
    cluster.ranges = WIDE
    cluster.set_statuses({NodeId(1): EMPTY, NodeId(2): EMPTY})
    cluster.run(10_000)
    assert cluster.shown() == ["1..1", "2..2"]
    assert cluster.is_finished


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(EMPTY, EMPTY, id="both were emptied"),
        pytest.param(EMPTY, LOST, id="one lost its disk"),
        pytest.param(LOST, LOST, id="both lost their disks"),
    ],
)
def test_a_reader_finds_where_a_log_went_on_when_nobody_it_knew_is_left(
    one: AuthoritativeStatus, other: AuthoritativeStatus
) -> None:
    """The nodes are gone before the log moves, so that no status tells of the move."""
    here = one_range([1, 2], 2)
    moved = (*here, of(2, 3, 4))
    cluster = Cluster(moved, at(1), at(3, epoch=2), SETTINGS)
    cluster.ranges = here
    cluster.kill(1, 2)
    cluster.set_statuses({NodeId(1): one, NodeId(2): other})
    cluster.open()
    cluster.run(10_000)
    assert cluster.shown() == []
    for offset in (1, 2):
        cluster.store(block(at(offset, epoch=2)), [3, 4])
    cluster.release(at(2, epoch=2))
    cluster.ranges = moved
    cluster.run(2 * SETTINGS.epochs_retry_ms_max)
    assert cluster.shown()[-2:] == ["1..1", "2..2"]
    assert cluster.is_finished


def test_or_where_copies_were_taken_when_nobody_it_knew_is_left() -> None:
    """As before, but the epoch itself has more nodes by then."""
    cluster = Cluster(WIDE, at(1), at(3), SETTINGS)
    cluster.ranges = one_range([1, 2], 2)
    cluster.kill(1, 2)
    cluster.set_statuses({NodeId(1): EMPTY, NodeId(2): EMPTY})
    cluster.open()
    cluster.run(10_000)
    assert cluster.shown() == []
    for offset in (1, 2):
        cluster.store(block(at(offset)), [3, 4])
    cluster.release(at(2))
    cluster.ranges = WIDE
    cluster.run(2 * SETTINGS.epochs_retry_ms_max)
    assert cluster.shown() == ["1..1", "2..2"]


@pytest.mark.parametrize(
    ("window_last", "expected"),
    [
        pytest.param(at(5), None, id="a window ended in the middle of it"),
        pytest.param(at(9), Misbehaviour.OUT_OF_ORDER, id="it had passed it"),
    ],
)
def test_a_node_may_send_a_block_that_a_donor_gave_it_when_it_had_come_so_far(
    window_last: Lsn, expected: Misbehaviour | None
) -> None:
    sender = Sender(NodeId(1), SETTINGS)
    sender.start(1, at(1), 1_000_000, window_last, 0)
    sender.started(is_incomplete=False, now_ms=0)
    sender.claimed(at(6))
    message = Blocks(1, 1, (block(at(4), 5),), at(9))
    assert Rules(LOG, LSN_MAX, False).check_blocks(sender, message, at(20)) is expected


@pytest.mark.parametrize("is_single_copy", [False, True])
def test_a_reader_finds_what_a_recovery_wrote_to_nodes_that_it_did_not_know(
    is_single_copy: bool,
) -> None:
    """The epoch had not ended when it asked: node 2 alone would be a majority of what it knows."""
    wide = (of(1, 1, 2, 3, 4), of(2, 3, 4))
    settings = with_settings(is_single_copy=is_single_copy)
    cluster = Cluster(wide, at(1), at(2, epoch=2), settings)
    cluster.ranges = (of(1, 1, 2),)
    cluster.store(block(at(1)), [1, 2])
    cluster.release(at(1))
    cluster.open()
    cluster.run(1_000)
    cluster.ranges = wide
    cluster.store(block(at(2)), [1, 3])
    cluster.store(block(at(3), 1, EntryKind.BRIDGE), [1, 3])
    cluster.store(block(at(1, epoch=2)), [3, 4])
    cluster.release(at(1, epoch=2), 2, 3, 4)  # Node 1 hears of it later.
    cluster.run(1_000)
    cluster.release(at(1, epoch=2))
    cluster.run(60_000)
    assert cluster.shown() == ["1..1", "2..2", "bridge 3..0", "1..1"]


@pytest.mark.parametrize("clean", [0, 1])
def test_what_is_missing_is_sought_elsewhere_once(clean: int) -> None:
    """Unless its epoch had ended when it was asked: nobody has written to others since."""
    stream = SequencedReadStream(LOG, 1, at(1), at(3), with_settings(is_single_copy=False))
    known = (of(1, 1, 2),)
    asked = [*stream.open(0)]
    asked += stream.epochs_known(known, Epoch(2), {}, {}, 0, clean=Epoch(clean))
    for node in nodes(1, 2):
        asked += stream.arrived(node, Started(1, stream.version, at(1)), 1)
        asked += stream.arrived(node, CaughtUp(1, stream.version, at(3), at(2)), 1)
    asked += stream.epochs_known(known, Epoch(2), {}, {}, 2, clean=Epoch(clean))
    assert asked.count(NeedEpochs(Epoch(1))) == (1 if clean else 2)
    assert [effect.gap.kind for effect in asked if isinstance(effect, DeliverGap)] == [
        GapKind.DATALOSS
    ]
