"""How many bytes each node may send: its credit (G13).

Every node has the same share of the reader's window in bytes.  A byte is held from when it was
sent until the application has taken it, or it was dropped; what a node may send is its share less
what is held of it.

  I1  What is held of one node is at most its share and one block; after it failed and began again,
      twice that.
  I2  A node whose blocks were all taken or dropped can send: nothing is lost from its share, not
      by duplicates, gaps, rewinds nor new versions.
"""

from collections import deque

from millrace.core.reading.settings import SequencedReadSettings
from millrace.types import NodeId


class Credit:
    """Of what was delivered; what waits in the buffer is known there."""

    def __init__(self, settings: SequencedReadSettings) -> None:
        self._window_bytes = settings.window_bytes
        self._sender_bytes_min = settings.sender_bytes_min
        self._untaken: deque[tuple[NodeId, int]] = deque()
        self._untaken_bytes: dict[NodeId, int] = {}

    @property
    def has_untaken(self) -> bool:
        """The application has not asked for more yet."""
        return bool(self._untaken)

    @property
    def untaken_bytes(self) -> int:
        return sum(self._untaken_bytes.values())

    def untaken_of(self, node: NodeId) -> int:
        return self._untaken_bytes.get(node, 0)

    def share(self, senders: int, fullness: float) -> int:
        """What each of so many senders may have under way; less under memory pressure."""
        window_bytes = int(self._window_bytes * fullness)
        return max(window_bytes // max(1, senders), self._sender_bytes_min)

    def delivered(self, node: NodeId, size_bytes: int) -> None:
        self._untaken.append((node, size_bytes))
        self._untaken_bytes[node] = self._untaken_bytes.get(node, 0) + size_bytes

    def took(self, size_bytes: int) -> None:
        """Blocks are taken in the order in which they were delivered."""
        while size_bytes > 0 and self._untaken:
            node, held_bytes = self._untaken.popleft()
            taken_bytes = min(size_bytes, held_bytes)
            size_bytes -= taken_bytes
            self._untaken_bytes[node] -= taken_bytes
            if taken_bytes < held_bytes:
                self._untaken.appendleft((node, held_bytes - taken_bytes))
