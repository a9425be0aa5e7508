"""Replication, copysets and f-majorities, against the definitions of seed 003 and L4."""

import re
from collections.abc import Mapping
from itertools import combinations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.replication import (
    Authority,
    Locations,
    Replication,
    Scope,
    authority,
    can_replicate,
    cannot_replicate,
    domain_of,
    requirements,
)
from millrace.errors import UsageError
from millrace.types import AuthoritativeStatus, NodeId
from tests.core.placement_samples import REPLICATIONS, Said, first, in_racks, located_nodes, nodes

FA = AuthoritativeStatus.FULLY_AUTHORITATIVE
UR = AuthoritativeStatus.UNDERREPLICATION
AE = AuthoritativeStatus.AUTHORITATIVE_EMPTY
UA = AuthoritativeStatus.UNAVAILABLE


# What a user says.


@pytest.mark.parametrize(
    ("said", "factors", "copies"),
    [
        pytest.param(3, ((Scope.NODE, 3),), 3, id="a number is of nodes"),
        pytest.param({"node": 2}, ((Scope.NODE, 2),), 2, id="by name"),
        pytest.param(
            {"node": 3, "rack": 2}, ((Scope.RACK, 2), (Scope.NODE, 3)), 3, id="big scopes first"
        ),
        pytest.param({"rack": 2}, ((Scope.RACK, 2), (Scope.NODE, 2)), 2, id="racks without nodes"),
        pytest.param(
            {"rack": 3, "region": 2},
            ((Scope.REGION, 2), (Scope.RACK, 3), (Scope.NODE, 3)),
            3,
            id="the smallest scope gives the copies",
        ),
        pytest.param(
            {"rack": 3, "node": 3}, ((Scope.RACK, 3), (Scope.NODE, 3)), 3, id="equal factors"
        ),
    ],
)
def test_replication_as_a_user_says_it(
    said: Said, factors: tuple[tuple[Scope, int], ...], copies: int
) -> None:
    replication = Replication.of(said)
    assert replication.factors == factors
    assert replication.copies == copies


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        pytest.param(0, "the factor of node is 0", id="none"),
        pytest.param(-1, "the factor of node is -1", id="less than none"),
        pytest.param(17, "from 1 to 16", id="more than a copyset may have"),
        pytest.param(True, "the factor of node is True", id="not a number"),
        pytest.param({}, "say on how many nodes", id="nothing said"),
        pytest.param({"shelf": 2}, "no scope is called 'shelf'", id="unknown scope"),
        pytest.param({"Rack": 2}, "there are region, data_center, cluster", id="misspelt"),
        pytest.param(
            {"rack": 3, "node": 2}, "the factor of node cannot be 2", id="falls to the smaller"
        ),
        pytest.param(
            {"region": 2, "rack": 1}, "the factor of rack cannot be 1", id="falls in between"
        ),
    ],
)
def test_replication_that_cannot_be(said: Said, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        Replication.of(said)


@pytest.mark.parametrize(
    "stored",
    [
        pytest.param(b"[[]]", id="empty"),
        pytest.param(b"[[[1,2]]]", id="without nodes"),
        pytest.param(b"[[[0,3],[1,2]]]", id="small scope first"),
        pytest.param(b"[[[0,2],[0,3]]]", id="a scope twice"),
        pytest.param(b"[[[1,3],[0,2]]]", id="falling"),
        pytest.param(b"[[[0,99]]]", id="too many"),
    ],
)
def test_a_stored_replication_is_checked_when_it_is_read(stored: bytes) -> None:
    with pytest.raises(msgspec.ValidationError, match="replication"):
        msgspec.json.decode(stored, type=Replication)


def test_a_replication_survives_being_stored() -> None:
    replication = Replication.of({"rack": 2, "node": 3})
    stored = msgspec.msgpack.encode(replication)
    assert msgspec.msgpack.decode(stored, type=Replication) == replication


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        pytest.param({"node": 3}, [(Scope.NODE, 3)], id="nodes alone"),
        pytest.param(
            {"rack": 2, "node": 3}, [(Scope.RACK, 2), (Scope.NODE, 3)], id="a greater factor"
        ),
        pytest.param(
            {"region": 2, "rack": 2, "node": 3},
            [(Scope.REGION, 2), (Scope.NODE, 3)],
            id="two regions are two racks",
        ),
        pytest.param(
            {"rack": 2, "node": 2}, [(Scope.RACK, 2), (Scope.NODE, 2)], id="nodes always matter"
        ),
    ],
)
def test_scopes_that_matter(said: Mapping[str, int], kept: list[tuple[Scope, int]]) -> None:
    assert list(requirements(Replication.of(said))) == kept


