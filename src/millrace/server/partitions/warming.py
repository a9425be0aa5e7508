"""Loading partitions from disk when a node starts.

Keys and metadata of all documents are loaded, values while there is room for them.  It is done in
bites, so that a node which is starting still answers, and values that were loaded leave memory
again as keys need it.

  I1  A partition that the disk does not give back whole is as if it were not here: the others
      serve, the keeper finds a copy missing, and what the disk has stays until it is made anew.
"""

import asyncio
from typing import Final

from millrace.core.documents.document import NO_SEQ, Document, PartitionId
from millrace.core.documents.partition_row import PartitionRow
from millrace.server.partitions.bucket import BucketPartitions
from millrace.store.documents.contract import CorruptDocument, DocumentStore

LOAD_DOCUMENTS: Final = 2_000
LOAD_BYTES: Final = 4 << 20  # What a bite should have, so that memory is not passed by far.


async def warm_up(bucket: BucketPartitions, store: DocumentStore) -> int:
    """How many documents were loaded.  Keeps I1."""
    loaded = 0
    for number in store.damaged(bucket.id):
        bucket.isolate(number, "its row is damaged on disk")
    for number, row in sorted(store.rows(bucket.id).items()):
        try:
            loaded += await _load(bucket, store, number, row)
        except CorruptDocument as error:
            bucket.isolate(number, str(error))
    bucket.warmed()
    return loaded


async def _load(
    bucket: BucketPartitions, store: DocumentStore, number: PartitionId, row: PartitionRow
) -> int:
    bucket.take(number, row)
    loaded, after, count_max = 0, NO_SEQ, 1
    while True:
        has_room = bucket.memory_bytes < bucket.attributes.memory_bytes
        documents = store.load(bucket.id, number, after, count_max, has_room)
        if not documents:
            return loaded
        bucket.load(number, documents, row)
        loaded += len(documents)
        after = documents[-1].seq
        count_max = _next_count(documents)
        await asyncio.sleep(0)


def _next_count(documents: list[Document]) -> int:
    """How many of the size that they had: values may be of any size, so the first bite is small."""
    size_bytes = sum(document.size for document in documents)
    return max(
        1, min(LOAD_DOCUMENTS, 8 * len(documents), LOAD_BYTES * len(documents) // size_bytes)
    )
