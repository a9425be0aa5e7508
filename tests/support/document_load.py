"""Writers of documents whose account can be checked: what each key may hold by what they were told.

Every key has one writer, so what it was told last says what a reader may find: that, or a change
whose outcome is unknown and that came later.  Each writer reads its own writes all the time.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from millrace.client.bucket import Bucket
from millrace.client.changes import ChangeConsumer, ConsumerState
from millrace.errors import ChangeUnknown, Unavailable
from tests.support.applied_changes import Application
from tests.support.clusters import eventually

Value = bytes | None  # None: there is no document.
KEYS_PER_WRITER = 20
DELETE_EVERY = 11
READ_EVERY = 3
ONCE_EVERY = 7
PAUSE_AFTER_REFUSAL_S = 0.02


class Account:
    """What the writers were told, by key: the values that may be there, the sure one first."""

    def __init__(self) -> None:
        self.possible: dict[bytes, list[Value]] = {}
        self.acknowledged = 0
        self.unknown = 0
        self.refused = 0
        self.wrong: list[str] = []
        self._changed = asyncio.Event()

    def acknowledge(self, key: bytes, value: Value) -> None:
        self.possible[key] = [value]
        self.acknowledged += 1
        self._changed.set()

    def doubt(self, key: bytes, value: Value) -> None:
        self.possible.setdefault(key, [None]).append(value)
        self.unknown += 1

    def refuse(self, error: Unavailable) -> None:
        assert error.is_definite, error
        self.refused += 1

    def check(self, key: bytes, found: Value) -> None:
        allowed = self.possible.get(key, [None])
        if found not in allowed:
            self.wrong.append(f"{key!r} is {found!r}, and may be {allowed!r}")

    async def grown_by(self, count: int, timeout_s: float = 60.0) -> None:
        """Wait until so many more changes are acknowledged."""
        target = self.acknowledged + count
        try:
            async with asyncio.timeout(timeout_s):
                while self.acknowledged < target:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            missing = target - self.acknowledged
            raise AssertionError(f"{missing} of {count} changes made no progress") from None

    async def assert_kept(self, bucket: Bucket) -> dict[bytes, Value]:
        """Nothing acknowledged is lost; what the bucket holds."""
        assert not self.wrong, self.wrong[:5]
        found = await bucket.get_many(self.possible, timeout_ms=20_000)
        for key in self.possible:
            self.check(key, found[key].value if key in found else None)
        assert not self.wrong, self.wrong[:5]
        return {key: each.value for key, each in found.items()}


class Writer:
    def __init__(self, bucket: Bucket, account: Account, name: str, durability: str | None) -> None:
        self._bucket = bucket
        self._account = account
        self._name = name
        self._durability = durability
        self._stopping = False
        self.task = asyncio.create_task(self._write())

    def stop(self) -> None:
        self._stopping = True

    async def _write(self) -> None:
        number = 0
        while not self._stopping:
            number += 1
            # Some are written once: a loss is not covered up by the next change.
            place = number if number % ONCE_EVERY == 0 else number % KEYS_PER_WRITER
            key = f"{self._name}-{place}".encode()
            value = None if number % DELETE_EVERY == 0 else f"{self._name}.{number}".encode()
            await self._change(key, value)
            if number % READ_EVERY == 0:
                await self._read(key)

    async def _change(self, key: bytes, value: Value) -> None:
        try:
            if value is None:
                await self._bucket.delete(key, durability=self._durability)
            else:
                await self._bucket.set(key, value, durability=self._durability)
        except ChangeUnknown:
            self._account.doubt(key, value)
        except Unavailable as error:
            self._account.refuse(error)
            await asyncio.sleep(PAUSE_AFTER_REFUSAL_S)
        else:
            self._account.acknowledge(key, value)

    async def _read(self, key: bytes) -> None:
        try:
            found = await self._bucket.get(key)
        except Unavailable:
            return
        self._account.check(key, None if found is None else found.value)


@asynccontextmanager
async def documents_written(
    bucket: Bucket, account: Account, *, writers: int = 16, durability: str | None = None
) -> AsyncIterator[None]:
    """For as long as the block runs; afterwards every writer knows the outcome of its last."""
    running = [Writer(bucket, account, f"w{at}", durability) for at in range(writers)]
    tasks = [writer.task for writer in running]
    try:
        yield
        for writer in running:
            writer.stop()
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Follower:
    """A consumer of the whole bucket, and what it made of the changes."""

    def __init__(self, bucket: Bucket, name: str, state: ConsumerState | None = None) -> None:
        self.consumer = ChangeConsumer(bucket, name, state, noop_interval_s=1.0)
        self.application = Application(bucket.partition_of)

    async def __aenter__(self) -> "Follower":
        self.consumer.start()
        self._task = asyncio.create_task(self.consumer.run(self.application.take))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.consumer.close()

    async def holds_all_of(self, wanted: Mapping[bytes, Value]) -> None:
        """And perhaps more."""

        async def missing() -> int:
            values = self.application.values
            return sum(values.get(key) != value for key, value in wanted.items())

        await eventually(missing, lambda count: count == 0, what="a consumer that has these")

    async def holds(self, wanted: Mapping[bytes, Value]) -> None:
        async def differing() -> str:
            if self._task.done():
                self._task.result()
            return self._differing(wanted)

        def is_none(differing: str) -> bool:
            return not differing

        await eventually(differing, is_none, what="a consumer that has all", timeout_s=30)

    def _differing(self, wanted: Mapping[bytes, Value]) -> str:
        values = self.application.values
        keys = [key for key in wanted.keys() | values.keys() if wanted.get(key) != values.get(key)]
        if not keys:
            return ""
        key = min(keys)
        number = self.consumer.bucket.partition_of(key)
        explained = [
            line for line in self.consumer.explain().splitlines() if f"partition {number} " in line
        ]
        said = f"{key!r} is {values.get(key)!r}, not {wanted.get(key)!r}"
        return f"{len(keys)} differ: {said}; {explained}"
