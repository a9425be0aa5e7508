"""How a node's status changes, by whom, and what a node makes of the statuses of others."""

import pytest

from millrace.core.statuses import (
    HISTORY_MAX,
    NodeStatusEntry,
    StatusBoard,
    StatusReason,
    between,
    came,
    cancel_drain,
    drain,
    emptied,
    gone,
    mark_unrecoverable,
    rebuilt,
    refilled,
    renewed,
)
from millrace.types import AuthoritativeStatus, Epoch, NodeId, Placement

FULL = AuthoritativeStatus.FULLY_AUTHORITATIVE
LOST = AuthoritativeStatus.UNDERREPLICATION
EMPTY = AuthoritativeStatus.AUTHORITATIVE_EMPTY
AWAY = AuthoritativeStatus.UNAVAILABLE
OLD, NEW, NEWER = "old disk", "new disk", "newer disk"
NOW = 1_000
NODE = NodeId(3)


def must(entry: NodeStatusEntry | None) -> NodeStatusEntry:
    assert entry is not None
    return entry


AWAY_1 = must(gone(None, OLD, NOW))
WIPED_1 = must(came(None, OLD, NEW, NOW))
GIVEN_UP = must(mark_unrecoverable(AWAY_1, OLD, NOW))
REBUILT = must(rebuilt(AWAY_1, NOW))
DRAINING = must(drain(None, OLD, NOW))
DRAINED = must(rebuilt(DRAINING, NOW))
BACK = must(came(AWAY_1, OLD, OLD, NOW))


@pytest.mark.parametrize(
    ("before", "former", "disk", "status", "rebuild"),
    [
        pytest.param(None, OLD, NEW, LOST, 1, id="wiped"),
        pytest.param(AWAY_1, OLD, OLD, FULL, 0, id="away, back with its disk"),
        pytest.param(AWAY_1, OLD, NEW, LOST, 2, id="away, back wiped"),
        pytest.param(GIVEN_UP, OLD, OLD, LOST, 2, id="given up, back with its disk all the same"),
        pytest.param(GIVEN_UP, OLD, NEW, LOST, 2, id="given up, back wiped"),
        pytest.param(WIPED_1, NEW, NEWER, LOST, 2, id="wiped again"),
        pytest.param(BACK, OLD, NEW, LOST, 2, id="wiped after it was back"),
        pytest.param(
            must(came(must(gone(WIPED_1, NEW, NOW)), NEW, NEW, NOW)),
            NEW,
            NEWER,
            LOST,
            4,
            id="wiped again after it was away",
        ),
        pytest.param(DRAINING, OLD, NEW, LOST, 2, id="wiped while it is drained"),
        pytest.param(
            must(gone(WIPED_1, NEW, NOW)), NEW, NEW, LOST, 3, id="not whole before it was away"
        ),
    ],
)
def test_a_node_comes(
    before: NodeStatusEntry | None,
    former: str,
    disk: str,
    status: AuthoritativeStatus,
    rebuild: int,
) -> None:
    after = must(came(before, former, disk, NOW))
    assert (after.status, after.rebuild) == (status, rebuild)


@pytest.mark.parametrize(
    ("before", "former", "disk"),
    [
        pytest.param(None, "", NEW, id="for the first time"),
        pytest.param(None, OLD, OLD, id="after a restart"),
        pytest.param(WIPED_1, NEW, NEW, id="after a restart while it is rebuilt"),
        pytest.param(WIPED_1, OLD, NEW, id="after a crash between its status and its registration"),
        pytest.param(REBUILT, OLD, OLD, id="with copies that must go first"),
        pytest.param(REBUILT, OLD, NEW, id="rebuilt and wiped, without seals"),
        pytest.param(DRAINED, OLD, OLD, id="drained"),
        pytest.param(DRAINED, OLD, NEW, id="drained and wiped"),
    ],
)
def test_a_node_comes_and_nothing_changes(
    before: NodeStatusEntry | None, former: str, disk: str
) -> None:
    assert came(before, former, disk, NOW) is None


def test_a_rebuilt_node_counts_again_when_it_holds_nothing_old() -> None:
    assert must(emptied(REBUILT, NOW)).status is FULL
    assert emptied(DRAINED, NOW) is None
    assert must(emptied(must(cancel_drain(DRAINED, NOW)), NOW)).status is FULL


def test_a_wiped_node_that_got_everything_back_was_never_empty() -> None:
    after = must(refilled(WIPED_1, NOW))
    assert (after.status, after.rebuild, after.reason) == (FULL, 0, StatusReason.REFILLED)
    assert refilled(GIVEN_UP, NOW) is None


def test_a_node_that_was_given_up_and_is_back_counts_when_it_has_what_was_stored_without_it() -> (
    None
):
    back = must(came(GIVEN_UP, OLD, OLD, NOW))
    assert back.is_refillable
    assert came(back, OLD, OLD, NOW) is None
    assert must(refilled(back, NOW)).status is FULL


def test_a_node_that_is_drained_and_was_given_up_is_drained_when_it_is_back() -> None:
    back = must(came(must(mark_unrecoverable(DRAINING, OLD, NOW)), OLD, OLD, NOW))
    assert (back.status, back.is_draining, back.rebuild) == (FULL, True, DRAINING.rebuild)


@pytest.mark.parametrize("entry", [WIPED_1, GIVEN_UP], ids=["wiped", "given up"])
def test_a_rebuilding_that_is_renewed_is_another_one(entry: NodeStatusEntry) -> None:
    after = must(renewed(entry))
    assert after.status is LOST
    assert after.rebuild == entry.rebuild + 1
    assert must(came(after, NEW, NEWER, NOW)).rebuild == entry.rebuild + 2
    assert rebuilt(after, NOW) is not None


