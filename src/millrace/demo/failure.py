"""Kills a node of the log's chain half-way and waits until the log has all its copies again."""

import asyncio
import time
from contextlib import aclosing
from typing import Final

from rich.console import Console

from millrace.client import Client, Log
from millrace.core.projection import Projection
from millrace.demo.ledger import Ledger
from millrace.demo.timeline import Timeline
from millrace.errors import TimedOut
from millrace.local import LocalCluster
from millrace.meta import keys

RESTORE_TIMEOUT_S: Final = 60.0


class NodeFailure:
    def __init__(self, cluster: LocalCluster, console: Console, timeline: Timeline) -> None:
        self._cluster = cluster
        self._console = console
        self._timeline = timeline

    async def happen(self, client: Client, log: Log, ledger: Ledger) -> Projection:
        """The projection in which the log has its copies again."""
        await ledger.half_way.wait()
        # Not the node with the embedded metadata: that is what etcd is for.
        victim = next(node for node in reversed(log.projection.chain) if node != 1)
        self._console.print(f"[yellow]SIGKILL[/yellow] node {victim}, at {ledger.appended:,}")
        self._timeline.killed = victim
        self._timeline.killed_s = time.time()
        await asyncio.get_running_loop().run_in_executor(None, self._cluster.kill, victim)
        try:
            async with asyncio.timeout(RESTORE_TIMEOUT_S):
                projection = await self._restored(client, log)
        except TimeoutError:
            raise TimedOut(f"no third copy within {RESTORE_TIMEOUT_S:.0f} s") from None
        self._timeline.restored_s = time.time()
        chain = " -> ".join(map(str, projection.chain))
        self._console.print(f"Three copies again: chain {chain}")
        return projection

    def acknowledged(self, log: Log) -> None:
        """An append was acknowledged: by a chain without the node, or was it under way before?"""
        timeline = self._timeline
        is_awaited = timeline.killed and timeline.resumed_s is None
        if is_awaited and timeline.killed not in log.projection.chain:
            timeline.resumed_s = time.time()

    async def _restored(self, client: Client, log: Log) -> Projection:
        """The keeper gives the log another copy on a spare node."""
        repository = client.directory.repository
        key = keys.PROJECTIONS.key(log.info.id)
        entries, revision = await repository.list(key)
        projection = keys.PROJECTIONS.decode(entries[0])
        async with aclosing(repository.watch(key, revision)) as changes:
            while projection.is_degraded or self._timeline.killed in projection.chain:
                change = await anext(changes)
                projection = keys.PROJECTIONS.decode(change.entries[-1])
        return projection
