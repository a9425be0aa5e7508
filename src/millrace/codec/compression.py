"""Compression of block bodies: zstd, once, by the client that writes (L8).

Invariants:

  I1  A body is stored compressed only if that saves an eighth of it: less is not worth the
      reader's time and the loss of reading it where it lies.
  I2  Data that does not compress costs a sample, not a pass over the whole body.
  I3  Decompression allocates what the header says, which was checked against the limits before;
      a frame that claims or holds anything else is CorruptBlock.
"""

import threading
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import zstandard

from millrace.errors import CorruptBlock
from millrace.limits import BLOCK_BYTES_MAX, KIB
from millrace.types import Buffer

LEVEL: Final = 1
BYTES_MIN: Final = 256  # Below this a frame saves nothing worth its time.
SAMPLE_BYTES: Final = 16 * KIB


class _Machines(threading.local):
    """zstd contexts are costly to make and must not be shared between threads."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=LEVEL)
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=BLOCK_BYTES_MAX)


_machines: Final = _Machines()


def compress(body: Buffer, parts: Sequence[Buffer | pa.Buffer]) -> bytes | None:
    """The body as a zstd frame; None if that would save too little.  `parts` are its sections: a
    sample has its share of each, because offsets and times compress as values may not."""
    size = len(body)
    if size < BYTES_MIN or (size > 2 * SAMPLE_BYTES and not _is_promising(size, parts)):
        return None
    frame: bytes = _machines.compressor.compress(body)
    return frame if len(frame) <= _worth(size) else None


def _is_promising(size: int, parts: Sequence[Buffer | pa.Buffer]) -> bool:
    """Keeps I2."""
    sample = b"".join([memoryview(each)[: len(each) * SAMPLE_BYTES // size] for each in parts])
    return len(_machines.compressor.compress(sample)) <= _worth(len(sample))


def _worth(size: int) -> int:
    """The largest frame that is worth having for a body of `size` bytes."""
    return size - size // 8


def decompress(frame: Buffer, raw_size: int, name: str) -> bytes:
    """`name` is what errors call the block."""
    try:
        claimed = zstandard.frame_content_size(frame)
        if claimed != raw_size:
            raise CorruptBlock(f"{name}: zstd frame claims {claimed} bytes, the header {raw_size}")
        body: bytes = _machines.decompressor.decompress(
            frame, max_output_size=raw_size, allow_extra_data=False
        )
    except zstandard.ZstdError as failure:
        raise CorruptBlock(f"{name}: zstd body of {len(frame)} bytes: {failure}") from failure
    if len(body) != raw_size:
        raise CorruptBlock(f"{name}: zstd body gave {len(body)} bytes, the header says {raw_size}")
    return body
