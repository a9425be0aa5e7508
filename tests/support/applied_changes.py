"""An application that follows changes: documents by key, as batches left them."""

import asyncio
from collections.abc import Callable

from millrace.client.changes import BatchCause, ChangeBatch, ChangeConsumer
from millrace.core.documents.document import Document
from tests.support.served_bucket import ServedBucket, until


class Application:
    """`values` is all that a store made of the batches would hold."""

    def __init__(self, partition_of: Callable[[bytes], int]) -> None:
        self.documents: dict[bytes, Document] = {}
        self.batches: list[ChangeBatch] = []
        self._partition_of = partition_of

    @property
    def values(self) -> dict[bytes, bytes | None]:
        return {key: document.value for key, document in self.documents.items()}

    @property
    def causes(self) -> list[BatchCause]:
        return [batch.cause for batch in self.batches]

    def take(self, batch: ChangeBatch) -> None:
        self.batches.append(batch)
        if batch.cause is BatchCause.WIPE:
            for key in [k for k in self.documents if self._partition_of(k) == batch.partition]:
                del self.documents[key]
        for document in batch.documents:
            if document.is_deleted:
                self.documents.pop(document.key, None)
            else:
                self.documents[document.key] = document


class Following:
    """A consumer whose batches go to an application, in a task of their own."""

    def __init__(self, served: ServedBucket, consumer: ChangeConsumer) -> None:
        self.consumer = consumer
        self.application = Application(served.bucket.partition_of)
        self.task: asyncio.Task[None]

    async def __aenter__(self) -> "Following":
        self.consumer.start()
        self.task = asyncio.create_task(self.consumer.run(self.application.take))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.consumer.close()

    async def holds(self, wanted: dict[bytes, bytes]) -> None:
        await until(lambda: self.application.values == wanted)
