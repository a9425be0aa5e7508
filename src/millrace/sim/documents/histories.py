"""What was ever written: under which failover id, at which seq, by whom.

A failover id names a history: what its master gave seqs to, and before that the history that the
master had when it was chosen, up to its entry in the failover log.  So a failover id and a seq name
one version of one document for ever, and the documents of a partition follow from its newest id and
its high seq.

  I1  Under an id only one master gives seqs at a time, and the next one has all that it gave.
  I2  No two changes have the same id and seq.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from millrace.core.documents.document import (
    NO_CAS,
    NO_SEQ,
    ChangeKind,
    Document,
    FailoverId,
    PartitionId,
    Seq,
)
from millrace.core.documents.failover_log import FailoverEntry, FailoverLog
from millrace.sim.violation import Violation

Master = tuple[int, int]  # A node, and which of its lives.
NOBODY: Final[Master] = (0, 0)
TOMBSTONE: Final = Document(b"", b"", NO_SEQ, NO_CAS, kind=ChangeKind.DELETION)


class History:
    """All under one failover id."""

    def __init__(self, entries: tuple[FailoverEntry, ...]) -> None:
        self.entries = entries  # As in a failover log, its own first, and none was cut off.
        self.versions: dict[Seq, Document] = {}
        self.buried: dict[bytes, Seq] = {}  # Keys whose tombstones were purged by then.
        self.made_us: dict[Seq, int] = {}
        self.newest: dict[bytes, Document] = {}
        self.last = NO_SEQ
        self.master = NOBODY


def check_forward(whose: str, before: FailoverLog, after: FailoverLog) -> None:
    """Nobody who knows a master goes back to one before it (U1)."""
    if (before.position_of(after.newest) or 0) > 0:
        detail = f"{whose} knew {before.newest:x}, and follows {after.newest:x} again"
        raise Violation("stale master", detail)


def compare(whose: str, found: Mapping[bytes, Document], truth: Mapping[bytes, Document]) -> None:
    """Values that are on disk alone are not compared."""
    for key in sorted(found.keys() | truth.keys()):
        mine, real = found.get(key), truth.get(key)
        if mine is not None and real is not None and mine.value is None:
            mine = msgspec.structs.replace(mine, value=real.value)
        if mine != real:
            raise Violation("G10", f"{whose}: {key!r} is {mine}, and should be {real}")


class Change(msgspec.Struct, frozen=True):
    """The name of a change."""

    partition: PartitionId
    id: FailoverId
    seq: Seq


class Histories:
    def __init__(self) -> None:
        self._by_id: dict[tuple[PartitionId, FailoverId], History] = {}

    def of(self, partition: PartitionId, id: FailoverId) -> History | None:
        return self._by_id.get((partition, id))

    def begun(
        self,
        partition: PartitionId,
        log: FailoverLog,
        high: Seq,
        master: Master,
        carried: Iterable[Document],
        buried: Mapping[bytes, Seq],
    ) -> None:
        """Somebody leads under the newest id of `log`.  `carried` are the documents that it has
        beyond its entry, and `buried` keys whose deletions beyond it are purged there: the history
        before does not say so, from now on this one does."""
        history = self.of(partition, log.newest)
        if history is not None:
            self._taken_over(partition, history, log.newest, high, master)
            return
        entry = log.entries[0]
        before = self.of(partition, log.entries[1].id) if len(log.entries) > 1 else None
        kept = [each for each in before.entries if each.seq <= entry.seq] if before else []
        history = self._by_id[partition, log.newest] = History((entry, *kept))
        history.master = master
        history.last = high
        history.buried.update(buried)
        for document in carried:
            history.versions[document.seq] = document

    def _taken_over(
        self, partition: PartitionId, history: History, id: FailoverId, high: Seq, master: Master
    ) -> None:
        """Keeps I1."""
        if high < history.last:
            detail = f"node {master[0]} leads partition {partition} under {id:x} from {high} on"
            raise Violation("one master", f"{detail}, and {history.last} was given before")
        history.master = master

    def changed(
        self,
        partition: PartitionId,
        id: FailoverId,
        document: Document,
        master: Master,
        now_us: int,
    ) -> None:
        """Keeps I1 and I2."""
        history = self._by_id[partition, id]
        if history.master != master:
            detail = f"node {master[0]} gives seqs of partition {partition} under {id:x}"
            raise Violation("one master", f"{detail}, which is node {history.master[0]}'s")
        known = history.versions.get(document.seq)
        if known is not None and known != document:
            detail = f"partition {partition}: seq {document.seq} of {id:x} is {known}"
            raise Violation("one history", f"{detail} and {document}")
        history.versions[document.seq] = document
        history.made_us[document.seq] = now_us
        history.newest[document.key] = document
        history.last = max(history.last, document.seq)

    def has(
        self, partition: PartitionId, newest: FailoverId, complete: Seq, change: Change
    ) -> bool:
        """Whether who has this much of that history has the change."""
        history = self.of(partition, newest)
        if history is None or complete < change.seq:
            return False
        until = complete
        for entry in history.entries:
            if entry.id == change.id:
                return change.seq <= until
            until = min(until, entry.seq)
        return False

    def documents(
        self, partition: PartitionId, newest: FailoverId, high: Seq
    ) -> dict[bytes, Document]:
        """What there must be at `high`, tombstones left out."""
        history = self._by_id[partition, newest]
        found: dict[bytes, Document] = {}
        until = high
        for entry in history.entries:
            each = self._by_id[partition, entry.id]
            for seq in sorted(each.versions, reverse=True):
                if entry.seq < seq <= until:
                    found.setdefault(each.versions[seq].key, each.versions[seq])
            for key, seq in each.buried.items():
                if seq <= until:
                    found.setdefault(key, TOMBSTONE)
            until = min(until, entry.seq)
        return {key: document for key, document in found.items() if not document.is_deleted}