# Domains.


@pytest.mark.parametrize(
    ("scope", "one", "other", "is_same"),
    [
        pytest.param(Scope.NODE, "a.b.c.d.e", "a.b.c.d.e", False, id="each node is its own"),
        pytest.param(Scope.RACK, "a.b.c.d.e", "a.b.c.d.e", True, id="same rack"),
        pytest.param(Scope.RACK, "a.b.c.d.e", "a.b.c.d.f", False, id="other rack"),
        pytest.param(Scope.RACK, "a.b.c.d.e", "a.b.c.x.e", False, id="rack of another row"),
        pytest.param(Scope.ROW, "a.b.c.d.e", "a.b.c.d.f", True, id="same row"),
        pytest.param(Scope.REGION, "a.b.c.d.e", "a.x.y.z.u", True, id="same region"),
        pytest.param(Scope.RACK, "a.b", "a.b...", True, id="missing parts are empty parts"),
        pytest.param(Scope.RACK, "a", "b", False, id="unknown racks of two regions"),
        pytest.param(Scope.RACK, "", "", True, id="nobody knows where"),
        pytest.param(Scope.REGION, "", "a", False, id="somewhere and nowhere"),
    ],
)
def test_nodes_of_one_domain(scope: Scope, one: str, other: str, is_same: bool) -> None:
    locations = {NodeId(1): one, NodeId(2): other}
    first_domain, other_domain = (domain_of(node, scope, locations) for node in locations)
    assert (first_domain == other_domain) == is_same


def test_a_node_that_is_not_listed_is_nowhere() -> None:
    locations = {NodeId(1): ""}
    unlisted, nowhere = (domain_of(node, Scope.RACK, locations) for node in nodes(9, 1))
    assert unlisted == nowhere


# Copysets.


@pytest.mark.parametrize(
    ("said", "locations", "of", "complaint"),
    [
        pytest.param(3, {}, first(3), "", id="three nodes"),
        pytest.param(
            3, {}, first(2), "3 different domains of scope node, but the nodes lie in 2", id="two"
        ),
        pytest.param(3, {}, nodes(1, 2, 2), "the nodes lie in 2", id="one node twice is one"),
        pytest.param({"rack": 2, "node": 3}, in_racks(2, 1), first(3), "", id="two racks"),
        pytest.param(
            {"rack": 2, "node": 3},
            in_racks(3),
            first(3),
            "2 different domains of scope rack, but the nodes lie in 1",
            id="one rack",
        ),
        pytest.param(
            {"rack": 2, "node": 3}, in_racks(1, 1), first(2), "3 .* scope node", id="two racks of 1"
        ),
        pytest.param({"rack": 2, "node": 3}, {}, first(5), "scope rack", id="no locations"),
        pytest.param(
            {"region": 2, "rack": 3},
            {NodeId(1): "a....x", NodeId(2): "a....y", NodeId(3): "b....x"},
            first(3),
            "",
            id="racks of one name in two regions",
        ),
    ],
)
def test_which_nodes_can_hold_a_copyset(
    said: Said, locations: Locations, of: tuple[NodeId, ...], complaint: str
) -> None:
    replication = Replication.of(said)
    assert can_replicate(replication, of, locations) == (not complaint)
    problem = cannot_replicate(replication, of, locations)
    assert re.search(complaint, problem) if complaint else problem == ""


# f-majorities.


