"""The repository of a cluster whose metadata lives in one node: the registry on LMDB.

The event loop runs the state machine; one thread runs the commits.  While one commit waits for
the disk, all operations that arrive share the next, so the cost of fsync is divided among them.

  I1  Every answer, a read's and a conflict's too, waits until what it shows is on disk.
  I2  Watchers see a change after its commit, never before.
  I3  When a commit fails, memory goes back to what the disk holds, its callers are told, and
      watchers are told that they lost track: nobody goes on with a state that was never stored.
  I4  Leases survive a restart and begin their time anew; revisions and lease ids never repeat.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lmdb

from millrace import errors
from millrace.meta.clock import Clock, LoopClock
from millrace.meta.memory import MemoryRepository
from millrace.meta.registry_file import MAP_BYTES, Batch, RegistryFile, Stored
from millrace.meta.state import Journal, RegistryState


class EmbeddedRepository(MemoryRepository):
    """Made by `open_embedded`."""

    def __init__(
        self, file: RegistryFile, stored: Stored, thread: ThreadPoolExecutor, clock: Clock
    ) -> None:
        self._file = file
        self._thread = thread
        self._journal = Journal()
        self._is_released = False
        self._committing: asyncio.Task[None] | None = None
        self._this_commit: asyncio.Future[None] | None = None
        self._next_commit: asyncio.Future[None] | None = None
        super().__init__(clock, _restore(stored, self._journal, clock))

    async def close(self) -> None:
        await super().close()
        if self._is_released:
            return
        self._is_released = True
        if self._committing is not None:
            await self._committing
        await asyncio.get_running_loop().run_in_executor(self._thread, self._file.close)
        self._thread.shutdown(wait=False)

    def _store_changes(self) -> asyncio.Future[None] | None:
        if not self._journal:
            return self._next_commit or self._this_commit
        if self._next_commit is None:
            self._next_commit = asyncio.get_running_loop().create_future()
        if self._committing is None:
            self._committing = asyncio.create_task(self._commit_all())
        return self._next_commit

    async def _commit_all(self) -> None:
        while self._next_commit is not None:
            commit, self._next_commit = self._next_commit, None
            self._this_commit = commit
            batch = self._take_batch()
            try:
                await asyncio.get_running_loop().run_in_executor(
                    self._thread, self._file.commit, batch
                )
            except lmdb.Error as error:
                await self._go_back(commit, batch, error)
            else:
                self._show(batch.revision)
                commit.set_result(None)
        self._this_commit = None
        self._committing = None

    def _take_batch(self) -> Batch:
        state = self._state
        entries = {key: state.peek(key) for key in self._journal.keys}
        leases = {lease: state.lease_ttl_ms(lease) for lease in self._journal.leases}
        self._journal.keys.clear()
        self._journal.leases.clear()
        return Batch(entries, leases, state.revision, state.next_lease)

    async def _go_back(self, commit: asyncio.Future[None], batch: Batch, error: lmdb.Error) -> None:
        waiting, self._next_commit = self._next_commit, None
        self._journal.keys.clear()
        self._journal.leases.clear()
        detail = f"the metadata could not be stored ({error}): see to its disk"
        failure = errors.MetadataUnavailable(detail)
        try:
            stored = await asyncio.get_running_loop().run_in_executor(self._thread, self._file.load)
        except errors.CorruptStore as corrupt:
            self._is_open = False
            failure = errors.MetadataOutcomeUnknown(f"{detail}; {corrupt}")
        else:
            if stored.revision >= batch.revision:
                failure = errors.MetadataOutcomeUnknown(detail)
            self._adopt(stored)
        for failed in (commit, waiting, self._next_commit):
            if failed is not None:
                failed.set_exception(failure)
                failed.exception()  # Its callers may be gone; the failure is no news then.
        self._next_commit = None
        self._wake_watchers()

    def _adopt(self, stored: Stored) -> None:
        # One revision above all that memory had, so that every watcher is told it lost track.
        self._journal.keys.clear()
        self._journal.leases.clear()
        self._state = _restore(stored, self._journal, self._clock, self._state.revision + 1)
        self._visible = self._state.revision
        self._arm_timer()


async def open_embedded(
    path: Path, clock: Clock | None = None, map_bytes: int = MAP_BYTES
) -> EmbeddedRepository:
    """Raises CorruptStore, WrongDataDirectory, or DirectoryInUse."""
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="millrace-metadata")
    loop = asyncio.get_running_loop()
    try:
        file = await loop.run_in_executor(thread, RegistryFile, path, map_bytes)
        try:
            stored = await loop.run_in_executor(thread, file.load)
        except errors.MillraceError:
            await loop.run_in_executor(thread, file.close)
            raise
    except errors.MillraceError:
        thread.shutdown(wait=False)
        raise
    return EmbeddedRepository(file, stored, thread, clock or LoopClock())


def _restore(
    stored: Stored, journal: Journal, clock: Clock, revision_min: int = 0
) -> RegistryState:
    state = RegistryState(max(stored.revision, revision_min), stored.next_lease, journal)
    state.restore(stored.entries, stored.ttls_ms, clock.now_ms())
    return state
