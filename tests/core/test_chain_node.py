"""One node's part in one chain log: what it refuses, what it orders, and in which order."""

import pytest

from millrace.core import effects as e
from millrace.core import messages as m
from millrace.core.chain_node import ChainNode, ChainRequest
from millrace.core.log_state import Fence
from millrace.core.messages import Refusal, Standing
from millrace.limits import SPARSE_EXTENTS_MAX
from millrace.types import Ack, Block, Epoch, LogId, Lsn, NodeId, Placement, Token
from tests.core.core_samples import CHAIN, LOG, MINE, OTHER, block, extent, hole, state

TICKET = (3, 4)
ONE, TWO = Epoch(1), Epoch(2)


def write(what: Block, epoch: int = 1, ack: Ack = Ack.DISK) -> m.Write:
    return m.Write(LOG, Epoch(epoch), what, CHAIN, ack)


def step(node: ChainNode, request: ChainRequest) -> list[e.NodeEffect]:
    return node.step(TICKET, request)


def refusal(effects: list[e.NodeEffect]) -> Refusal | None:
    """The reason, if the only effect is to refuse."""
    match effects:
        case [e.Reply(_, m.Refused(reason=reason))]:
            return reason
    return None


def settle_all(node: ChainNode, effects: list[e.NodeEffect]) -> None:
    for effect in effects:
        if isinstance(effect, e.Settle):
            node.settled(effect.number, effect.message)


def holding(*what: Block, **fields: int) -> ChainNode:
    node = ChainNode(LOG, state(**fields))
    for one in what:
        settle_all(node, step(node, write(one, node.fence.epoch)))
    return node


def test_a_write_is_stored_before_it_is_acknowledged() -> None:
    what = block(1)
    effects = step(ChainNode(LOG, state()), write(what, ack=Ack.MEMORY))
    assert effects == [
        e.StoreBlock(what, Placement(CHAIN), Ack.MEMORY),
        e.Settle(LOG, 1, Ack.MEMORY, TICKET, m.Written()),
    ]


@pytest.mark.parametrize(
    ("request_", "standing", "reason"),
    [
        (write(block(1), 0), Standing.MEMBER, Refusal.EPOCH),
        (write(block(1), 2), Standing.MEMBER, Refusal.EPOCH),
        (write(block(1)), Standing.BLANK, Refusal.INCOMPLETE),
        (write(block(1)), Standing.DIRTY, Refusal.INCOMPLETE),
        (m.Read(LOG, TWO, Lsn(1)), Standing.MEMBER, Refusal.EPOCH),
        (m.Read(LOG, ONE, Lsn(1)), Standing.DIRTY, Refusal.INCOMPLETE),
        (m.Fill(LOG, TWO, hole(1), CHAIN), Standing.MEMBER, Refusal.EPOCH),
        (m.Fill(LOG, ONE, block(1), CHAIN), Standing.MEMBER, Refusal.BAD_REQUEST),
        (m.Trim(LOG, TWO, Lsn(1)), Standing.MEMBER, Refusal.EPOCH),
        (m.Trim(LOG, ONE, Lsn(2)), Standing.MEMBER, Refusal.UNWRITTEN),
        (m.Seal(LOG, ONE, MINE), Standing.MEMBER, Refusal.EPOCH),
        (m.Admit(LOG, TWO), Standing.MEMBER, Refusal.EPOCH),
        (m.Admit(LOG, ONE), Standing.BLANK, Refusal.INCOMPLETE),
        (m.Index(LOG, TWO, Lsn(1), Lsn(9)), Standing.MEMBER, Refusal.EPOCH),
        (m.Fetch(LOG, TWO, Lsn(1), Lsn(9), 1), Standing.MEMBER, Refusal.EPOCH),
        (m.FindTime(LOG, TWO, 0), Standing.MEMBER, Refusal.EPOCH),
        (m.FindSize(LOG, TWO, 0), Standing.MEMBER, Refusal.EPOCH),
        (m.Revise(LOG, TWO, Lsn(1)), Standing.BLANK, Refusal.EPOCH),
        (m.Revise(LOG, ONE, Lsn(1)), Standing.MEMBER, Refusal.BAD_REQUEST),
        (m.BeginLearn(LOG, Epoch(0)), Standing.MEMBER, Refusal.EPOCH),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, m.Message) else value.value,
)
def test_refusals(request_: ChainRequest, standing: Standing, reason: Refusal) -> None:
    node = ChainNode(LOG, state(standing=standing))
    before = node.fence
    effects = step(node, request_)
    assert refusal(effects) is reason
    match effects:
        case [e.Reply(ticket, m.Refused(epoch=epoch))]:
            assert (ticket, epoch) == (TICKET, 1)
    assert (node.fence, node.taken.end) == (before, 1)