@pytest.mark.parametrize(
    ("nodeset", "copies", "empty", "needed"),
    [
        pytest.param(5, 3, 0, 3, id="5 nodes, 3 copies"),
        pytest.param(7, 3, 0, 5, id="7 nodes, 3 copies"),
        pytest.param(7, 3, 1, 4, id="7 nodes, one empty: 4 of 6"),
        pytest.param(3, 3, 0, 1, id="every copyset is the nodeset"),
        pytest.param(4, 1, 0, 4, id="one copy: everybody"),
    ],
)
def test_how_many_answers_are_an_f_majority(
    nodeset: int, copies: int, empty: int, needed: int
) -> None:
    everyone = first(nodeset)
    statuses = dict.fromkeys(everyone[:empty], AE)
    voters = everyone[empty:]
    replication = Replication.of(copies)
    enough = authority(replication, everyone, {}, statuses, voters[:needed])
    too_few = authority(replication, everyone, {}, statuses, voters[: needed - 1])
    assert enough in (Authority.INCOMPLETE, Authority.COMPLETE)
    assert too_few is Authority.NONE


FIVE_RACKS = in_racks(4, 4, 4, 4, 4)


@pytest.mark.parametrize(
    ("votes", "expected"),
    [
        pytest.param(first(16), Authority.INCOMPLETE, id="all of four racks"),
        pytest.param(first(15), Authority.NONE, id="one node short of four racks"),
        pytest.param(
            tuple(FIVE_RACKS)[:7] + tuple(FIVE_RACKS)[8:19],
            Authority.INCOMPLETE,
            id="NS - R + 1 nodes, wherever they are",
        ),
        pytest.param(first(20), Authority.COMPLETE, id="everybody"),
    ],
)
def test_an_f_majority_of_racks_or_of_nodes(votes: tuple[NodeId, ...], expected: Authority) -> None:
    replication = Replication.of({"rack": 2, "node": 3})
    assert authority(replication, tuple(FIVE_RACKS), FIVE_RACKS, {}, votes) is expected


@pytest.mark.parametrize(
    ("statuses", "votes", "expected"),
    [
        pytest.param((FA,) * 5, first(5), Authority.COMPLETE, id="everybody answered"),
        pytest.param((FA,) * 5, first(3), Authority.INCOMPLETE, id="an f-majority answered"),
        pytest.param((FA,) * 5, first(2), Authority.NONE, id="too few answered"),
        pytest.param((FA,) * 5, (), Authority.NONE, id="nobody answered"),
        pytest.param(
            (FA, FA, FA, UA, UA), first(3), Authority.INCOMPLETE, id="unavailable: not needed"
        ),
        pytest.param((FA, FA, UA, UA, UA), first(2), Authority.NONE, id="unavailable: waited for"),
        pytest.param(
            (FA, FA, FA, FA, UA), first(5), Authority.COMPLETE, id="unavailable, but it answered"
        ),
        pytest.param(
            (FA, FA, FA, UR, UR), first(3), Authority.COMPLETE, id="two lost: the rest is enough"
        ),
        pytest.param(
            (FA, FA, UR, UR, UR), first(2), Authority.NON_AUTHORITATIVE, id="three lost: move on"
        ),
        pytest.param(
            (FA, FA, UR, UR, UR), first(1), Authority.NONE, id="three lost, one still to answer"
        ),
        pytest.param(
            (FA, UA, UR, UR, UR), first(1), Authority.NONE, id="three lost, one may come back"
        ),
        pytest.param(
            (FA, FA, UR, UR, UR),
            first(5),
            Authority.NON_AUTHORITATIVE,
            id="the lost have no vote",
        ),
        pytest.param((FA, FA, FA, FA, AE), first(2), Authority.INCOMPLETE, id="an empty one"),
        pytest.param((FA, FA, FA, FA, AE), first(4), Authority.COMPLETE, id="all but the empty"),
        pytest.param(
            (FA, FA, FA, FA, AE), nodes(1, 5), Authority.NONE, id="the empty have no vote"
        ),
        pytest.param((FA, FA, FA, UR, AE), first(2), Authority.INCOMPLETE, id="lost and empty"),
        pytest.param(
            (FA, UR, UR, UR, AE), first(1), Authority.NON_AUTHORITATIVE, id="one of four is left"
        ),
        pytest.param((UR,) * 5, (), Authority.NON_AUTHORITATIVE, id="all lost, nobody answers"),
        pytest.param((UR,) * 5, first(5), Authority.NON_AUTHORITATIVE, id="all lost, all answer"),
        pytest.param((UR,) * 2, (), Authority.NON_AUTHORITATIVE, id="all lost, fewer than R"),
        pytest.param((AE,) * 5, (), Authority.COMPLETE, id="all empty"),
        pytest.param((FA, FA, AE, AE, AE), (), Authority.NONE, id="fewer than R left, all silent"),
        pytest.param(
            (FA, FA, AE, AE, AE), first(1), Authority.INCOMPLETE, id="fewer than R left, one spoke"
        ),
    ],
)
def test_what_answers_prove_with_3_copies(
    statuses: tuple[AuthoritativeStatus, ...], votes: tuple[NodeId, ...], expected: Authority
) -> None:
    everyone = first(len(statuses))
    known = dict(zip(everyone, statuses, strict=True))
    assert authority(Replication.of(3), everyone, {}, known, votes) is expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param(FA, Authority.INCOMPLETE, id="a rack may be silent"),
        pytest.param(UR, Authority.NONE, id="a lost node spoils its rack"),
        pytest.param(AE, Authority.INCOMPLETE, id="an empty node does not"),
    ],
)
def test_the_status_of_a_node_in_a_rack_that_answered(
    status: AuthoritativeStatus, expected: Authority
) -> None:
    """Three racks of three, and the third is silent."""
    locations = in_racks(3, 3, 3)
    replication = Replication.of({"rack": 2, "node": 3})
    statuses, votes = {NodeId(1): status}, first(6)
    assert authority(replication, tuple(locations), locations, statuses, votes) is expected


