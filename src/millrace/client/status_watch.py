"""The statuses of nodes, followed for all readers of a client: what they may stop waiting for.

I1  The repository is watched only while somebody listens, once for all.
I2  Whoever listens hears the statuses that stand, whenever it came, and each change of them, one
    after the other, also those of which only the nodes' histories tell.  While the repository is
    away nobody hears anything: what was known must do.
"""

import asyncio
import contextlib
from collections.abc import Callable

from millrace.core.statuses import Entries, Statuses, between, statuses_of
from millrace.errors import MillraceError
from millrace.meta import keys
from millrace.meta.directory import ClusterDirectory

PAUSE_S = 1.0  # Before a repository that was away is asked again.

Listener = Callable[[Statuses], None]


class StatusWatch:
    def __init__(self, directory: ClusterDirectory) -> None:
        self._directory = directory
        self._listeners: list[Listener] = []
        self._task: asyncio.Task[None] | None = None
        self._standing: Entries | None = None  # Of which all that listen have heard.

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)
        if self._task is None:
            self._task = asyncio.create_task(self._follow())
        elif self._standing is not None:
            asyncio.get_running_loop().call_soon(self._tell_standing, listener)

    def forget(self, listener: Listener) -> None:
        """Nothing happens if it does not listen."""
        with contextlib.suppress(ValueError):
            self._listeners.remove(listener)
        if not self._listeners and self._task is not None:  # Keeps I1.
            self._task.cancel()
            self._task = None
            self._standing = None

    async def _follow(self) -> None:
        while True:
            try:
                await self._watch()
            except MillraceError:
                await asyncio.sleep(PAUSE_S)

    async def _watch(self) -> None:
        """Until the watch is cut off, and the statuses must be listed again."""
        listed, revision = await self._directory.repository.list(keys.STATUSES.prefix)
        self._tell({keys.STATUSES.id_of(e.key): keys.STATUSES.decode(e) for e in listed})
        changes = self._directory.repository.watch(keys.STATUSES.prefix, revision)
        async with contextlib.aclosing(changes):
            async for change in changes:
                if change.lost:
                    return
                for entry in change.entries:
                    node, found = keys.STATUSES.id_of(entry.key), keys.STATUSES.find(entry)
                    known = dict(self._standing or {})
                    if found is None:
                        known.pop(node, None)
                    else:
                        known[node] = found
                    self._tell(known)

    def _tell(self, entries: Entries) -> None:
        before, self._standing = self._standing, entries
        steps = [statuses_of(entries)] if before is None else between(before, entries)
        for statuses in steps:
            for listener in list(self._listeners):
                listener(statuses)

    def _tell_standing(self, listener: Listener) -> None:
        """Keeps I2 for one that came later than the others, unless it has gone again."""
        if listener in self._listeners and self._standing is not None:
            listener(statuses_of(self._standing))
