"""What a replica may find on its disk after a restart: R1-R12 of varlog 5.5, and what else may be.

One table for the pure function and for real disks.  A case is the facts that are found, how they
come to be on a disk (what the store was told to keep, and what was cut out of it afterwards), and
what a replica makes of them.
"""

import msgspec

from millrace.core.commit.record import CommitContext, StreamCommit
from millrace.core.commit.recovery import Quarantine, ReplicaFacts, Valid
from millrace.types import Lsn, Version
from tests.core.commit.commit_samples import context, facts, run

TEN = run(10, 1, 1, 10)
TEN_CONTEXT = context(10, 10, 1, 1, 10, 10)
TWENTY = run(20, 1, 1, 20)
EMPTY_AT_20 = context(20, 20, 11, 11, 0, 10)
FUTURE = context(20, 20, 21, 21, 0, 20)
PAST = context(5, 5, 5, 5, 1, 5)


class Kept(msgspec.Struct, frozen=True):
    """What a store was told, in order: entries below `end`, and perhaps one above a hole; a commit;
    a trim."""

    end: int = 1
    context: CommitContext | None = None
    runs: tuple[StreamCommit, ...] = ()
    trim_end: int = 1
    above: int | None = None


class CutEntries(msgspec.Struct, frozen=True):
    """All from `first` on are gone."""

    first: int


class CutContext(msgspec.Struct, frozen=True):
    """It is gone, or another one is in its place."""

    left: CommitContext | None = None


class CutRuns(msgspec.Struct, frozen=True):
    """These are left, or are there instead."""

    left: tuple[StreamCommit, ...] = ()


Cut = CutEntries | CutContext | CutRuns


class RecoveryCase(msgspec.Struct, frozen=True):
    """`expected` is what the replica is, or why it is quarantined: then a sync may keep the entries
    of the half-open range `left`."""

    name: str
    found: ReplicaFacts
    expected: Valid | Quarantine
    kept: Kept
    cuts: tuple[Cut, ...] = ()
    left: tuple[int, int] = (1, 1)

    def __str__(self) -> str:
        return self.name


def valid(version: int, high_watermark: int, local_end: int, end: int, last: int) -> Valid:
    return Valid(Version(version), Lsn(high_watermark), Lsn(local_end), Lsn(end), Lsn(last))


ALL_COMMITTED = Kept(11, TEN_CONTEXT, (TEN,))
SOME_COMMITTED = Kept(21, TEN_CONTEXT, (TEN,))

VALID = (
    RecoveryCase("R1 nothing", facts(), valid(0, 0, 1, 1, 0), Kept()),
    RecoveryCase("R2 only uncommitted", facts(entries=(1, 11)), valid(0, 0, 1, 11, 0), Kept(11)),
    RecoveryCase(
        "R3 all committed",
        facts(entries=(1, 11), context=TEN_CONTEXT, runs=(TEN,)),
        valid(10, 10, 11, 11, 10),
        ALL_COMMITTED,
    ),
    RecoveryCase(
        "R4 committed and uncommitted",
        facts(entries=(1, 21), context=TEN_CONTEXT, runs=(TEN,)),
        valid(10, 10, 11, 21, 10),
        SOME_COMMITTED,
    ),
    RecoveryCase(
        "R5 empty context",
        facts(entries=(1, 11), context=EMPTY_AT_20, runs=(TEN,)),
        valid(20, 20, 11, 11, 10),
        Kept(11, EMPTY_AT_20, (TEN,)),
    ),
    RecoveryCase(
        "R10 prefix trimmed",
        facts(entries=(5, 11), context=TEN_CONTEXT, runs=(TEN,)),
        valid(10, 10, 11, 11, 10),
        Kept(11, TEN_CONTEXT, (TEN,), trim_end=5),
    ),
    RecoveryCase(
        "R11 all trimmed",
        facts(entries=(11, 11), context=TEN_CONTEXT),
        valid(10, 10, 11, 11, 10),
        Kept(11, TEN_CONTEXT, (TEN,), trim_end=11),
    ),
    RecoveryCase(
        "R12 all trimmed, and uncommitted",
        facts(entries=(11, 21), context=TEN_CONTEXT),
        valid(10, 10, 11, 21, 10),
        Kept(21, TEN_CONTEXT, (TEN,), trim_end=11),
    ),
)

