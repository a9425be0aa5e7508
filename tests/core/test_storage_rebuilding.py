"""What a storage node takes of donors, and what it refuses because of somebody's status."""

import pytest
from sequenced_cluster import LOG, data, nodes

from millrace.core.effects import AmendCopies, NodeEffect, Reply, Settle, StoreBlock
from millrace.core.messages import (
    Amend,
    EpochsSealed,
    Rebuild,
    Refusal,
    Refused,
    SealEpochs,
    Standing,
    Store,
    Stored,
    TrimSequenced,
)
from millrace.core.sequenced.storage import SequencedStorage
from millrace.core.statuses import NodeStatusEntry, StatusBoard, came, drain, gone
from millrace.lsn import lsn_of
from millrace.types import NO_LSN, Ack, AuthoritativeStatus, Epoch, Lsn, NodeId, Placement

ME = NodeId(1)
TICKET = (7, 1)
BLOCK = data(1, 1)
RELEASED = lsn_of(Epoch(1), 5)
EMPTIED = NodeStatusEntry(AuthoritativeStatus.AUTHORITATIVE_EMPTY)
WIPED, AWAY, DRAINED = came(None, "a", "b", 1), gone(None, "a", 1), drain(None, "a", 1)


def storage(statuses: dict[int, NodeStatusEntry | None] | None = None) -> SequencedStorage:
    board = StatusBoard(ME)
    entries = {NodeId(node): entry for node, entry in (statuses or {}).items() if entry}
    board.update(entries)
    return SequencedStorage(LOG, None, board)


def sealed(
    epoch: int, statuses: dict[int, NodeStatusEntry | None] | None = None
) -> SequencedStorage:
    node = storage(statuses)
    node.step(TICKET, SealEpochs(LOG, Epoch(epoch)))
    return node


def rebuild(released: Lsn = RELEASED) -> Rebuild:
    return Rebuild(LOG, BLOCK, Placement(nodes(1, 2, 4), 1), released)


def store(*copyset: int, recovery: int = 0) -> Store:
    placement = Placement(nodes(*copyset), 1, Epoch(recovery))
    return Store(LOG, Epoch(recovery or 1), BLOCK, placement, NO_LSN, NO_LSN)


def answer(effects: list[NodeEffect]) -> object:
    return next(each.message for each in effects if isinstance(each, Reply | Settle))


def test_a_released_block_is_taken_whatever_the_seal() -> None:
    node = sealed(9)
    effects = node.step(TICKET, rebuild())
    assert StoreBlock(BLOCK, Placement(nodes(1, 2, 4), 1), Ack.DISK) in effects
    assert isinstance(answer(effects), Stored)
    assert node.marks.released == RELEASED


def test_a_block_that_nobody_released_is_not() -> None:
    effects = sealed(9).step(TICKET, rebuild(NO_LSN))
    refused = answer(effects)
    assert isinstance(refused, Refused)
    assert refused.reason is Refusal.BAD_REQUEST


def test_what_was_trimmed_here_is_as_good_as_stored() -> None:
    node = storage()
    node.step(TICKET, TrimSequenced(LOG, RELEASED))
    effects = node.step(TICKET, rebuild())
    assert isinstance(answer(effects), Stored)
    assert not any(isinstance(each, StoreBlock) for each in effects)


def test_a_full_node_takes_no_blocks_of_donors() -> None:
    node = storage()
    node.refuse_writes = Refusal.DISK_FULL
    refused = answer(node.step(TICKET, rebuild()))
    assert isinstance(refused, Refused)
    assert refused.reason is Refusal.DISK_FULL


def test_donors_amend_whatever_the_seal_and_sequencers_do_not() -> None:
    changes = ((BLOCK.first, Placement(nodes(1, 2, 4), 1)),)
    node = sealed(9)
    donors = node.step(TICKET, Amend(LOG, Epoch(0), changes, is_rebuilding=True))
    assert donors == [AmendCopies(TICKET, LOG, changes)]
    assert isinstance(answer(node.step(TICKET, Amend(LOG, Epoch(1), changes))), Refused)


@pytest.mark.parametrize(
    ("statuses", "request_", "reason"),
    [
        pytest.param({}, store(1, 2, 3), None, id="all is well"),
        pytest.param({3: AWAY}, store(1, 2, 3), Refusal.BUSY, id="names one that is rebuilt"),
        pytest.param({3: AWAY}, store(1, 2, 4), None, id="does not name it"),
        pytest.param({3: WIPED}, store(1, 2, 3), None, id="names one that is alive and empty"),
        pytest.param({3: AWAY}, store(1, 2, 3, recovery=2), None, id="a recovery may name it"),
        pytest.param({1: DRAINED}, store(1, 2, 3), Refusal.NOT_READY, id="is drained itself"),
        pytest.param(
            {1: DRAINED}, store(1, 2, 3, recovery=2), Refusal.NOT_READY, id="also for a recovery"
        ),
        pytest.param({1: WIPED}, store(1, 2, 3), None, id="is empty itself"),
        pytest.param({1: DRAINED}, rebuild(), Refusal.NOT_READY, id="or for a donor"),
        pytest.param({1: EMPTIED}, rebuild(), Refusal.NOT_READY, id="was emptied"),
        pytest.param({1: WIPED}, rebuild(), None, id="gets its copies back"),
    ],
)
def test_copies_that_name_whoever_is_not_looked_for(
    statuses: dict[int, NodeStatusEntry | None],
    request_: Store | Rebuild,
    reason: Refusal | None,
) -> None:
    said = answer(storage(statuses).step(TICKET, request_))
    assert (said.reason if isinstance(said, Refused) else None) is reason


def test_a_wiped_node_has_no_vote_whoever_asks() -> None:
    node = sealed(9, {1: WIPED})
    assert node.is_incomplete
    said = answer(node.step(TICKET, SealEpochs(LOG, Epoch(9))))
    assert isinstance(said, EpochsSealed)
    assert said.standing is Standing.DIRTY
