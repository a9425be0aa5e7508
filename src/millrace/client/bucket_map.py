"""Where the partitions of a bucket are, as far as this client knows.

I1  The map is never replaced by an older one: revisions only rise.
I2  However many requests find it out of date, it is read once at a time, and not again within
    RELOAD_PAUSE_S.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from millrace.core.documents.document import PartitionId
from millrace.core.documents.map import BucketRecord
from millrace.errors import UnknownBucket
from millrace.types import NodeId

RELOAD_PAUSE_S: Final = 0.02


class MapRead(msgspec.Struct, frozen=True):
    """A bucket's record, and where its nodes serve documents (host:port)."""

    record: BucketRecord
    addresses: Mapping[NodeId, str]


ReadMap = Callable[[], Awaitable[MapRead]]  # Raises UnknownBucket, MetadataUnavailable.


class PartitionMap:
    def __init__(self, read: MapRead, read_again: ReadMap) -> None:
        self.record = read.record
        self.masters: list[str] = []  # The address of each partition's master; "": there is none.
        self._addresses: Mapping[NodeId, str] = {}
        self._read_again = read_again
        self._reload: asyncio.Task[None] | None = None
        self._reloaded_s = 0.0
        self._take(read)

    def replicas(self, partition: PartitionId) -> list[str]:
        """The addresses of its replicas that are registered."""
        listed = (self._addresses.get(node, "") for node in self.record.seat(partition).replicas)
        return [address for address in listed if address]

    def by_address(self) -> dict[str, list[PartitionId]]:
        """The partitions of each master; those without one stand under ""."""
        found: dict[str, list[PartitionId]] = {}
        for number, address in enumerate(self.masters):
            found.setdefault(address, []).append(PartitionId(number))
        return found

    async def reload(self) -> None:
        """Raises UnknownBucket, MetadataUnavailable.  Keeps I2."""
        if self._reload is None or self._reload.done():
            self._reload = asyncio.create_task(self._read())
        await asyncio.shield(self._reload)

    async def close(self) -> None:
        if self._reload is not None:
            self._reload.cancel()
            await asyncio.gather(self._reload, return_exceptions=True)

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = self._reloaded_s + RELOAD_PAUSE_S - loop.time()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        try:
            self._take(await self._read_again())
        finally:
            self._reloaded_s = loop.time()

    def _take(self, read: MapRead) -> None:
        if read.record.id != self.record.id:
            raise UnknownBucket(
                f"bucket {self.record.name!r} was deleted, and another one made; open it again"
            )
        if read.record.revision < self.record.revision:  # Keeps I1.
            return
        self.record = read.record
        self._addresses = read.addresses
        self.masters = [read.addresses.get(seat.active, "") for seat in read.record.seats]
