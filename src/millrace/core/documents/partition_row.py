"""What a partition is besides its documents, as it lies on disk.

It is written in the transaction of the documents it speaks of, so after a crash it is true of
exactly those (U2, U3).
"""

import msgspec

from millrace.core.documents.document import NO_CAS, NO_SEQ, Cas, PartitionState, Seq
from millrace.core.documents.failover_log import NO_LOG, FailoverLog
from millrace.core.documents.rollback import Place


class PartitionRow(msgspec.Struct, frozen=True, array_like=True):
    """`high` is the largest seq stored; `seen` the highest taken from a master, which after an
    undo may lie below (U3).  Of a master both are the same.

    `undo` is the seq to which an unfinished rollback goes (U2); None: there is none."""

    state: PartitionState = PartitionState.DEAD
    term: int = 0
    log: FailoverLog = NO_LOG
    high: Seq = NO_SEQ
    seen: Seq = NO_SEQ
    complete: Seq = NO_SEQ  # The last seq of the last complete snapshot.
    running: Seq = NO_SEQ  # The last seq of the snapshot that `seen` lies in.
    purged: Seq = NO_SEQ
    undo: Seq | None = None
    is_clean: bool = False  # Written by a shutdown in order; cleared by whatever comes after.
    created: int = 0  # The term of the order that made this copy.
    last_cas: Cas = NO_CAS  # The highest that was here, be it of a tombstone or of what is gone.

    @property
    def place(self) -> Place:
        """Where it stands as a client of its master."""
        return Place(self.log, self.complete, self.seen, self.running)
