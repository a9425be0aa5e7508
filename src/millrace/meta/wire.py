"""What the remote repository needs of a transport, and where pushed changes wait.

`Wire` is the adapter point: the process that owns the connections implements it with its
sessions; tests connect a service directly.

  I1  Changes are passed on whole: a push whose revision is not above the one before is a part.
  I2  What waits is bounded; beyond it everything is dropped and the watcher told that it lost
      track.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from millrace.core.messages import Message, MetaChanged, MetaEntry
from millrace.meta.contract import Change, Entry

Listener = Callable[[MetaChanged | None], None]


class Wire(Protocol):
    async def ask(self, address: str, message: Message, timeout_ms: int) -> Message:
        """The answer, a Refused included.  Raises Unavailable, whose `is_definite` is true when
        the request certainly was not delivered."""

    def tell(self, address: str, message: Message) -> None:
        """One-way, to an open connection; without one the message is dropped."""

    def open_stream(self, address: str, listener: Listener) -> int:
        """A stream id, new to every connection of this process.  `listener` gets each
        MetaChanged of it, and None when a connection to `address` ends."""

    def close_stream(self, stream: int) -> None:
        """The listener is not called any more."""


class Pushes:
    """The pushed changes of one stream that the watcher has not taken yet."""

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._entries = 0
        self._waiting: deque[MetaChanged] = deque()
        self._has_overflowed = False
        self._has_ended = False
        self._news = asyncio.Event()

    def add(self, message: MetaChanged | None) -> None:
        self._news.set()
        if message is None:
            self._has_ended = True
            return
        self._entries += len(message.entries)
        if self._has_overflowed or self._entries > self._entries_max:
            self._has_overflowed = True
            self._waiting.clear()
        else:
            self._waiting.append(message)

    async def changes(self, revision: int) -> AsyncGenerator[Change, None]:
        """Whole changes after `revision`, until the connection ends or one is `lost`."""
        parts: list[Entry] = []
        while True:
            if self._has_overflowed:
                yield Change((), revision, lost=True)
                return
            if not self._waiting:
                if self._has_ended:
                    return
                self._news.clear()
                await self._news.wait()
                continue
            message = self._waiting.popleft()
            if message.lost:
                yield Change((), message.revision, lost=True)
                return
            parts.extend(map(entry_of, message.entries))
            if message.revision > revision:
                revision = message.revision
                change, parts = Change(tuple(parts), revision), []
                self._entries -= len(change.entries)
                yield change


def entry_of(message: MetaEntry) -> Entry:
    return Entry(message.key, message.value, message.version, message.lease)
