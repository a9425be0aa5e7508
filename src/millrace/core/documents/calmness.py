"""Buckets that need not be looked at for a while, because nothing has happened to them.

A look asks every holder about every partition, and nearly always finds nothing to do: with fifty
buckets that was nearly all that an idle cluster cost.  What a look finds follows from the bucket's
record, from who lives, and from what the nodes say; and a node says another thing only after an
order, which follows a change of the record, or in another life of its process or lease, which
`Surroundings.lives` tells.  So a bucket is calm after a look that found all as it should be, until
one of these is another.

  I1  A bucket is calm only if time alone makes nothing due: nobody is missed, nothing is waited
      for, nothing is moved, wanted or left over, and every node has answered.
  I2  It stays calm only while what is listed, record and nodes, is what the look was about.  A
      look that learned in its middle who else lives is about nothing that will be listed: that node
      may be gone again (`tending.py`, I1).
  I3  What a `BucketWatch` remembers stays true meanwhile: its seats are those that stood before
      it is looked again who lives, the terms of its marks are the same, and nobody is missed.
  I4  It is looked at again after CALM_MS in any case.  That is for what no rule knows of: an order
      of another keeper that came late, and left a copy or a term that nobody wants.
"""

from collections.abc import Collection
from typing import Final

import msgspec

from millrace.core.documents.document import PartitionId
from millrace.core.documents.map import BucketRecord
from millrace.core.documents.seats import is_settled
from millrace.core.documents.settling import Hosted
from millrace.core.documents.watching import (
    NO_COPIES,
    Plan,
    Surroundings,
    by_partition,
)
from millrace.types import NO_NODE

CALM_MS: Final = (
    5_000  # As long as the silent are waited for: what has this much time has that, too.
)


class Calm(msgspec.Struct, frozen=True):
    record: BucketRecord
    around: Surroundings
    until_ms: int

    def lasts(self, record: BucketRecord, around: Surroundings, now_ms: int) -> bool:
        """Whether the bucket, as it is listed in this round, needs no look."""
        return now_ms < self.until_ms and record == self.record and around == self.around


def is_calm(
    record: BucketRecord,
    around: Surroundings,
    hosted: Hosted,
    plan: Plan,
    moving: Collection[PartitionId] = (),
) -> bool:
    """After a look.  Keeps I1."""
    if plan.changes or plan.moves or moving:
        return False
    if any(node not in hosted or not hosted[node].is_warm for node in around.live):
        return False
    seen = by_partition(hosted)
    for at, seat in enumerate(record.seats):
        copies = seen.get(PartitionId(at), NO_COPIES)
        if seat.active == NO_NODE or len(seat.replicas) > record.attributes.replicas:
            return False
        if not all(is_settled(seat, node, copies.get(node)) for node in {*seat.holders, *copies}):
            return False
    return True
