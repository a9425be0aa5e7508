"""Where copies must lie, and who must have answered before silence proves anything (L4, R7).

A copyset satisfies a replication when it touches enough domains of every scope.  An f-majority
is the other side of the same rule: a set of answers that meets every possible copyset.  Both
are therefore asked of one function, `can_replicate`, and cannot drift apart.

  I1  An f-majority has answered when the nodes that have not could not hold a copyset.
  I2  A scope whose factor a bigger scope asks for already adds nothing: smaller domains are
      never fewer.
  I3  A node that is AUTHORITATIVE_EMPTY is as if it were never there; one of UNDERREPLICATION
      never answers, but might have held a copy; one that is UNAVAILABLE is waited for.
  I4  An f-majority has at least one answer, however few nodes are left, unless all are empty.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum, IntEnum
from itertools import pairwise
from typing import Final

import msgspec

from millrace.errors import UsageError
from millrace.limits import COPYSET_SIZE_MAX
from millrace.types import AuthoritativeStatus, NodeId

Locations = Mapping[NodeId, str]  # "region.dc.cluster.row.rack"; parts may be empty or missing.


class Scope(IntEnum):
    """From small to big.  The numbers are in the repository and in metadata logs."""

    NODE = 0
    RACK = 1
    ROW = 2
    CLUSTER = 3
    DATA_CENTER = 4
    REGION = 5

    @property
    def word(self) -> str:
        """As the API, JSON and messages to people spell it."""
        return self.name.lower()


class Replication(msgspec.Struct, frozen=True, array_like=True):
    """In how many domains of each scope the copies of a block lie: from big scopes to small, and
    always NODE at the end.  One that breaks this cannot be made nor decoded."""

    factors: tuple[tuple[Scope, int], ...]

    def __post_init__(self) -> None:
        problem = _problem(self.factors)
        if problem:
            raise ValueError(problem)

    @property
    def copies(self) -> int:
        """R: on how many nodes a block is stored."""
        return self.factors[-1][1]

    @staticmethod
    def of(value: int | Mapping[str, int]) -> "Replication":
        """From what a user says: a number of nodes, or a factor for each scope by its name."""
        named = {"node": value} if isinstance(value, int) else value
        if not isinstance(named, Mapping):
            raise UsageError(f"replication={value!r}: give a number, or a factor for each scope")
        factors = {_scope_named(name): factor for name, factor in named.items()}
        if factors:
            # Copies in two racks are on two nodes, whether the user says so or not.
            factors.setdefault(Scope.NODE, factors[min(factors)])
        try:
            return Replication(tuple(sorted(factors.items(), reverse=True)))
        except ValueError as problem:
            raise UsageError(str(problem)) from None


class Authority(Enum):
    """What a set of answers proves."""

    COMPLETE = "complete"  # Everybody who may answer has, and it is an f-majority.
    INCOMPLETE = "incomplete"  # An f-majority: the rest cannot hold what these do not have.
    NON_AUTHORITATIVE = "non_authoritative"  # All who may answer, yet others may have held more.
    NONE = "none"  # Wait.


_SCOPES: Final = {scope.word: scope for scope in reversed(Scope)}
_DEPTH_MAX: Final = int(Scope.REGION)
_WITH_VOTE: Final = frozenset(
    {AuthoritativeStatus.FULLY_AUTHORITATIVE, AuthoritativeStatus.UNAVAILABLE}
)


def _scope_named(name: str) -> Scope:
    scope = _SCOPES.get(name)
    if scope is None:
        known = ", ".join(_SCOPES)
        raise UsageError(f"replication: no scope is called {name!r}; there are {known}")
    return scope


def _problem(factors: tuple[tuple[Scope, int], ...]) -> str:
    """What is wrong with them; empty if nothing is."""
    if not factors or factors[-1][0] is not Scope.NODE:
        return "replication: say on how many nodes, e.g. 3, or in how many racks: {'rack': 2}"
    for scope, factor in factors:
        if type(factor) is not int or not 1 <= factor <= COPYSET_SIZE_MAX:
            return (
                f"replication: the factor of {scope.word} is {factor!r}, "
                f"but must be a whole number from 1 to {COPYSET_SIZE_MAX}"
            )
    for (big, above), (small, below) in pairwise(factors):
        if big <= small:
            return "replication: name each scope once, from the biggest to the smallest"
        if above > below:
            return (
                f"replication: {above} {big.word} domains hold at least {above} "
                f"{small.word} domains, so the factor of {small.word} cannot be {below}"
            )
    return ""


def requirements(replication: Replication) -> Iterator[tuple[Scope, int]]:
    """The scopes that matter, from big to small (I2); NODE always does."""
    largest = 0
    for scope, factor in replication.factors:
        if factor > largest or scope is Scope.NODE:
            yield scope, factor
        largest = max(largest, factor)


def domain_of(node: NodeId, scope: Scope, locations: Locations) -> str:
    """The unique name of the domain that the node lies in.  Nodes that do not say where they are
    share a domain: nobody knows that they do not fail together."""
    if scope is Scope.NODE:
        return f"N{node}"
    depth = _DEPTH_MAX + 1 - scope
    parts = locations.get(node, "").split(".")[:depth]
    return ".".join(parts + [""] * (depth - len(parts)))


def can_replicate(replication: Replication, nodes: Iterable[NodeId], locations: Locations) -> bool:
    """Whether a copyset can be made of these nodes."""
    return not any(_shortfalls(replication, frozenset(nodes), locations))


def cannot_replicate(
    replication: Replication, nodes: Iterable[NodeId], locations: Locations
) -> str:
    """Why no copyset can be made of these nodes: the biggest scope with too few domains; empty if
    one can."""
    for scope, factor, found in _shortfalls(replication, frozenset(nodes), locations):
        return (
            f"copies must lie in {factor} different domains of scope {scope.word}, "
            f"but the nodes lie in {found}"
        )
    return ""


def _shortfalls(
    replication: Replication, nodes: frozenset[NodeId], locations: Locations
) -> Iterator[tuple[Scope, int, int]]:
    """Scopes that have too few domains: what they need, and what they have."""
    for scope, factor in requirements(replication):
        if scope is Scope.NODE:
            found = len(nodes)
        else:
            found = len({domain_of(node, scope, locations) for node in nodes})
        if found < factor:
            yield scope, factor, found


def has_vote(status: AuthoritativeStatus) -> bool:
    """Whether the node answers, or is waited for."""
    return status in _WITH_VOTE


def authority(
    replication: Replication,
    nodeset: Collection[NodeId],
    locations: Locations,
    statuses: Mapping[NodeId, AuthoritativeStatus],
    votes: Collection[NodeId],
) -> Authority:
    """What it proves that the nodes in `votes` have answered.  A node without a status is
    FULLY_AUTHORITATIVE; answers of nodes without a vote are passed over."""
    usual = AuthoritativeStatus.FULLY_AUTHORITATIVE
    present = {
        node: status
        for node in nodeset
        if (status := statuses.get(node, usual)) is not AuthoritativeStatus.AUTHORITATIVE_EMPTY
    }
    voters = {node for node, status in present.items() if has_vote(status)}
    heard = voters.intersection(votes)
    has_proof = bool(heard) or not present  # Keeps I4.
    has_majority = has_proof and not can_replicate(replication, present.keys() - heard, locations)
    is_complete = heard == voters
    if has_majority:
        return Authority.COMPLETE if is_complete else Authority.INCOMPLETE
    return Authority.NON_AUTHORITATIVE if is_complete else Authority.NONE
