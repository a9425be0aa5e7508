"""The order in which a consumer's state is written, and what may happen when it is.

What many partitions submit while a write is under way goes into the next one together.  Offsets
move with every write, and at the latest after OFFSETS_MS: to lose some means to be given the same
changes again, which is allowed.

  I1  `then` of a submission is called after what it, and all before it, submitted is durable.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from millrace.client.changes.states import ConsumerState, MoveOffset, StateChange
from millrace.core.documents.consumer_effects import FollowerState
from millrace.core.documents.document import PartitionId

OFFSETS_MS: Final = 500


class StateWriter:
    """`on_failure` is told once, of what the state raised: nothing is written afterwards."""

    def __init__(self, state: ConsumerState, on_failure: Callable[[BaseException], None]) -> None:
        self._state = state
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._submitted: list[tuple[StateChange | None, Callable[[], None]]] = []
        self._offsets: dict[PartitionId, FollowerState] = {}
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._task = asyncio.create_task(self._run())

    def submit(self, change: StateChange | None, then: Callable[[], None]) -> None:
        self._submitted.append((change, then))
        self._wake.set()

    def move(self, partition: PartitionId, state: FollowerState) -> None:
        self._offsets[partition] = state
        if self._timer is None:
            self._timer = self._loop.call_later(OFFSETS_MS / 1000, self._wake.set)

    async def flush(self) -> None:
        """All that was submitted or moved until now is durable afterwards."""
        done = self._loop.create_future()
        self.submit(None, lambda: None if done.done() else done.set_result(None))
        await asyncio.wait((done, self._task), return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        """Write the offsets, if that can be, and end."""
        if not self._task.done():
            await self.flush()
        self._task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._write()
        except Exception as error:
            self._on_failure(error)

    async def _write(self) -> None:
        """Keeps I1."""
        submitted, self._submitted = self._submitted, []
        offsets, self._offsets = self._offsets, {}
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        changes: list[StateChange] = [MoveOffset(*moved) for moved in offsets.items()]
        changes += [change for change, _ in submitted if change is not None]
        if changes:
            await self._state.write(changes)
        for _, then in submitted:
            then()
