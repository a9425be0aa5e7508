"""`Bucket` without `await`; see `client/sync.py` for how."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from millrace.client import bucket_waits
from millrace.client.bucket import TIMEOUT_MS, Bucket
from millrace.client.bucket_results import Changed, Counted, Found
from millrace.client.changes.consumer import ChangeConsumer
from millrace.client.changes.states import ConsumerState
from millrace.client.changes.sync_consumer import SyncChangeConsumer
from millrace.client.loop_thread import Connected
from millrace.codec.memcached.observing import Observed
from millrace.core.documents.document import NO_CAS, Cas, PartitionId
from millrace.core.documents.map import BucketAttributes
from millrace.core.documents.messages import MutationToken
from millrace.core.documents.revisions import Revision


class SyncBucket(Connected):
    def __init__(self, bucket: Bucket) -> None:
        super().__init__()
        self._bucket = bucket

    def __enter__(self) -> "SyncBucket":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        return self._bucket.name

    @property
    def attributes(self) -> BucketAttributes:
        return self._bucket.attributes

    def partition_of(self, key: bytes) -> PartitionId:
        return self._bucket.partition_of(key)

    def get(self, key: bytes, *, timeout_ms: int = TIMEOUT_MS) -> Found | None:
        return self._run(self._bucket.get(key, timeout_ms=timeout_ms))

    def get_many(
        self, keys: Iterable[bytes], *, timeout_ms: int = TIMEOUT_MS
    ) -> dict[bytes, Found]:
        return self._run(self._bucket.get_many(keys, timeout_ms=timeout_ms))

    def set(
        self,
        key: bytes,
        value: bytes,
        *,
        flags: int = 0,
        expiry_s: int = 0,
        cas: Cas = NO_CAS,
        durability: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Changed:
        return self._run(
            self._bucket.set(
                key,
                value,
                flags=flags,
                expiry_s=expiry_s,
                cas=cas,
                durability=durability,
                timeout_ms=timeout_ms,
            )
        )

    def add(
        self,
        key: bytes,
        value: bytes,
        *,
        flags: int = 0,
        expiry_s: int = 0,
        durability: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Changed:
        return self._run(
            self._bucket.add(
                key,
                value,
                flags=flags,
                expiry_s=expiry_s,
                durability=durability,
                timeout_ms=timeout_ms,
            )
        )

    def replace(
        self,
        key: bytes,
        value: bytes,
        *,
        flags: int = 0,
        expiry_s: int = 0,
        cas: Cas = NO_CAS,
        durability: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Changed:
        return self._run(
            self._bucket.replace(
                key,
                value,
                flags=flags,
                expiry_s=expiry_s,
                cas=cas,
                durability=durability,
                timeout_ms=timeout_ms,
            )
        )

    def append(
        self,
        key: bytes,
        value: bytes,
        *,
        cas: Cas = NO_CAS,
        durability: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Changed:
        work = self._bucket.append(
            key, value, cas=cas, durability=durability, timeout_ms=timeout_ms
        )
        return self._run(work)

    def prepend(
        self,
        key: bytes,
        value: bytes,
        *,
        cas: Cas = NO_CAS,
        durability: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Changed:
        work = self._bucket.prepend(
            key, value, cas=cas, durability=durability, timeout_ms=timeout_ms
        )
        return self._run(work)

    def set_many(
        self,
        documents: Mapping[bytes, bytes] | Iterable[tuple[bytes, bytes]],
        *,
        flags: int = 0,
        expiry_s: int = 0,
        durability: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> dict[bytes, Cas]:
        return self._run(
            self._bucket.set_many(
                documents,
                flags=flags,
                expiry_s=expiry_s,
                durability=durability,
                timeout_ms=timeout_ms,
            )
        )

    def delete(
        self,
        key: bytes,
        *,
        cas: Cas = NO_CAS,
        durability: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Changed | None:
        work = self._bucket.delete(key, cas=cas, durability=durability, timeout_ms=timeout_ms)
        return self._run(work)

    def delete_many(
        self,
        keys: Iterable[bytes],
        *,
        durability: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> list[bytes]:
        work = self._bucket.delete_many(keys, durability=durability, timeout_ms=timeout_ms)
        return self._run(work)

    def increment(
        self,
        key: bytes,
        delta: int = 1,
        *,
        initial: int | None = None,
        expiry_s: int = 0,
        durability: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Counted:
        return self._run(
            self._bucket.increment(
                key,
                delta,
                initial=initial,
                expiry_s=expiry_s,
                durability=durability,
                timeout_ms=timeout_ms,
            )
        )

    def decrement(
        self,
        key: bytes,
        delta: int = 1,
        *,
        initial: int | None = None,
        expiry_s: int = 0,
        durability: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Counted:
        return self._run(
            self._bucket.decrement(
                key,
                delta,
                initial=initial,
                expiry_s=expiry_s,
                durability=durability,
                timeout_ms=timeout_ms,
            )
        )

    def touch(
        self,
        key: bytes,
        expiry_s: int,
        *,
        durability: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> bool:
        work = self._bucket.touch(key, expiry_s, durability=durability, timeout_ms=timeout_ms)
        return self._run(work)

    def get_and_touch(
        self, key: bytes, expiry_s: int, *, timeout_ms: int = TIMEOUT_MS
    ) -> Found | None:
        return self._run(self._bucket.get_and_touch(key, expiry_s, timeout_ms=timeout_ms))

    def write_revisions(
        self,
        rows: Sequence[Revision],
        *,
        durability: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> list[bool]:
        work = self._bucket.write_revisions(rows, durability=durability, timeout_ms=timeout_ms)
        return self._run(work)

    def read_revisions(
        self, keys: Iterable[bytes], *, timeout_ms: int = TIMEOUT_MS
    ) -> dict[bytes, Revision]:
        return self._run(self._bucket.read_revisions(keys, timeout_ms=timeout_ms))

    def wait(
        self,
        token: MutationToken,
        *,
        persisted: bool = True,
        replicas: int = 0,
        timeout_ms: int = bucket_waits.TIMEOUT_MS,
    ) -> None:
        work = self._bucket.wait(
            token, persisted=persisted, replicas=replicas, timeout_ms=timeout_ms
        )
        self._run(work)

    def observe(
        self, token: MutationToken, *, timeout_ms: int = TIMEOUT_MS
    ) -> tuple[Observed, ...]:
        return self._run(self._bucket.observe(token, timeout_ms=timeout_ms))

    def changes(
        self, name: str, state: ConsumerState | None = None, **options: Any
    ) -> SyncChangeConsumer:
        """A consumer of its changes; `options` are those of `ChangeConsumer`."""
        return SyncChangeConsumer(ChangeConsumer(self._bucket, name, state, **options))

    def close(self) -> None:
        self._run(self._bucket.close())
