"""A node that was away while epochs were recovered finds out what it holds in vain.

A recovery decides with an f-majority of the nodeset and overwrites what was outvoted, on the nodes
that it can reach.  Whoever it could not reach may still hold such blocks.  Deciding again, from an
f-majority that includes this node, gives the same decisions (`digest.py`, I4); what they put
something else in the place of is dropped.

  I1  Nothing is dropped on anybody's word but an f-majority's, in epochs that are clean; when so
      many have lost their votes that there will be none, only what a recovery has overruled is.
  I2  A block that stands is kept, also if it is one copy too many by now.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from millrace.core.epochs import EpochRange
from millrace.core.messages import Copies, CopiesPage
from millrace.core.procedure import Failure, FailureKind, Pause, Procedure, ask
from millrace.core.replication import Authority
from millrace.core.sequenced.digest import Decision, decide
from millrace.core.sequenced.whereabouts import Whereabouts, look_up
from millrace.lsn import epoch_of, first_of, last_of
from millrace.types import Copy, Epoch, LogId, Lsn, NodeId

BACKOFF_MS: Final = 50
BACKOFF_MS_MAX: Final = 2_000


class _Scene(msgspec.Struct, frozen=True):
    log: LogId
    me: NodeId
    known: Whereabouts
    spans: list[EpochRange]
    good: Mapping[Epoch, Lsn]


def purge(
    log: LogId, me: NodeId, closed: Epoch, until: Epoch, good: Sequence[Lsn]
) -> Procedure[tuple[Lsn, ...]]:
    """The first positions of this node's blocks that were outvoted in epochs `closed..until - 1`.
    Goes on until it is known."""
    pause_ms = BACKOFF_MS
    marks = {epoch_of(each): each for each in good}
    while True:
        known = yield from look_up(log, closed)
        if isinstance(known, Failure) and known.kind is FailureKind.UNKNOWN_LOG:
            return ()  # It was deleted: nobody will read it.
        if not isinstance(known, Failure) and known.record.clean + 1 >= until:
            spans = known.of_epochs(closed, Epoch(until - 1))
            found = yield from _outvoted(_Scene(log, me, known, spans, marks))
            if found is not None:
                return tuple(found)
        yield Pause(pause_ms)
        pause_ms = min(2 * pause_ms, BACKOFF_MS_MAX)


def _outvoted(scene: _Scene) -> Procedure[list[Lsn] | None]:
    """None: too few nodes answer."""
    found: list[Lsn] = []
    for span in scene.spans:
        mine = yield from _copies(scene, scene.me, first_of(span.first), span)
        if mine is None:
            return None
        for epoch in sorted({epoch_of(copy.extent.first) for copy in mine}):
            dropped = yield from _outvoted_in(scene, span, epoch, mine)
            if dropped is None:
                return None
            found += dropped
    return found


def _outvoted_in(
    scene: _Scene, span: EpochRange, epoch: Epoch, mine: Sequence[Copy]
) -> Procedure[list[Lsn] | None]:
    good = scene.good.get(epoch, first_of(epoch))
    doubtful = [
        copy for copy in mine if epoch_of(copy.extent.first) == epoch and copy.extent.last > good
    ]
    if not doubtful:
        return []
    whole = msgspec.structs.replace(span, first=epoch, last=epoch)
    held = {scene.me: doubtful}
    for node in span.nodeset:
        if node != scene.me:
            theirs = yield from _copies(scene, node, Lsn(good + 1), whole)
            if theirs is not None:
                held[node] = theirs
    proof = scene.known.authority(span, held)
    if proof is Authority.NONE:  # Keeps I1.
        return None
    verdict = decide(epoch, good, held, proof)
    return [copy.extent.first for copy in doubtful if _is_in_vain(copy, verdict.decisions)]


def _is_in_vain(copy: Copy, decisions: Sequence[Decision]) -> bool:
    """Keeps I2."""
    extent = copy.extent
    for decision in decisions:
        if decision.first <= extent.last and extent.first <= decision.last:
            winner = decision.winner
            if not isinstance(winner, Copy):
                return extent.kind is not winner
            return winner.extent != extent
    return False


def _copies(
    scene: _Scene, node: NodeId, first: Lsn, span: EpochRange
) -> Procedure[list[Copy] | None]:
    found: list[Copy] = []
    end = Lsn(last_of(span.last) + 1)
    while first < end:
        page = yield from ask(node, Copies(scene.log, first, end))
        if not isinstance(page, CopiesPage) or page.next_lsn <= first:
            return None
        found += page.copies
        first = page.next_lsn
    return found
