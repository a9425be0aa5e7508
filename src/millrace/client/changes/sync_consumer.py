"""`ChangeConsumer` without `await`; see `client/sync.py` for how.

with bucket.changes("indexer:1", FileConsumerState("place")) as changes:
    for batch in changes:
        index(batch)
"""

import asyncio
from collections.abc import Iterator

from millrace.client.changes.batches import ChangeBatch, Lag
from millrace.client.changes.consumer import ChangeConsumer
from millrace.client.changes.offsets import Offset
from millrace.client.loop_thread import Connected
from millrace.core.documents.document import PartitionId
from millrace.errors import TimedOut


class SyncChangeConsumer(Connected):
    """What `ChangeConsumer` says of batches, acknowledging and ending holds here too."""

    def __init__(self, consumer: ChangeConsumer) -> None:
        super().__init__()
        self._consumer = consumer
        self._taking: asyncio.Task[ChangeBatch | None] | None = None
        self._run(self._start())

    async def _start(self) -> None:
        self._consumer.start()

    def __enter__(self) -> "SyncChangeConsumer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[ChangeBatch]:
        while (batch := self.take()) is not None:
            yield batch

    def take(self, *, timeout_ms: int | None = None) -> ChangeBatch | None:
        """The next batch; None: a finite consumer has come to its end.  Raises TimedOut, after
        which it may be called again: nothing is passed over."""
        return self._run(self._take(timeout_ms))

    async def _take(self, timeout_ms: int | None) -> ChangeBatch | None:
        # A wait that is given up goes on, and the next call takes what it finds: a batch that was
        # on its way out must not be lost.
        if self._taking is None:
            self._taking = asyncio.create_task(self._consumer.take())
        timeout_s = None if timeout_ms is None else timeout_ms / 1000
        done, _ = await asyncio.wait((self._taking,), timeout=timeout_s)
        if not done:
            raise TimedOut(f"nothing changed within {timeout_ms} ms; ask again to wait longer")
        taken, self._taking = self._taking, None
        return await taken

    def ack(self, batch: ChangeBatch) -> None:
        async def work() -> None:
            self._consumer.ack(batch)

        self._run(work())

    def commit(self) -> None:
        self._run(self._consumer.commit())

    @property
    def offsets(self) -> dict[PartitionId, Offset]:
        return self._consumer.offsets

    def lag(self) -> dict[PartitionId, Lag]:
        return self._run(self._consumer.lag())

    def explain(self) -> str:
        return self._consumer.explain()

    def close(self) -> None:
        self._run(self._close())

    async def _close(self) -> None:
        taking, self._taking = self._taking, None
        if taking is not None:
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
        await self._consumer.close()
