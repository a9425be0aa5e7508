"""What of a stream's replica is committed, as far as it knows, and what of that it may tell.

I1  Commits are taken in local order and never twice, whatever is sent again.
I2  `told` is a version whose runs, and those of all before it, are durable: the committer forgets
    commits that all replicas have reported, and then the replicas alone know them.  Empty commits
    leave nothing to be lost, so they need no disk.
"""

from collections import deque
from typing import Final

from millrace.core.commit.arithmetic import HISTORY_MAX
from millrace.core.commit.record import CommitContext, StreamCommit
from millrace.core.commit.recovery import Valid
from millrace.core.messages import CommitVerdict
from millrace.types import FIRST_LSN, NO_LSN, Lsn, Version

# Commits that wait to become durable with something else.  Far fewer than a history holds: a
# stream whose history is full waits for what its replicas report.
UNSAFE_MAX: Final = HISTORY_MAX // 4


class Committed:
    def __init__(self, valid: Valid) -> None:
        self.trim_end = FIRST_LSN  # Of the commit log.
        self.restart(valid)

    def restart(self, valid: Valid) -> None:
        """Begin anew with what is durable."""
        self.version = valid.version
        self.high_watermark = valid.high_watermark
        self.local_end = valid.local_end  # All below is committed ...
        self.last = valid.last  # ... the last of it here in the log; 0 if there is none.
        self.told = valid.version, valid.local_end
        self._unsafe: deque[tuple[int, Version, Lsn]] = deque()  # Settle, version, its local end.

    @property
    def is_unsafe(self) -> bool:
        """Whether some commit is not known to be durable."""
        return bool(self._unsafe)

    @property
    def can_wait(self) -> bool:
        """Whether more may be taken before these are durable."""
        return len(self._unsafe) < UNSAFE_MAX

    def valid(self, end: Lsn) -> Valid:
        """The replica, if it holds all below `end`."""
        return Valid(self.version, self.high_watermark, self.local_end, end, self.last)

    def news(self, commits: tuple[StreamCommit, ...]) -> tuple[StreamCommit, ...]:
        """Keeps I1."""
        return tuple(each for each in commits if each.local_end > self.local_end)

    def judge(
        self,
        version: Version,
        high_watermark: Lsn,
        fresh: tuple[StreamCommit, ...],
        trim_end: Lsn,
        safe_end: Lsn,
        end: Lsn = NO_LSN,
    ) -> CommitVerdict:
        """`end` is where the committed part ends with them, if that is known."""
        if version < self.version:
            return CommitVerdict.OLD
        is_whole = self.local_end >= end
        if version == self.version and not fresh and trim_end <= self.trim_end and is_whole:
            return CommitVerdict.KNOWN
        at, last = self.local_end, self.last
        for each in fresh:
            if each.local != at or each.first <= last:
                return CommitVerdict.GAP
            at, last = each.local_end, Lsn(each.end - 1)
        if at < end:
            return CommitVerdict.GAP
        if high_watermark < max(last, self.high_watermark) or _newest(fresh) > version:
            return CommitVerdict.IMPOSSIBLE  # Its context would be taken for damage (recovery).
        return CommitVerdict.TOO_LONG if at > safe_end else CommitVerdict.TAKEN

    def take(
        self,
        version: Version,
        high_watermark: Lsn,
        fresh: tuple[StreamCommit, ...],
        trim_end: Lsn,
        settle: int,
        version_first: Lsn = NO_LSN,
    ) -> CommitContext:
        """What was judged to fit; the context that is to be kept with it."""
        self.version, self.high_watermark = version, high_watermark
        self.trim_end = max(self.trim_end, trim_end)
        if fresh:
            self.local_end, self.last = fresh[-1].local_end, Lsn(fresh[-1].end - 1)
            self._unsafe += ((settle, each.version, each.local_end) for each in fresh[:-1])
            self._unsafe.append((settle, version, self.local_end))
        elif not self._unsafe:
            self.told = version, self.local_end
        return self.context(fresh, version_first)

    def context(
        self, fresh: tuple[StreamCommit, ...] = (), version_first: Lsn = NO_LSN
    ) -> CommitContext:
        """What is kept of the newest version: the last of `fresh`, if that is of this version, else
        an empty commit, which lies where the version begins (M2), or if that is not known, or the
        stream has entries there, right above the log's last position."""
        after = Lsn(self.high_watermark + 1)
        place = version_first if self.last < version_first < after else after
        newest = StreamCommit(self.version, self.local_end, place, 0)
        if fresh and fresh[-1].version == self.version:
            newest = fresh[-1]
        return CommitContext(
            self.version,
            self.high_watermark,
            newest.local,
            newest.first,
            newest.count,
            self.last,
            self.trim_end,
        )

    def settled(self, settle: int) -> None:
        """Keeps I2."""
        if not self._unsafe or self._unsafe[0][0] > settle:
            return
        while self._unsafe and self._unsafe[0][0] <= settle:
            _, version, local_end = self._unsafe.popleft()
            self.told = version, local_end
        if not self._unsafe:
            self.told = self.version, self.local_end


def _newest(commits: tuple[StreamCommit, ...]) -> Version:
    return max((each.version for each in commits), default=Version(0))
