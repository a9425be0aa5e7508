"""Short ways to say what tests of commit logs say often."""

from millrace.core.commit.record import CommitContext, StreamCommit
from millrace.core.commit.recovery import ReplicaFacts
from millrace.types import Lsn, Version


def run(version: int, local: int, first: int, count: int) -> StreamCommit:
    return StreamCommit(Version(version), Lsn(local), Lsn(first), count)


def context(
    version: int, high_watermark: int, local: int, first: int, count: int, last: int
) -> CommitContext:
    return CommitContext(
        Version(version), Lsn(high_watermark), Lsn(local), Lsn(first), count, Lsn(last)
    )


def facts(
    *,
    entries: tuple[int, int] = (1, 1),
    context: CommitContext | None = None,
    runs: tuple[StreamCommit, ...] = (),
    end: int = 0,
    is_dirty: bool = False,
) -> ReplicaFacts:
    """`entries` is half-open and begins at the trim point."""
    return ReplicaFacts(
        Lsn(entries[0]),
        Lsn(entries[1]),
        Lsn(end or entries[1]),
        context,
        runs[0] if runs else None,
        runs[-1] if runs else None,
        is_dirty,
    )
