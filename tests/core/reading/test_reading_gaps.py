"""When a missing position is given up, and as what."""

from collections.abc import Mapping

import pytest

from millrace.core.reading.gaps import Head, Voice, Wait, decide
from millrace.core.reading.senders import GapState
from millrace.core.reading.settings import ALWAYS_WAIT, SequencedReadSettings
from millrace.core.replication import Replication, authority
from millrace.lsn import first_of
from millrace.types import AuthoritativeStatus, Epoch, Gap, GapKind, Lsn, NodeId
from tests.core.reading.read_cluster import at

FULL = AuthoritativeStatus.FULLY_AUTHORITATIVE
LOST = AuthoritativeStatus.UNDERREPLICATION
EMPTY = AuthoritativeStatus.AUTHORITATIVE_EMPTY
AWAY = AuthoritativeStatus.UNAVAILABLE
MISSING = at(52)
NO_GRACE = SequencedReadSettings(grace_period_ms=0)


def voice(
    node: int,
    claim: Lsn | None = None,
    status: AuthoritativeStatus = FULL,
    state: GapState = GapState.GAP,
    **fields: int,
) -> Voice:
    """Without a claim it has said nothing of the position yet."""
    if claim is None:
        return Voice(NodeId(node), GapState.NONE, Lsn(0), status, **fields)
    return Voice(NodeId(node), state, claim, status, **fields)


def outcome(
    voices: list[Voice],
    copies: int = 3,
    next_lsn: Lsn = MISSING,
    settings: SequencedReadSettings = NO_GRACE,
    **head: object,
) -> Gap | Wait:
    """At e1n52, of a nodeset that is just these nodes."""
    nodeset = [each.node for each in voices]
    statuses = {each.node: each.status for each in voices}
    fields: dict[str, object] = {"buffered": None, "limit": first_of(Epoch(2))}
    return decide(
        Head(next_lsn, **fields | head),  # type: ignore[arg-type]
        voices,
        lambda votes: authority(Replication.of(copies), nodeset, {}, statuses, votes),
        settings,
    )


def heard(total: int, *claims: int, **statuses: AuthoritativeStatus) -> list[Voice]:
    """N1..Ntotal; those that are named have passed the position."""
    named: Mapping[int, AuthoritativeStatus] = {int(k[1:]): s for k, s in statuses.items()}
    return [
        voice(n, at(54) if n in claims else None, named.get(n, FULL)) for n in range(1, total + 1)
    ]


LOSS = Gap(GapKind.DATALOSS, at(52), at(53))


@pytest.mark.parametrize(
    ("voices", "expected"),
    [
        pytest.param(heard(5, 3, 5), Wait.AUTHORITY, id="seed 003: two of five, R 3: stall"),
        pytest.param(heard(5, 3, 5, 1), LOSS, id="seed 003: N1 has it not either: lost"),
        pytest.param(heard(7, 1, 2, 3, 4), Wait.AUTHORITY, id="four of seven"),
        pytest.param(heard(7, 1, 2, 3, 4, N5=EMPTY), LOSS, id="seed 003: four of six, N5 is empty"),
        pytest.param(
            heard(7, 1, 2, 3, 4, N5=AWAY, N6=AWAY, N7=AWAY),
            Wait.AUTHORITY,
            id="three are unavailable: they are waited for",
        ),
        pytest.param(
            heard(7, 1, 2, 3, 4, N5=LOST, N6=LOST, N7=LOST),
            LOSS,
            id="three will not come back: all others have spoken",
        ),
        pytest.param(
            heard(7, 1, 2, 3, N5=LOST, N6=LOST, N7=LOST),
            Wait.AUTHORITY,
            id="three will not come back, but N4 has not spoken",
        ),
    ],
)
def test_an_f_majority_decides(voices: list[Voice], expected: Gap | Wait) -> None:
    assert outcome(voices) == expected


def test_who_may_have_lost_the_block_has_no_vote() -> None:
    incomplete = voice(3, at(54), state=GapState.INCOMPLETE)
    assert outcome([voice(1, at(54)), voice(2, at(54)), incomplete, voice(4), voice(5)]) is (
        Wait.AUTHORITY
    )


def test_when_all_have_spoken_nobody_is_left_to_wait_for() -> None:
    incomplete = [voice(n, at(54), state=GapState.INCOMPLETE) for n in (3, 4, 5)]
    assert outcome([voice(1, at(54)), voice(2, at(54)), *incomplete]) == LOSS


