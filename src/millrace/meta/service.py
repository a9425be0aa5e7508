"""Answers the Meta* messages of other processes from any repository.

The transport hands each connection's messages to a `MetadataSession` and sends back what
`answer` returns; changes that a connection watches go out through its `push`, which waits while
the connection is full.

  I1  A Refused is only sent for what definitely did not happen; the rest is MetaUnknown.
  I2  Nothing a peer asks for is unbounded: keys, values, watches per connection, listings kept,
      bytes per message.
  I3  All pages of a listing show one revision and together all of it, however many walk it at
      once; a listing that is no longer kept is refused and begun again by the client.
  I4  A push whose revision is not above the one before is a part: the rest of the change follows.
"""

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Final

import msgspec

from millrace import errors, limits
from millrace.core.messages import (
    Message,
    MetaChanged,
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
from millrace.meta.contract import Change, Conflict, Entry, LeaseExpired, Repository

Push = Callable[[MetaChanged], Awaitable[None]]  # A connection that is gone drops what it gets.
LISTINGS_KEPT_MAX: Final = 16
LISTING_KEPT_MS: Final = 30_000  # Since a page of it was asked for.
PART_BYTES: Final = 2 * limits.MIB  # One more value still fits in a frame.


class _Listing(msgspec.Struct, frozen=True):
    entries: tuple[Entry, ...]
    used_s: float


class MetadataService:
    """One for a node; `connect` once for each connection."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self._listings: OrderedDict[tuple[str, int], _Listing] = OrderedDict()

    def connect(self, push: Push) -> "MetadataSession":
        return MetadataSession(self, push)

    async def list(self, message: MetaList) -> Message:
        if message.revision:
            kept = self._listings.get((message.prefix, message.revision))
            if kept is None:
                return Refused(Refusal.BUSY, detail="the listing is no longer kept: list again")
            entries, revision = kept.entries, message.revision
            first = bisect_right(entries, message.after, key=lambda entry: entry.key)
        else:
            entries, revision = await self.repository.list(message.prefix)
            first = 0
        page = next(_parts(entries[first:]), ())
        is_partial = first + len(page) < len(entries)
        if is_partial or message.revision:
            self._keep((message.prefix, revision), entries)
        return MetaListing(tuple(map(_entry_message, page)), revision, is_partial)

    def _keep(self, key: tuple[str, int], entries: tuple[Entry, ...]) -> None:
        """Keep what pages are cut from.  It stays whole, also when somebody is through with it:
        others may not be (I3).  Those that nobody used for long make room (I2)."""
        now_s = asyncio.get_running_loop().time()
        self._listings.pop(key, None)
        self._listings[key] = _Listing(entries, now_s)
        for oldest, listing in list(self._listings.items()):
            is_old = listing.used_s < now_s - LISTING_KEPT_MS / 1000
            if not is_old and len(self._listings) <= LISTINGS_KEPT_MAX:
                break
            del self._listings[oldest]


class MetadataSession:
    def __init__(self, service: MetadataService, push: Push) -> None:
        self._service = service
        self._push = push
        self._watches: dict[int, asyncio.Task[None]] = {}

    async def answer(self, message: Message) -> Message:
        """The answer to a Meta* request; never raises for what a peer or the environment did."""
        try:
            return await self._answer(message)
        except Conflict as conflict:
            return Refused(Refusal.CONFLICT, detail=str(conflict))
        except LeaseExpired as expired:
            return Refused(Refusal.NO_LEASE, detail=str(expired))
        except errors.UsageError as error:
            return Refused(Refusal.BAD_REQUEST, detail=str(error))
        except errors.Unavailable as error:
            if error.is_definite:
                return Refused(Refusal.UNAVAILABLE, detail=str(error))
            return MetaUnknown(str(error))

    def stop(self, message: Stop) -> None:
        watch = self._watches.pop(message.stream, None)
        if watch is not None:
            watch.cancel()

    async def close(self) -> None:
        """The connection is gone."""
        watches = list(self._watches.values())
        self._watches.clear()
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)

    async def _answer(self, message: Message) -> Message:
        repository = self._service.repository
        match message:
            case MetaGet(key=key):
                return _entry_message(await repository.get(key))
            case MetaSet(key=key, value=value, expected=expected, lease=lease):
                return _entry_message(await repository.set(key, value, expected, lease))
            case MetaDelete(key=key, expected=expected):
                await repository.delete(key, expected)
                return MetaDone()
            case MetaKeepAlive(lease=lease):
                await repository.keep_alive(lease)
                return MetaDone()
            case MetaList():
                return await self._service.list(message)
            case MetaWatch():
                return self._watch(message)
            case MetaGrant(ttl_ms=ttl_ms):
                return MetaLease(await repository.grant(ttl_ms), ttl_ms)
            case MetaRevoke(lease=lease):
                await repository.revoke(lease)
                return MetaDone()
            case _:
                raise errors.UsageError(f"{type(message).__name__} is no metadata request")

    def _watch(self, message: MetaWatch) -> Message:
        if message.stream in self._watches:
            raise errors.UsageError(f"stream {message.stream} is in use")
        if len(self._watches) >= limits.STREAMS_PER_SESSION_MAX:
            return Refused(Refusal.BUSY, detail="this connection has too many watches")
        task = asyncio.create_task(self._push_changes(message))
        self._watches[message.stream] = task
        task.add_done_callback(lambda done: self._ended(message.stream, done))
        return MetaWatching(message.stream)

    async def _push_changes(self, message: MetaWatch) -> None:
        revision = message.revision
        changes = self._service.repository.watch(message.prefix, revision)
        try:
            async with aclosing(changes):
                async for change in changes:
                    await self._push_parts(message.stream, change, revision)
                    revision = change.revision
        except errors.MetadataUnavailable:
            # The client lists again, and learns there why if the repository is still away.
            await self._push(MetaChanged(message.stream, (), revision, lost=True))

    async def _push_parts(self, stream: int, change: Change, revision: int) -> None:
        sent = 0
        for part in _parts(change.entries):
            sent += len(part)
            is_last = sent == len(change.entries)
            entries = tuple(map(_entry_message, part))
            # Keeps I4.
            await self._push(MetaChanged(stream, entries, change.revision if is_last else revision))
        if change.lost:
            await self._push(MetaChanged(stream, (), change.revision, lost=True))

    def _ended(self, stream: int, task: asyncio.Task[None]) -> None:
        if self._watches.get(stream) is task:
            del self._watches[stream]


def _parts(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """Pieces that fit in a frame, each with at least one entry."""
    first = size = 0
    for at, entry in enumerate(entries):
        size += len(entry.key) * 4 + len(entry.value) + 32
        if size > PART_BYTES and at > first:
            yield entries[first:at]
            first, size = at, len(entry.value)
    if first < len(entries):
        yield entries[first:]


def _entry_message(entry: Entry) -> MetaEntry:
    return MetaEntry(entry.key, entry.value, entry.version, entry.lease)
