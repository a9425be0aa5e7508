"""What an undo has fetched so far, and how much to ask for next.

All of it is taken in one step when it is complete, so it is held in memory until then, and bounded.
How many keys are asked for at once follows from how large the answers are.
"""

from collections.abc import Sequence
from typing import Final

from millrace.core.documents.document import Document, Seq

UNDO_KEYS_MAX: Final = 200_000
UNDO_BYTES_MAX: Final = 128 << 20
KEYS_AT_ONCE_FIRST: Final = 16  # Values may be large: nobody knows before the first answer.
KEYS_AT_ONCE_MAX: Final = 4_096
ANSWER_BYTES_WANTED: Final = 1 << 20
ANSWER_BYTES_MAX: Final = 8 << 20  # Of several documents: with room to spare in a frame.


class Undoing:
    def __init__(self, start: Seq, keys: Sequence[bytes]) -> None:
        self.start = start
        self.documents: list[Document] = []
        self.missing: list[bytes] = []
        self.asked: Sequence[bytes] = ()
        self._keys = keys
        self._at = 0
        self._keys_at_once = KEYS_AT_ONCE_FIRST
        self._size_bytes = 0

    @property
    def is_too_large(self) -> bool:
        return self._size_bytes > UNDO_BYTES_MAX

    def next_keys(self) -> Sequence[bytes]:
        """Empty: all was fetched."""
        self.asked = self._keys[self._at : self._at + self._keys_at_once]
        return self.asked

    def ask_for_fewer(self) -> bool:
        """What was asked for last is too much at once; False: it was one document."""
        self._keys_at_once = max(1, len(self.asked) // 2)
        return len(self.asked) > 1

    def take(self, documents: Sequence[Document]) -> None:
        """The answer to what was asked; who is not in it does not exist there."""
        by_key = {document.key: document for document in documents}
        found = [by_key[key] for key in self.asked if key in by_key]
        self.documents.extend(found)
        self.missing.extend(key for key in self.asked if key not in by_key)
        self._at += len(self.asked)
        size_bytes = sum(document.size for document in found)
        self._size_bytes += size_bytes
        if size_bytes > ANSWER_BYTES_WANTED:
            self._keys_at_once = max(1, self._keys_at_once // 2)
        else:
            self._keys_at_once = min(KEYS_AT_ONCE_MAX, self._keys_at_once * 2)
