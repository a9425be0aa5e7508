"""What happened, one line per event, and a hash over all of it.

Two runs are the same when their hashes are: the hash is what the determinism test compares.  The
lines are kept by nobody but a listener.
"""

import hashlib
from collections.abc import Callable

_LINES_PER_UPDATE = 256

Listener = Callable[[int, str, str], None]  # Virtual time, process, what happened.


class Trace:
    def __init__(self, listener: Listener | None = None) -> None:
        self._listener = listener
        self._hash = hashlib.blake2b(digest_size=16)
        self._waiting: list[str] = []

    def add(self, now_us: int, process: str, what: str) -> None:
        waiting = self._waiting
        waiting.append(f"{now_us} {process} {what}")
        if len(waiting) >= _LINES_PER_UPDATE:
            self._flush()
        if self._listener is not None:
            self._listener(now_us, process, what)

    def digest(self) -> str:
        self._flush()
        return self._hash.hexdigest()

    def _flush(self) -> None:
        self._hash.update("\n".join(self._waiting).encode())
        self._waiting.clear()
