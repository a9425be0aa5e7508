"""How thorough a run of the benchmark of documents is."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class DocumentsProfile:
    name: str
    rounds: int
    documents: int  # Read or stored in a round, of keys and values.
    changes: int  # Streamed in a round; together less than a node lets wait for the disk.
    queued: tuple[int, ...]  # Documents in the write queues whose snapshots are measured.


DOCUMENTS_FULL: Final = DocumentsProfile("full", 5, 200_000, 300_000, (1_000, 1_000_000))
DOCUMENTS_QUICK: Final = DocumentsProfile("quick", 3, 30_000, 60_000, (1_000, 1_000_000))
