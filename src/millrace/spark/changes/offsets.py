"""Offset documents of a query of changes, as its checkpoint keeps them.

    {"bucket": {"id": 3, "name": "users"}, "cluster": "5f0c...",
     "partitions": {"0": {"era": 0, "first": 7, "last": 7, "log": [["00000000cafe0001", 0]],
                          "seq": 7}, ...},
     "ring": {"log": "@ring/9c1e", "next": 12}}

`seq` is the last change that was read, in the snapshot (first, last], and `log` the failover log of
the master, with which a later one is compared.  A partition that the micro-batch reads says in
`from` where it is read from; then it may have been read further than `seq`, and the receipts in the
ring, from `next` on, say how far.

I1  The same place has the same text: Spark compares texts to see whether there is anything new.
I2  A micro-batch can be planned from its last offset alone.  What is in doubt is so until it is
    read: a place is `doubtful` also in batches that do not read it.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from millrace.core.documents.change_query import PartitionRange, QueryPlace, Settled
from millrace.core.documents.document import SEQ_MAX, PartitionId, Seq
from millrace.core.documents.failover_log import parse_failover_log
from millrace.core.documents.map import BucketRecord
from millrace.errors import UsageError


class PlaceDocument(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    rename={"before": "from"},
):
    seq: int
    first: int
    last: int | None = None  # Not known.
    log: tuple[tuple[str, int], ...] = ()
    era: int = 0
    since: int = 0
    before: "PlaceDocument | None" = None
    cut: bool = False
    doubtful: bool = False


class BucketDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: int
    name: str


class RingDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    log: str
    next: int  # What lies before it is settled.
    batch: int = 0  # Where receipts of the micro-batch may lie, not below `next`.


class ChangesOffset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cluster: str
    bucket: BucketDocument
    partitions: dict[str, PlaceDocument]
    ring: RingDocument

    def document(self) -> dict[str, Any]:
        """Keeps I1."""
        numbers = sorted(self.partitions, key=int)
        places = {number: _sorted(self.partitions[number]) for number in numbers}
        ring = {"batch": self.ring.batch, "log": self.ring.log, "next": self.ring.next}
        bucket = {"id": self.bucket.id, "name": self.bucket.name}
        return {"bucket": bucket, "cluster": self.cluster, "partitions": places, "ring": ring}

    def places(self) -> dict[PartitionId, QueryPlace]:
        return {PartitionId(int(at)): place_of(each) for at, each in self.partitions.items()}


def _sorted(place: PlaceDocument) -> dict[str, Any]:
    found = msgspec.to_builtins(place)
    if place.before is not None:
        found["from"] = _sorted(place.before)
    return dict(sorted(found.items()))


def document_of(place: QueryPlace, read: PartitionRange | None = None) -> PlaceDocument:
    """`read`: what the micro-batch reads of the partition."""
    log = tuple((f"{entry.id:016x}", int(entry.seq)) for entry in place.log.entries)
    last = None if place.last == SEQ_MAX else place.last
    document = PlaceDocument(place.seq, place.first, last, log, place.era, place.since)
    if read is None:
        return document
    return msgspec.structs.replace(
        document, before=document_of(read.place), cut=read.is_cut, doubtful=read.is_doubtful
    )


def unread(settled: Settled) -> PlaceDocument:
    """Of a partition that the micro-batch does not read: what is in doubt stays so."""
    return msgspec.structs.replace(document_of(settled.place), doubtful=settled.is_doubtful)


def place_of(document: PlaceDocument) -> QueryPlace:
    """Raises UsageError if the log is none."""
    try:
        log = parse_failover_log([(int(id, 16), seq) for id, seq in document.log])
    except ValueError as problem:
        raise UsageError(f"the checkpoint holds a failover log that is none: {problem}") from None
    last = SEQ_MAX if document.last is None else Seq(document.last)
    first, since = Seq(document.first), Seq(document.since)
    return QueryPlace(log, Seq(document.seq), first, last, document.era, since)


def ranges_of(offset: ChangesOffset) -> list[PartitionRange]:
    """What the micro-batch that ends there reads.  Keeps I2."""
    return [
        PartitionRange(
            PartitionId(int(number)),
            place_of(each.before),
            Seq(each.seq),
            each.cut,
            each.doubtful,
        )
        for number, each in offset.partitions.items()
        if each.before is not None
    ]


def parse(document: Mapping[str, Any]) -> ChangesOffset:
    try:
        return msgspec.convert(dict(document), ChangesOffset)
    except msgspec.ValidationError as problem:
        raise UsageError(
            f"the checkpoint holds an offset that is not of a bucket's changes ({problem}): "
            f"{str(document)[:200]}; give the query a checkpointLocation of its own"
        ) from None


def check_whose(offset: ChangesOffset, cluster: str, record: BucketRecord) -> None:
    """That the checkpoint is of this cluster and bucket; raises UsageError."""
    if offset.cluster != cluster:
        raise UsageError(
            f"the checkpoint belongs to the cluster {offset.cluster}, the option cluster leads to "
            f"{cluster}: correct the option, or give the query a new checkpointLocation"
        )
    if offset.bucket.name != record.name:
        raise UsageError(
            f"the checkpoint belongs to the bucket {offset.bucket.name!r}, the option bucket says "
            f"{record.name!r}: correct the option, or give the query a new checkpointLocation"
        )


def remade(offset: ChangesOffset, record: BucketRecord) -> str:
    """What is wrong if the bucket is another one than the checkpoint's; empty if it is not."""
    if offset.bucket.id == record.id:
        return ""
    return (
        f"bucket {record.name!r} was deleted and made again since the checkpoint was written (its "
        f"id was {offset.bucket.id}, it is {record.id}): what was read is not there any more; give "
        "the query a new checkpointLocation and begin anew, or set failOnDataLoss=false to go on "
        "with the new one"
    )
