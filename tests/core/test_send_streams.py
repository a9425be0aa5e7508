"""The sending side of read streams."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core import effects as e
from millrace.core import messages as m
from millrace.core.chain_node import ChainNode
from millrace.core.messages import Refusal
from millrace.core.node import NodeCore
from millrace.core.send_streams import SendStreams
from millrace.limits import READ_BATCH_BYTES, STREAMS_PER_SESSION_MAX
from millrace.types import LSN_MAX, Epoch, GapKind, LogId, Lsn
from tests.core.core_samples import CHAIN, LOG, OTHER, block, extent, hole, state

SESSION = 3
ONE = Epoch(1)


def node(contiguous_end: int = 1, **fields: object) -> NodeCore:
    return NodeCore(lambda log: state(contiguous_end=contiguous_end, **fields))  # type: ignore[arg-type]


def start(
    core: NodeCore,
    first: int = 1,
    end: int = LSN_MAX,
    credit: int = 1_000,
    number: int = 7,
    version: int = 1,
    epoch: int = 1,
    session: int = SESSION,
) -> list[e.NodeEffect]:
    request = m.Start(LOG, Epoch(epoch), number, version, Lsn(first), Lsn(end), credit)
    return core.handle((session, 1), request)


def order(effects: list[e.NodeEffect]) -> e.SendBlocks:
    (found,) = [effect for effect in effects if isinstance(effect, e.SendBlocks)]
    return found


def pushed(effects: list[e.NodeEffect]) -> list[m.Message]:
    return [effect.message for effect in effects if isinstance(effect, e.Push)]


def written(core: NodeCore, first: int) -> list[e.NodeEffect]:
    """Write a block and let it settle."""
    write = m.Write(LOG, core.chain(LOG).fence.epoch, block(first), CHAIN)
    settle = core.handle((1, 1), write)[-1]
    assert isinstance(settle, e.Settle)
    return core.settled(settle)


def test_a_stream_is_answered_then_sent_what_is_readable() -> None:
    effects = start(node(6), 2, 9)
    assert effects == [
        e.Reply((SESSION, 1), m.Started(7, 1, Lsn(2))),
        e.SendBlocks(SESSION, LOG, 7, 1, Lsn(2), Lsn(6), 1_000),
    ]


@pytest.mark.parametrize(
    ("end", "credit", "expected"),
    [(4, 1_000, (4, 1_000)), (9, 10, (6, 10)), (9, 1 << 40, (6, READ_BATCH_BYTES))],
    ids=["to the end of the range", "as far as credit goes", "one batch at a time"],
)
def test_how_much_is_sent(end: int, credit: int, expected: tuple[int, int]) -> None:
    sending = order(start(node(6), 1, end, credit))
    assert (sending.end, sending.bytes_max) == expected


def test_one_batch_is_under_way_at_a_time() -> None:
    core = node(6)
    sending = order(start(core))
    assert core.handle((SESSION, 0), m.Window(7, 1, 9_000)) == []
    assert not any(isinstance(effect, e.SendBlocks) for effect in written(core, 6))
    following = order(core.sent(sending, Lsn(4), 300))
    assert (following.first, following.end, following.bytes_max) == (4, 7, 8_700)


def test_without_credit_nothing_is_sent_until_there_is_some() -> None:
    core = node(6)
    sending = order(start(core, credit=100))
    assert core.sent(sending, Lsn(3), 250) == []
    assert core.handle((SESSION, 0), m.Window(7, 1, 250)) == []
    assert order(core.handle((SESSION, 0), m.Window(7, 1, 251))).bytes_max == 1


def test_credit_never_shrinks() -> None:
    core = node(6)
    sending = order(start(core, credit=500))
    core.handle((SESSION, 0), m.Window(7, 1, 10))
    assert order(core.sent(sending, Lsn(3), 100)).bytes_max == 400


def test_a_stream_ends_silently_at_its_end() -> None:
    core = node(6)
    assert core.sent(order(start(core, 1, 4)), Lsn(4), 100) == []
    assert core.handle((SESSION, 0), m.Window(7, 1, 9_000)) == []
    assert pushed(written(core, 6)) == []


def test_caught_up_is_told_once() -> None:
    core = node(3)
    told = core.sent(order(start(core)), Lsn(3), 100)
    assert pushed(told) == [m.CaughtUp(7, 1, Lsn(3), Lsn(3))]
    assert core.handle((SESSION, 0), m.Window(7, 1, 9_000)) == []


def test_a_block_that_is_not_yet_safe_is_no_hole() -> None:
    """Otherwise every reader at the tail would repair what is only being written."""
    core = node(3)
    sending = order(start(core))
    settle = core.handle((1, 1), m.Write(LOG, ONE, block(3), CHAIN))[-1]
    assert isinstance(settle, e.Settle)
    assert pushed(core.sent(sending, Lsn(3), 100)) == [m.CaughtUp(7, 1, Lsn(3), Lsn(3))]
    assert order(core.settled(settle)).first == 3


def test_a_hole_is_told_once_and_again_when_it_is_another() -> None:
    core = node(3, sparse=[extent(5)])
    told = core.sent(order(start(core)), Lsn(3), 100)
    assert pushed(told) == [m.CaughtUp(7, 1, Lsn(3), Lsn(6))]
    assert pushed(written(core, 8)) == []
    effects = written(core, 3)
    told = core.sent(order(effects), Lsn(4), 100)
    assert pushed(told) == [m.CaughtUp(7, 1, Lsn(4), Lsn(9))]


def test_a_reader_at_the_end_is_told_when_a_hole_appears() -> None:
    core = node(3)
    core.sent(order(start(core)), Lsn(3), 100)
    assert pushed(written(core, 5)) == [m.CaughtUp(7, 1, Lsn(3), Lsn(6))]


@pytest.mark.parametrize(
    ("end", "gap", "goes_on"), [(99, (2, 4), True), (4, (2, 3), False)], ids=["open", "all gone"]
)
def test_what_was_trimmed_is_a_gap(end: int, gap: tuple[int, int], goes_on: bool) -> None:
    effects = start(node(8, trim_end=5), 2, end)
    assert pushed(effects) == [m.GapFound(7, 1, GapKind.TRIM, Lsn(gap[0]), Lsn(gap[1]))]
    assert any(isinstance(effect, e.SendBlocks) for effect in effects) == goes_on


def test_a_seal_ends_every_stream_of_the_log_after_its_fence() -> None:
    core = node(3)
    start(core, number=7)
    start(core, number=8, session=4)
    effects = core.handle((1, 1), m.Seal(LOG, Epoch(2), OTHER))
    assert isinstance(effects[0], e.SetFence)
    ended = [effect for effect in effects if isinstance(effect, e.Push)]
    assert [(one.session, one.message) for one in ended] == [
        (3, m.Ended(7, 1, Refusal.EPOCH, Epoch(2), Lsn(1), "the log was sealed")),
        (4, m.Ended(8, 1, Refusal.EPOCH, Epoch(2), Lsn(1), "the log was sealed")),
    ]


def test_a_refused_or_repeated_seal_ends_nothing() -> None:
    core = node(3)
    core.handle((1, 1), m.Seal(LOG, Epoch(2), OTHER))
    start(core, epoch=2)
    assert pushed(core.handle((1, 1), m.Seal(LOG, Epoch(2), OTHER))) == []
    assert pushed(core.handle((1, 1), m.Seal(LOG, Epoch(1), OTHER))) == []


def test_a_damaged_block_ends_the_stream() -> None:
    core = node(3)
    sending = order(start(core))
    (ended,) = pushed(core.broke(sending, "bad"))
    assert ended == m.Ended(7, 1, Refusal.CORRUPT, ONE, Lsn(1), "bad")
    assert core.broke(sending, "bad") == []
    assert core.sent(sending, Lsn(2), 1) == []


def test_a_new_version_replaces_the_old_one() -> None:
    core = node(6)
    old = order(start(core))
    new = order(start(core, 3, version=2))
    assert core.sent(old, Lsn(6), 100) == []
    assert core.handle((SESSION, 0), m.Window(7, 1, 9_000)) == []
    assert pushed(core.sent(new, Lsn(6), 100)) == [m.CaughtUp(7, 2, Lsn(6), Lsn(6))]


@pytest.mark.parametrize("is_closed", [False, True], ids=["stopped", "session closed"])
def test_a_stream_that_is_gone_costs_nothing(is_closed: bool) -> None:
    core = node(3)
    sending = order(start(core))
    if is_closed:
        core.session_closed(SESSION)
    else:
        core.handle((SESSION, 0), m.Stop(7))
    assert core.sent(sending, Lsn(3), 100) == []
    assert pushed(written(core, 3)) == []
    core.handle((SESSION, 0), m.Stop(7))
    core.session_closed(SESSION)


def test_the_number_of_streams_is_bounded() -> None:
    core = node()
    for number in range(STREAMS_PER_SESSION_MAX):
        start(core, number=number)
    (refused,) = start(core, number=STREAMS_PER_SESSION_MAX)
    assert isinstance(refused, e.Reply)
    assert isinstance(refused.message, m.Refused)
    assert refused.message.reason is Refusal.BUSY
    assert isinstance(start(core, number=0)[0].message, m.Started)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"epoch": 2}, Refusal.EPOCH),
        ({"first": 0}, Refusal.BAD_REQUEST),
        ({"first": 5, "end": 5}, Refusal.BAD_REQUEST),
    ],
)
def test_refused_starts(fields: dict[str, int], reason: Refusal) -> None:
    (reply,) = start(node(6), **fields)
    assert isinstance(reply, e.Reply)
    assert isinstance(reply.message, m.Refused)
    assert reply.message.reason is reason


@given(st.lists(st.sampled_from(["append", "send", "credit"]), max_size=60), st.integers(1, 400))
def test_positions_are_sent_once_in_order_within_credit(steps: list[str], credit: int) -> None:
    """I1 to I3, with blocks of 100 bytes and one block over the credit."""
    core = node()
    end, sent_to, sent_bytes = 1, 1, 0
    pending = [one for one in start(core, credit=credit) if isinstance(one, e.SendBlocks)]
    for step in steps:
        effects: list[e.NodeEffect] = []
        if step == "append":
            effects = written(core, end)
            end += 1
        elif step == "credit":
            credit += 150
            effects = core.handle((SESSION, 0), m.Window(7, 1, credit))
        elif pending:
            sending = pending.pop()
            assert sending.first == sent_to
            assert sending.end <= end
            assert sent_bytes < credit
            sent_to, sent_bytes = sending.first + 1, sent_bytes + 100
            effects = core.sent(sending, Lsn(sent_to), 100)
        pending += [one for one in effects if isinstance(one, e.SendBlocks)]
        assert len(pending) <= 1
    assert bool(pending) == (sent_to < end and sent_bytes < credit)


# -- The node's core around it ----------------------------------------------------------------


def test_a_store_that_failed_is_believed() -> None:
    held = state(contiguous_end=3)
    core = NodeCore(lambda log: held)
    settle = core.handle((1, 1), m.Write(LOG, ONE, block(3), CHAIN))[-1]
    assert isinstance(settle, e.Settle)
    (reply,) = core.store_failed(settle, Refusal.DISK_FULL, "no room")
    assert reply == e.Reply((1, 1), m.Refused(Refusal.DISK_FULL, ONE, "no room"))
    assert core.chain(LOG).taken.end == 3
    assert isinstance(core.handle((1, 1), m.Fill(LOG, ONE, hole(3), CHAIN))[0], e.StoreBlock)


def test_a_dropped_log_is_forgotten() -> None:
    held = [state(contiguous_end=3), None]
    core = NodeCore(lambda log: held.pop(0))
    core.handle((1, 1), m.Bootstrap(LOG, ONE, Lsn(3)))
    start(core)
    effects = core.handle((1, 1), m.Drop(LOG))
    assert [type(effect) for effect in effects] == [e.Push, e.DropLog, e.Settle]
    assert isinstance(effects[2], e.Settle)
    assert core.settled(effects[2]) == [e.Reply((1, 1), m.Dropped())]
    (answer,) = core.handle((1, 1), m.Next(LOG, ONE, 1))
    assert isinstance(answer, e.Reply)
    assert isinstance(answer.message, m.Refused)
    assert core.chain(LOG).fence.epoch == 0


def test_logs_have_their_own_sequencers_and_chains() -> None:
    core = node(3)
    core.handle((1, 1), m.Bootstrap(LOG, ONE, Lsn(3)))
    core.handle((1, 1), m.Bootstrap(LogId(2), ONE, Lsn(8)))
    issued = [core.handle((1, 1), m.Next(log, ONE, 1))[0] for log in (LOG, LogId(2))]
    assert [one.message for one in issued] == [m.Issued(Lsn(3), 1), m.Issued(Lsn(8), 1)]  # type: ignore[union-attr]
    assert core.chain(LOG) is not core.chain(LogId(2))


@pytest.mark.parametrize(
    "request_",
    [
        m.Describe(LOG),
        m.Read(LOG, ONE, Lsn(1)),
        m.Read(LOG, Epoch(0), Lsn(1)),
        m.Start(LOG, Epoch(0), 7, 1, Lsn(1), Lsn(9), 1_000),
        m.Next(LOG, ONE, 1),
        m.Next(LOG, Epoch(0), 1),
        m.Peek(LOG, ONE, Lsn(1)),
    ],
    ids=lambda request: f"{type(request).__name__}",
)
def test_asking_about_a_log_that_is_not_here_keeps_nothing(request_: m.Message) -> None:
    opened: list[LogId] = []
    core = NodeCore(lambda log: opened.append(log))
    (answer,) = core.handle((1, 1), request_)
    assert not isinstance(answer, e.Reply) or isinstance(answer.message, m.Refused)
    assert core.logs_kept == 0


def test_a_log_that_is_sealed_or_bootstrapped_here_is_kept() -> None:
    core = NodeCore(lambda log: None)
    core.handle((1, 1), m.Seal(LOG, ONE, OTHER))
    assert core.chain(LOG).fence.epoch == 1
    core.handle((1, 1), m.Bootstrap(LogId(2), ONE, Lsn(3)))
    (issued,) = core.handle((1, 1), m.Next(LogId(2), ONE, 1))
    assert issued == e.Reply((1, 1), m.Issued(Lsn(3), 1))
    assert core.logs_kept == 2


def test_streams_that_have_ended_leave_nothing_behind() -> None:
    streams = SendStreams()
    chain = ChainNode(LOG, state(contiguous_end=3))
    for number in (1, 2, 3):
        request = m.Start(LOG, ONE, number, 1, Lsn(1), Lsn(9), 1_000)
        streams.start((SESSION, number), request, chain)
    streams.stop(SESSION, 1)
    assert not streams.is_empty
    streams.stop(SESSION, 2)
    streams.stop(SESSION, 3)
    assert streams.is_empty


def test_what_a_node_does_not_answer_is_refused() -> None:
    (reply,) = node().handle((1, 1), m.Written())
    assert isinstance(reply, e.Reply)
    assert isinstance(reply.message, m.Refused)
    assert reply.message.reason is Refusal.BAD_REQUEST


def test_a_full_host_is_asked_at_every_write() -> None:
    core = node(3)
    core.refuse_writes = Refusal.DISK_FULL
    assert isinstance(core.handle((1, 1), m.Write(LOG, ONE, block(3), CHAIN))[0], e.Reply)
    core.refuse_writes = None
    assert isinstance(core.handle((1, 1), m.Write(LOG, ONE, block(3), CHAIN))[0], e.StoreBlock)
