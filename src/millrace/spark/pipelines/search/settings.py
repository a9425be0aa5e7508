"""What a search index is asked for, and whether that can be."""

from enum import Enum
from typing import Final

import msgspec

from millrace.errors import UsageError
from millrace.spark.pipelines.search.texts import columns_of

SHARDS_DEFAULT: Final = 4
SHARDS_MAX: Final = 64
CHANGES_PER_BATCH_DEFAULT: Final = 50_000


class Tokenizer(Enum):
    WORDS = "words"  # Words of letters and digits; marks on letters do not count.
    STEMS = "stems"  # As words, and English endings do not count.
    PARTS = "parts"  # Any three signs in a row: finds parts of words.

    @property
    def fts5(self) -> str:
        return {"words": "unicode61", "stems": "porter unicode61", "parts": "trigram"}[self.value]


class SearchSettings(msgspec.Struct, frozen=True, kw_only=True):
    cluster: str  # Addresses of nodes of the cluster.
    bucket: str  # Whose documents are to be found.
    fields: tuple[str, ...] = ()  # What of the documents, as in title or author.name; else all.
    tokenizer: Tokenizer = Tokenizer.WORDS  # What counts as a word.
    key_prefix: str = ""  # Only documents whose keys begin so.
    shards: int = SHARDS_DEFAULT  # Into how many files the index is split; fixed for ever.
    changes_per_batch: int = CHANGES_PER_BATCH_DEFAULT  # At most so many in one batch.
    interval_ms: int = 0  # Begin a batch no more often than this.
    until_caught_up: bool = False  # End when all that was there at the start can be found.

    def __post_init__(self) -> None:
        """Raises UsageError."""
        columns_of(self.fields)
        if not 1 <= self.shards <= SHARDS_MAX:
            raise UsageError(f"shards = {self.shards}: choose 1 to {SHARDS_MAX}")
        if self.changes_per_batch < 1:
            raise UsageError(f"changes_per_batch = {self.changes_per_batch}: at least 1")
        if self.interval_ms < 0:
            raise UsageError(f"interval_ms = {self.interval_ms}: at least 0")
