"""Looking for an append in the log, when whoever could have told its outcome is gone.

Every copy of a block has its writer's token, so the nodes' indexes tell where it may be.  Whether
it is in the log takes more: a node that was away while an epoch was recovered may still hold a
block that was outvoted.

  I1  Both "there" and "nowhere" rest on an f-majority of the epoch's nodeset, by the statuses and
      locations of the nodes; one that has trimmed or lost a part of what it is to look at has no
      vote.
  I2  Only an epoch that is recovered is looked at: nothing is added to it any more.
  I3  A block that something of a higher precedence overlaps is not in the log; what a recovery
      decided is known to every f-majority.
"""

from collections.abc import Iterable

import msgspec

from millrace.core.epochs import EpochRange, EpochRecord, range_of
from millrace.core.messages import FindToken, TokenFound
from millrace.core.procedure import Ask, Failure, Procedure, ask_all
from millrace.core.replication import Authority
from millrace.core.sequenced.whereabouts import Whereabouts, look_up
from millrace.lsn import epoch_of, first_of, last_of
from millrace.types import Copy, EntryKind, Epoch, Extent, NodeId, Token


def find_append(record: EpochRecord, epoch: Epoch, token: Token) -> Procedure[Extent | str | None]:
    """Where the append is in this epoch; None: it is nowhere.  A text says why nobody can tell for
    now.  The record may be older than the statuses, so where the epoch lies is looked up anew."""
    assert epoch <= record.clean  # I2
    known = yield from look_up(record.log, epoch)
    if isinstance(known, Failure):
        return known.detail
    span = range_of(known.ranges, epoch)
    assert span is not None
    return (yield from _look(known, msgspec.structs.replace(span, first=epoch, last=epoch), token))


def _look(known: Whereabouts, span: EpochRange, token: Token) -> Procedure[Extent | str | None]:
    """Keeps I1."""
    first, end = first_of(span.first), first_of(Epoch(span.last + 1))
    request = FindToken(known.record.log, token, first, end)
    asked = yield from ask_all([Ask(node, request) for node in span.nodeset])
    answers = {
        node: answer
        for node, answer in zip(span.nodeset, asked, strict=True)
        if isinstance(answer, TokenFound)
    }
    voted: list[NodeId] = [node for node, answer in answers.items() if answer.is_whole]
    if known.authority(span, voted) not in (Authority.COMPLETE, Authority.INCOMPLETE):
        silent = sorted(set(span.nodeset) - set(voted))
        return f"nodes {silent} do not say whether they hold it"
    return _standing(answers.values())


def _standing(answers: Iterable[TokenFound]) -> Extent | str | None:
    """Keeps I3."""
    found = [answer.copy for answer in answers if answer.copy is not None]
    if not found:
        return None
    best = max(found, key=lambda copy: copy.placement.precedence)
    rivals = [junk for answer in answers for junk in answer.junk if _covers(junk, best.extent)]
    winner = max([best, *rivals], key=lambda copy: copy.placement.precedence)
    if winner is best:
        return best.extent
    is_lost = winner.extent.kind is EntryKind.LOSS
    return "all copies of it are damaged" if is_lost else None


def _covers(junk: Copy, extent: Extent) -> bool:
    """A bridge is about all that follow in its epoch."""
    is_bridge = junk.extent.kind is EntryKind.BRIDGE
    last = last_of(epoch_of(junk.extent.first)) if is_bridge else junk.extent.last
    return junk.extent.first <= extent.last and extent.first <= last
