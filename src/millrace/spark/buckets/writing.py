"""The changes of one task on their way into a bucket.

Changes are gathered and written a piece at a time, one request for each node.  Of one key in a
piece only the last is written, which by `_commit_version`, if there is one, is the highest.

I1  Of two changes of one key within a task the one with the higher version stays, whichever comes
    first, as long as fewer than VERSIONS_MAX other keys come between them; without versions, and
    beyond, the one that comes later.
I2  `finish` returns when the nodes have answered for everything, as durably as was asked for.
I3  What may not have happened is done again until the time is up: a set or a deletion that is
    repeated changes nothing for whoever reads the document, a revision nothing at all.
I4  A task holds at most PIECE_ROWS changes of about PIECE_BYTES, and one batch of Spark's.
"""

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Final

from millrace.client import bucket_many
from millrace.client.bucket import Bucket
from millrace.client.bucket_revisions import overwrite
from millrace.core.documents.document import Cas
from millrace.core.documents.revisions import Revision
from millrace.limits import MIB
from millrace.spark.buckets.attempts import until_done
from millrace.spark.buckets.columns import Change
from millrace.spark.buckets.options import BucketOptions, Conflict

PIECE_ROWS: Final = 8_192
PIECE_BYTES: Final = 4 * MIB
VERSIONS_MAX: Final = 1_000_000
TYPED_AT_ONCE: Final = 256


class Writing:
    """Used by one task, in one thread."""

    def __init__(self, bucket: Bucket, options: BucketOptions) -> None:
        self.written = 0
        self._bucket = bucket
        self._options = options
        self._piece: dict[bytes, Change] = {}
        self._piece_bytes = 0
        self._versions: dict[bytes, int] = {}  # Of what was taken, oldest first.

    def add(self, changes: Iterable[Change]) -> None:
        for change in changes:
            if change.version is not None and not self._is_newest(change.key, change.version):
                continue
            self._piece[change.key] = change
            self._piece_bytes += len(change.key) + len(change.value or b"")
            if len(self._piece) >= PIECE_ROWS or self._piece_bytes >= PIECE_BYTES:
                self._send()

    def finish(self) -> None:
        """Keeps I2."""
        if self._piece:
            self._send()

    def _is_newest(self, key: bytes, version: int) -> bool:
        """Keeps I1."""
        before = self._versions.pop(key, None)
        if before is not None and before > version:
            self._versions[key] = before
            return False
        self._versions[key] = version
        if len(self._versions) > VERSIONS_MAX:
            del self._versions[next(iter(self._versions))]
        return True

    def _send(self) -> None:
        changes, self._piece, self._piece_bytes = list(self._piece.values()), {}, 0
        is_offer = self._options.conflict is Conflict.REVISION
        write = self._offer if is_offer else self._overwrite
        until_done(partial(write, changes), self._options.timeout_ms)  # Keeps I3.
        self.written += len(changes)

    async def _offer(self, changes: list[Change], timeout_ms: int) -> None:
        revisions = [_revision(each) for each in changes]
        durability = self._options.durability
        await self._bucket.write_revisions(revisions, durability=durability, timeout_ms=timeout_ms)

    async def _overwrite(self, changes: list[Change], timeout_ms: int) -> None:
        durability = self._options.durability
        stored = [
            (each.key, each.value, each.flags, each.expiry_s)
            for each in changes
            if each.value is not None and not each.datatype
        ]
        typed = [_revision(each) for each in changes if each.value is not None and each.datatype]
        gone = [each.key for each in changes if each.value is None]
        await bucket_many.set_documents(self._bucket, stored, durability, timeout_ms)
        await self._bucket.delete_many(gone, durability=durability, timeout_ms=timeout_ms)
        # No request for many says a datatype; few documents have one.
        for first in range(0, len(typed), TYPED_AT_ONCE):
            some = typed[first : first + TYPED_AT_ONCE]
            await asyncio.gather(
                *(overwrite(self._bucket, each, durability, timeout_ms) for each in some)
            )


def _revision(change: Change) -> Revision:
    return Revision(
        change.key, change.value, Cas(change.cas), change.flags, change.expiry_s, change.datatype
    )