def test_a_node_that_never_heard_of_the_log_refuses_everything_but_a_seal() -> None:
    node = ChainNode(LOG, None)
    assert refusal(step(node, write(block(1), 0))) is Refusal.INCOMPLETE
    assert refusal(step(node, m.Read(LOG, Epoch(0), Lsn(1)))) is Refusal.INCOMPLETE
    assert isinstance(step(node, m.Seal(LOG, ONE, MINE))[-1], e.Settle)


@pytest.mark.parametrize(
    ("first", "count"), [(2, 1), (1, 3), (3, 3), (5, 1), (4, 9)], ids=lambda number: str(number)
)
def test_a_block_that_touches_a_taken_position_is_refused_whole(first: int, count: int) -> None:
    node = holding(block(1, 3), block(5, 2))
    taken = (node.taken.contiguous_end, list(node.taken.islands))
    (answer,) = step(node, write(block(first, count, OTHER)))
    assert answer == e.AnswerWritten(TICKET, LOG, ONE, Lsn(first), Lsn(first + count))
    assert (node.taken.contiguous_end, node.taken.islands) == taken


def test_between_two_blocks_there_is_room_for_one_that_fits() -> None:
    node = holding(block(1, 3), block(5, 2))
    assert isinstance(step(node, write(block(4)))[0], e.StoreBlock)
    assert node.taken.contiguous_end == 7


def test_a_block_of_another_log_does_not_belong_here() -> None:
    stranger = block(1)
    stranger.log = LogId(2)
    assert refusal(step(ChainNode(LOG, state()), write(stranger))) is Refusal.BAD_REQUEST


def test_an_unsafe_block_is_neither_readable_nor_called_written() -> None:
    node = ChainNode(LOG, state())
    effects = step(node, write(block(1)))
    assert node.readable_end == 1
    assert refusal(step(node, m.Read(LOG, ONE, Lsn(1)))) is Refusal.UNWRITTEN
    assert refusal(step(node, write(block(1)))) is Refusal.BUSY
    settle_all(node, effects)
    assert node.readable_end == 2
    assert step(node, m.Read(LOG, ONE, Lsn(1))) == [e.AnswerBlock(TICKET, LOG, ONE, Lsn(1))]


def test_readable_ends_at_the_lowest_unsafe_block_whatever_settles_first() -> None:
    node = ChainNode(LOG, state())
    first, second = step(node, write(block(1))), step(node, write(block(2)))
    settle_all(node, second)
    assert node.readable_end == 1
    settle_all(node, first)
    assert node.readable_end == 3


@pytest.mark.parametrize("reason", [Refusal.DISK_FULL, Refusal.BUSY])
def test_a_host_that_takes_no_blocks(reason: Refusal) -> None:
    node = holding(block(1))
    node.refuse_writes = reason
    assert refusal(step(node, write(block(2)))) is reason
    # Junk has a place set aside on a full disk, so that the log can be read to its end.
    filled = step(node, m.Fill(LOG, ONE, hole(3), CHAIN))
    assert isinstance(filled[0], e.StoreBlock) == (reason is Refusal.DISK_FULL)
    # What is there can still be told, trimmed and fenced.
    assert isinstance(step(node, write(block(1)))[0], e.AnswerWritten)
    assert isinstance(step(node, m.Trim(LOG, ONE, Lsn(2)))[0], e.TrimLog)
    assert isinstance(step(node, m.Seal(LOG, TWO, MINE))[0], e.SetFence)


