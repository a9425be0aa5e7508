"""Where the blocks of a sequenced log's epochs lie, as a client knows it.

The metadata repository tells the newest nodeset, which is all that most readers need; the log's
metadata log tells the older ones.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from millrace.codec.blocks import values
from millrace.core.epochs import EpochRange, EpochRecord, NodesetChange, ranges
from millrace.core.procedure import Failure
from millrace.core.sequenced.metadata_log import read_changes
from millrace.errors import MetadataUnavailable, UnknownLog
from millrace.types import AuthoritativeStatus, Epoch, LogInfo, NodeId

if TYPE_CHECKING:
    from millrace.client.cluster import Client

READ_TIMEOUT_MS = 30_000


class Known(msgspec.Struct, frozen=True):
    """What a read stream asks for with NeedEpochs."""

    ranges: tuple[EpochRange, ...]
    record: EpochRecord
    locations: Mapping[NodeId, str]
    statuses: Mapping[NodeId, AuthoritativeStatus]

    @property
    def newest(self) -> Epoch:
        return self.record.epoch

    @property
    def clean(self) -> Epoch:
        return self.record.clean


class EpochHistory:
    def __init__(self, client: "Client", info: LogInfo, record: EpochRecord) -> None:
        self._client = client
        self._info = info
        self.record = record  # The newest seen.
        self._changes: tuple[NodesetChange, ...] = ()
        self._changes_until = Epoch(0)  # They are all that there are up to this epoch.

    async def refresh(self) -> EpochRecord:
        record, _ = await self._client.directory.read_epochs(self._info.id)
        if record is None:
            raise UnknownLog(f"log {self._info.name!r} was deleted")
        if record.epoch >= self.record.epoch:
            self.record = record
        return self.record

    async def known(self, epoch: Epoch) -> Known:
        """All that is known of epochs from this one on.  Raises UnknownLog, MetadataUnavailable.

        Whoever is empty by the statuses, which are read first, has given its copies to nodes that
        the ranges have."""
        statuses = await self._client.directory.statuses()
        record = await self.refresh()
        if epoch < record.since and self._changes_until < record.since:
            await self._read_changes(record)
        view = await self._client.directory.view()
        locations = {node.id: node.location for node in view.nodes}
        return Known(ranges(self._changes, record), record, locations, statuses)

    async def _read_changes(self, record: EpochRecord) -> None:
        procedure = read_changes(self._info.id, values)
        changes = await self._client.runner.run(procedure, READ_TIMEOUT_MS)
        if isinstance(changes, Failure):
            raise MetadataUnavailable(f"log {self._info.name!r}: {changes.detail}")
        self._changes = changes
        self._changes_until = record.since
