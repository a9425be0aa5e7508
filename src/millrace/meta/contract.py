"""What the rest of Millrace asks of a metadata repository.

I1  Operations are linearizable.
I2  The version of a key grows with each change of it; an absent key has version 0.
I3  A watch from a listing's revision misses no change, or says that it lost some.
I4  Keys that were set under a lease vanish soon after it expires or is revoked, not before.
"""

from collections.abc import AsyncGenerator
from typing import Protocol

import msgspec


class Entry(msgspec.Struct, frozen=True):
    key: str
    value: bytes
    version: int  # 0: absent.
    lease: int = 0


class Change(msgspec.Struct, frozen=True):
    """Changes seen by a watch, in order; `lost` tells the watcher to list again."""

    entries: tuple[Entry, ...]  # version 0: deleted.
    revision: int
    lost: bool = False


class Conflict(Exception):
    """Compare-and-set found another version; `current` is what is there."""

    def __init__(self, current: Entry) -> None:
        super().__init__(f"{current.key} is at version {current.version}")
        self.current = current


class LeaseExpired(Exception):
    """The lease is unknown or has run out."""


ANY_VERSION = -1


class Repository(Protocol):
    """Raises MetadataUnavailable when it cannot be reached in time."""

    async def get(self, key: str) -> Entry: ...

    async def set(self, key: str, value: bytes, expected: int, lease: int = 0) -> Entry:
        """Compare-and-set; raises Conflict, or LeaseExpired if `lease` is unknown."""

    async def delete(self, key: str, expected: int) -> None: ...

    async def list(self, prefix: str) -> tuple[tuple[Entry, ...], int]:
        """Entries in key order, and the revision to watch from."""

    def watch(self, prefix: str, revision: int) -> AsyncGenerator[Change, None]:
        """Every change after `revision`, until closed; a change that is `lost` is the last.
        When the repository stays away, raises MetadataUnavailable: watch on from the revision
        of the last change."""

    async def grant(self, ttl_ms: int) -> int: ...

    async def keep_alive(self, lease: int) -> None: ...

    async def revoke(self, lease: int) -> None: ...

    async def close(self) -> None: ...
