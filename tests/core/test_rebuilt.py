"""Whom the end of a rebuilding waits for."""

import pytest
from sequenced_cluster import nodes

from millrace.core.epochs import EpochRange
from millrace.core.replication import Replication
from millrace.core.sequenced.rebuilt import may_hold_alone, suspects, unfinished
from millrace.core.statuses import NodeStatusEntry
from millrace.types import AuthoritativeStatus, Epoch, NodeId

FULL = NodeStatusEntry(AuthoritativeStatus.FULLY_AUTHORITATIVE)
LOST = NodeStatusEntry(AuthoritativeStatus.UNDERREPLICATION)
EMPTY = NodeStatusEntry(AuthoritativeStatus.AUTHORITATIVE_EMPTY)
AWAY = NodeStatusEntry(AuthoritativeStatus.UNAVAILABLE)
ALL = nodes(1, 2, 3, 4, 5)


def span(replication: int, *members: int) -> EpochRange:
    return EpochRange(Epoch(1), Epoch(1), nodes(*members), Replication.of(replication))


@pytest.mark.parametrize(
    ("entries", "finished", "waited_for"),
    [
        pytest.param({3: LOST}, (), (1, 2, 4, 5), id="all others"),
        pytest.param({3: LOST}, (1, 2, 4), (5,), id="whoever has not finished"),
        pytest.param({3: LOST, 5: LOST}, (1, 2, 4), (), id="not those without data"),
        pytest.param({3: AWAY, 5: EMPTY}, (1, 2, 4), (), id="not those whose data is elsewhere"),
        pytest.param({3: FULL}, (1, 2, 4, 5), (3,), id="a drained node itself"),
    ],
)
def test_who_must_have_finished(
    entries: dict[int, NodeStatusEntry], finished: tuple[int, ...], waited_for: tuple[int, ...]
) -> None:
    known = {NodeId(node): entry for node, entry in entries.items()}
    assert unfinished(known, ALL, nodes(*finished)) == set(nodes(*waited_for))


@pytest.mark.parametrize(
    ("entries", "finished", "found"),
    [
        pytest.param({3: LOST}, (), (), id="nothing will come back"),
        pytest.param({3: AWAY}, (), (3,), id="it may come back itself"),
        pytest.param({3: LOST, 4: AWAY}, (), (3, 4), id="another may have what it had"),
        pytest.param({3: LOST, 4: AWAY}, (4,), (), id="another had, and gave it"),
        pytest.param({3: AWAY, 4: LOST}, (), (3, 4), id="it may have what another lost"),
        pytest.param({3: FULL, 4: AWAY}, (3,), (), id="a drained node gave all it had"),
    ],
)
def test_who_may_hold_what_nobody_else_has(
    entries: dict[int, NodeStatusEntry], finished: tuple[int, ...], found: tuple[int, ...]
) -> None:
    known = {NodeId(node): entry for node, entry in entries.items()}
    assert suspects(NodeId(3), known, ALL, nodes(*finished)) == set(nodes(*found))


@pytest.mark.parametrize(
    ("spans", "is_possible"),
    [
        pytest.param([span(3, *ALL)], False, id="two cannot hold three copies"),
        pytest.param([span(3, *ALL), span(2, *ALL)], True, id="two can hold two"),
        pytest.param([span(2, 1, 2, 3)], False, id="but one of them is not in the nodeset"),
        pytest.param([], False, id="there are no logs"),
    ],
)
def test_whether_they_can_at_all(spans: list[EpochRange], is_possible: bool) -> None:
    assert may_hold_alone(nodes(3, 4), spans, {}) is is_possible
