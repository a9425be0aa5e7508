"""A node's presence in its cluster: registration, and a lease that says it is alive.

I1  `live/<id>` exists only while this process renews its lease; after a pause longer than the
    lease the node takes a new one and appears again.
I2  A node id is used by one data directory: another live instance with the same id is refused.
I3  Whatever the node must say of itself before it is alive, because it lost its disk or was away
    for long, is said before it appears (`standing.py`).
I4  `held_until_s` never lies beyond the end of the lease as the repository counts it: it is
    reckoned from before each request that renews it.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable

from millrace.errors import BadConfiguration, MillraceError
from millrace.meta import keys
from millrace.meta.contract import ANY_VERSION, Conflict, Entry, LeaseExpired, Repository
from millrace.types import NodeInfo

LEASES_WAITED = 2  # Leases of a repository that has just restarted begin anew.
FORMER_CHECK_S = 0.1
Settle = Callable[[], Awaitable[None]]

logger = logging.getLogger("millrace")


async def join_cluster(repository: Repository, name: str) -> keys.ClusterInfo:
    """The cluster this repository belongs to; the first node makes it."""
    entry = await repository.get(keys.CLUSTER.key)
    info = keys.CLUSTER.find(entry)
    if info is None:
        fresh = keys.ClusterInfo(name, uuid.uuid4().hex)
        try:
            await repository.set(keys.CLUSTER.key, keys.CLUSTER.encode(fresh), 0)
            return fresh
        except Conflict as conflict:
            info = keys.CLUSTER.decode(conflict.current)
    if info.name != name:
        raise BadConfiguration(
            f"the metadata repository belongs to cluster {info.name!r}, "
            f"but cluster.name is {name!r}: correct one of them"
        )
    return info


async def _nothing_to_settle() -> None:
    pass


class Membership:
    def __init__(
        self,
        repository: Repository,
        info: NodeInfo,
        ttl_ms: int,
        settle: Settle = _nothing_to_settle,
    ) -> None:
        self._repository = repository
        self._settle = settle
        self._info = info
        self._ttl_ms = ttl_ms
        self._live = keys.LiveNode(info.id, info.instance, int(time.time() * 1000))
        self.lease = 0
        self.held_until_s = 0.0  # On the event loop's clock.
        self._is_announced = False  # The live key stands under the present lease.

    async def register(self) -> None:
        """Be known and alive; raises BadConfiguration if another instance has this id."""
        await self._wait_for_the_former()
        await self._settle()  # Keeps I3; what was registered before still stands.
        value = keys.NODES.encode(self._info)
        await self._repository.set(keys.NODES.key(self._info.id), value, ANY_VERSION)
        await self._announce()

    async def _wait_for_the_former(self) -> None:
        """Keeps I2.  A node that was killed and lost its disk finds its former self, which counts
        as alive until its lease ends; only one that stays alive is another node."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + LEASES_WAITED * self._ttl_ms / 1000
        while True:
            entry = await self._repository.get(keys.LIVE.key(self._info.id))
            other = keys.LIVE.find(entry)
            if other is None or other.instance == self._info.instance:
                return
            if loop.time() >= deadline_s:
                raise self._displaced(other)
            await asyncio.sleep(FORMER_CHECK_S)

    def _displaced(self, other: keys.LiveNode) -> BadConfiguration:
        return BadConfiguration(
            f"node {self._info.id} is alive with another data directory "
            f"({other.instance}): give this one another id"
        )

    async def keep(self) -> None:
        """Renew the lease for ever; a repository that is away, or not the one it was, is waited
        for.  Raises BadConfiguration if this node was replaced after its lease had run out."""
        while True:
            await asyncio.sleep(self._ttl_ms / 3000)
            if not self._is_announced:
                await self._try_announce()
                continue
            try:
                asked_s = asyncio.get_running_loop().time()
                await self._repository.keep_alive(self.lease)
                self.held_until_s = asked_s + self._ttl_ms / 1000
            except LeaseExpired:
                logger.warning("lease.expired", extra={"fields": {"node": self._info.id}})
                await self._try_announce()
            except MillraceError as error:
                logger.warning("metadata.unavailable", extra={"fields": {"detail": str(error)}})

    async def set_full(self, is_full: bool) -> None:
        # Only from the place it holds: another may be there when the lease has run out.
        if is_full != self._live.is_full and self._is_announced:
            before = self._live
            self._live = keys.LiveNode(before.id, before.instance, before.started_ms, is_full)
            try:
                await self._set_live()
            except (MillraceError, LeaseExpired):
                self._live = before  # Not told yet: the next round tells it.
                raise

    async def leave(self) -> None:
        """Stop being alive at once instead of after the lease."""
        self.held_until_s = 0.0
        if self.lease:
            try:
                await self._repository.revoke(self.lease)
            except (LeaseExpired, MillraceError):
                logger.info("lease.left_to_expire", extra={"fields": {"node": self._info.id}})

    async def _try_announce(self) -> None:
        self._is_announced = False
        try:
            await self._look_for_another()
            await self._settle()
            await self._announce()
        except BadConfiguration:
            raise  # Waiting does not help: somebody else is this node now.
        except (MillraceError, LeaseExpired) as error:
            logger.warning("metadata.unavailable", extra={"fields": {"detail": str(error)}})

    async def _announce(self) -> None:
        self._is_announced = False
        asked_s = asyncio.get_running_loop().time()
        self.lease = await self._repository.grant(self._ttl_ms)
        await self._take_place()
        self._is_announced = True
        self.held_until_s = asked_s + self._ttl_ms / 1000

    async def _take_place(self) -> None:
        while True:
            entry = await self._look_for_another()
            value = keys.LIVE.encode(self._live)
            try:
                await self._repository.set(entry.key, value, entry.version, self.lease)
            except Conflict:
                continue  # It came or went since: look again.
            return

    async def _look_for_another(self) -> Entry:
        """Keeps I2: a node that was paused may have been replaced meanwhile."""
        entry = await self._repository.get(keys.LIVE.key(self._info.id))
        other = keys.LIVE.find(entry)
        if other is not None and other.instance != self._info.instance:
            raise self._displaced(other)
        return entry

    async def _set_live(self) -> None:
        value = keys.LIVE.encode(self._live)
        await self._repository.set(keys.LIVE.key(self._info.id), value, ANY_VERSION, self.lease)
