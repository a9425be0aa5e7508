"""Many documents at once: one request for each node, and what became of each document.

Documents are grouped by their partitions' masters.  What a node did not do, because a partition has
moved or it is busy, is grouped again by the map as it is then.

I1  Every document has an outcome in the end, and what is raised carries all of them in order.
I2  A change is sent again only when it certainly was not made.
I3  At most CHUNKS_AHEAD requests of CHUNK_BYTES are under way to one node.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from millrace.client.bucket_arguments import (
    EXPIRY_S_MAX,
    FLAGS_MAX,
    check_key,
    checked,
    durability_of,
)
from millrace.client.bucket_asking import GRACE_MS, PAUSE_MS, PAUSE_MS_MAX, Asker, Encode
from millrace.client.bucket_results import RETRIED, Found, refusal_in, refusal_of, status_word
from millrace.codec.memcached.binary import Durability, Response, encode_request
from millrace.codec.memcached.multi import (
    MultiGet,
    MultiSet,
    decode_multi_got,
    decode_multi_stored,
    encode_multi_get,
    encode_multi_set,
)
from millrace.codec.memcached.opcodes import Opcode, Status
from millrace.core.documents.document import Cas
from millrace.core.documents.partition import NewDocument
from millrace.errors import (
    ChangeUnknown,
    MillraceError,
    PartitionUnavailable,
    ProtocolError,
    Unavailable,
)
from millrace.limits import MIB
from millrace.runtime.document_link import DocumentLink

if TYPE_CHECKING:
    from millrace.client.bucket import Bucket

T = TypeVar("T")

CHUNK_ROWS: Final = 4_096
CHUNK_BYTES: Final = 1 * MIB
CHUNKS_AHEAD: Final = 4
SINGLES_AHEAD: Final = 1_024  # Requests for one document each, where there is none for many.

_MISSING: Final = object()  # The outcome of a get that found nothing.
Rows = list[int]
Send = Callable[[DocumentLink, Rows, int], Awaitable[Rows]]  # Gives back those not done.


class Rounds:
    """The rows of one call, and what became of them."""

    def __init__(
        self, bucket: "Bucket", keys: Sequence[bytes], timeout_ms: int, *, is_patient: bool = False
    ) -> None:
        self.keys = keys
        self.partitions = [bucket.partition_of(key) for key in keys]
        self.outcomes: list[Any] = [None] * len(keys)
        self._asker: Asker = bucket.asker
        self._links = self._asker.patient if is_patient else self._asker.quick
        self._grace_ms = GRACE_MS if is_patient else 0
        self._loop = asyncio.get_running_loop()
        self._until_s = self._loop.time() + timeout_ms / 1000
        self._trouble = ""

    async def run(self, send: Send, sizes: Sequence[int] | None, is_change: bool) -> None:
        left: Rows = list(range(len(self.keys)))
        pause_ms = 0
        while left and self._loop.time() < self._until_s:
            if self._trouble:
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(2 * pause_ms or PAUSE_MS, PAUSE_MS_MAX)
                await self._asker.reload(self._until_s)
            nodes = [
                self._ask_node(address, rows, send, sizes, is_change)
                for address, rows in self._by_master(left).items()
            ]
            left = [row for rows in await asyncio.gather(*nodes) for row in rows]
        for row in left:
            # One that knows more of why it failed has said so.
            self.outcomes[row] = self.outcomes[row] or PartitionUnavailable(
                f"document {self.keys[row]!r}: nobody served partition {self.partitions[row]} in "
                f"time: {self._trouble}"
            )

    def _by_master(self, rows: Rows) -> dict[str, Rows]:
        masters, partitions = self._asker.map.masters, self.partitions
        found: dict[str, Rows] = {}
        for row in rows:
            found.setdefault(masters[partitions[row]], []).append(row)
        return found

    async def _ask_node(
        self, address: str, rows: Rows, send: Send, sizes: Sequence[int] | None, is_change: bool
    ) -> Rows:
        """Those that the node did not do."""
        if not address:
            self._trouble = "it has no master"
            return rows
        try:
            async with asyncio.timeout_at(self._until_s):
                link = await self._links.get(address)
        except (TimeoutError, Unavailable) as error:
            self._trouble = str(error) or f"{address} could not be reached in time"
            return rows
        turns = asyncio.Semaphore(CHUNKS_AHEAD)  # Keeps I3.

        async def ask(chunk: Rows) -> Rows:
            async with turns:
                return await self._ask_chunk(link, chunk, send, is_change)

        asked = await asyncio.gather(*(ask(chunk) for chunk in _chunks(rows, sizes)))
        return [row for left in asked for row in left]

    async def _ask_chunk(self, link: DocumentLink, rows: Rows, send: Send, is_change: bool) -> Rows:
        left_ms = int((self._until_s - self._loop.time()) * 1000)
        if left_ms <= 0:
            return rows
        try:
            left = await send(link, rows, left_ms + self._grace_ms)
        except Unavailable as error:
            self._trouble = str(error)
            if not is_change or error.is_definite:  # Keeps I2.
                return rows
            for row in rows:
                self.outcomes[row] = ChangeUnknown(f"document {self.keys[row]!r}: {error}")
            return []
        return left

    def settle(self, response: Response, rows: Rows, statuses: Sequence[int]) -> Rows:
        """Take note of the rows that failed; those to be tried again."""
        if len(statuses) != len(rows):
            raise ProtocolError(f"{len(statuses)} answers to {len(rows)} documents")
        again: Rows = []
        for row, status in zip(rows, statuses, strict=True):
            if status in RETRIED:
                self._trouble = f"its node says {status_word(status)}"
                again.append(row)
            elif status != Status.SUCCESS and self.outcomes[row] is None:
                self.outcomes[row] = refusal_of(response.opcode, status, self.keys[row], False, "")
        return again

    def put_off(self, why: str) -> None:
        """Rows that a send gives back although they were answered."""
        self._trouble = why

    def whole(self, response: Response, rows: Rows) -> Rows | None:
        """None: the request was served, row by row.  Else those that are to be tried again."""
        if response.status == Status.SUCCESS:
            return None
        if response.status in RETRIED:
            self._trouble = f"its node says {status_word(response.status)}"
            return rows
        raise refusal_in(response, self.keys[rows[0]], has_cas=False)


def _chunks(rows: Rows, sizes: Sequence[int] | None) -> Iterable[Rows]:
    if sizes is None:
        return (rows[at : at + CHUNK_ROWS] for at in range(0, len(rows), CHUNK_ROWS))
    return _sized_chunks(rows, sizes)


def _sized_chunks(rows: Rows, sizes: Sequence[int]) -> Iterable[Rows]:
    chunk: Rows = []
    bytes_left = CHUNK_BYTES
    for row in rows:
        if chunk and (bytes_left < sizes[row] or len(chunk) == CHUNK_ROWS):
            yield chunk
            chunk, bytes_left = [], CHUNK_BYTES
        chunk.append(row)
        bytes_left -= sizes[row]
    if chunk:
        yield chunk


# -- Reading ----------------------------------------------------------------------------------


async def get_many(bucket: "Bucket", keys: Iterable[bytes], timeout_ms: int) -> dict[bytes, Found]:
    wanted = list(dict.fromkeys(keys))
    for key in wanted:
        check_key(key)
    rounds = Rounds(bucket, wanted, timeout_ms)

    async def send(link: DocumentLink, rows: Rows, left_ms: int) -> Rows:
        body = encode_multi_get(
            MultiGet([rounds.partitions[row] for row in rows], [wanted[row] for row in rows])
        )
        response = await link.ask(multi_request(Opcode.MULTI_GET, body), left_ms)
        if response.status == Status.TOO_LARGE and len(rows) > 1:
            half = len(rows) // 2
            first = await send(link, rows[:half], left_ms)
            return first + await send(link, rows[half:], left_ms)
        again = rounds.whole(response, rows)
        if again is not None:
            return again
        got = decode_multi_got(response.value)
        found = zip(rows, got.statuses, got.values, got.cas, got.flags, strict=False)
        for row, status, value, cas, flags in found:
            if status == Status.SUCCESS:
                rounds.outcomes[row] = Found(value, Cas(cas), flags)
            elif status == Status.NOT_FOUND:
                rounds.outcomes[row] = _MISSING
        return rounds.settle(response, rows, got.statuses)

    await rounds.run(send, None, is_change=False)
    raise_if_any_failed(rounds.outcomes)
    pairs = zip(wanted, rounds.outcomes, strict=True)
    return {key: found for key, found in pairs if found is not _MISSING}


# -- Changing ---------------------------------------------------------------------------------


async def set_many(
    bucket: "Bucket",
    items: Iterable[tuple[bytes, bytes]],
    flags: int,
    expiry_s: int,
    durability: str | None,
    timeout_ms: int,
) -> dict[bytes, Cas]:
    documents = [(key, value, flags, expiry_s) for key, value in items]
    return await set_documents(bucket, documents, durability, timeout_ms)


async def set_documents(
    bucket: "Bucket", documents: Iterable[NewDocument], durability: str | None, timeout_ms: int
) -> dict[bytes, Cas]:
    """Each with flags and an expiry of its own.  Of a key that is given twice the last counts."""
    by_key = {document[0]: document for document in documents}
    for key, value, flags, expiry_s in by_key.values():
        check_key(key)
        bucket.check_value(key, value)
        checked(flags, "flags", FLAGS_MAX)
        checked(expiry_s, "expiry_s", EXPIRY_S_MAX)
    wanted = None if durability is None else durability_of(durability, timeout_ms)
    rounds = Rounds(bucket, list(by_key), timeout_ms, is_patient=wanted is not None)
    sizes = [len(key) + len(value) for key, value, *_ in by_key.values()]
    sending = _setting(rounds, list(by_key.values()), wanted)
    await rounds.run(sending, sizes, is_change=True)
    raise_if_any_failed(rounds.outcomes)
    return dict(zip(by_key, rounds.outcomes, strict=True))


def _setting(rounds: Rounds, documents: list[NewDocument], durability: Durability | None) -> Send:
    async def send(link: DocumentLink, rows: Rows, left_ms: int) -> Rows:
        chosen = [documents[row] for row in rows]
        body = encode_multi_set(
            MultiSet(
                [rounds.partitions[row] for row in rows],
                [key for key, _, _, _ in chosen],
                [value for _, value, _, _ in chosen],
                [flags for _, _, flags, _ in chosen],
                [expiry_s for _, _, _, expiry_s in chosen],
            )
        )
        encode = multi_request(Opcode.MULTI_SET, body, durability)
        response = await link.ask(encode, left_ms)
        again = rounds.whole(response, rows)
        if again is not None:
            return again
        stored = decode_multi_stored(response.value)
        for row, status, cas in zip(rows, stored.statuses, stored.cas, strict=False):
            if status == Status.SUCCESS:
                rounds.outcomes[row] = Cas(cas)
        return rounds.settle(response, rows, stored.statuses)

    return send


async def delete_many(
    bucket: "Bucket", keys: Iterable[bytes], durability: str | None, timeout_ms: int
) -> list[bytes]:
    wanted = list(dict.fromkeys(keys))
    for key in wanted:
        check_key(key)

    async def delete(key: bytes) -> bool:
        changed = await bucket.delete(key, durability=durability, timeout_ms=timeout_ms)
        return changed is not None

    outcomes = await _one_by_one(delete, wanted)
    raise_if_any_failed(outcomes)
    return [key for key, existed in zip(wanted, outcomes, strict=True) if existed]


async def _one_by_one(
    change: Callable[[bytes], Awaitable[T]], keys: Sequence[bytes]
) -> list[T | BaseException]:
    """Requests of one turn of the loop leave together: still one round trip."""
    outcomes: list[T | BaseException] = []
    for at in range(0, len(keys), SINGLES_AHEAD):
        changes = (change(key) for key in keys[at : at + SINGLES_AHEAD])
        outcomes += await asyncio.gather(*changes, return_exceptions=True)
    return outcomes


def raise_if_any_failed(outcomes: Sequence[Any]) -> None:
    """Keeps I1.  One that says "perhaps" comes before those that say "no"."""
    failures: list[MillraceError] = []
    for each in outcomes:
        if isinstance(each, MillraceError):
            failures.append(each)
        elif isinstance(each, BaseException):
            raise each
    if not failures:
        return
    worst = min(failures, key=lambda failure: failure.is_definite)
    count = f"{len(failures)} of {len(outcomes)} documents failed"
    error = type(worst)(f"{count}; one of them: {worst}")
    error.outcomes = tuple(outcomes)
    raise error from worst


def multi_request(opcode: Opcode, body: bytes, durability: Durability | None = None) -> Encode:
    return lambda opaque: encode_request(opcode, value=body, opaque=opaque, durability=durability)
