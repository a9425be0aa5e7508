"""Bytes from a socket, cut into frames.

Two ways, because two costs compete.  Small frames are received many at a time into a scratch
buffer shared by all connections of a thread: one system call, one callback.  The body of a large
frame is received straight into its own memory, which then belongs to the blocks in it: no copy.

  I1  Nothing in the scratch buffer outlives a callback: what is kept is copied out of it.
  I2  A connection keeps at most HELD_BYTES_MAX of unfinished small frame, or one large body.
  I3  The memory of a large body is taken untouched from the allocator: a peer that claims a large
      frame and sends nothing costs address space and a page.
  I4  Each byte received belongs to exactly one frame, in order, however the network cuts them.
  I5  The memory of a large body is the receiver's alone to write: a sequencer gives a block its
      position where it lies.
"""

import threading
from collections.abc import Callable
from typing import Final

import pyarrow as pa

from millrace.codec.frames import FRAME_HEADER_BYTES, FrameHeader, parse_frame_header
from millrace.errors import ProtocolError
from millrace.limits import KIB

SCRATCH_BYTES: Final = 256 * KIB
HELD_BYTES_MAX: Final = 16 * KIB  # A smaller frame is cheaper to copy than to receive apart.
# The pool whose memory `runtime/memory.py` keeps.
_POOL: Final = pa.system_memory_pool()
PAYLOAD_ALIGNMENT: Final = 64  # What the allocator gives and Arrow likes.
SMALL_PAYLOAD_ALIGNMENT: Final = 8  # What a bytes object gives and columns need.
PEEK_BYTES: Final = 4 * KIB  # Behind a large frame another is likely: copy little of it.

Deliver = Callable[[FrameHeader, memoryview], None]
Refuse = Callable[[ProtocolError], None]


class _Scratch(threading.local):
    def __init__(self) -> None:
        self.view = memoryview(bytearray(SCRATCH_BYTES))


_scratch: Final = _Scratch()


class FrameReceiver:
    """Made and used in one thread.  `deliver` gets each frame; a body with blocks may be kept,
    one without is valid during the call only.  `refuse` gets the error that ends the stream."""

    __slots__ = (
        "_body",
        "_deliver",
        "_filled_bytes",
        "_header",
        "_held",
        "_is_discarding",
        "_refuse",
        "_scratch",
        "_window_bytes",
    )

    def __init__(self, deliver: Deliver, refuse: Refuse) -> None:
        self._deliver = deliver
        self._refuse = refuse
        self._scratch = _scratch.view
        self._window_bytes = SCRATCH_BYTES
        self._held = b""
        self._header: FrameHeader | None = None
        self._body = memoryview(b"")
        self._filled_bytes = 0
        self._is_discarding = False

    def discard(self) -> None:
        """Deliver nothing more: the stream is broken, or nobody wants it."""
        self._is_discarding = True
        self._header = None
        self._body = memoryview(b"")
        self._held = b""

    def next_buffer(self) -> memoryview:
        """Where to receive next."""
        if self._header is not None:
            return self._body[self._filled_bytes :]
        held_bytes = len(self._held)
        if held_bytes:
            self._scratch[:held_bytes] = self._held
        return self._scratch[held_bytes : held_bytes + self._window_bytes]

    def received(self, size: int) -> None:
        """`size` bytes have arrived in the buffer last given."""
        if self._is_discarding:
            return
        if self._header is None:
            self._cut(len(self._held) + size)
            return
        self._filled_bytes += size
        if self._filled_bytes == len(self._body):
            header, body = self._header, self._body
            self._header = None
            self._body = memoryview(b"")
            self._window_bytes = PEEK_BYTES
            self._deliver(header, body)

    def _cut(self, end: int) -> None:
        """Deliver the whole frames in the first `end` bytes of the scratch buffer."""
        self._held = b""
        self._window_bytes = SCRATCH_BYTES - HELD_BYTES_MAX
        scratch = self._scratch
        position = 0
        while end - position >= FRAME_HEADER_BYTES:
            body_first = position + FRAME_HEADER_BYTES
            try:
                header = parse_frame_header(scratch, position)
            except ProtocolError as error:
                self._refuse(error)
                return
            body_size = header.meta_size + header.payload_size
            body_end = body_first + body_size
            if body_end > end:
                if body_size <= HELD_BYTES_MAX - FRAME_HEADER_BYTES:
                    break
                self._place(header, scratch[body_first:end])
                return
            # Keeps I1: the blocks of a message outlive this callback, its meta does not.
            if header.payload_size:
                padding = -header.meta_size % SMALL_PAYLOAD_ALIGNMENT
                copy = memoryview(bytes(scratch[body_first - padding : body_end]))
                self._deliver(header, copy[padding:])
            else:
                self._deliver(header, scratch[body_first:body_end])
            if self._is_discarding:
                return
            position = body_end
        if position < end:
            self._held = bytes(scratch[position:end])

    def _place(self, header: FrameHeader, arrived: memoryview) -> None:
        """Receive the rest of this large frame into its own memory.  Keeps I3."""
        self._header = header
        # The payload begins at an aligned address: columns are then read where they lie.
        padding = -header.meta_size % PAYLOAD_ALIGNMENT
        memory = pa.allocate_buffer(padding + header.body_size, memory_pool=_POOL)
        self._body = memoryview(memory).cast("B")[padding:]
        self._filled_bytes = len(arrived)
        self._body[: self._filled_bytes] = arrived
