"""Where a commit log's streams lie, as a client knows it: the newest record, and for a read stream
the nodes and the copies that the record speaks of.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from millrace.core.commit.reading import LAST_EPOCH, LossCheck, range_of
from millrace.core.commit.record import CommitRecord
from millrace.core.epochs import EpochRange
from millrace.errors import UnknownLog
from millrace.types import AuthoritativeStatus, Epoch, LogInfo, NodeId

if TYPE_CHECKING:
    from millrace.client.cluster import Client


class CommitKnown(msgspec.Struct, frozen=True):
    """What a read stream asks for with NeedEpochs."""

    ranges: tuple[EpochRange, ...]
    newest: Epoch
    locations: Mapping[NodeId, str]
    statuses: Mapping[NodeId, AuthoritativeStatus]

    @property
    def clean(self) -> Epoch:
        return self.newest  # There are no epochs that could end.


class CommitRecords:
    def __init__(self, client: "Client", info: LogInfo, record: CommitRecord) -> None:
        self._client = client
        self._info = info
        self.record = record  # The newest seen.

    async def refresh(self) -> CommitRecord:
        record, _ = await self._client.directory.read_commits(self._info.id)
        if record is None:
            raise UnknownLog(f"log {self._info.name!r} was deleted")
        self.record = record
        self._client.streams.learn(record)
        return record


class CommitNodes:
    """For one read stream: what it is told is what its losses are held against."""

    def __init__(self, client: "Client", records: CommitRecords) -> None:
        self._client = client
        self._records = records
        self.check = LossCheck()

    async def known(self, _: Epoch) -> CommitKnown:
        """Raises UnknownLog, MetadataUnavailable."""
        record = await self._records.refresh()
        self.check.tell(record)
        view = await self._client.directory.view()
        locations = {node.id: node.location for node in view.nodes}
        return CommitKnown((range_of(record),), LAST_EPOCH, locations, {})
