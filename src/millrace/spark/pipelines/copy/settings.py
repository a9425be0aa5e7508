"""What a copy is asked for, and whether that can be."""

import re
from typing import Final

import msgspec

from millrace.errors import UsageError
from millrace.limits import DOCUMENT_KEY_BYTES_MAX
from millrace.spark.buckets.options import DURABILITIES

CHANGES_PER_BATCH_DEFAULT: Final = 50_000
ROLLBACK_KEYS_DEFAULT: Final = 200_000


class CopySettings(msgspec.Struct, frozen=True, kw_only=True):
    cluster: str  # Addresses of nodes of the cluster to copy from.
    bucket: str  # The bucket to copy.
    target_cluster: str  # Addresses of nodes of the cluster to copy to.
    target: str = ""  # The bucket there; the same name if it is not said.
    two_way: bool = False  # Also from the target to the source.
    key_prefix: str = ""  # Only documents whose keys begin so.
    key_pattern: str = ""  # Only documents whose keys hold this regular expression.
    durability: str = "majority"  # When a document counts as copied: none, majority, ...
    give_back: bool = True  # What a failover of the source lost, and the target has, goes back.
    rollback_keys: int = ROLLBACK_KEYS_DEFAULT  # Of so many changes a failover is noticed by key.
    changes_per_batch: int = CHANGES_PER_BATCH_DEFAULT  # At most so many in one batch.
    interval_ms: int = 0  # Begin a batch no more often than this.
    until_caught_up: bool = False  # End when all that was there at the start is copied.

    def __post_init__(self) -> None:
        """Raises UsageError."""
        if self.changes_per_batch < 1:
            raise UsageError(f"changes_per_batch = {self.changes_per_batch}: at least 1")
        if self.interval_ms < 0:
            raise UsageError(f"interval_ms = {self.interval_ms}: at least 0")
        if self.rollback_keys < 0:
            raise UsageError(f"rollback_keys = {self.rollback_keys}: at least 0")
        if self.durability not in DURABILITIES:
            raise UsageError(
                f"durability = {self.durability!r}: give one of {', '.join(DURABILITIES)}"
            )
        self._check_keys()
        if (self.target_cluster, self.target_bucket) == (self.cluster, self.bucket):
            raise UsageError(
                f"target = {self.target_bucket!r} of the same cluster is the bucket itself: give "
                "another target_cluster, or another target"
            )

    def _check_keys(self) -> None:
        if len(self.key_prefix.encode()) > DOCUMENT_KEY_BYTES_MAX:
            raise UsageError(f"key_prefix: keys have at most {DOCUMENT_KEY_BYTES_MAX} bytes")
        try:
            re.compile(self.key_pattern.encode())
        except re.error as problem:
            raise UsageError(
                f"key_pattern = {self.key_pattern!r} is not a regular expression: {problem}"
            ) from None

    @property
    def target_bucket(self) -> str:
        return self.target or self.bucket
