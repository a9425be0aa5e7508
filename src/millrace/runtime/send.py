"""Frames on their way out of one connection.

Frames queue here, not in the transport: they are handed over in portions, and the transport is
told to report at once when the system did not take a portion whole (write buffer limits of 0).
So it is known exactly when a portion is gone, without asking again and again, and that is when
the memory of its frames is released.  Frames put during one turn of the loop leave together.

  I1  `release` of each frame is called exactly once: when the system has taken the frame's last
      byte, or when the connection is lost.  Never earlier: the bytes may lie in a memory map.
  I2  Frames leave in the order in which they were put.
  I3  Large buffers are never joined or copied; small frames of one portion are joined.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from millrace.limits import KIB, MIB
from millrace.types import Buffer

PORTION_BYTES: Final = 1 * MIB  # Handed over at once; also how finely memory is released.
JOINED_FRAME_BYTES_MAX: Final = 8 * KIB  # Cheaper to copy than to gather.

Release = Callable[[], None]
_Frame = tuple[Sequence[Buffer], int, Release | None]


class SendQueue:
    def __init__(self, transport: asyncio.Transport, on_taken: Callable[[int], None]) -> None:
        """`on_taken` is called with the bytes of each portion that the system has taken."""
        self._transport = transport
        self._on_taken = on_taken
        self._frames: deque[_Frame] = deque()
        self._portion: list[Release] = []
        self._portion_bytes = 0
        self._is_blocked = False
        self._is_flushing = False
        self.waiting_bytes = 0  # Put and not yet taken by the system.
        transport.set_write_buffer_limits(high=0, low=0)

    @property
    def is_empty(self) -> bool:
        return not self._frames and not self._portion_bytes

    @property
    def wants_flush(self) -> bool:
        return bool(self._frames) and not self._is_blocked

    def send(self, buffers: Sequence[Buffer], release: Release | None) -> None:
        """As `put` and `flush`.  A small frame that finds nothing before it needs no queue."""
        size = sum(map(len, buffers))
        is_alone = not (self._frames or self._is_blocked or self._is_flushing)
        if not is_alone or size > JOINED_FRAME_BYTES_MAX or release is not None:
            self.put(buffers, release)
            self.flush()
            return
        self._is_flushing = True
        self._portion_bytes = size
        self.waiting_bytes += size
        try:
            self._transport.writelines([b"".join(buffers)])
        finally:
            self._is_flushing = False
        if not self._is_blocked:
            self._portion_bytes = 0
            self.waiting_bytes -= size
            self._on_taken(size)

    def put(self, buffers: Sequence[Buffer], release: Release | None) -> None:
        size = sum(map(len, buffers))
        self._frames.append((buffers, size, release))
        self.waiting_bytes += size
        if self.waiting_bytes - self._portion_bytes >= PORTION_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hand over portions until the system takes no more."""
        if self._is_flushing:
            return
        self._is_flushing = True
        try:
            while self._frames and not self._is_blocked:
                # The transport calls `block` from within `writelines` if bytes remain.
                self._transport.writelines(self._next_portion())
                if not self._is_blocked:
                    self._portion_taken()
        finally:
            self._is_flushing = False

    def block(self) -> None:
        """The system did not take the portion whole."""
        self._is_blocked = True

    def unblock(self) -> None:
        """The system has now taken all that was handed over."""
        self._is_blocked = False
        self._portion_taken()
        self.flush()

    def drop(self) -> None:
        """The connection is lost: nothing will be read from the buffers any more."""
        self._is_blocked = True
        releases = self._portion + [frame[2] for frame in self._frames if frame[2] is not None]
        self._portion = []
        self._portion_bytes = 0
        self._frames.clear()
        self.waiting_bytes = 0
        for release in releases:
            release()

    def _next_portion(self) -> list[Buffer]:
        if len(self._frames) == 1:  # As always for those who wait for each answer.
            buffers, self._portion_bytes, release = self._frames.popleft()
            if release is not None:
                self._portion.append(release)
            is_small = self._portion_bytes <= JOINED_FRAME_BYTES_MAX
            return [b"".join(buffers)] if is_small else list(buffers)
        gathered: list[Buffer] = []
        small: list[Buffer] = []
        size = 0
        while self._frames and size < PORTION_BYTES:
            buffers, frame_bytes, release = self._frames.popleft()
            size += frame_bytes
            if release is not None:
                self._portion.append(release)
            if frame_bytes <= JOINED_FRAME_BYTES_MAX:
                small.extend(buffers)
                continue
            if small:
                gathered.append(b"".join(small))
                small = []
            gathered.extend(buffers)
        if small:
            gathered.append(b"".join(small))
        self._portion_bytes = size
        return gathered

    def _portion_taken(self) -> None:
        taken_bytes, self._portion_bytes = self._portion_bytes, 0
        self.waiting_bytes -= taken_bytes
        if self._portion:
            releases, self._portion = self._portion, []
            for release in releases:
                release()
        if taken_bytes:
            self._on_taken(taken_bytes)
