"""Where a consumer keeps what it has of a partition, and how it takes changes back.

A replica has its partition for that (`replica.py`), other consumers a ring buffer and the place
where their application stands (`ring_backing.py`).  The consumer decides when, the backing how.

  I1  After `begin_undo` the place is lowered, and the undo is pending until `finish_undo`; both
      count when they are durable, which the consumer waits for.
  I2  `undo_documents` and `wipe` may be done again after a crash, with other documents.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from millrace.core.documents.consumer_effects import BackingEffect
from millrace.core.documents.document import Document, Seq
from millrace.core.documents.failover_log import FailoverLog
from millrace.core.documents.rollback import Place


class Offset(msgspec.Struct, frozen=True):
    """Where a stream goes on: the seq, and the snapshot that it lies in."""

    seq: Seq
    first: Seq
    last: Seq


class Backing(Protocol):
    """What a consumer keeps of a partition, and how it goes back.

    The names are those of `Partition`.  What methods return is left for the host to do."""

    @property
    def place(self) -> Place: ...

    @property
    def offset(self) -> Offset: ...

    @property
    def undo(self) -> Seq | None: ...

    def undo_needed(self, start: Seq, log: FailoverLog) -> bool: ...

    def keys_above(self, start: Seq) -> list[bytes] | None:
        """Of all that changed above `start`; None: not known, or too many to undo."""
        ...

    def offers(self, keys: Sequence[bytes], start: Seq) -> list[Document]:
        """Its own versions above `start`, to repair the master with (U7); not all can."""
        ...

    def begin_undo(self, start: Seq) -> None: ...

    def undo_documents(
        self, documents: Sequence[Document], missing: Sequence[bytes]
    ) -> list[BackingEffect]: ...

    def wipe(self) -> list[BackingEffect]: ...

    def finish_undo(self, log: FailoverLog, purged: Seq) -> None:
        """It is of the master's history from now on, who has forgotten deletions up to `purged`."""
        ...

    def is_blind_to(self, purged: Seq) -> bool:
        """Whether it begins below that, and does not know yet that deletions will not come."""
        ...

    def begin_at(self, seq: Seq) -> None:
        """It has nothing, and wants nothing of what was before."""
        ...

    def begin_snapshot(self, first: Seq, last: Seq) -> None: ...

    def apply(self, documents: Sequence[Document]) -> list[BackingEffect]:
        """Raises ValueError if they cannot follow what is there."""
        ...

    def advance(self, seq: Seq) -> list[BackingEffect]: ...
