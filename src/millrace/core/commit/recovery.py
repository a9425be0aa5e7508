"""What a replica of a stream is after a restart, judged by what is on its disk (M1, M4).

Three facts must fit together: the context, which says where the committed part ends; the runs,
which say where each committed entry lies in the log; and the entries.  Of the runs the first and
the last one suffice, so that opening a stream costs the same however long it is.

  I1  Whatever the facts are there is an answer: valid, or quarantined with a cause.
  I2  Valid implies M1: the context ends where the runs end, or at the trim point if all that was
      committed is trimmed, and every committed entry that is not trimmed is there.
  I3  Nothing is removed here.  What a quarantined replica may keep is advice for its sync.
  I4  A replica that may have lost what it acknowledged from memory is not valid, even if the rest
      fits: it may have reported more than it holds, and counted for it.
"""

from enum import Enum

import msgspec

from millrace.core.commit.record import CommitContext, StreamCommit
from millrace.types import FIRST_LSN, NO_LSN, Lsn, Version


class ReplicaFacts(msgspec.Struct, frozen=True):
    """Local positions.  All of [trim_end, contiguous_end) is written, and nothing lies at `end` or
    above; the runs are the first and the last one that the store still has."""

    trim_end: Lsn = FIRST_LSN
    contiguous_end: Lsn = FIRST_LSN
    end: Lsn = FIRST_LSN
    context: CommitContext | None = None
    first_run: StreamCommit | None = None
    last_run: StreamCommit | None = None
    is_dirty: bool = False  # It crashed, and entries acknowledged from memory may be missing.


class Quarantine(Enum):
    CONTEXT_MISSING = "context_missing"  # Something was committed, but nobody knows by when.
    CONTEXT_BEHIND = "context_behind"  # More is committed, or trimmed, than the context knows of.
    SUFFIX_MISSING = "suffix_missing"  # Trims remove prefixes, so the end was lost.
    PREFIX_MISSING = "prefix_missing"  # Not trimmed, and not there.
    HOLE = "hole"  # Between entries that are not committed yet.
    CONTRADICTION = "contradiction"  # Numbers that no commit can have left behind.
    MEMORY_LOST = "memory_lost"  # It all fits, but there may have been more.


class Valid(msgspec.Struct, frozen=True):
    """All below `local_end` is committed, the last of it at `last` of the log (0 if there is none);
    [local_end, end) is written and waits for its commit."""

    version: Version
    high_watermark: Lsn
    local_end: Lsn
    end: Lsn
    last: Lsn


class Quarantined(msgspec.Struct, frozen=True):
    """A sync may keep the entries [kept_first, kept_end): the runs vouch for them.

    `otherwise` is what the replica would be if it had lost nothing, which only MEMORY_LOST leaves
    open.  Once it is sealed, nothing counts but what it holds, so a reform may then take it for
    that: an append is acknowledged when it is committed, and what is committed can be compared
    with `otherwise.end`."""

    cause: Quarantine
    why: str
    kept_first: Lsn
    kept_end: Lsn
    otherwise: Valid | None = None


Recovered = Valid | Quarantined
_Trouble = tuple[Quarantine, str]


def recover(facts: ReplicaFacts) -> Recovered:
    kept_first, kept_end = vouched(facts) or (facts.trim_end, facts.trim_end)
    trouble = _contradiction(facts) or _misfit(facts) or _absence(facts)
    if trouble is not None:
        return Quarantined(*trouble, kept_first, kept_end)
    valid = _valid(facts)
    if facts.is_dirty:
        why = (
            "the node crashed with entries that it had acknowledged from memory: of the stream "
            f"[{facts.trim_end}, {facts.end}) is left"
        )
        return Quarantined(Quarantine.MEMORY_LOST, why, kept_first, kept_end, valid)
    return valid


def vouched(facts: ReplicaFacts) -> tuple[Lsn, Lsn] | None:
    """The entries that are there and committed, as the runs say, whatever the context says: runs
    come with their entries or after them.  None if the runs cannot be believed."""
    misfit = _contradiction(facts) or _misfit(facts)
    if misfit is not None and misfit[0] is Quarantine.CONTRADICTION:
        return None
    if facts.first_run is None or facts.last_run is None:
        return facts.trim_end, facts.trim_end
    end = facts.last_run.local_end
    if end <= facts.trim_end:  # A trim may be halfway through what it removes.
        return facts.trim_end, facts.trim_end
    if end > facts.contiguous_end:
        return None
    return max(facts.trim_end, facts.first_run.local), end


