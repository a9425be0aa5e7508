"""Who is to be rebuilt, and what donors may expect of it, by the statuses of the nodes."""

from millrace.core.sequenced.replacing import Ward
from millrace.core.statuses import came, drain, gone, mark_unrecoverable
from millrace.server.rebuilding import ward_of
from millrace.types import NodeId

ME, AWAY, DRAINED, GIVEN_UP, WIPED, WIPED_AND_AWAY, BACK = map(NodeId, range(1, 8))


def test_donors_know_who_has_its_copies_who_may_have_them_and_who_has_not() -> None:
    wiped = came(None, "disk", "new disk", 1)
    given_up = mark_unrecoverable(None, "disk", 1)
    entries = {
        AWAY: gone(None, "disk", 1),
        DRAINED: drain(None, "disk", 1),
        GIVEN_UP: given_up,
        WIPED: wiped,
        WIPED_AND_AWAY: gone(wiped, "new disk", 2),
        BACK: came(given_up, "disk", "disk", 2),
    }
    known = {node: entry for node, entry in entries.items() if entry is not None}
    assert known == entries
    finished = dict.fromkeys(known, frozenset[NodeId]())
    assert ward_of(ME, known, finished) == Ward(
        ME,
        rebuilding=frozenset(known),
        leaving=frozenset({DRAINED}),
        refillable=frozenset({WIPED, BACK}),
        forsaken=frozenset({GIVEN_UP, WIPED_AND_AWAY}),
        disabled=frozenset(known),
        finished=finished,
    )
