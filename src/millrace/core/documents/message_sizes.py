"""How large pushed messages are, for flow control.

Both ends count the same way: each change as a frame of its own, as the protocol has it, even when
many go in one.  The numbers are those of the smallest form of a frame.  So a consumer that
acknowledges what its socket received never acknowledges less than was counted here, and the
producer's account of it cannot fill up with rests.
"""

from collections.abc import Sequence
from typing import Final

from millrace.core.documents.document import Document
from millrace.core.documents.messages import (
    BarrierReached,
    Changes,
    Noop,
    ProducerPush,
    SnapshotMarker,
)

HEADER_BYTES: Final = 24
CHANGE_BYTES: Final = HEADER_BYTES + 31  # A mutation: seq, revision, flags, expiry, lock, ...
TOMBSTONE_BYTES: Final = HEADER_BYTES + 18
MARKER_BYTES: Final = HEADER_BYTES + 20
SMALL_BYTES: Final = HEADER_BYTES + 4


def message_bytes(message: ProducerPush) -> int:
    match message:
        case Changes(documents=documents):
            return documents_bytes(documents)
        case SnapshotMarker():
            return MARKER_BYTES
        case BarrierReached(cookie):
            return HEADER_BYTES + len(cookie)
        case Noop():
            return 0  # It must reach a consumer that acknowledges nothing.
        case _:
            return SMALL_BYTES


def documents_bytes(documents: Sequence[Document]) -> int:
    size_bytes = 0
    for document in documents:
        value = document.value
        if document.kind:
            size_bytes += TOMBSTONE_BYTES + len(document.key)
        else:
            size_bytes += CHANGE_BYTES + len(document.key) + (len(value) if value else 0)
    return size_bytes
