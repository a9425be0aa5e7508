"""The sending side of streams of sequenced logs: claims, windows, credit, damage."""

from millrace.core import effects as e
from millrace.core import messages as m
from millrace.core.log_state import Fence
from millrace.core.node import NodeCore
from millrace.lsn import lsn_of
from millrace.types import Ack, Epoch, GapKind, LogId, Lsn, NodeId

LOG = LogId(7)
SESSION = 3
TICKET = (SESSION, 1)
E1 = Epoch(1)
FIRST = lsn_of(E1, 1)
FAR = lsn_of(Epoch(9), 0)


def at(offset: int) -> Lsn:
    return lsn_of(E1, offset)


def start(
    version: int = 1, *, end: Lsn = FAR, window_last: Lsn = FAR, credit: int = 1_000
) -> m.Start:
    return m.Start(
        LOG,
        Epoch(0),
        5,
        version,
        FIRST,
        end,
        credit,
        shipping=m.Shipping(),
        window_last=window_last,
    )


def node_with(released: int) -> NodeCore:
    core = NodeCore(lambda log: None, NodeId(1))
    core.handle(TICKET, m.Release(LOG, E1, at(released), at(released)))
    return core


def orders(effects: list[e.NodeEffect]) -> list[tuple[Lsn, Lsn]]:
    return [(each.first, each.end) for each in effects if isinstance(each, e.ShipBlocks)]


def claims(effects: list[e.NodeEffect]) -> list[Lsn]:
    pushed = [each.message for each in effects if isinstance(each, e.Push)]
    return [each.next_lsn for each in pushed if isinstance(each, m.CaughtUp)]


def sent(
    core: NodeCore, effects: list[e.NodeEffect], next_lsn: Lsn, size: int = 10
) -> list[e.NodeEffect]:
    (order,) = [each for each in effects if isinstance(each, e.ShipBlocks)]
    return core.sent(order, next_lsn, size)


def test_a_stream_is_served_up_to_what_is_released() -> None:
    core = node_with(9)
    effects = core.handle(TICKET, start())
    assert effects[0] == e.Reply(TICKET, m.Started(5, 1, FIRST))
    assert orders(effects) == [(FIRST, at(10))]


def test_at_the_end_it_waits_and_goes_on_with_the_next_release() -> None:
    core = node_with(9)
    effects = core.handle(TICKET, start())
    assert sent(core, effects, at(10)) == [], "the push itself said so"
    assert orders(core.handle(TICKET, m.Release(LOG, E1, at(12), at(12)))) == [(at(10), at(13))]


def test_a_node_that_knows_of_no_release_promises_nothing() -> None:
    core = NodeCore(lambda log: None, NodeId(1))
    effects = core.handle(TICKET, start())
    assert orders(effects) == []
    assert claims(effects) == [FIRST], "nothing below where it began"


def test_nothing_above_the_window_is_looked_at_and_the_end_of_it_is_claimed() -> None:
    core = node_with(9)
    effects = core.handle(TICKET, start(window_last=at(4)))
    assert orders(effects) == [(FIRST, at(5))]
    assert sent(core, effects, at(5)) == []
    assert orders(core.handle(TICKET, m.Window(5, 1, 1_000, at(7)))) == [(at(5), at(8))]


def test_without_credit_nothing_is_sent() -> None:
    core = node_with(9)
    effects = core.handle(TICKET, start(credit=10))
    assert orders(sent(core, effects, at(4), 10)) == []
    assert orders(core.handle(TICKET, m.Window(5, 1, 30, FAR))) == [(at(4), at(10))]


def test_of_a_stream_that_ends_the_node_forgets_everything() -> None:
    core = node_with(9)
    effects = core.handle(TICKET, start(end=at(4)))
    assert orders(effects) == [(FIRST, at(4))]
    sent(core, effects, at(4))
    assert core.handle(TICKET, m.Window(5, 1, 9_000, FAR)) == []


def test_a_rewound_stream_begins_anew_and_answers_of_before_mean_nothing() -> None:
    core = node_with(9)
    before = core.handle(TICKET, start(1))
    effects = core.handle(TICKET, start(2))
    assert orders(effects) == [(FIRST, at(10))]
    assert sent(core, before, at(5)) == []


def test_what_is_trimmed_is_told_first_also_beyond_the_window() -> None:
    core = node_with(9)
    core.handle(TICKET, m.TrimSequenced(LOG, at(6)))
    effects = core.handle(TICKET, start(window_last=at(2)))
    (gap,) = [
        each.message
        for each in effects
        if isinstance(each, e.Push) and isinstance(each.message, m.GapFound)
    ]
    assert (gap.kind, gap.first, gap.last) == (GapKind.TRIM, FIRST, at(5))
    assert claims(effects) == [at(6)]


def test_a_damaged_block_is_told_and_passed() -> None:
    core = node_with(9)
    effects = core.handle(TICKET, start())
    (order,) = [each for each in effects if isinstance(each, e.ShipBlocks)]
    after = core.damaged(order, at(3), at(5))
    assert after[0] == e.Push(SESSION, m.Damaged(5, 1, at(3), at(5)))
    assert orders(after) == [(at(5), at(10))]


def test_a_node_that_may_have_lost_blocks_says_so() -> None:
    core = node_with(9)
    fence = core.storage(LOG).fence
    core.storage(LOG).fence = Fence(fence.epoch, fence.proposer, m.Standing.DIRTY)
    effects = core.handle(TICKET, start())
    assert effects[0] == e.Reply(TICKET, m.Started(5, 1, FIRST, is_incomplete=True))


def test_a_dropped_log_ends_its_streams() -> None:
    core = node_with(9)
    core.handle(TICKET, start())
    ended = core.handle(TICKET, m.Drop(LOG))[0]
    assert isinstance(ended, e.Push) and isinstance(ended.message, m.Ended)


def test_a_node_says_with_each_copy_whether_somebody_reads_the_log_there() -> None:
    core = node_with(9)

    def stored() -> list[e.NodeEffect]:
        return core.settled(e.Settle(LOG, 1, Ack.MEMORY, TICKET, m.Stored()))

    assert stored() == [e.Reply(TICKET, m.Stored(is_awaited=False))]
    core.handle(TICKET, start())
    assert stored() == [e.Reply(TICKET, m.Stored(is_awaited=True))]
    core.session_closed(SESSION)
    assert stored() == [e.Reply(TICKET, m.Stored(is_awaited=False))]