def test_the_number_of_islands_is_bounded() -> None:
    sparse = [extent(3)]
    node = ChainNode(LOG, state(sparse=sparse))
    node.taken.islands = [(Lsn(2 * at), Lsn(2 * at + 1)) for at in range(2, SPARSE_EXTENTS_MAX + 2)]
    assert refusal(step(node, write(block(9_999_999)))) is Refusal.BUSY


@pytest.mark.parametrize(
    ("first", "count", "is_taken"),
    [(1, 4, False), (3, 3, True), (4, 1, False), (5, 2, True), (2, 3, False)],
)
def test_the_trim_point_cuts_blocks(first: int, count: int, is_taken: bool) -> None:
    node = ChainNode(LOG, state(trim_end=5, contiguous_end=5))
    effects = step(node, write(block(first, count)))
    if is_taken:
        assert isinstance(effects[0], e.StoreBlock)
        assert node.taken.contiguous_end == first + count
    else:
        assert refusal(effects) is Refusal.TRIMMED


def test_trimming() -> None:
    node = holding(block(1, 3), block(4, 3))
    effects = step(node, m.Trim(LOG, ONE, Lsn(5)))
    assert effects == [
        e.TrimLog(LOG, Lsn(5)),
        e.Settle(LOG, 3, Ack.DISK, TICKET, m.Trimmed(Lsn(5))),
    ]
    assert refusal(step(node, m.Read(LOG, ONE, Lsn(4)))) is Refusal.TRIMMED
    assert isinstance(step(node, m.Read(LOG, ONE, Lsn(5)))[0], e.AnswerBlock)
    assert step(node, m.Trim(LOG, ONE, Lsn(2))) == [e.Reply(TICKET, m.Trimmed(Lsn(5)))]
    assert refusal(step(node, m.Trim(LOG, ONE, Lsn(8)))) is Refusal.UNWRITTEN
    assert step(node, m.Index(LOG, ONE, Lsn(1), Lsn(9))) == [
        e.AnswerIndex(TICKET, LOG, Lsn(5), Lsn(9), Lsn(5), Lsn(7))
    ]


# -- Epochs -----------------------------------------------------------------------------------


def test_a_seal_stores_its_fence_before_it_answers() -> None:
    node = holding(block(1), block(3))
    effects = step(node, m.Seal(LOG, TWO, OTHER))
    sealed = m.Sealed(ONE, Standing.MEMBER, Lsn(1), Lsn(2), Lsn(4))
    assert effects == [
        e.SetFence(LOG, Fence(TWO, OTHER, Standing.MEMBER)),
        e.Settle(LOG, 3, Ack.DISK, TICKET, sealed),
    ]
    assert refusal(step(node, write(block(2)))) is Refusal.EPOCH


def test_a_repeated_seal_is_answered_again_and_a_rival_is_refused() -> None:
    node = holding(block(1))
    step(node, m.Seal(LOG, TWO, MINE))
    again = step(node, m.Seal(LOG, TWO, MINE))
    assert [type(effect) for effect in again] == [e.Settle]
    assert refusal(step(node, m.Seal(LOG, TWO, OTHER))) is Refusal.EPOCH
    assert refusal(step(node, m.Seal(LOG, ONE, MINE))) is Refusal.EPOCH


def test_a_seal_is_not_repeated_across_a_restart() -> None:
    """I5: the proposer's picture of the node may be older than the crash."""
    fence = Fence(TWO, MINE, Standing.DIRTY)
    stored = state(contiguous_end=3)
    stored.fence = fence
    node = ChainNode(LOG, stored)
    assert refusal(step(node, m.Seal(LOG, TWO, MINE))) is Refusal.EPOCH
    step(node, m.Seal(LOG, Epoch(3), MINE))
    assert node.refuse(Epoch(3)) is None
    assert node.fence.standing is Standing.DIRTY