def test_votes_from_outside_the_nodeset_count_for_nothing() -> None:
    assert authority(Replication.of(3), first(5), {}, {}, nodes(1, 2, 8, 9)) is Authority.NONE


# The definition, by enumeration.


def satisfies(replication: Replication, copyset: tuple[NodeId, ...], places: Locations) -> bool:
    """By the letter of L4: every scope, whether it matters or not."""
    return all(
        len({domain_of(node, scope, places) for node in copyset}) >= factor
        for scope, factor in replication.factors
    )


def copysets(
    replication: Replication, of: tuple[NodeId, ...], places: Locations
) -> list[tuple[NodeId, ...]]:
    return [
        each
        for each in combinations(of, replication.copies)
        if satisfies(replication, each, places)
    ]


@given(REPLICATIONS, located_nodes(7))
def test_nodes_can_replicate_when_they_hold_a_copyset(
    said: Said, places: dict[NodeId, str]
) -> None:
    replication = Replication.of(said)
    everyone = tuple(places)
    has_copyset = bool(copysets(replication, everyone, places))
    assert can_replicate(replication, everyone, places) == has_copyset
    assert (cannot_replicate(replication, everyone, places) == "") == has_copyset


@given(REPLICATIONS, located_nodes(7), st.data())
def test_an_f_majority_meets_every_copyset(
    said: Said, places: dict[NodeId, str], data: st.DataObject
) -> None:
    replication = Replication.of(said)
    statuses = {node: data.draw(st.sampled_from([FA, FA, UA, UR, AE])) for node in places}
    votes = {node for node in places if data.draw(st.booleans())}
    present = tuple(node for node in places if statuses[node] is not AE)
    voters = {node for node in present if statuses[node] is not UR}
    heard = votes & voters
    meets_all = all(heard & set(each) for each in copysets(replication, present, places))

    found = authority(replication, tuple(places), places, statuses, votes)

    has_majority = meets_all and (bool(heard) or not present)
    assert (found in (Authority.COMPLETE, Authority.INCOMPLETE)) == has_majority
    assert (found in (Authority.COMPLETE, Authority.NON_AUTHORITATIVE)) == (heard == voters)


@given(REPLICATIONS, located_nodes(7))
def test_another_vote_never_proves_less(said: Said, places: dict[NodeId, str]) -> None:
    replication = Replication.of(said)
    order = [Authority.NONE, Authority.INCOMPLETE, Authority.COMPLETE]
    found = [
        authority(replication, tuple(places), places, {}, tuple(places)[:count])
        for count in range(len(places) + 1)
    ]
    assert found == sorted(found, key=order.index)