@pytest.mark.parametrize("entry", [None, BACK, AWAY_1, DRAINING, REBUILT])
def test_only_nodes_without_a_vote_are_rebuilt_anew(entry: NodeStatusEntry | None) -> None:
    assert renewed(entry) is None


def test_only_what_is_wanted_is_rebuilt() -> None:
    assert rebuilt(BACK, NOW) is None
    assert must(rebuilt(DRAINING, NOW)).status is EMPTY


def test_a_drain_keeps_its_status_and_can_be_cancelled() -> None:
    assert (DRAINING.status, DRAINING.is_draining, DRAINING.rebuild) == (FULL, True, 1)
    assert drain(DRAINING, OLD, NOW) is None
    cancelled = must(cancel_drain(DRAINING, NOW))
    assert (cancelled.status, cancelled.is_draining, cancelled.rebuild) == (FULL, False, 0)
    assert cancel_drain(cancelled, NOW) is None


def test_a_drained_node_that_was_away_is_drained_when_it_is_back() -> None:
    away = must(gone(DRAINING, OLD, NOW))
    back = must(came(away, OLD, OLD, NOW))
    assert (back.status, back.is_draining, back.rebuild) == (FULL, True, away.rebuild)


def test_the_number_of_a_rebuilding_is_never_used_again() -> None:
    entry: NodeStatusEntry | None = None
    for number in range(1, 6):
        entry = must(gone(entry, OLD, NOW))
        assert entry.rebuild == number
        entry = must(came(entry, OLD, OLD, NOW))


def test_the_history_is_kept_and_bounded() -> None:
    entry = AWAY_1
    assert [change.status for change in DRAINED.history] == [FULL]
    for _ in range(2 * HISTORY_MAX):
        entry = must(gone(must(came(entry, OLD, OLD, NOW)), OLD, NOW))
    assert len(entry.history) == HISTORY_MAX
    assert entry.history[-1].status is FULL


@pytest.mark.parametrize(
    ("entry", "is_disabled", "takes_copies"),
    [
        pytest.param(AWAY_1, True, False, id="away"),
        pytest.param(WIPED_1, True, True, id="wiped: if nobody else can"),
        pytest.param(GIVEN_UP, True, False, id="given up"),
        pytest.param(REBUILT, True, False, id="rebuilt"),
        pytest.param(DRAINING, True, False, id="drained"),
        pytest.param(BACK, False, True, id="back"),
    ],
)
def test_copies_do_not_go_where_they_are_not_looked_for(
    entry: NodeStatusEntry, is_disabled: bool, takes_copies: bool
) -> None:
    placement = Placement((NodeId(1), NODE), 1)
    theirs, its = StatusBoard(NodeId(1)), StatusBoard(NODE)
    for board in (theirs, its):
        board.update({NODE: entry})
    assert (NODE in theirs.disabled) is is_disabled
    assert (theirs.barred_in(placement) is None) is takes_copies
    assert its.refuses_copies() is not takes_copies
    assert not theirs.refuses_copies()
    assert theirs.barred_in(Placement(placement.copyset, 1, Epoch(5))) is None


def test_a_node_that_was_wiped_says_that_it_may_lack_blocks() -> None:
    board = StatusBoard(NODE)
    said = [board.is_incomplete]
    for entry in (WIPED_1, must(refilled(WIPED_1, NOW))):
        board.update({NODE: entry})
        said.append(board.is_incomplete)
    assert said == [False, True, False]


# -- What was on the way ------------------------------------------------------------------------

BACK = must(emptied(REBUILT, NOW))
OTHER = NodeId(4)


@pytest.mark.parametrize(
    ("before", "after", "passed"),
    [
        pytest.param({}, {}, [{}], id="nothing"),
        pytest.param({NODE: AWAY_1}, {NODE: AWAY_1}, [{NODE: AWAY}], id="the same"),
        pytest.param({}, {NODE: AWAY_1}, [{NODE: AWAY}], id="the first"),
        pytest.param({NODE: AWAY_1}, {NODE: REBUILT}, [{NODE: EMPTY}], id="the next"),
        pytest.param(
            {NODE: AWAY_1}, {NODE: BACK}, [{NODE: EMPTY}, {NODE: FULL}], id="one passed over"
        ),
        pytest.param(
            {OTHER: AWAY_1},
            {NODE: BACK, OTHER: REBUILT},
            [
                {NODE: AWAY, OTHER: AWAY},
                {NODE: EMPTY, OTHER: AWAY},
                {NODE: FULL, OTHER: AWAY},
                {NODE: FULL, OTHER: EMPTY},
            ],
            id="of two nodes",
        ),
        pytest.param({NODE: AWAY_1}, {}, [{}], id="forgotten"),
        pytest.param(
            {NODE: GIVEN_UP},
            {NODE: must(renewed(GIVEN_UP))},
            [{NODE: LOST}],
            id="only another rebuilding",
        ),
    ],
)
def test_what_was_passed_over_is_told(
    before: dict[NodeId, NodeStatusEntry],
    after: dict[NodeId, NodeStatusEntry],
    passed: list[dict[NodeId, AuthoritativeStatus]],
) -> None:
    assert between(before, after) == passed


def test_when_what_stood_before_is_forgotten_all_is_told() -> None:
    entry = AWAY_1
    for _ in range(HISTORY_MAX):
        entry = must(gone(must(emptied(must(rebuilt(entry, NOW)), NOW)), OLD, NOW))
    assert {NODE: EMPTY} in between({NODE: WIPED_1}, {NODE: entry})