def test_a_seal_does_not_speak_of_blocks_that_failed_meanwhile() -> None:
    node = ChainNode(LOG, state())
    written = step(node, write(block(1)))[-1]
    sealed = step(node, m.Seal(LOG, TWO, MINE))[-1]
    assert isinstance(written, e.Settle)
    assert isinstance(sealed, e.Settle)
    node.settled(written.number, written.message)
    node.reload(state(epoch=2))
    answer = node.settled(sealed.number, sealed.message)
    assert answer == m.Sealed(ONE, Standing.MEMBER, Lsn(1), Lsn(1), Lsn(1))


def test_admission_makes_a_member() -> None:
    node = ChainNode(LOG, None)
    step(node, m.Seal(LOG, ONE, MINE))
    effects = step(node, m.Admit(LOG, ONE))
    assert effects[0] == e.SetFence(LOG, Fence(ONE, MINE, Standing.MEMBER))
    assert effects[1] == e.Settle(LOG, 2, Ack.DISK, TICKET, m.Admitted())


# -- Learning ---------------------------------------------------------------------------------


@pytest.mark.parametrize("epoch", [1, 2], ids=["same epoch", "later epoch"])
def test_a_member_that_begins_to_learn_is_none_any_more(epoch: int) -> None:
    """Also in its own epoch: it was sealed into it by a proposer who lost."""
    node = holding(block(1))
    effects = step(node, m.BeginLearn(LOG, Epoch(epoch)))
    assert effects[0] == e.SetFence(LOG, Fence(Epoch(epoch), Token(0, 0), Standing.BLANK))
    assert isinstance(effects[1], e.Settle)
    assert effects[1].message == m.Revised(Lsn(2))


def learner() -> ChainNode:
    node = holding(block(1), block(2), block(4))
    step(node, m.BeginLearn(LOG, TWO))
    return node


def revise(node: ChainNode, **fields: object) -> list[e.NodeEffect]:
    return step(node, m.Revise(LOG, TWO, **({"trim_end": Lsn(0)} | fields)))  # type: ignore[arg-type]


def test_revising_removes_trims_and_stores_in_this_order() -> None:
    node = learner()
    effects = revise(
        node, trim_end=Lsn(2), remove=(extent(2), extent(4)), blocks=(block(1), hole(2), block(3))
    )
    assert [type(effect) for effect in effects] == [
        e.RemoveBlocks,
        e.TrimLog,
        e.StoreBlock,
        e.StoreBlock,
        e.Settle,
    ]
    assert effects[0] == e.RemoveBlocks(LOG, (Lsn(2), Lsn(4)))
    assert (node.taken.trim_end, node.taken.contiguous_end, node.taken.end) == (2, 4, 4)


@pytest.mark.parametrize(
    "fields",
    [{"remove": (extent(3),)}, {"remove": (extent(2), extent(2))}, {"blocks": (block(1),)}],
    ids=["not held", "removed twice", "held"],
)
def test_a_revision_by_an_old_picture_changes_nothing(fields: dict[str, object]) -> None:
    node = learner()
    before = (node.taken.contiguous_end, list(node.taken.islands))
    assert refusal(revise(node, **fields)) is Refusal.BUSY
    assert (node.taken.contiguous_end, node.taken.islands) == before


def test_a_full_host_still_takes_out_but_not_in() -> None:
    node = learner()
    node.refuse_writes = Refusal.DISK_FULL
    assert refusal(revise(node, blocks=(block(3),))) is Refusal.DISK_FULL
    assert isinstance(revise(node, remove=(extent(4),))[0], e.RemoveBlocks)


def test_what_was_sparse_in_the_store_is_taken_after_a_restart() -> None:
    node = ChainNode(LOG, state(contiguous_end=3, sparse=[extent(5, 2), extent(8)]))
    assert (node.taken.contiguous_end, node.taken.end) == (3, 9)
    assert isinstance(step(node, write(block(6)))[0], e.AnswerWritten)
    assert isinstance(step(node, write(block(3, 2)))[0], e.StoreBlock)
    assert node.taken.contiguous_end == 7


def test_copysets_are_passed_on() -> None:
    chain = (NodeId(7), NodeId(8))
    effects = step(ChainNode(LOG, state()), m.Write(LOG, ONE, block(1), chain))
    assert isinstance(effects[0], e.StoreBlock)
    assert effects[0].placement == Placement(chain)
