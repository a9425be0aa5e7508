"""Who becomes the master of a partition that has none (R-P).

A seat is fenced first: its holders take nothing from the master before, in the seat's term
(`seats.py`).  What they say then is final, and it is decided by what they say:

  I1  So many must have answered that every majority of the copies has one among them.  So whatever
      a majority had acknowledged is known to one that answered, and the best of them has it.
  I2  The best is the one that has reached the latest history: whose failover log, without the
      entries above its last complete snapshot, ends with the seat's id, or with the latest id that
      anybody has reached.  Then the one with the most complete snapshots, then with the most on
      disk; then the first in the seat, which is the master before or the one that is wanted.  To
      have heard of an id is not enough: who rolled back for a new master, and has not yet got
      what that one began with, has less than one that never heard of it.
  I3  One with an unfinished undo has two histories: it is never promoted (U2).  If it is better
      than all others, it may be the only one that has what a majority acknowledged: another that
      has it too is waited for.
  I4  A holder whose failover log is empty has never followed anybody: it lost its disk, or is new.
      It answers for nothing, unless it was there before the first master: then it certainly has
      acknowledged nothing, and counts as one that answered.  If all are empty, an operator has to
      say that the documents are given up: a disk that is gone may come back.
  I5  Whoever lives and has a copy is waited for, for a while, even where I1 holds without it: also
      one that a move has just taken out of the seat may be the best.

`force` is an operator's word that those who do not answer will not come back: I1, I4 and I5 do not
hold any more, and of I3 only that nobody with an unfinished undo is promoted.
"""

from collections.abc import Collection, Mapping
from enum import Enum

import msgspec

from millrace.core.documents.map import Seat
from millrace.core.documents.seats import majority, voters
from millrace.core.messages.documents import NO_FAILOVER_ID, HostedPartition
from millrace.types import NodeId


class PromoteReason(Enum):
    FIRST = "first"  # There never was a master.
    MOST_COMPLETE = "most_complete"
    EARLIER_HISTORY = "earlier_history"  # Nobody has reached the last master's id.
    FORCED = "forced"  # By an operator; others may have more.
    STARTS_EMPTY = "starts_empty"  # By an operator; all that was there is lost.


class CannotReason(Enum):
    WAITING = "waiting"  # For holders that live and have not answered.
    STILL_SERVES = "still_serves"  # The master before lives, and may not know that it was deposed.
    TOO_FEW_ANSWERS = "too_few_answers"
    UNDO_PENDING = "undo_pending"
    ALL_LOST = "all_lost"


class Promote(msgspec.Struct, frozen=True):
    node: NodeId
    reason: PromoteReason


class CannotFailOver(msgspec.Struct, frozen=True):
    reason: CannotReason
    detail: str


def decide(
    seat: Seat,
    copies: int,
    answers: Mapping[NodeId, HostedPartition],
    silent: Collection[NodeId] = (),
    force: bool = False,
) -> Promote | CannotFailOver:
    """`silent` are nodes that live and may have a copy, and have not answered; without them it is
    decided when they had their time."""
    final = {node: each for node, each in answers.items() if each.term == seat.term}
    if seat.id == NO_FAILOVER_ID:
        return _first(seat, final, silent)
    if silent and not force:
        return CannotFailOver(CannotReason.WAITING, f"nodes {_named(silent)} have not answered")
    knowing = {node: each for node, each in final.items() if each.log.entries}  # Keeps I4.
    witnesses = {node for node, each in final.items() if 0 < each.created < seat.founded}
    needed = copies - majority(copies) + 1
    heard = [node for node in voters(seat) if node in knowing or node in witnesses]
    if not knowing and final:
        return _start_empty(seat, final, force)
    if len(heard) < needed and not force:
        detail = f"{needed} of {copies} copies must be known, but only nodes {_named(heard)} are"
        return CannotFailOver(CannotReason.TOO_FEW_ANSWERS, detail)
    return _best(seat, knowing, is_short=len(heard) < needed, force=force)


def _first(
    seat: Seat, final: Mapping[NodeId, HostedPartition], silent: Collection[NodeId]
) -> Promote | CannotFailOver:
    """The one in front that lives, when all that live have their copies (I4)."""
    for node in seat.replicas:
        if node in final and not silent:
            return Promote(node, PromoteReason.FIRST)
    return CannotFailOver(CannotReason.WAITING, f"none of {_named(seat.replicas)} is ready")


def _start_empty(
    seat: Seat, final: Mapping[NodeId, HostedPartition], force: bool
) -> Promote | CannotFailOver:
    if not force:
        detail = f"nodes {_named(final)} have nothing of it (any more); forcing it starts it empty"
        return CannotFailOver(CannotReason.ALL_LOST, detail)
    return Promote(min(final, key=lambda node: _place_in(seat, node)), PromoteReason.STARTS_EMPTY)


def _best(
    seat: Seat, knowing: Mapping[NodeId, HostedPartition], is_short: bool, force: bool
) -> Promote | CannotFailOver:
    able = [node for node, each in knowing.items() if not each.has_undo]
    undoing = [node for node, each in knowing.items() if each.has_undo]
    if not able:
        if undoing:
            detail = f"nodes {_named(undoing)} are in the middle of an undo"
            return CannotFailOver(CannotReason.UNDO_PENDING, detail)
        return CannotFailOver(CannotReason.TOO_FEW_ANSWERS, "nobody answers")

    reached = {node: each.log.up_to(each.complete) for node, each in knowing.items()}

    def has(node: NodeId) -> tuple[bool, int, int]:
        """Keeps I2."""
        log = reached[node]
        later = sum(log.position_of(other.newest) is not None for other in reached.values())
        return log.newest == seat.id, later, knowing[node].complete

    def rank(node: NodeId) -> tuple[tuple[bool, int, int], int, int]:
        return has(node), knowing[node].persisted, -_place_in(seat, node)

    best = max(able, key=rank)
    better = [node for node in undoing if has(node) > has(best)]  # Keeps I3.
    if better and not force:
        detail = f"nodes {_named(better)} have more, and are in the middle of an undo"
        return CannotFailOver(CannotReason.UNDO_PENDING, detail)
    if is_short or better:
        return Promote(best, PromoteReason.FORCED)
    has_id = reached[best].newest == seat.id
    reason = PromoteReason.MOST_COMPLETE if has_id else PromoteReason.EARLIER_HISTORY
    return Promote(best, reason)


def _place_in(seat: Seat, node: NodeId) -> int:
    named = seat.holders
    return named.index(node) if node in named else len(named)


def _named(nodes: Collection[NodeId]) -> str:
    return ", ".join(map(str, sorted(nodes))) or "(none)"