def implausible(context: CommitContext) -> str:
    """Why no commit can have left this context; empty if one can.

    `first` of an empty commit is the log's next position when it was decided, or the stream's own
    next one: both lie above `last` and at most right above the high watermark (M2)."""
    after_last = context.last + 1
    if context.version < 0 or context.local < FIRST_LSN or context.count < 0:
        return f"no commit has {context}"
    if context.count > 0 and context.first + context.count != after_last:
        return f"its last entry is not at {context.last}: {context}"
    if context.count == 0 and not after_last <= context.first <= context.high_watermark + 1:
        return f"an empty commit cannot be at {context.first}: {context}"
    if context.last > context.high_watermark:
        return f"it lies above the high watermark: {context}"
    # Each entry of a stream is one of the log's, so no stream is ahead of the log.
    if context.last < context.local_end - 1 or (context.last == 0) != (context.local_end == 1):
        return f"{context.local_end - 1} entries do not end at {context.last}: {context}"
    return ""


def _valid(facts: ReplicaFacts) -> Valid:
    context = facts.context
    if context is None:
        return Valid(Version(0), NO_LSN, FIRST_LSN, facts.contiguous_end, NO_LSN)
    return Valid(
        context.version,
        context.high_watermark,
        context.local_end,
        facts.contiguous_end,
        context.last,
    )


def _contradiction(facts: ReplicaFacts) -> _Trouble | None:
    """Numbers that are wrong by themselves."""
    why = ""
    if not FIRST_LSN <= facts.trim_end <= facts.contiguous_end <= facts.end:
        why = f"entries [{facts.trim_end}, {facts.contiguous_end}) of [.., {facts.end})"
    elif facts.context is not None:
        why = implausible(facts.context)
    why = why or _impossible_runs(facts.first_run, facts.last_run)
    return (Quarantine.CONTRADICTION, f"this cannot be: {why}") if why else None


def _impossible_runs(first: StreamCommit | None, last: StreamCommit | None) -> str:
    if first is None or last is None:
        return "" if first is last else f"there is a first run or a last one: {first}, {last}"
    for run in (first, last):
        if run.version < 1 or run.count < 1 or not FIRST_LSN <= run.local <= run.first:
            return f"no commit has {run}"
    is_ordered = first.local_end <= last.local and first.version <= last.version
    # As many positions of the log lie between two runs as of the stream, or more.
    is_spread = last.first - first.end >= last.local - first.local_end
    if first != last and not (is_ordered and is_spread):
        return f"{last} does not follow {first}"
    return ""


def _misfit(facts: ReplicaFacts) -> _Trouble | None:
    """The context and what is committed do not end at the same position (M1)."""
    context, last_run = facts.context, facts.last_run
    if context is None:
        if last_run is None and facts.trim_end == FIRST_LSN:
            return None  # Nothing was ever committed.
        end = facts.trim_end if last_run is None else last_run.local_end
        return Quarantine.CONTEXT_MISSING, f"entries below {end} are committed without a context"
    committed_end = max(facts.trim_end, FIRST_LSN if last_run is None else last_run.local_end)
    if committed_end > context.local_end:
        why = f"the context ends at {context.local_end}, what is committed at {committed_end}"
        return Quarantine.CONTEXT_BEHIND, why
    if committed_end < context.local_end:
        why = f"the context ends at {context.local_end}, but runs are there below {committed_end}"
        return Quarantine.SUFFIX_MISSING, why
    if last_run is None or last_run.local_end < committed_end:
        return None
    if last_run.end - 1 != context.last or last_run.version > context.version:
        return Quarantine.CONTRADICTION, f"this cannot be: {last_run} is not the last of {context}"
    return None


def _absence(facts: ReplicaFacts) -> _Trouble | None:
    """Entries that should be there are not."""
    first_run, last_run = facts.first_run, facts.last_run
    if last_run is not None and facts.contiguous_end < last_run.local_end:
        why = f"entries [{facts.contiguous_end}, {last_run.local_end}) are committed and missing"
        return Quarantine.SUFFIX_MISSING, why
    if first_run is not None and facts.trim_end < first_run.local:
        why = f"[{facts.trim_end}, {first_run.local}) is neither trimmed nor are there runs of it"
        return Quarantine.PREFIX_MISSING, why
    if facts.contiguous_end < facts.end:
        why = f"entries above {facts.contiguous_end} are missing, but not all below {facts.end}"
        return Quarantine.HOLE, why
    return None
