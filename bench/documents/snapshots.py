"""What snapshots of the write queue cost: time by the size of the queue, memory by their number.

Ten are held at once, and documents are written again between them, so that each is of another
moment and keeps something alive that the others do not.

1. Keys and values are shared by all documents, so that the queue's own memory is what is compared:
   with values the share of the snapshots would be smaller still.
2. Memory is traced in a pass of its own: tracing slows down what is timed.
"""

import gc
import random
import time
import tracemalloc
from collections.abc import Sequence
from statistics import median
from typing import Final

from bench.documents.results import SnapshotCost
from millrace.core.documents.document import Cas, Document, Seq
from millrace.core.documents.write_queue import QueueSnapshot, WriteQueue

HELD: Final = 10
WRITES_BETWEEN: Final = 100
TIMED: Final = 1_001
_SEED: Final = 6


def measure(counts: Sequence[int]) -> list[SnapshotCost]:
    return [SnapshotCost(count, *_times_ns(count), *_memory_bytes(count)) for count in counts]


def _times_ns(count: int) -> tuple[float, float]:
    queue, chance = _queue(count), random.Random(_SEED)
    snapshots_ns: list[int] = []
    writes_ns: list[int] = []
    gc.collect()
    gc.disable()
    try:
        for number in range(TIMED):
            document, older = _document(count + number + 1), Seq(chance.randrange(count) + 1)
            began_ns = time.perf_counter_ns()
            snapshot = queue.snapshot()
            between_ns = time.perf_counter_ns()
            queue.put(document, replaced=older)
            writes_ns.append(time.perf_counter_ns() - between_ns)
            snapshots_ns.append(between_ns - began_ns)
            del snapshot
    finally:
        gc.enable()
    return median(snapshots_ns), median(writes_ns)


def _memory_bytes(count: int) -> tuple[int, int]:
    """With one snapshot, and with all of them."""
    chance = random.Random(_SEED)
    gc.collect()
    tracemalloc.start()
    try:
        queue = _queue(count)
        held: list[QueueSnapshot] = [queue.snapshot()]
        one_bytes, _ = tracemalloc.get_traced_memory()
        for number in range((HELD - 1) * WRITES_BETWEEN):
            if number % WRITES_BETWEEN == 0:
                held.append(queue.snapshot())
            older = Seq(chance.randrange(count) + 1)
            queue.put(_document(count + number + 1), replaced=older)
        ten_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(held) == HELD
    return one_bytes, ten_bytes


def _queue(count: int) -> WriteQueue:
    queue = WriteQueue()
    for seq in range(1, count + 1):
        queue.put(_document(seq))
    return queue


def _document(seq: int) -> Document:
    return Document(b"key", b"value", Seq(seq), Cas(seq))
