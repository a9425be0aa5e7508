"""A bucket: documents by key.

    bucket = await client.bucket("users")
    await bucket.set(b"ann", b"1", durability="majority")
    found = await bucket.get(b"ann")          # None: there is none

Every operation goes straight to the master of the key's partition (`bucket_asking.py`).  Keys are 1
to 250 bytes.  `expiry_s` is as memcached has it: 0 is never, up to 30 days are counted from now,
beyond that it is seconds since 1970.  `cas` of an earlier result makes an operation conditional.

`durability` says when a change is answered: None, when the master has it in memory; "majority",
when most copies have; "majority_and_persist_on_master"; "persist_to_majority", when it is on most
disks.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from zlib import crc32

from millrace.client import bucket_many, bucket_revisions, bucket_waits
from millrace.client.bucket_arguments import (
    CAS_MAX,
    check_key,
    checked,
    counter_extras,
    durability_of,
    expiry_extras,
    stored_extras,
)
from millrace.client.bucket_asking import GRACE_MS, Asker
from millrace.client.bucket_map import PartitionMap
from millrace.client.bucket_results import (
    Changed,
    Counted,
    Found,
    changed_by,
    found_in,
    refusal_in,
)
from millrace.codec.memcached.binary import NUMBER, Response, encode_request
from millrace.codec.memcached.observing import Observed
from millrace.codec.memcached.opcodes import Opcode, Status
from millrace.core.documents.document import NO_CAS, Cas, PartitionId
from millrace.core.documents.map import BucketAttributes
from millrace.core.documents.messages import MutationToken
from millrace.core.documents.revisions import Revision
from millrace.errors import UsageError, ValueTooLarge

TIMEOUT_MS: Final = 10_000


class Bucket:
    """Opened with `Client.bucket`; closed with its client, or before."""

    def __init__(self, map: PartitionMap, name: str = "millrace") -> None:
        self.asker = Asker(map, name)

    @property
    def name(self) -> str:
        return self.asker.map.record.name

    @property
    def attributes(self) -> BucketAttributes:
        return self.asker.map.record.attributes

    def partition_of(self, key: bytes) -> PartitionId:
        """As `core.documents.map.partition_of`; the same for the life of the bucket."""
        return PartitionId(((crc32(key) >> 16) & 0x7FFF) % len(self.asker.map.masters))

    async def __aenter__(self) -> "Bucket":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.asker.close()

    # -- Reading ------------------------------------------------------------------------------

    async def get(self, key: bytes, *, timeout_ms: int = TIMEOUT_MS) -> Found | None:
        """None: there is no such document."""
        check_key(key)
        partition = self.partition_of(key)
        response = await self.asker.ask(
            partition,
            lambda opaque: encode_request(Opcode.GET, key, partition=partition, opaque=opaque),
            timeout_ms,
            is_change=False,
        )
        return found_in(response, key)

    async def get_many(
        self, keys: Iterable[bytes], *, timeout_ms: int = TIMEOUT_MS
    ) -> dict[bytes, Found]:
        """Those that exist; one round trip to each node."""
        return await bucket_many.get_many(self, keys, timeout_ms)

    # -- Storing ------------------------------------------------------------------------------

    async def set(
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
        """Whether there is one already or not; with a `cas`, raises CasMismatch."""
        extras = stored_extras(flags, expiry_s)
        return await self._store(Opcode.SET, key, value, extras, cas, durability, timeout_ms)

    async def add(
        self,
        key: bytes,
        value: bytes,
        *,
        flags: int = 0,
        expiry_s: int = 0,
        durability: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Changed:
        """Raises DocumentExists."""
        extras = stored_extras(flags, expiry_s)
        return await self._store(Opcode.ADD, key, value, extras, NO_CAS, durability, timeout_ms)

    async def replace(
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
        """Raises DocumentMissing, CasMismatch."""
        extras = stored_extras(flags, expiry_s)
        return await self._store(Opcode.REPLACE, key, value, extras, cas, durability, timeout_ms)

    async def append(
        self,
        key: bytes,
        value: bytes,
        *,
        cas: Cas = NO_CAS,
        durability: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Changed:
        """Behind the value that is there; raises DocumentMissing, CasMismatch."""
        return await self._store(Opcode.APPEND, key, value, b"", cas, durability, timeout_ms)

    async def prepend(
        self,
        key: bytes,
        value: bytes,
        *,
        cas: Cas = NO_CAS,
        durability: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Changed:
        """Before the value that is there; raises DocumentMissing, CasMismatch."""
        return await self._store(Opcode.PREPEND, key, value, b"", cas, durability, timeout_ms)

    async def set_many(
        self,
        documents: Mapping[bytes, bytes] | Iterable[tuple[bytes, bytes]],
        *,
        flags: int = 0,
        expiry_s: int = 0,
        durability: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> dict[bytes, Cas]:
        """One round trip to each node.  They are changes of their own: when some fail, what is
        raised has in `outcomes` the CAS or the error of each, in order."""
        items = list(documents.items() if isinstance(documents, Mapping) else documents)
        return await bucket_many.set_many(self, items, flags, expiry_s, durability, timeout_ms)

    # -- Deleting, counting, expiry -------------------------------------------------------------

    async def delete(
        self,
        key: bytes,
        *,
        cas: Cas = NO_CAS,
        durability: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Changed | None:
        """None: there was none.  With a `cas`, raises CasMismatch."""
        response, partition = await self.change(
            Opcode.DELETE, key, b"", b"", cas, durability, timeout_ms
        )
        if response.status == Status.NOT_FOUND and not cas:
            return None
        return changed_by(response, key, partition, cas)

    async def delete_many(
        self,
        keys: Iterable[bytes],
        *,
        durability: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> list[bytes]:
        """Those that existed; one round trip to each node.  Fails as `set_many` does."""
        return await bucket_many.delete_many(self, keys, durability, timeout_ms)

    async def increment(
        self,
        key: bytes,
        delta: int = 1,
        *,
        initial: int | None = None,
        expiry_s: int = 0,
        durability: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Counted:
        """Of a document whose value is a decimal number; it goes round at 2^64.  One that does not
        exist begins with `initial`; None: raises DocumentMissing.  Raises NotACounter."""
        extras = counter_extras(delta, initial, expiry_s)
        return await self._count(Opcode.INCREMENT, key, extras, durability, timeout_ms)

    async def decrement(
        self,
        key: bytes,
        delta: int = 1,
        *,
        initial: int | None = None,
        expiry_s: int = 0,
        durability: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Counted:
        """As `increment`; stops at 0."""
        extras = counter_extras(delta, initial, expiry_s)
        return await self._count(Opcode.DECREMENT, key, extras, durability, timeout_ms)

    async def touch(
        self,
        key: bytes,
        expiry_s: int,
        *,
        durability: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> bool:
        """Give it another expiry; false: there is none."""
        extras = expiry_extras(expiry_s)
        response, _ = await self.change(
            Opcode.TOUCH, key, b"", extras, NO_CAS, durability, timeout_ms
        )
        if response.status == Status.NOT_FOUND:
            return False
        if response.status != Status.SUCCESS:
            raise refusal_in(response, key, has_cas=False)
        return True

    async def get_and_touch(
        self, key: bytes, expiry_s: int, *, timeout_ms: int = TIMEOUT_MS
    ) -> Found | None:
        """None: there is none."""
        extras = expiry_extras(expiry_s)
        response, _ = await self.change(Opcode.GAT, key, b"", extras, NO_CAS, None, timeout_ms)
        return found_in(response, key)

    # -- Revisions ----------------------------------------------------------------------------

    async def write_revisions(
        self,
        rows: Sequence[Revision],
        *,
        durability: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> list[bool]:
        """Versions of documents with the CAS they have elsewhere; one round trip to each node.  Of
        each whether it was written; false: what is there is as new, or newer.  With `durability`
        whatever is there now is as safe.  It may be done again, in any order."""
        return await bucket_revisions.write_revisions(self, rows, durability, timeout_ms)

    async def read_revisions(
        self, keys: Iterable[bytes], *, timeout_ms: int = TIMEOUT_MS
    ) -> dict[bytes, Revision]:
        """The newest version of each, as `write_revisions` takes it, also if it is a deletion that
        is remembered."""
        return await bucket_revisions.read_revisions(self, keys, timeout_ms)

    # -- Waiting ------------------------------------------------------------------------------

    async def wait(
        self,
        token: MutationToken,
        *,
        persisted: bool = True,
        replicas: int = 0,
        timeout_ms: int = bucket_waits.TIMEOUT_MS,
    ) -> None:
        """Until the change is on the master's disk, and has come to so many replicas, on whose
        disks it is too if `persisted`.  Raises HistoryChanged, DurabilityUnknown,
        DurabilityImpossible."""
        await bucket_waits.wait(self.asker, token, persisted, replicas, timeout_ms)

    async def observe(
        self, token: MutationToken, *, timeout_ms: int = TIMEOUT_MS
    ) -> tuple[Observed, ...]:
        """How far the master (first) and the replicas that answer are with the change's partition.
        Raises HistoryChanged."""
        return await bucket_waits.observe(self.asker, token, timeout_ms)

    # -- How --------------------------------------------------------------------------------

    async def _store(
        self,
        opcode: Opcode,
        key: bytes,
        value: bytes,
        extras: bytes,
        cas: Cas,
        durability: str | None,
        timeout_ms: int,
    ) -> Changed:
        self.check_value(key, value)
        response, partition = await self.change(
            opcode, key, value, extras, cas, durability, timeout_ms
        )
        return changed_by(response, key, partition, cas)

    async def change(
        self,
        opcode: Opcode,
        key: bytes,
        value: bytes,
        extras: bytes,
        cas: Cas,
        durability: str | None,
        timeout_ms: int,
        datatype: int = 0,
    ) -> tuple[Response, PartitionId]:
        """What the master answers to one change."""
        check_key(key)
        if cas:
            checked(cas, "cas", CAS_MAX)
        partition = self.partition_of(key)
        wanted = None if durability is None else durability_of(durability, timeout_ms)
        response = await self.asker.ask(
            partition,
            lambda opaque: encode_request(
                opcode,
                key,
                value,
                extras,
                partition=partition,
                opaque=opaque,
                cas=cas,
                datatype=datatype,
                durability=wanted,
            ),
            timeout_ms if wanted is None else timeout_ms + GRACE_MS,
            is_change=True,
            is_patient=wanted is not None,
        )
        return response, partition

    async def _count(
        self, opcode: Opcode, key: bytes, extras: bytes, durability: str | None, timeout_ms: int
    ) -> Counted:
        response, partition = await self.change(
            opcode, key, b"", extras, NO_CAS, durability, timeout_ms
        )
        changed = changed_by(response, key, partition, NO_CAS)
        (number,) = NUMBER.unpack(response.value)
        return Counted(number, changed.cas, changed.token)

    def check_value(self, key: bytes, value: bytes) -> None:
        if not isinstance(value, bytes):
            raise UsageError(f"a value is bytes, not {type(value).__name__}")
        value_bytes_max = self.asker.map.record.attributes.value_bytes_max
        if len(value) > value_bytes_max:
            raise ValueTooLarge(
                f"document {key!r}: a value of {len(value)} bytes; bucket {self.name!r} takes "
                f"{value_bytes_max}"
            )
