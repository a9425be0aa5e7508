"""The failover log of a partition: who was its master, and from which seq on.

Newest entry first.  An entry says: under this id the partition went on from this seq, which is the
last of a complete snapshot that the new master had (seed 001, "Failover Log").

  I1  Ids are never 0, and each stands once.
  I2  Seqs do not rise from newer to older entries.
  I3  At most FAILOVER_ENTRIES_MAX entries; the oldest go first.
"""

from typing import Final

import msgspec

from millrace.core.documents.document import NO_SEQ, FailoverId, Seq

FAILOVER_ENTRIES_MAX: Final = 25


class FailoverEntry(msgspec.Struct, frozen=True, array_like=True):
    id: FailoverId
    seq: Seq


class FailoverLog(msgspec.Struct, frozen=True, array_like=True):
    entries: tuple[FailoverEntry, ...] = ()

    @property
    def newest(self) -> FailoverId:
        """0 while there never was a master."""
        return self.entries[0].id if self.entries else FailoverId(0)

    def begin(self, id: FailoverId, seq: Seq) -> "FailoverLog":
        """Somebody becomes the master: what the entries above `seq` say is no longer true."""
        assert id, "a failover id is never 0"
        kept = [entry for entry in self.entries if entry.seq <= seq and entry.id != id]
        return FailoverLog((FailoverEntry(id, seq), *kept)[:FAILOVER_ENTRIES_MAX])

    def up_to(self, seq: Seq) -> "FailoverLog":
        """Without the entries above `seq`."""
        return FailoverLog(tuple(entry for entry in self.entries if entry.seq <= seq))

    def position_of(self, id: FailoverId) -> int | None:
        for at, entry in enumerate(self.entries):
            if entry.id == id:
                return at
        return None


NO_LOG: Final = FailoverLog()


def parse_failover_log(pairs: list[tuple[int, int]]) -> FailoverLog:
    """What a peer or a disk says, if it keeps I1 to I3; raises ValueError that names the entry."""
    entries: list[FailoverEntry] = []
    for at, (id, seq) in enumerate(pairs):
        if not 0 < id < 2**64:
            raise ValueError(f"entry {at}: {id:#x} is no failover id")
        if seq < NO_SEQ or (entries and seq > entries[-1].seq):
            raise ValueError(f"entry {at}: seq {seq} stands after a lower one or is negative")
        if any(entry.id == id for entry in entries):
            raise ValueError(f"entry {at}: id {id:016x} stands there twice")
        entries.append(FailoverEntry(FailoverId(id), Seq(seq)))
    if len(entries) > FAILOVER_ENTRIES_MAX:
        raise ValueError(f"it has {len(entries)} entries, more than {FAILOVER_ENTRIES_MAX}")
    return FailoverLog(tuple(entries))