@pytest.mark.parametrize(
    ("strikes", "limit", "expected"),
    [
        (0, 2, Wait.GRACE),
        (2, 2, Wait.GRACE),
        (3, 2, LOSS),
        (3, ALWAYS_WAIT, Wait.GRACE),
    ],
)
def test_others_are_waited_for_a_while(strikes: int, limit: int, expected: Gap | Wait) -> None:
    silent = [voice(n, strikes=strikes) for n in (4, 5)]
    settings = SequencedReadSettings(grace_strikes_max=limit)
    voices = [*(voice(n, at(54)) for n in (1, 2, 3)), *silent]
    assert outcome(voices, settings=settings) == expected


def test_without_a_grace_period_nobody_is_waited_for() -> None:
    assert outcome([*(voice(n, at(54)) for n in (1, 2, 3)), voice(4), voice(5)]) == LOSS


def test_a_bridge_needs_no_grace_but_at_the_very_begin() -> None:
    voices = [*(voice(n, at(2, epoch=2)) for n in (1, 2, 3)), voice(4), voice(5)]
    settings = SequencedReadSettings()
    limit = first_of(Epoch(3))
    bridge = Gap(GapKind.BRIDGE, at(52), at(0, epoch=2))
    assert outcome(voices, settings=settings, limit=limit) == bridge
    assert outcome(voices, settings=settings, limit=limit, is_first=True) is Wait.GRACE


@pytest.mark.parametrize(
    ("next_lsn", "claim", "expected"),
    [
        pytest.param(
            at(52), at(60), Gap(GapKind.DATALOSS, at(52), at(59)), id="inside an epoch: lost"
        ),
        pytest.param(
            at(52),
            at(1, epoch=3),
            Gap(GapKind.BRIDGE, at(52), at(0, epoch=3)),
            id="to the begin of a later epoch",
        ),
        pytest.param(
            at(52),
            at(5, epoch=2),
            Gap(GapKind.BRIDGE, at(52), at(0, epoch=2)),
            id="what is missing from the begin of an epoch is told apart",
        ),
        pytest.param(
            at(0, epoch=2),
            at(5, epoch=2),
            Gap(GapKind.BRIDGE, at(0, epoch=2), at(0, epoch=2)),
            id="no block lies at offset 0",
        ),
        pytest.param(
            at(1, epoch=2),
            at(5, epoch=2),
            Gap(GapKind.DATALOSS, at(1, epoch=2), at(4, epoch=2)),
            id="offsets are given from 1",
        ),
    ],
)
def test_the_kind_of_a_gap(next_lsn: Lsn, claim: Lsn, expected: Gap) -> None:
    voices = [voice(n, claim) for n in (1, 2, 3)]
    assert outcome(voices, next_lsn=next_lsn, limit=first_of(Epoch(9))) == expected


def test_a_gap_ends_at_the_first_thing_that_is_known() -> None:
    voices = [voice(1, at(70)), voice(2, at(60)), voice(3, at(80))]
    assert outcome(voices) == Gap(GapKind.DATALOSS, at(52), at(59))
    assert outcome(voices, buffered=at(55)) == Gap(GapKind.DATALOSS, at(52), at(54))


def test_a_gap_ends_with_the_epochs_of_the_nodeset() -> None:
    """Of later ones other nodes may know more."""
    voices = [voice(n, at(7, epoch=4)) for n in (1, 2, 3)]
    assert outcome(voices) == Gap(GapKind.BRIDGE, at(52), Lsn(first_of(Epoch(2)) - 1))


def test_where_all_is_lost_the_gap_is_a_loss_whatever_follows() -> None:
    voices = [voice(n, None, status) for n, status in ((1, LOST), (2, LOST), (3, EMPTY))]
    lost = Gap(GapKind.DATALOSS, at(52), Lsn(first_of(Epoch(2)) - 1))
    assert outcome(voices, has_later_epochs=True) == lost
    assert outcome(voices) is Wait.RIGHT_END


@pytest.mark.parametrize("strikes", [0, 3])
def test_the_end_of_a_window_is_not_the_end_of_a_gap(strikes: int) -> None:
    """However long it takes until they say what lies beyond."""
    voices = [voice(n, at(54), strikes=strikes, is_at_window_end=True) for n in (1, 2, 3)]
    assert outcome(voices) is Wait.BEYOND_WINDOW


def test_one_that_could_look_further_shows_where_the_gap_ends() -> None:
    at_window_end = [voice(n, at(54), is_at_window_end=True) for n in (1, 2)]
    assert outcome([*at_window_end, voice(3, at(54))]) == LOSS
    at_window_end.append(voice(3, at(54), is_at_window_end=True))
    assert outcome(at_window_end, buffered=at(54)) == LOSS
