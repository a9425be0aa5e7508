"""A process that flushes documents for ever and prints what was acknowledged; made to be killed.

Write n puts into each partition the documents that `flushed` tells, and n into the row; now and
then it wipes one, drops and makes one anew, or removes what it put before.
"""

import itertools
import random
import sys
from pathlib import Path

from millrace.core.documents.document import Document, PartitionId
from millrace.limits import MIB
from millrace.store.contract import StoreFailed
from millrace.store.documents.contract import PartitionBatch
from tests.conformance.document_store_rig import BUCKET, doc, row_at, tombstone
from tests.store.documents_rig import LmdbDocumentRig

MAP_BYTES = 512 * MIB
PARTITIONS = tuple(PartitionId(at) for at in range(3))
KEYS = 40
WRITES_AHEAD = 5  # Under way at any time.


def flushed(number: int, partition: PartitionId) -> PartitionBatch:
    """What write `number`, from 1, does to a partition."""
    choices = random.Random(f"{number}/{partition}")
    documents: list[Document] = []
    for at in range(choices.randrange(8)):
        key, seq = f"k{choices.randrange(KEYS)}", 10 * number + at
        if choices.random() < 0.2:
            documents.append(tombstone(key, seq))
        else:
            documents.append(doc(key, seq, choices.randbytes(choices.choice([0, 100, 20_000]))))
    removed = [f"k{choices.randrange(KEYS)}".encode() for _ in range(choices.randrange(3))]
    is_wipe = choices.random() < 0.02
    return PartitionBatch(BUCKET, partition, row_at(number), documents, removed, (), is_wipe)


def is_dropped_before(number: int) -> bool:
    """Whether partition 0 is dropped just before this write."""
    return number % 17 == 0


def report(number: int, failure: StoreFailed | None) -> None:
    assert failure is None, failure
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def write_for_ever(rig: LmdbDocumentRig, begin: int) -> None:
    acknowledged: list[int] = []

    def told(number: int, failure: StoreFailed | None) -> None:
        report(number, failure)
        acknowledged.append(number)

    for number in itertools.count(begin):
        if is_dropped_before(number):
            rig.store.drop(BUCKET, PARTITIONS[0], lambda failure: None)
        batches = [flushed(number, partition) for partition in PARTITIONS]
        rig.store.write(batches, lambda failure, number=number: told(number, failure))  # type: ignore[misc]
        rig.run_until(lambda begun=number + 1 - begin: begun - len(acknowledged) < WRITES_AHEAD)  # type: ignore[misc]


if __name__ == "__main__":
    write_for_ever(LmdbDocumentRig(Path(sys.argv[1]), MAP_BYTES), int(sys.argv[2]))
