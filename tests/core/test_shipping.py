"""Who ships a block (seed 000, R1 to R3)."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from itertools import combinations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.messages import Shipping
from millrace.core.shipping import (
    COPYSETS_REMEMBERED_MAX,
    Shipper,
    delivery_order,
    donor,
    shared_scopes,
)
from millrace.types import (
    NO_TOKEN,
    Copy,
    CopysetOrder,
    EntryKind,
    Extent,
    LocalScd,
    Lsn,
    NodeId,
    Placement,
)

# The log of both examples of the seed, whose tables list the log and not what one node holds.
LOG = {
    42: (1, 0, 2, 3),
    43: (3, 5, 0, 1),
    44: (0, 1, 2, 3),
    45: (4, 0, 5, 2),
    46: (0, 3, 2, 1),
    47: (4, 3, 2, 5),
    48: (1, 4, 0, 5),
}
NODES = tuple(NodeId(node) for node in range(6))
READER = "eu.dc1.c1.row1.rack2"
LOCATIONS = {
    NodeId(0): "eu.dc1.c1.row1.rack1",
    NodeId(1): "eu.dc1.c1.row1.rack2",
    NodeId(2): "eu.dc2.c1.row1.rack1",
    NodeId(3): "us.dc1.c1.row1.rack1",
    NodeId(4): "us.dc1.c1.row1.rack2",
    NodeId(5): "us.dc2.c1.row1.rack1",
}


def nodes(*ids: int) -> tuple[NodeId, ...]:
    return tuple(NodeId(node) for node in ids)


def copy(copyset: tuple[int, ...], kind: EntryKind = EntryKind.DATA, first: int = 1) -> Copy:
    extent = Extent(Lsn(first), Lsn(first), kind, NO_TOKEN, 0, 100)
    return Copy(extent, Placement(nodes(*copyset)))


def scd(*known_down: int, **fields: object) -> Shipping:
    return Shipping(**{"known_down": nodes(*known_down), "order": CopysetOrder.STORED} | fields)  # type: ignore[arg-type]


def sent(shipping: Shipping) -> dict[int, set[int]]:
    """What each node ships of the log, those that ship nothing left out."""
    shippers = {node: Shipper(node, shipping, LOCATIONS) for node in NODES}
    shipped = {
        int(node): {
            lsn
            for lsn, copyset in LOG.items()
            if node in copyset and shipper.ships(copy(copyset, first=lsn))
        }
        for node, shipper in shippers.items()
    }
    return {node: lsns for node, lsns in shipped.items() if lsns}


# -- The examples of the seed -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("known_down", "expected"),
    [
        pytest.param((), {44, 46}, id="nobody"),
        pytest.param((1,), {42, 44, 46}, id="N1"),
        pytest.param((1, 4), {42, 44, 45, 46, 48}, id="N1,N4"),
    ],
)
def test_the_known_down_example_says_what_n0_sends(
    known_down: tuple[int, ...], expected: set[int]
) -> None:
    assert sent(scd(*known_down))[0] == expected


@pytest.mark.parametrize(
    ("known_down", "expected"),
    [
        pytest.param((), {0: {44, 46}, 1: {42, 48}, 3: {43}, 4: {45, 47}}, id="nobody"),
        pytest.param(
            (1,), {0: {42, 44, 46}, 1: {42, 48}, 3: {43}, 4: {45, 47, 48}}, id="N1 sends its own"
        ),
        pytest.param(
            (1, 4),
            {0: {42, 44, 45, 46, 48}, 1: {42, 48}, 3: {43, 47}, 4: {45, 47, 48}},
            id="to N4 only N1 is down",
        ),
    ],
)
def test_the_known_down_example_for_all_nodes(
    known_down: tuple[int, ...], expected: dict[int, set[int]]
) -> None:
    assert sent(scd(*known_down)) == expected


@pytest.mark.parametrize(
    ("known_down", "expected"),
    [
        pytest.param((), {0: {43, 44, 45, 46}, 1: {42, 48}, 2: {47}}, id="nobody"),
        pytest.param((0,), {0: {43, 44, 45, 46}, 1: {42, 43, 44, 48}, 2: {45, 46, 47}}, id="N0"),
        pytest.param(
            (0, 2),
            {0: {43, 44, 45, 46}, 1: {42, 43, 44, 46, 48}, 2: {45, 46, 47}, 4: {45, 47}},
            id="N0,N2, of which the seed names N0 where it means N1",
        ),
    ],
)
def test_the_local_example_for_all_nodes(
    known_down: tuple[int, ...], expected: dict[int, set[int]]
) -> None:
    assert sent(scd(*known_down, local=LocalScd.REGION, location=READER)) == expected


# -- Local single copy delivery ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ("eu.dc1.c1.row1.rack1", "eu.dc1.c1.row1.rack1", 5),
        ("eu.dc1.c1.row1.rack1", "eu.dc1.c1.row1.rack2", 4),
        ("eu.dc1.c1.row1.rack1", "eu.dc2.c1.row1.rack1", 1),
        ("eu.dc1.c1.row1.rack1", "us.dc1.c1.row1.rack1", 0),
        ("eu.dc1", "eu.dc1.c1.row1.rack1", 2),
        ("eu..c1", "eu..c1", 1),
        ("", "", 0),
        ("", "eu", 0),
        ("eu.dc1.c1.row1.rack1.slot1", "eu.dc1.c1.row1.rack1.slot1", 5),
    ],
    ids=lambda value: str(value) or "unknown",
)
def test_scopes_are_shared_down_to_the_first_that_differs_or_is_not_told(
    one: str, other: str, shared: int
) -> None:
    assert shared_scopes(one, other) == shared_scopes(other, one) == shared


@pytest.mark.parametrize(
    ("local", "known_down", "shipper"),
    [
        (LocalScd.OFF, (), 3),
        (LocalScd.REGION, (), 2),
        (LocalScd.REGION, (2,), 0),
        (LocalScd.RACK, (), 1),
        (LocalScd.RACK, (1,), 0),
        (LocalScd.RACK, (1, 0), 2),
        (LocalScd.RACK, (1, 0, 2), 3),
    ],
)
def test_the_leftmost_of_the_nearest_group_with_a_live_member_ships(
    local: LocalScd, known_down: tuple[int, ...], shipper: int
) -> None:
    """N1 is in the reader's rack, N0 in its row, N2 in its region, N3 anywhere else."""
    shipping = scd(*known_down, local=local, location=READER)
    ships = {
        int(node)
        for node in nodes(3, 2, 0, 1)
        if Shipper(node, shipping, LOCATIONS).ships(copy((3, 2, 0, 1)))
    }
    assert ships - set(known_down) == {shipper}


