"""What an epoch holds, decided from what its sealed nodes hold."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.messages import EpochsSealed, Standing
from millrace.core.replication import Authority
from millrace.core.sequenced.digest import Decision, Settled, Verdict, decide, settled_by
from millrace.lsn import OFFSET_MAX, first_of, last_of, lsn_of, offset_of
from millrace.types import FIRST_LSN, NO_LSN, Copy, EntryKind, Epoch, Lsn, NodeId, Placement
from tests.core.sequenced_cluster import LOG, ModelCluster, ModelNode, copy, data, junk, nodes

EPOCH = Epoch(5)
HOLE, BRIDGE, LOSS = EntryKind.HOLE, EntryKind.BRIDGE, EntryKind.LOSS


def at(offset: int) -> Lsn:
    return lsn_of(EPOCH, offset)


def d(offset: int, count: int = 1, wave: int = 1, recovery: int = 0) -> Copy:
    return copy(data(EPOCH, offset, count), 1, 2, 3, wave=wave, recovery=recovery)


def j(kind: EntryKind, offset: int, count: int = 1, recovery: int = 6) -> Copy:
    return copy(junk(LOG, at(offset), count, kind), 1, 2, wave=1, recovery=recovery)


def verdict(good: int, *held: Sequence[Copy], proof: Authority = Authority.COMPLETE) -> Verdict:
    by_node = {NodeId(number): copies for number, copies in enumerate(held, 1)}
    return decide(EPOCH, at(good), by_node, proof)


def shown(found: Verdict) -> list[str]:
    """`1-2 data`, `3 hole`, `4 bridge`."""
    lines = []
    for each in found.decisions:
        first, last = offset_of(each.first), offset_of(each.last)
        kind = each.winner if isinstance(each.winner, EntryKind) else each.winner.extent.kind
        lines.append(f"{first}{f'-{last}' if last > first else ''} {kind.name.lower()}")
    return lines


TABLE: list[tuple[str, int, list[list[Copy]], list[str]]] = [
    ("an empty epoch is bridged where it begins", 0, [[], []], ["1 bridge"]),
    ("an empty digest: bridge behind what is good", 7, [[], []], ["8 bridge"]),
    ("an epoch that is full has no room for a bridge", OFFSET_MAX, [[]], []),
    ("one block", 0, [[d(1, 2)], []], ["1-2 data", "3 bridge"]),
    ("above good only", 2, [[d(1, 2), d(3)]], ["3 data", "4 bridge"]),
    ("a hole below a block", 0, [[d(4)], []], ["1-3 hole", "4 data", "5 bridge"]),
    ("blocks of different nodes", 0, [[d(1)], [d(2)]], ["1 data", "2 data", "3 bridge"]),
    (
        "waves of one block are the same block",
        0,
        [[d(1, wave=1)], [d(1, wave=2)]],
        ["1 data", "2 bridge"],
    ),
    (
        "a plug beats the appender, whatever its wave",
        0,
        [[d(1, 2, wave=9), d(3)], [j(HOLE, 1, 2)]],
        ["1-2 hole", "3 data", "4 bridge"],
    ),
    (
        "a plug over several blocks takes them all",
        0,
        [[d(1), d(2, 3), d(5)], [j(HOLE, 1, 4), d(5)]],
        ["1-4 hole", "5 data", "6 bridge"],
    ),
    (
        "a block written by a later recovery beats a plug",
        0,
        [[j(HOLE, 1, 2, recovery=6)], [d(1, 2, recovery=7)]],
        ["1-2 data", "3 bridge"],
    ),
    (
        "a later plug beats a block of an earlier recovery",
        0,
        [[d(1, 2, recovery=6), d(3)], [j(HOLE, 1, 2, recovery=7)]],
        ["1-2 hole", "3 data", "4 bridge"],
    ),
    (
        "the second attempt of a recovery beats its first",
        0,
        [[d(1, wave=2, recovery=6), d(2)], [j(HOLE, 1, recovery=6)]],
        ["1 data", "2 data", "3 bridge"],
    ),
    (
        "a bridge kills what is behind it",
        0,
        [[d(1), d(2, 3), d(5)], [d(1), j(BRIDGE, 2)]],
        ["1 data", "2-5 bridge"],
    ),
    (
        "but not what a later recovery wrote behind it",
        0,
        [[d(1), d(3, recovery=7), d(4)], [j(BRIDGE, 2, recovery=6)]],
        ["1 data", "2 hole", "3 data", "4 bridge"],
    ),
    (
        "a bridge that nothing stands before any more moves down",
        0,
        [[d(1)], [j(HOLE, 2, 3), j(BRIDGE, 9)]],
        ["1 data", "2-9 bridge"],
    ),
    ("nothing but junk: all of it is the end", 0, [[j(HOLE, 1, 4)], []], ["1-4 bridge"]),
    ("a bridge behind what is good stays", 7, [[j(BRIDGE, 8)], []], ["8 bridge"]),
    (
        "what is known to be lost stays so",
        0,
        [[j(LOSS, 1, 2)], [d(3)]],
        ["1-2 loss", "3 data", "4 bridge"],
    ),
    (
        "the rest of a block that lost a part is a hole",
        0,
        [[d(1, 4), d(5)], [j(HOLE, 1, 2)]],
        ["1-4 hole", "5 data", "6 bridge"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("good", "held", "decided"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_what_stands(good: int, held: list[list[Copy]], decided: list[str]) -> None:
    assert shown(verdict(good, *held)) == decided


@pytest.mark.parametrize(
    ("proof", "decided"),
    [
        (Authority.COMPLETE, ["1 bridge"]),
        (Authority.INCOMPLETE, ["1 bridge"]),
        (Authority.NON_AUTHORITATIVE, []),
    ],
)
def test_an_epoch_is_said_to_be_empty_with_authority_only(
    proof: Authority, decided: list[str]
) -> None:
    """Even if everybody says so: later on, nobody may be left who can."""
    assert shown(verdict(0, [], [], proof=proof)) == decided


WITHOUT: list[tuple[str, int, list[list[Copy]], list[str]]] = [
    ("no hole and no bridge", 0, [[d(2)], [d(5)]], ["2 data", "5 data"]),
    ("no bridge behind what is good", 7, [[]], []),
    ("a plug that was there stays", 0, [[d(1)], [j(HOLE, 1)]], ["1 hole"]),
    ("a bridge that was there stays", 0, [[d(1), d(4)], [j(BRIDGE, 2)]], ["1 data", "2-4 bridge"]),
    (
        "a bridge that was wrong is a hole as far as it goes",
        0,
        [[d(4, recovery=7)], [j(BRIDGE, 2)]],
        ["2-3 hole", "4 data"],
    ),
    (
        "a plug that a later recovery wrote behind a bridge",
        0,
        [[j(BRIDGE, 2, recovery=6)], [j(HOLE, 4, 2, recovery=7)]],
        ["2-3 bridge", "4-5 hole"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("good", "held", "decided"), [row[1:] for row in WITHOUT], ids=[row[0] for row in WITHOUT]
)
def test_without_authority_nothing_new_is_said_to_be_empty(
    good: int, held: list[list[Copy]], decided: list[str]
) -> None:
    assert shown(verdict(good, *held, proof=Authority.NON_AUTHORITATIVE)) == decided


@pytest.mark.parametrize(
    ("good", "held", "tail"),
    [
        (0, [[]], NO_LSN),
        (7, [[]], at(7)),
        (2, [[d(3, 4)]], at(6)),
        (0, [[j(HOLE, 1, 4)]], NO_LSN),
        (0, [[d(1), d(5)], [j(BRIDGE, 2)]], at(1)),
    ],
    ids=["empty", "good", "the last block", "junk is no record", "before the bridge"],
)
def test_where_the_last_record_is(good: int, held: list[list[Copy]], tail: Lsn) -> None:
    assert verdict(good, *held).tail == tail


def test_who_has_the_winner_and_who_has_something_else() -> None:
    held = [d(1, 2, wave=2)], [d(1, 2, wave=1)], [j(HOLE, 1, 3, recovery=0)], [d(4)]
    block, hole, *_ = verdict(0, *held).decisions
    assert block.winner == d(1, 2, wave=2)
    assert block.holders == set(nodes(1, 2))
    assert block.overwrite == set(nodes(3))
    assert hole.winner is HOLE
    assert not hole.holders
    assert hole.overwrite == set(nodes(3))


def test_all_that_lies_behind_the_bridge_is_overwritten() -> None:
    bridge = verdict(0, [d(1), d(5)], [j(BRIDGE, 2)], [d(3, 2)], []).decisions[-1]
    assert (offset_of(bridge.first), offset_of(bridge.last)) == (2, 5)
    assert bridge.overwrite == set(nodes(1, 2, 3))


# -- What is settled already --------------------------------------------------------------------


def sealed(released: Lsn = NO_LSN, *good: Lsn, trim_end: Lsn = FIRST_LSN) -> EpochsSealed:
    return EpochsSealed(Standing.MEMBER, trim_end, released, good, FIRST_LSN)


def test_the_highest_of_all_answers_counts() -> None:
    found = settled_by([sealed(at(3)), sealed(at(2), lsn_of(Epoch(6), 9)), sealed()])
    assert found == Settled(at(3), {Epoch(6): lsn_of(Epoch(6), 9)})
    assert found.good_in(EPOCH) == at(3)
    assert found.good_in(Epoch(6)) == lsn_of(Epoch(6), 9)
    assert found.good_in(Epoch(7)) == first_of(Epoch(7))


def test_what_is_trimmed_is_settled() -> None:
    found = settled_by([sealed(trim_end=at(4)), sealed()])
    assert found.good_in(EPOCH) == at(3)
    assert found.good_in(Epoch(4)) == last_of(Epoch(4))


E2, E3, E4 = Epoch(2), Epoch(3), Epoch(4)
END = first_of(EPOCH)


@pytest.mark.parametrize(
    ("settled", "windows"),
    [
        (Settled(NO_LSN, {}), [(first_of(E2), END)]),
        (Settled(lsn_of(E2, 7), {}), [(lsn_of(E2, 8), END)]),
        (Settled(lsn_of(E3, 7), {}), [(lsn_of(E3, 8), END)]),
        (Settled(last_of(E4), {}), []),
        (Settled(NO_LSN, {E3: first_of(E3)}), [(first_of(E2), END)]),
        (
            Settled(NO_LSN, {E3: lsn_of(E3, 7)}),
            [(first_of(E2), first_of(E3)), (lsn_of(E3, 8), END)],
        ),
        (Settled(lsn_of(E3, 9), {E3: lsn_of(E3, 7)}), [(lsn_of(E3, 10), END)]),
        (Settled(NO_LSN, {Epoch(9): lsn_of(Epoch(9), 7)}), [(first_of(E2), END)]),
    ],
    ids=[
        "nothing is known", "a part is released", "an epoch is closed", "everything is",
        "good without a record", "an epoch between", "released is newer", "another epoch",
    ],
)  # fmt: skip
def test_few_windows_cover_what_is_not_settled(settled: Settled, windows: list[Any]) -> None:
    assert settled.windows(E2, E4) == windows


# -- Any order of events ------------------------------------------------------------------------

SIZE, COPIES = 5, 3
MAJORITIES = [nodes(*each) for each in combinations(range(1, SIZE + 1), SIZE - COPIES + 1)]
subsets = st.frozensets(st.integers(1, SIZE), max_size=SIZE)
appended = st.tuples(st.integers(1, 3), subsets, subsets, st.integers(1, 2))
interrupted = st.tuples(st.sampled_from(MAJORITIES), st.integers(0, 2**16 - 1))


def held_by(cluster: ModelCluster, majority: Sequence[NodeId]) -> dict[NodeId, list[Copy]]:
    return {node: cluster.nodes[node].copies() for node in majority}


def write(node: ModelNode, decision: Decision, recovery: int) -> None:
    winner = decision.winner
    if isinstance(winner, EntryKind):
        block = junk(LOG, decision.first, decision.last - decision.first + 1, winner)
    else:
        block = data(EPOCH, offset_of(decision.first), decision.last - decision.first + 1)
    node.put(block, Placement((node.id,), 1, Epoch(recovery)))


@settings(max_examples=400, deadline=None)
@given(
    blocks=st.lists(appended, max_size=6),
    recoveries=st.lists(interrupted, max_size=3),
    last=st.sampled_from(MAJORITIES),
    again=st.sampled_from(MAJORITIES),
    data_=st.data(),
)
def test_acknowledged_blocks_always_stand(
    blocks: list[tuple[int, frozenset[int], frozenset[int], int]],
    recoveries: list[tuple[tuple[NodeId, ...], int]],
    last: tuple[NodeId, ...],
    again: tuple[NodeId, ...],
    data_: st.DataObject,
) -> None:
    """Blocks reach some nodes before the first seal and, where that did not seal, some later;
    recoveries die after any part of their writes; whoever recovers then keeps what any R nodes
    acknowledged, and whoever recovers after that decides the same."""
    cluster, offset, acknowledged = ModelCluster(SIZE, COPIES), 1, []
    first_sealed = recoveries[0][0] if recoveries else ()
    placed = []
    for count, early, late, wave in blocks:
        block = data(EPOCH, offset, count)
        arrived = early | (late - set(first_sealed))
        placed.append((block, early, arrived - early, wave))
        if len(arrived) >= COPIES:
            acknowledged.append(block.extent())
        offset += count
    for block, early, _, wave in placed:
        cluster.append(block, sorted(early), wave=wave)
    for number, (majority, written) in enumerate(recoveries, 6):
        found = decide(EPOCH, first_of(EPOCH), held_by(cluster, majority), Authority.INCOMPLETE)
        writes = [(node, each) for each in found.decisions for node in majority]
        for bit, (node, decision) in enumerate(writes):
            if written >> (bit % 16) & 1:
                write(cluster.nodes[node], decision, number)
        for block, _, late, wave in placed if number == 6 else ():
            cluster.append(block, sorted(late), wave=wave)
    if not recoveries:
        for block, _, late, wave in placed:
            cluster.append(block, sorted(late), wave=wave)

    found = decide(EPOCH, first_of(EPOCH), held_by(cluster, last), Authority.INCOMPLETE)
    standing = {each.winner.extent for each in found.decisions if isinstance(each.winner, Copy)}
    assert standing.issuperset(acknowledged)
    for before, after in zip(found.decisions, found.decisions[1:], strict=False):
        assert after.first == before.last + 1
    assert not found.decisions or found.decisions[0].first == at(1)

    for each in found.decisions:
        targets = set(data_.draw(st.sampled_from(MAJORITIES))) | (each.overwrite & set(last))
        for node in targets:
            write(cluster.nodes[node], each, 20)
    second = decide(EPOCH, first_of(EPOCH), held_by(cluster, again), Authority.INCOMPLETE)
    assert _words(second) == _words(found)


def _words(found: Verdict) -> list[tuple[Lsn, Lsn, object]]:
    """Winners and their positions; how far a bridge reaches depends on who was asked."""
    return [
        (each.first, each.first if each.winner is BRIDGE else each.last, _name(each))
        for each in found.decisions
    ]


def _name(decision: Decision) -> object:
    winner = decision.winner
    return winner if isinstance(winner, EntryKind) else winner.extent