QUARANTINED = (
    RecoveryCase(
        "R6 no context",
        facts(entries=(1, 11), runs=(TEN,)),
        Quarantine.CONTEXT_MISSING,
        ALL_COMMITTED,
        (CutContext(),),
        (1, 11),
    ),
    RecoveryCase(
        "R7 no context, and uncommitted",
        facts(entries=(1, 21), runs=(TEN,)),
        Quarantine.CONTEXT_MISSING,
        SOME_COMMITTED,
        (CutContext(),),
        (1, 11),
    ),
    RecoveryCase(
        "R8 context of the future",
        facts(entries=(1, 11), context=FUTURE, runs=(TEN,)),
        Quarantine.SUFFIX_MISSING,
        Kept(21, FUTURE, (TWENTY,)),
        (CutEntries(11), CutRuns((TEN,))),
        (1, 11),
    ),
    RecoveryCase(
        "R9 context of the past",
        facts(entries=(1, 11), context=PAST, runs=(TEN,)),
        Quarantine.CONTEXT_BEHIND,
        ALL_COMMITTED,
        (CutContext(PAST),),
        (1, 11),
    ),
    RecoveryCase(
        "one entry more than the context says",
        facts(entries=(1, 11), context=context(10, 10, 1, 1, 9, 9), runs=(TEN,)),
        Quarantine.CONTEXT_BEHIND,
        ALL_COMMITTED,
        (CutContext(context(10, 10, 1, 1, 9, 9)),),
        (1, 11),
    ),
    RecoveryCase(
        "one entry less than the context says",
        facts(entries=(1, 12), context=context(10, 11, 1, 1, 11, 11), runs=(TEN,)),
        Quarantine.SUFFIX_MISSING,
        Kept(12, context(10, 11, 1, 1, 11, 11), (run(10, 1, 1, 11),)),
        (CutRuns((TEN,)),),
        (1, 11),
    ),
    RecoveryCase(
        "trimmed, no context",
        facts(entries=(11, 11)),
        Quarantine.CONTEXT_MISSING,
        Kept(11, TEN_CONTEXT, (TEN,), trim_end=11),
        (CutContext(),),
        (11, 11),
    ),
    RecoveryCase(
        "trimmed beyond the context",
        facts(entries=(14, 20), context=TEN_CONTEXT),
        Quarantine.CONTEXT_BEHIND,
        Kept(20, TEN_CONTEXT, (TEN,), trim_end=14),
        (),
        (14, 14),
    ),
    RecoveryCase(
        "no runs",
        facts(entries=(1, 11), context=TEN_CONTEXT),
        Quarantine.SUFFIX_MISSING,
        ALL_COMMITTED,
        (CutRuns(),),
    ),
    RecoveryCase(
        "fewer entries than runs",
        facts(entries=(1, 8), context=TEN_CONTEXT, runs=(TEN,)),
        Quarantine.SUFFIX_MISSING,
        ALL_COMMITTED,
        (CutEntries(8),),
    ),
    RecoveryCase(
        "no run of the first entries",
        facts(entries=(1, 11), context=TEN_CONTEXT, runs=(run(10, 4, 4, 7),)),
        Quarantine.PREFIX_MISSING,
        ALL_COMMITTED,
        (CutRuns((run(10, 4, 4, 7),)),),
        (4, 11),
    ),
    RecoveryCase(
        "hole above what is committed",
        facts(entries=(1, 15), context=TEN_CONTEXT, runs=(TEN,), end=18),
        Quarantine.HOLE,
        Kept(15, TEN_CONTEXT, (TEN,), above=17),
        (),
        (1, 11),
    ),
    RecoveryCase(
        "run and context at other positions of the log",
        facts(entries=(1, 11), context=TEN_CONTEXT, runs=(run(10, 1, 3, 10),)),
        Quarantine.CONTRADICTION,
        ALL_COMMITTED,
        (CutRuns((run(10, 1, 3, 10),)),),
    ),
    RecoveryCase(
        "run of a later version",
        facts(entries=(1, 11), context=TEN_CONTEXT, runs=(run(11, 1, 1, 10),)),
        Quarantine.CONTRADICTION,
        ALL_COMMITTED,
        (CutRuns((run(11, 1, 1, 10),)),),
    ),
    RecoveryCase(
        "runs that overlap in the log",
        facts(
            entries=(1, 11),
            context=context(3, 11, 7, 8, 4, 11),
            runs=(run(2, 1, 5, 6), run(3, 7, 8, 4)),
        ),
        Quarantine.CONTRADICTION,
        Kept(11, context(3, 11, 7, 8, 4, 11), (run(2, 1, 1, 6), run(3, 7, 8, 4))),
        (CutRuns((run(2, 1, 5, 6), run(3, 7, 8, 4))),),
    ),
)