@pytest.mark.parametrize("location", ["", "asia.dc1.c1.row1.rack1"], ids=["unknown", "elsewhere"])
def test_a_reader_that_is_near_nobody_gets_plain_single_copies(location: str) -> None:
    assert sent(scd(1, local=LocalScd.RACK, location=location)) == sent(scd(1))


# -- Who ships besides the first --------------------------------------------------------------


@pytest.mark.parametrize("kind", [EntryKind.HOLE, EntryKind.LOSS, EntryKind.BRIDGE])
def test_what_has_no_records_is_shipped_by_every_holder(kind: EntryKind) -> None:
    shippers = [Shipper(node, scd(), LOCATIONS) for node in nodes(1, 2, 3)]
    assert all(shipper.ships(copy((1, 2, 3), kind)) for shipper in shippers)


def test_all_send_all_means_all() -> None:
    held = {int(node): {lsn for lsn, copyset in LOG.items() if node in copyset} for node in NODES}
    assert sent(Shipping(is_single_copy=False)) == held


def test_when_a_whole_copyset_is_down_every_holder_ships() -> None:
    """Also one that the copyset does not name."""
    shippers = [Shipper(node, scd(1, 2, 3), LOCATIONS) for node in nodes(1, 2, 3, 4)]
    assert all(shipper.ships(copy((1, 2, 3))) for shipper in shippers)


@pytest.mark.parametrize("known_down", [(), (1,), (1, 2), (1, 2, 4)])
def test_a_holder_outside_the_copyset_is_silent_while_a_member_lives(
    known_down: tuple[int, ...],
) -> None:
    assert not Shipper(NodeId(4), scd(*known_down), LOCATIONS).ships(copy((1, 2, 3)))


@pytest.mark.parametrize(
    ("rebuilding", "expected"),
    [((), 3), ((3,), 1), ((3, 1), 2), ((1, 2, 3), None)],
    ids=["nobody", "first", "two", "all"],
)
def test_the_donor_is_the_first_that_is_not_rebuilt(
    rebuilding: tuple[int, ...], expected: int | None
) -> None:
    assert donor(Placement(nodes(3, 1, 2)), nodes(*rebuilding)) == expected


# -- The order --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("copyset", "seed", "expected"),
    [
        ((1, 2, 3), 0, (3, 1, 2)),
        ((3, 2, 1), 1, (2, 3, 1)),
        ((1, 2, 3, 4, 5), 2**63 + 1, (1, 3, 4, 2, 5)),
    ],
)
def test_the_order_is_the_same_in_all_versions(
    copyset: tuple[int, ...], seed: int, expected: tuple[int, ...]
) -> None:
    """Never change these: nodes of two versions would ship a block twice, or not at all."""
    assert delivery_order(nodes(*copyset), CopysetOrder.SHUFFLED_PER_CLIENT, seed) == expected


