"""What readers of a commit log get from one node that has replicas of several of its streams."""

import pytest

from millrace.core import effects as e
from millrace.core import messages as m
from millrace.core.commit.record import stream_log_of
from millrace.core.commit.replica import StreamReplica
from millrace.core.commit.source import CommitSource
from millrace.core.send_streams import SendStreams
from millrace.core.shipping import Shipper
from millrace.types import CopysetOrder, Epoch, GapKind, Lsn, NodeId, StreamId
from tests.core.commit.commit_samples import context
from tests.core.commit.stream_samples import LOG, ME, SECOND, STREAM_LOG, of, state

SESSION = 3
FAR = Lsn(1_000)


def member(
    high_watermark: int, replicas: tuple[NodeId, ...] = (ME, SECOND), trim_end: int = 1
) -> StreamReplica:
    replica = StreamReplica(STREAM_LOG, state(opened=1), ME)
    replica.committed.high_watermark = Lsn(high_watermark)
    replica.replicas = replicas
    replica.committed.trim_end = Lsn(trim_end)
    return replica


def source(*replicas: StreamReplica) -> CommitSource:
    for number, each in enumerate(replicas, 1):
        each.stream_log = stream_log_of(LOG, StreamId(number))
    return CommitSource(LOG, {StreamId(at): each for at, each in enumerate(replicas, 1)})


def start(window_last: Lsn = FAR, shipping: m.Shipping | None = None) -> m.Start:
    return m.Start(
        LOG,
        Epoch(0),
        5,
        1,
        Lsn(1),
        FAR,
        1_000,
        shipping=shipping or m.Shipping(order=CopysetOrder.STORED),
        window_last=window_last,
    )


def begin(held: CommitSource, request: m.Start) -> tuple[SendStreams, list[e.NodeEffect]]:
    assert request.shipping is not None
    streams = SendStreams()
    shipper = Shipper(ME, request.shipping, {})
    return streams, streams.start((SESSION, 1), request, held, shipper)


def test_a_node_knows_no_more_than_the_replica_that_knows_least() -> None:
    assert source(member(20), member(9)).readable_end == 10


def test_a_node_without_a_whole_replica_promises_nothing() -> None:
    joining = StreamReplica(STREAM_LOG, None, ME)
    assert (source(joining).readable_end, source(joining).is_incomplete) == (1, True)


@pytest.mark.parametrize("is_learning", [True, False], ids=["learning", "never-opened"])
def test_a_replica_that_is_not_whole_makes_claims_worthless_but_holds_nobody_up(
    is_learning: bool,
) -> None:
    other = member(3) if is_learning else StreamReplica(STREAM_LOG, None, ME)
    if is_learning:
        other.learn()
    held = source(member(20), other)
    assert (held.readable_end, held.is_incomplete) == (21, True)
    assert not source(member(20)).is_incomplete


def test_while_a_replica_is_in_doubt_nothing_is_claimed() -> None:
    """It crashed with what was acknowledged from memory: what it holds must not be told as lost."""
    dirty = StreamReplica(STREAM_LOG, state(opened=1, standing=m.Standing.DIRTY), ME)
    assert dirty.is_in_doubt
    assert source(member(20), dirty).readable_end == 1


def test_a_replica_that_was_left_out_holds_nobody_up() -> None:
    former = member(3)
    former.is_left_out = True
    held = source(member(20), former)
    assert (held.readable_end, held.is_incomplete) == (21, False)
    assert held.shipped_by(Shipper(ME, m.Shipping(False), {})) == (stream_log_of(LOG, StreamId(1)),)


def test_an_open_replica_that_a_committer_does_not_know_holds_nobody_up() -> None:
    """It may be one that was replaced itself, so what the node does not have proves nothing."""
    unknown = member(3)
    unknown.is_disowned = True
    held = source(member(20), unknown)
    assert (held.readable_end, held.is_incomplete) == (21, True)
    assert held.shipped_by(Shipper(ME, m.Shipping(False), {})) == (stream_log_of(LOG, StreamId(1)),)


def test_the_trim_point_is_the_highest_that_was_heard_of() -> None:
    assert source(member(20, trim_end=4), member(20, trim_end=7)).trim_end == 7


def test_who_ships_is_decided_for_each_stream_by_its_replicas() -> None:
    held = source(member(9, (ME, SECOND)), member(9, (SECOND, ME)))
    _, effects = begin(held, start())
    (order,) = of(effects, e.ShipCommitted)
    assert (order.first, order.end) == (1, 10)
    assert order.streams == (stream_log_of(LOG, StreamId(1)),)
    down = m.Shipping(known_down=(SECOND,), order=CopysetOrder.STORED)
    (order,) = of(begin(held, start(shipping=down))[1], e.ShipCommitted)
    assert len(order.streams) == 2, "the other node is known to be down"
    (order,) = of(begin(held, start(shipping=m.Shipping(False)))[1], e.ShipCommitted)
    assert len(order.streams) == 2, "all send all"


def test_a_replica_that_does_not_know_the_others_after_a_restart_ships() -> None:
    (order,) = of(begin(source(member(9, ())), start())[1], e.ShipCommitted)
    assert len(order.streams) == 1


def test_windows_claims_and_waiting_are_those_of_sequenced_logs() -> None:
    replica = member(9)
    held = source(replica)
    streams, effects = begin(held, start(window_last=Lsn(4)))
    (order,) = of(effects, e.ShipCommitted)
    assert order.end == 5
    stream = streams.find(SESSION, 5, 1)
    assert stream is not None
    assert streams.sent(stream, Lsn(5), 10, held) == [], "the push itself said so"
    (order,) = of(streams.widen(stream, m.Window(5, 1, 1_000, FAR), held), e.ShipCommitted)
    assert (order.first, order.end) == (5, 10)
    streams.sent(stream, Lsn(10), 10, held)
    replica.committed.high_watermark = Lsn(12)
    (order,) = of(streams.advanced(held), e.ShipCommitted)
    assert (order.first, order.end) == (10, 13)


def test_a_node_with_nothing_to_read_claims_so_with_what_it_is_worth() -> None:
    _, effects = begin(source(StreamReplica(STREAM_LOG, None, ME)), start())
    started, claim = effects
    assert isinstance(started, e.Reply)
    assert started.message == m.Started(5, 1, Lsn(1), is_incomplete=True)
    assert isinstance(claim, e.Push)
    assert claim.message == m.CaughtUp(5, 1, Lsn(1), Lsn(1), is_incomplete=True)


def test_what_is_trimmed_is_told_first() -> None:
    _, effects = begin(source(member(9, trim_end=4)), start())
    (gap,) = [each.message for each in of(effects, e.Push)]
    assert gap == m.GapFound(5, 1, GapKind.TRIM, Lsn(1), Lsn(3))
    (order,) = of(effects, e.ShipCommitted)
    assert order.first == 4


def test_after_a_restart_readers_get_what_the_context_knows() -> None:
    found = state(entries=(5, 5), context=context(8, 30, 5, 31, 0, 22))
    assert source(StreamReplica(STREAM_LOG, found, ME)).readable_end == 31
