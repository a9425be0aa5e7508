"""Versions of documents that come from elsewhere with the CAS they have there, pure.

Whoever copies documents between buckets offers each version as a `Revision`.  A master takes one if
it ranks above what it has, so a bucket is at any time the highest of all that it was offered and of
all that its own clients wrote: the order and the repetition of offers do not matter, and what comes
back to where it was made changes nothing.

I1  Ranks are a total order on what two copies can differ in: CAS first, then a deletion above a
    value, then the value's bytes, flags, expiry and datatype.
I2  A tombstone counts as long as it is kept, be it in memory or on disk alone.  Once it is purged,
    an older version may come back.
I3  A master's own changes rank above every revision that it took (`Partition.store_revision`).  So
    that nobody can put its clock out of reach, a CAS is refused that lies more than CAS_AHEAD_US
    before it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from millrace.core.documents.document import NO_CAS, Cas, ChangeKind, Document
from millrace.core.documents.partition import Partition

CAS_AHEAD_US: Final = 86_400 * 1_000_000  # A day: clocks of clusters differ by less.

Rank = tuple[int, bool, bytes, int, int, int]
Load = Callable[[Document], Document]  # With its value, from disk.


class Revision(msgspec.Struct, frozen=True, gc=False):
    """A version of a document: `value` None is its deletion.  `expiry_s` is in seconds since 1970,
    0 for never."""

    key: bytes
    value: bytes | None
    cas: Cas
    flags: int = 0
    expiry_s: int = 0
    datatype: int = 0

    @property
    def rank(self) -> Rank:
        """Keeps I1."""
        if self.value is None:
            return (self.cas, True, b"", 0, 0, 0)
        return (self.cas, False, self.value, self.flags, self.expiry_s, self.datatype)


def revision_of(document: Document) -> Revision:
    """Of a document that is there with its value, or of a tombstone."""
    if document.is_deleted:
        return Revision(document.key, None, document.cas)
    assert document.value is not None, "its value was loaded"
    return Revision(
        document.key,
        document.value,
        document.cas,
        document.flags,
        document.expiry_s,
        document.datatype,
    )


def is_possible(cas: int, now_us: int) -> bool:
    """Keeps I3."""
    return NO_CAS < cas <= now_us + CAS_AHEAD_US


def is_above(revision: Revision, held: Document | None, load: Load) -> bool:
    """Whether it ranks above what is held; `load` is asked only if their CAS are the same."""
    if held is None or revision.cas != held.cas:
        return held is None or revision.cas > held.cas
    if held.value is None:
        held = load(held)
    return revision.rank > revision_of(held).rank


def not_in_memory(partition: Partition, keys: Sequence[bytes]) -> list[bytes]:
    """Of these there may be tombstones on disk alone: give them to `take`.  Keeps I2."""
    table = partition.table
    return [key for key in keys if key not in table]


def take(
    partition: Partition,
    revisions: Sequence[Revision],
    buried: Mapping[bytes, Document],
    load: Load,
    now_us: int,
) -> list[Document | None]:
    """In their order, in one step; of each the change that it made, None if it did not rank above
    what was there.  `buried` are the tombstones that are on disk alone."""
    taken: list[Document | None] = []
    for revision in revisions:
        held = partition.table.get(revision.key) or buried.get(revision.key)
        if is_above(revision, held, load):
            taken.append(_store(partition, revision, now_us))
        else:
            taken.append(None)
    return taken


def _store(partition: Partition, revision: Revision, now_us: int) -> Document:
    if revision.value is None:
        # When it was made is when it was made here: it is kept as long as others are.
        made_s = now_us // 1_000_000
        return partition.store_revision(
            revision.key, b"", revision.cas, 0, made_s, ChangeKind.DELETION
        )
    return partition.store_revision(
        revision.key,
        revision.value,
        revision.cas,
        revision.flags,
        revision.expiry_s,
        ChangeKind.MUTATION,
        revision.datatype,
    )