def test_the_order_does_not_depend_on_the_process() -> None:
    program = (
        "from millrace.core.shipping import delivery_order as order\n"
        "from millrace.types import CopysetOrder\n"
        "print(order((7, 8, 9, 10), CopysetOrder.SHUFFLED, 5))"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("0", "1", "2")
    }
    assert told == {str(delivery_order(nodes(7, 8, 9, 10), CopysetOrder.SHUFFLED, 6))}


def test_only_the_order_of_each_client_heeds_the_seed() -> None:
    copyset = nodes(1, 2, 3, 4, 5)
    counts = {
        order: len({delivery_order(copyset, order, seed) for seed in range(50)})
        for order in CopysetOrder
    }
    assert counts[CopysetOrder.STORED] == counts[CopysetOrder.SHUFFLED] == 1
    assert counts[CopysetOrder.SHUFFLED_PER_CLIENT] > 25


def test_a_shuffled_log_is_shipped_evenly() -> None:
    """By one order for all readers, over all sorted copysets of four out of twenty nodes, of which
    the stored order would have the last three ship nothing."""
    copysets = list(combinations(range(20), 4))
    firsts = Counter(
        delivery_order(nodes(*copyset), CopysetOrder.SHUFFLED, 0)[0] for copyset in copysets
    )
    mean = len(copysets) / 20
    assert all(0.75 * mean < firsts[NodeId(node)] < 1.25 * mean for node in range(20))


def test_all_orders_of_a_copyset_are_about_equally_frequent() -> None:
    copyset = nodes(1, 2, 3)
    orders = Counter(
        delivery_order(copyset, CopysetOrder.SHUFFLED_PER_CLIENT, seed) for seed in range(6_000)
    )
    assert len(orders) == 6
    assert all(900 < count < 1_100 for count in orders.values())


# -- Properties -------------------------------------------------------------------------------

COPYSETS = st.lists(st.sampled_from(NODES), min_size=1, max_size=6, unique=True).map(tuple)


READERS = st.builds(
    Shipping,
    order=st.sampled_from(CopysetOrder),
    seed=st.integers(0, 2**64 - 1),
    local=st.sampled_from(LocalScd),
    location=st.sampled_from(("", *LOCATIONS.values())),
)


def with_down(reader: Shipping, known_down: Iterable[NodeId]) -> Shipping:
    return msgspec.structs.replace(reader, known_down=tuple(known_down))


def shipped_by(shipping: Shipping, copyset: tuple[NodeId, ...]) -> set[NodeId]:
    return {node for node in copyset if Shipper(node, shipping, LOCATIONS).ships(copy(copyset))}


@given(COPYSETS, READERS, st.sets(st.sampled_from(NODES)))
def test_exactly_one_live_member_ships(
    copyset: tuple[NodeId, ...], reader: Shipping, down: set[NodeId]
) -> None:
    shippers = shipped_by(with_down(reader, down), copyset)
    live = set(copyset) - down
    if live:
        assert len(shippers & live) == 1
    else:
        assert shippers == set(copyset)


@given(COPYSETS, READERS, st.sets(st.sampled_from(NODES)), st.sampled_from(NODES))
def test_one_more_known_to_be_down_moves_its_own_blocks_alone(
    copyset: tuple[NodeId, ...], reader: Shipping, down: set[NodeId], lost: NodeId
) -> None:
    before = shipped_by(with_down(reader, down), copyset) - down
    after = shipped_by(with_down(reader, (*down, lost)), copyset) - down - {lost}
    if before and before != {lost}:
        assert after == before


@given(COPYSETS, READERS, st.sets(st.sampled_from(NODES)))
def test_a_known_down_node_ships_what_it_would_if_it_were_not(
    copyset: tuple[NodeId, ...], reader: Shipping, down: set[NodeId]
) -> None:
    for node in down & set(copyset):
        known = with_down(reader, down)
        others = with_down(reader, down - {node})
        block = copy(copyset)
        assert Shipper(node, known, LOCATIONS).ships(block) == Shipper(
            node, others, LOCATIONS
        ).ships(block)


def test_decisions_stay_right_when_more_copysets_pass_than_are_remembered() -> None:
    shipper = Shipper(NodeId(1), scd(), {})
    for other in range(2, COPYSETS_REMEMBERED_MAX + 10):
        assert shipper.ships(copy((1, other)))
        assert not shipper.ships(copy((other, 1)))
