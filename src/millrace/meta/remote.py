"""The repository of another process, reached over the wire.

I1  What can be repeated (reads, leases) goes to the next address until the time is over.
I2  A change whose answer was lost is sent again only if it names the version it replaces: then
    at most one of the attempts takes effect.  A conflict after a lost answer may be with
    itself, so it is reported as unknown, never as a conflict.
I3  A watch that breaks goes on, at any address, from the last whole change it passed on.
I4  A watcher that is slower than its changes is cut off at WATCH_EVENTS_MAX and told so.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Final, TypeVar

from millrace import errors, limits
from millrace.core.messages import (
    Message,
    MetaDelete,
    MetaDone,
    MetaEntry,
    MetaGet,
    MetaGrant,
    MetaKeepAlive,
    MetaLease,
    MetaList,
    MetaListing,
    MetaRevoke,
    MetaSet,
    MetaUnknown,
    MetaWatch,
    MetaWatching,
    Refusal,
    Refused,
    Stop,
)
from millrace.meta import bounds
from millrace.meta.contract import Change, Conflict, Entry, LeaseExpired
from millrace.meta.deadline import Deadline
from millrace.meta.wire import Pushes, Wire, entry_of

TIMEOUT_MS: Final = 5_000
PAUSE_MS: Final = 50  # Between rounds over the addresses.

M = TypeVar("M", bound=Message)


class _Attempts:
    """Those of one operation: the time they have together, and why none has succeeded yet."""

    def __init__(self, timeout_ms: int) -> None:
        self.deadline = Deadline(timeout_ms)
        self._timeout_ms = timeout_ms
        self._count = 0
        self._reason = ""

    def failed(self, answer: Message) -> None:
        self._count += 1
        if not self._reason or not self.deadline.is_over:
            # The last one is cut short by the end of the time, and tells nothing but that.
            self._reason = _detail(answer)

    def told(self) -> str:
        times = "once" if self._count == 1 else f"{self._count} times"
        return f"asked {times} within {self._timeout_ms} ms: {self._reason}"


class RemoteRepository:
    def __init__(self, wire: Wire, addresses: Sequence[str], timeout_ms: int = TIMEOUT_MS) -> None:
        if not addresses:
            raise errors.BadConfiguration("metadata: give the address of at least one node")
        self._wire = wire
        self._addresses = tuple(addresses)
        self._timeout_ms = timeout_ms
        self._current = 0
        self._failures = 0
        self._is_closed = False
        self._watching: set[Pushes] = set()

    async def get(self, key: str) -> Entry:
        bounds.check_key(key)
        return entry_of(await self._ask(MetaGet(key), MetaEntry))

    async def set(self, key: str, value: bytes, expected: int, lease: int = 0) -> Entry:
        bounds.check_key(key)
        bounds.check_value(key, value)
        message = MetaSet(key, value, expected, lease)
        return entry_of(await self._change(key, message, expected, MetaEntry))

    async def delete(self, key: str, expected: int) -> None:
        bounds.check_key(key)
        await self._change(key, MetaDelete(key, expected), expected, MetaDone)

    async def list(self, prefix: str) -> tuple[tuple[Entry, ...], int]:
        bounds.check_prefix(prefix)
        attempts = _Attempts(self._timeout_ms)
        while True:
            page = await self._ask(MetaList(prefix), MetaListing)
            entries, answer = await self._following_pages(prefix, page)
            if answer is None:
                return tuple(entries), page.revision
            self._check_time(attempts, answer)  # The listing was lost on its way: begin again.

    async def _following_pages(
        self, prefix: str, page: MetaListing
    ) -> tuple[Sequence[Entry], Message | None]:
        """All entries; or why the rest cannot be had."""
        entries = [entry_of(entry) for entry in page.entries]
        while page.is_partial:
            if not page.entries:
                raise errors.ProtocolError("a page of a listing has no entries")
            following = MetaList(prefix, page.revision, entries[-1].key)
            answer = await self._attempt(following, self._timeout_ms)
            if not isinstance(answer, MetaListing):
                return entries, answer
            page = answer
            entries.extend(entry_of(entry) for entry in page.entries)
        return entries, None

    async def watch(self, prefix: str, revision: int) -> AsyncGenerator[Change, None]:
        bounds.check_prefix(prefix)
        attempts: _Attempts | None = None  # From the first failure to the first success.
        while True:
            address = self._addresses[self._current]
            pushes = Pushes(limits.WATCH_EVENTS_MAX)
            stream = self._wire.open_stream(address, pushes.add)
            self._watching.add(pushes)
            try:
                answer = await self._attempt(MetaWatch(stream, prefix, revision), self._timeout_ms)
                if isinstance(answer, MetaWatching):
                    attempts = None
                    async for change in pushes.changes(revision):
                        yield change
                        if change.lost:
                            return
                        revision = change.revision
                    self._skip(address)
                else:
                    attempts = attempts or _Attempts(self._timeout_ms)
                    self._check_time(attempts, answer)
            finally:
                self._watching.discard(pushes)
                self._wire.close_stream(stream)
                self._wire.tell(address, Stop(stream))
            await self._pause_after_round()

    async def grant(self, ttl_ms: int) -> int:
        bounds.check_ttl(ttl_ms)
        return (await self._ask(MetaGrant(ttl_ms), MetaLease)).lease

    async def keep_alive(self, lease: int) -> None:
        await self._ask(MetaKeepAlive(lease), MetaDone)

    async def revoke(self, lease: int) -> None:
        await self._ask(MetaRevoke(lease), MetaDone)

    async def close(self) -> None:
        """Watches end; the connections belong to whoever made the wire."""
        self._is_closed = True
        for pushes in self._watching:
            pushes.add(None)

    # -- Inner workings -----------------------------------------------------------------------

    async def _ask(self, message: Message, wanted: type[M]) -> M:
        """For what may be done twice."""
        attempts = _Attempts(self._timeout_ms)
        while True:
            answer = await self._attempt(message, attempts.deadline.left_ms())
            if isinstance(answer, wanted):
                return answer
            self._check_time(attempts, answer)
            await self._pause_after_round()

    async def _change(self, key: str, message: Message, expected: int, wanted: type[M]) -> M:
        bounds.check_expected(expected)
        attempts = _Attempts(self._timeout_ms)
        may_have_happened = False
        while True:
            answer = await self._attempt(message, attempts.deadline.left_ms())
            if isinstance(answer, wanted):
                return answer
            if isinstance(answer, Refused) and answer.reason is Refusal.CONFLICT:
                await self._check_conflict(key, expected, may_have_happened)
                continue  # What stood in the way is gone again.
            may_have_happened |= isinstance(answer, MetaUnknown)
            if may_have_happened and (expected <= 0 or attempts.deadline.is_over):
                raise errors.MetadataOutcomeUnknown(
                    f"{key} may have been changed: {_detail(answer)}"
                )
            self._check_time(attempts, answer)
            await self._pause_after_round()

    async def _check_conflict(self, key: str, expected: int, may_have_happened: bool) -> None:
        if may_have_happened:  # Keeps I2.
            raise errors.MetadataOutcomeUnknown(f"{key} was changed, perhaps by this very call")
        current = await self.get(key)
        if current.version != expected:
            raise Conflict(current)

    async def _attempt(self, message: Message, left_ms: int) -> Message:
        """One request to the current address; a lost answer is MetaUnknown, like the server's."""
        if self._is_closed:
            raise errors.MetadataUnavailable("the metadata repository is closed")
        address = self._addresses[self._current]
        share_ms = left_ms if len(self._addresses) == 1 else min(left_ms, self._timeout_ms * 2 // 5)
        try:
            answer = await self._wire.ask(address, message, max(1, share_ms))
        except errors.Unavailable as error:
            self._skip(address)
            if error.is_definite:
                return Refused(Refusal.UNAVAILABLE, detail=str(error))
            return MetaUnknown(str(error))
        return self._check_answer(address, answer)

    def _check_answer(self, address: str, answer: Message) -> Message:
        match answer:
            case Refused(reason=Refusal.NO_LEASE, detail=detail):
                raise LeaseExpired(detail)
            case Refused(reason=Refusal.BAD_REQUEST, detail=detail):
                raise errors.UsageError(detail)
            case Refused(reason=reason) if reason is not Refusal.CONFLICT:
                self._skip(address)
            case _:
                self._failures = 0
        return answer

    def _check_time(self, attempts: _Attempts, answer: Message) -> None:
        if not isinstance(answer, Refused | MetaUnknown):
            raise errors.ProtocolError(f"{type(answer).__name__} answers no metadata request")
        attempts.failed(answer)
        if attempts.deadline.is_over:
            where = ", ".join(self._addresses)
            raise errors.MetadataUnavailable(
                f"the metadata repository at {where} does not answer, {attempts.told()}"
            )

    def _skip(self, address: str) -> None:
        self._failures += 1
        if self._addresses[self._current] == address:
            self._current = (self._current + 1) % len(self._addresses)

    async def _pause_after_round(self) -> None:
        if self._failures % len(self._addresses) == 0:
            await asyncio.sleep(PAUSE_MS / 1_000)


def _detail(answer: Message) -> str:
    return answer.detail if isinstance(answer, Refused | MetaUnknown) else ""
