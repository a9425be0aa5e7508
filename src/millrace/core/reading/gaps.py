"""Whether a missing position may be given up, and what kind of gap it is (seed 003, logdevice 2.9).

Decided from the nodes' claims alone.  That an f-majority has nothing at a position proves that no
block was ever stored there as often as it should be: the nodes left could not hold a copyset.  This
is believed in all-send-all only, since in single copy delivery a claim says less.  What a single
node tells (a trimmed range, what a recovery wrote) needs no decision: see `delivery.py`.

Offsets of an epoch are given from 1, without holes, so the kind of a gap is exact: up to the begin
of an epoch it is a BRIDGE, inside an epoch a DATALOSS.  (LogDevice's epochs may begin higher, and
it tells a loss at the begin of an epoch as a BRIDGE.)

  I1  No DATALOSS without an f-majority of those that have a vote, or without the votes of all of
      them; who is UNAVAILABLE is waited for.
  I2  Those who could still have it are waited for, for some grace periods, even when an f-majority
      has nothing.  The wait is never begun anew: it ends.
  I3  A gap ends where something is known: a block, a claim, the end of the epochs that this nodeset
      holds.  That a window ends somewhere is no knowledge: then it is opened.
"""

from collections.abc import Callable, Collection, Sequence
from enum import Enum

import msgspec

from millrace.core.reading.senders import GapState
from millrace.core.reading.settings import ALWAYS_WAIT, SequencedReadSettings
from millrace.core.replication import Authority
from millrace.lsn import epoch_of, lsn_of, offset_of
from millrace.types import AuthoritativeStatus, Gap, GapKind, Lsn, NodeId

AuthorityOf = Callable[[Collection[NodeId]], Authority]
_NOT_COMING = (AuthoritativeStatus.UNDERREPLICATION, AuthoritativeStatus.AUTHORITATIVE_EMPTY)


class Voice(msgspec.Struct, frozen=True):
    """What one node says of the position."""

    node: NodeId
    state: GapState
    claim: Lsn
    status: AuthoritativeStatus
    strikes: int = 0
    is_at_window_end: bool = False  # It could not look further.


class Head(msgspec.Struct, frozen=True):
    """What is known around the position that is missing."""

    next_lsn: Lsn
    buffered: Lsn | None  # The first block that waits behind it.
    limit: Lsn  # The end of the epochs of this nodeset, or of what is read.
    has_later_epochs: bool = False  # Somebody wrote beyond `limit`.
    is_first: bool = False  # Nothing was delivered yet.
    is_dense: bool = False  # Positions have no epochs in them.


class Wait(Enum):
    """Why a missing position is not given up."""

    AUTHORITY = "authority"  # Too few have said that they have nothing.
    GRACE = "grace"  # Others may still have it.
    RIGHT_END = "right_end"  # Nothing is known behind it.
    BEYOND_WINDOW = "beyond_window"  # All have passed the window: what lies beyond it?


def decide(
    head: Head, voices: Sequence[Voice], authority_of: AuthorityOf, settings: SequencedReadSettings
) -> Gap | Wait:
    authority = judge(voices, authority_of)
    if authority is Authority.NONE:
        return Wait.AUTHORITY
    end = right_end(head, voices)
    if end is None:
        return Wait.RIGHT_END
    if end < head.limit and is_end_of_window(head, voices, end):
        return Wait.BEYOND_WINDOW
    # Without authority there may have been anything: whether an epoch has ended is not known.
    is_unproved = authority is Authority.NON_AUTHORITATIVE
    is_lost = is_unproved or all(voice.status in _NOT_COMING for voice in voices)
    gap = kind_of(head, end, is_lost)
    is_sure_bridge = gap.kind is GapKind.BRIDGE and not head.is_first
    if authority is not Authority.INCOMPLETE or is_sure_bridge:
        return gap
    return Wait.GRACE if any(is_waited_for(voice, settings) for voice in voices) else gap


def judge(voices: Sequence[Voice], authority_of: AuthorityOf) -> Authority:
    """What the claims prove.  Those of nodes that may have lost the block are no votes; but when
    all have spoken, there is nobody left to wait for."""
    certain = {voice.node for voice in voices if voice.state is GapState.GAP}
    authority = authority_of(certain)
    if authority in (Authority.COMPLETE, Authority.NON_AUTHORITATIVE):
        return authority
    spoken = certain | {voice.node for voice in voices if voice.state is GapState.INCOMPLETE}
    if authority_of(spoken) in (Authority.COMPLETE, Authority.NON_AUTHORITATIVE):
        is_majority = authority is Authority.INCOMPLETE
        return Authority.COMPLETE if is_majority else Authority.NON_AUTHORITATIVE
    return authority


def is_waited_for(voice: Voice, settings: SequencedReadSettings) -> bool:
    """Keeps I2."""
    if voice.state is not GapState.NONE or not settings.grace_period_ms:
        return False
    if voice.status is not AuthoritativeStatus.FULLY_AUTHORITATIVE:
        return False
    limit = settings.grace_strikes_max
    return limit == ALWAYS_WAIT or voice.strikes <= limit


def right_end(head: Head, voices: Sequence[Voice]) -> Lsn | None:
    """Keeps I3."""
    claims = [voice.claim for voice in voices if voice.state is not GapState.NONE]
    known = claims if head.buffered is None else [*claims, head.buffered]
    if not known:
        # Nobody is left to say anything; that something follows is known from elsewhere.
        return head.limit if head.has_later_epochs else None
    return min(head.limit, *known)


def is_end_of_window(head: Head, voices: Sequence[Voice], end: Lsn) -> bool:
    """Nothing but the end of a window is known there: whoever was told of a wider one meanwhile
    will say so, if only that there is nothing more."""
    there = [voice for voice in voices if voice.claim == end]
    return end != head.buffered and all(voice.is_at_window_end for voice in there)


def kind_of(head: Head, end: Lsn, is_lost: bool) -> Gap:
    """The gap from the missing position up to `end`, or to where its kind changes."""
    first, last = head.next_lsn, Lsn(end - 1)
    if is_lost or head.is_dense:
        return Gap(GapKind.DATALOSS, first, last)
    if offset_of(first) == 0 and epoch_of(end) == epoch_of(first):
        return Gap(GapKind.BRIDGE, first, first)
    if epoch_of(end) == epoch_of(first):
        return Gap(GapKind.DATALOSS, first, last)
    begin = lsn_of(epoch_of(end), 0)
    return Gap(GapKind.BRIDGE, first, min(last, begin))
