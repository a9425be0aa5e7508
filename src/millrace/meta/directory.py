"""Typed access to what the repository holds: nodes, logs and who serves them, buckets, trim points.

I1  An address under which its node was not reached is looked up again by the next one who wants
    it, soon or not at all: without the repository the old one must do.
I2  What is listed again unchanged is the same object, also the whole view of the nodes: whoever
    looks often sees by `is` that there is nothing new (`decoded.py`).
I3  A wish for a bucket, a trim point or a sign of life that cannot be read is the trouble of its
    bucket, log or node alone.  Other records cannot be left out: what is not listed is not there.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from millrace.core.commit.record import CommitRecord
from millrace.core.documents.failover_request import FailoverRequest
from millrace.core.documents.map import BucketRecord
from millrace.core.documents.rebalance import RebalanceRecord
from millrace.core.epochs import EpochRecord, metadata_log_of
from millrace.core.procedure import ClusterView
from millrace.core.projection import Projection
from millrace.core.publications import PublicationRecord, app_key
from millrace.core.statuses import NodeStatusEntry, renewed, statuses_of
from millrace.errors import (
    LogExists,
    MetadataOutcomeUnknown,
    MillraceError,
    TooManyRequests,
    Unavailable,
    UnknownLog,
)
from millrace.meta import keys
from millrace.meta.contract import ANY_VERSION, Conflict, Entry, Repository
from millrace.meta.decoded import DecodedFamily
from millrace.types import FIRST_LSN, AuthoritativeStatus, LogId, LogInfo, Lsn, NodeId

LOOK_AGAIN_S: Final = 0.5
ChangeStatus = Callable[[NodeStatusEntry | None], NodeStatusEntry | None]


class ClusterDirectory:
    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.addresses: dict[NodeId, str] = {}  # As of the last `view`.
        self._doubted: set[NodeId] = set()
        self._listed: tuple[tuple[Entry, ...], tuple[Entry, ...]] = ((), ())
        self._view = ClusterView((), frozenset())
        self._lives = DecodedFamily(keys.LIVE)
        self._logs = DecodedFamily(keys.LOG_NAMES)
        self._projections = DecodedFamily(keys.PROJECTIONS)
        self._epochs = DecodedFamily(keys.EPOCHS)
        self._commits = DecodedFamily(keys.COMMITS)
        self._statuses = DecodedFamily(keys.STATUSES)
        self._rebuilds = DecodedFamily(keys.REBUILDS)
        self._trims = DecodedFamily(keys.TRIMS)
        self._buckets = DecodedFamily(keys.BUCKETS)
        self._rebalances = DecodedFamily(keys.REBALANCES)
        self._failovers = DecodedFamily(keys.FAILOVERS)
        self._publications = DecodedFamily(keys.PUBLICATIONS)

    # -- Nodes --------------------------------------------------------------------------------

    async def view(self) -> ClusterView:
        (nodes, _), (live, _) = await asyncio.gather(
            self.repository.list(keys.NODES.prefix), self.repository.list(keys.LIVE.prefix)
        )
        self._doubted.clear()
        if (nodes, live) != self._listed:  # Else keeps I2.
            infos = tuple(keys.NODES.decode(entry) for entry in nodes)
            lives, full = self._read_lives(live)
            self._listed = nodes, live
            self._view = ClusterView(infos, frozenset(lives), lives, full)
        self.addresses = {node.id: node.address for node in self._view.nodes}
        return self._view

    def _read_lives(self, live: tuple[Entry, ...]) -> tuple[dict[NodeId, int], frozenset[NodeId]]:
        """Who lives, and who of them takes nothing more.  Keeps I3: a node whose lease holds the
        key lives, whatever it says; as long as nobody understands it, it gets nothing new."""
        lives: dict[NodeId, int] = {}
        full: set[NodeId] = set()
        for node, said, version in self._lives.each(live):
            lives[node] = version
            if said is None or said.is_full:
                full.add(node)
        return lives, frozenset(full)

    async def address(self, node: NodeId) -> str | None:
        if node not in self.addresses:
            await self.view()
        elif node in self._doubted:
            self._doubted.discard(node)  # One look for each failure, however many ask.
            await self._look_again()
        return self.addresses.get(node)

    def known_address(self, node: NodeId) -> str | None:
        """What `address` gives at once; None: it would have to look."""
        return None if node in self._doubted else self.addresses.get(node)

    def not_reached(self, node: NodeId, address: str, error: Unavailable) -> None:
        """Tell what came of an ask that failed; keeps I1."""
        is_crowded = isinstance(error, TooManyRequests)  # It is there.
        if error.is_definite and not is_crowded and self.addresses.get(node) == address:
            self._doubted.add(node)

    async def _look_again(self) -> None:
        try:
            async with asyncio.timeout(LOOK_AGAIN_S):
                await self.view()
        except (TimeoutError, MillraceError):
            pass  # Keeps I1.

    # -- Statuses -----------------------------------------------------------------------------

    async def statuses(self) -> Mapping[NodeId, AuthoritativeStatus]:
        """Of the nodes that have an entry; the others are FULLY_AUTHORITATIVE."""
        return statuses_of(await self.status_entries())

    async def status_entries(self) -> dict[NodeId, NodeStatusEntry]:
        listed, _ = await self.repository.list(keys.STATUSES.prefix)
        return self._statuses.by_id(listed)

    async def change_status(self, node: NodeId, change: ChangeStatus) -> NodeStatusEntry | None:
        """Replace a node's entry by what `change` makes of the one that stands; None leaves it.
        The entry that stands afterwards."""
        while True:
            found = await self.repository.get(keys.STATUSES.key(node))
            current = keys.STATUSES.find(found)
            changed = change(current)
            if changed is None:
                return current
            try:
                value = keys.STATUSES.encode(changed)
                await self.repository.set(found.key, value, found.version)
            except Conflict:
                continue
            return changed

    async def renew_rebuilds(self, nodes: Iterable[NodeId]) -> Mapping[NodeId, AuthoritativeStatus]:
        """The statuses afterwards."""
        for node in nodes:
            await self.change_status(node, renewed)
        return await self.statuses()

    async def rebuild_reports(self) -> dict[keys.RebuildId, keys.RebuildReport]:
        listed, _ = await self.repository.list(keys.REBUILDS.prefix)
        return self._rebuilds.by_id(listed)

    async def report_rebuild(self, id: keys.RebuildId, report: keys.RebuildReport) -> None:
        """Nobody else writes it."""
        key, value = keys.REBUILDS.key(id), keys.REBUILDS.encode(report)
        await self.repository.set(key, value, ANY_VERSION)

    # -- Projections --------------------------------------------------------------------------

    async def read_projection(self, log: LogId) -> tuple[Projection | None, int]:
        entry = await self.repository.get(keys.PROJECTIONS.key(log))
        return self._projections.find(entry), entry.version

    async def replace_projection(self, projection: Projection, expected: int) -> bool:
        key = keys.PROJECTIONS.key(projection.log)
        try:
            await self.repository.set(key, keys.PROJECTIONS.encode(projection), expected)
        except Conflict:
            return False
        except MetadataOutcomeUnknown:
            # Projections of one log all differ in their epoch or chain: look whether it is ours.
            current, _ = await self.read_projection(projection.log)
            return current == projection
        return True

    async def projections(self) -> list[Projection]:
        entries, _ = await self.repository.list(keys.PROJECTIONS.prefix)
        return self._projections.listed(entries)

    # -- Epochs -------------------------------------------------------------------------------

    async def read_epochs(self, log: LogId) -> tuple[EpochRecord | None, int]:
        entry = await self.repository.get(keys.EPOCHS.key(log))
        return self._epochs.find(entry), entry.version

    async def replace_epochs(self, record: EpochRecord, expected: int) -> bool:
        key = keys.EPOCHS.key(record.log)
        try:
            await self.repository.set(key, keys.EPOCHS.encode(record), expected)
        except Conflict:
            return False
        except MetadataOutcomeUnknown:
            # Only the sequencer of an epoch writes a record that names it: look whether it is ours.
            current, _ = await self.read_epochs(record.log)
            return current == record
        return True

    async def epochs(self) -> list[EpochRecord]:
        entries, _ = await self.repository.list(keys.EPOCHS.prefix)
        return self._epochs.listed(entries)

    # -- Commits ------------------------------------------------------------------------------

    async def read_commits(self, log: LogId) -> tuple[CommitRecord | None, int]:
        entry = await self.repository.get(keys.COMMITS.key(log))
        return self._commits.find(entry), entry.version

    async def replace_commits(self, record: CommitRecord, expected: int) -> int:
        """The new version; 0 if somebody else was first."""
        key = keys.COMMITS.key(record.log)
        try:
            entry = await self.repository.set(key, keys.COMMITS.encode(record), expected)
        except Conflict:
            return 0
        except MetadataOutcomeUnknown:
            # Only the committer of a term writes a record that names it: look whether it is ours.
            current, version = await self.read_commits(record.log)
            return version if current == record else 0
        return entry.version

    async def commits(self) -> list[CommitRecord]:
        entries, _ = await self.repository.list(keys.COMMITS.prefix)
        return self._commits.listed(entries)

    # -- Logs ---------------------------------------------------------------------------------

    async def find_log(self, name: str) -> LogInfo:
        entry = await self.repository.get(keys.LOG_NAMES.key(name))
        info = keys.LOG_NAMES.find(entry)
        if info is None:
            raise UnknownLog(f"there is no log {name!r}; `millrace log ls` lists the logs")
        return info

    async def logs(self) -> list[LogInfo]:
        entries, _ = await self.repository.list(keys.LOG_NAMES.prefix)
        return self._logs.listed(entries)

    async def next_log_id(self) -> LogId:
        """A number no log has or had."""
        return LogId(await self._next_number(keys.NEXT_LOG_ID, keys.FIRST_LOG_ID))

    async def _next_number(self, counter: keys.SingleKey[int], first: int) -> int:
        while True:
            entry = await self.repository.get(counter.key)
            number = counter.find(entry) or first
            try:
                await self.repository.set(counter.key, counter.encode(number + 1), entry.version)
            except Conflict:
                continue
            return number

    async def add_log(self, info: LogInfo) -> None:
        key = keys.LOG_NAMES.key(info.name)
        try:
            await self.repository.set(key, keys.LOG_NAMES.encode(info), 0)
        except Conflict as conflict:
            raise LogExists(f"there is a log {info.name!r} already") from conflict

    async def remove_log(self, info: LogInfo) -> None:
        """The name first: nobody finds the log any more."""
        await self._remove(keys.LOG_NAMES.key(info.name))
        await self.remove_projection(info.id)

    async def remove_projection(self, log: LogId) -> None:
        """All that is left of a log without a name."""
        await self._remove(keys.PROJECTIONS.key(log))
        await self._remove(keys.EPOCHS.key(log))
        await self._remove(keys.EPOCHS.key(metadata_log_of(log)))
        await self._remove(keys.COMMITS.key(log))
        await self._remove(keys.TRIMS.key(log))

    async def _remove(self, key: str) -> None:
        entry = await self.repository.get(key)
        if entry.version:
            await self.repository.delete(key, ANY_VERSION)

    async def _remove_at(self, key: str, version: int) -> None:
        """Unless somebody has changed it."""
        with contextlib.suppress(Conflict, MetadataOutcomeUnknown):
            await self.repository.delete(key, version)

    # -- Buckets ------------------------------------------------------------------------------

    async def next_bucket_id(self) -> int:
        """A number no bucket has or had."""
        return await self._next_number(keys.NEXT_BUCKET_ID, keys.FIRST_BUCKET_ID)

    async def unused_bucket_id(self) -> int:
        """No bucket has had this number, nor any above it."""
        entry = await self.repository.get(keys.NEXT_BUCKET_ID.key)
        return keys.NEXT_BUCKET_ID.find(entry) or keys.FIRST_BUCKET_ID

    async def read_bucket(self, name: str) -> tuple[BucketRecord | None, int]:
        entry = await self.repository.get(keys.BUCKETS.key(name))
        return self._buckets.find(entry), entry.version

    async def replace_bucket(self, record: BucketRecord, expected: int) -> int:
        """The new version; 0 if somebody else was first."""
        key = keys.BUCKETS.key(record.name)
        try:
            entry = await self.repository.set(key, keys.BUCKETS.encode(record), expected)
        except Conflict:
            return 0
        except MetadataOutcomeUnknown:
            # Who changes a seat gives it a term or an id of its own: look whether it is ours.
            current, version = await self.read_bucket(record.name)
            return version if current == record else 0
        return entry.version

    async def buckets(self) -> list[BucketRecord]:
        entries, _ = await self.repository.list(keys.BUCKETS.prefix)
        return self._buckets.listed(entries)

    async def remove_bucket(self, name: str) -> None:
        """The nodes are told by the keeper to drop what they hold of it.  What was wanted of it
        goes with it, unless it was changed meanwhile: it may be wanted of the next of its name."""
        wanted = (keys.REBALANCES.key(name), keys.FAILOVERS.key(name))
        wishes = [await self.repository.get(key) for key in wanted]
        await self._remove(keys.BUCKETS.key(name))
        for wish in wishes:
            if wish.version:
                await self._remove_at(wish.key, wish.version)

    async def read_rebalance(self, bucket: str) -> tuple[RebalanceRecord | None, int]:
        entry = await self.repository.get(keys.REBALANCES.key(bucket))
        return keys.REBALANCES.find(entry), entry.version

    async def last_rebalance(self, bucket: BucketRecord) -> RebalanceRecord | None:
        """Of this bucket, not of one that had its name."""
        record, _ = await self.read_rebalance(bucket.name)
        return record if record is not None and record.is_of(bucket.id) else None

    async def rebalances(self) -> dict[str, tuple[RebalanceRecord, int]]:
        """By bucket, with the versions to replace them at.  Keeps I3: an unreadable one is none."""
        entries, _ = await self.repository.list(keys.REBALANCES.prefix)
        return {
            name: (record, version)
            for name, record, version in self._rebalances.each(entries)
            if record is not None
        }

    async def replace_rebalance(self, bucket: str, record: RebalanceRecord, expected: int) -> bool:
        """Whether nobody else was first."""
        key = keys.REBALANCES.key(bucket)
        try:
            await self.repository.set(key, keys.REBALANCES.encode(record), expected)
        except Conflict:
            return False
        except MetadataOutcomeUnknown:
            current, _ = await self.read_rebalance(bucket)
            return current == record
        return True

    async def read_failover(self, bucket: str) -> tuple[FailoverRequest | None, int]:
        entry = await self.repository.get(keys.FAILOVERS.key(bucket))
        return keys.FAILOVERS.find(entry), entry.version

    async def last_failover(self, bucket: BucketRecord) -> FailoverRequest | None:
        """As `last_rebalance`."""
        request, _ = await self.read_failover(bucket.name)
        return request if request is not None and request.is_of(bucket.id) else None

    async def failovers(self) -> dict[str, tuple[FailoverRequest, int]]:
        """As `rebalances`."""
        entries, _ = await self.repository.list(keys.FAILOVERS.prefix)
        return {
            name: (record, version)
            for name, record, version in self._failovers.each(entries)
            if record is not None
        }

    async def replace_failover(self, bucket: str, request: FailoverRequest, expected: int) -> bool:
        """Whether nobody else was first."""
        key = keys.FAILOVERS.key(bucket)
        try:
            await self.repository.set(key, keys.FAILOVERS.encode(request), expected)
        except Conflict:
            return False
        except MetadataOutcomeUnknown:
            current, _ = await self.read_failover(bucket)
            return current == request
        return True

    # -- Publications -------------------------------------------------------------------------

    async def read_publication(self, app: str) -> tuple[PublicationRecord | None, int]:
        entry = await self.repository.get(keys.PUBLICATIONS.key(app_key(app)))
        return keys.PUBLICATIONS.find(entry), entry.version

    async def replace_publication(self, record: PublicationRecord, expected: int) -> int:
        """The new version; 0 if somebody else was first."""
        key = keys.PUBLICATIONS.key(app_key(record.app))
        try:
            entry = await self.repository.set(key, keys.PUBLICATIONS.encode(record), expected)
        except Conflict:
            return 0
        except MetadataOutcomeUnknown:
            # Marks are drawn, and what is noted is the same whoever does it: look whether it is so.
            current, version = await self.read_publication(record.app)
            return version if current == record else 0
        return entry.version

    async def publications(self) -> list[PublicationRecord]:
        entries, _ = await self.repository.list(keys.PUBLICATIONS.prefix)
        return self._publications.listed(entries)

    async def remove_publication(self, app: str, expected: int) -> None:
        """Unless somebody has changed it."""
        await self._remove_at(keys.PUBLICATIONS.key(app_key(app)), expected)

    # -- Trim points --------------------------------------------------------------------------

    async def trim_end(self, log: LogId) -> Lsn:
        entry = await self.repository.get(keys.TRIMS.key(log))
        trimmed = keys.TRIMS.find(entry)
        return FIRST_LSN if trimmed is None else trimmed.end

    async def trim_ends(self) -> dict[LogId, Lsn | None]:
        """Of the logs that were trimmed.  None: it cannot be read.  Keeps I3."""
        entries, _ = await self.repository.list(keys.TRIMS.prefix)
        return {
            log: None if trimmed is None else trimmed.end
            for log, trimmed, _ in self._trims.each(entries)
        }

    async def raise_trim(self, log: LogId, end: Lsn) -> Lsn:
        """Move the trim point up to `end`, never down (L7); the point that stands now."""
        while True:
            entry = await self.repository.get(keys.TRIMS.key(log))
            current = keys.TRIMS.find(entry)
            if current is not None and current.end >= end:
                return current.end
            value = keys.TRIMS.encode(keys.Trimmed(end))
            try:
                await self.repository.set(entry.key, value, entry.version)
            except Conflict:
                continue
            return end
