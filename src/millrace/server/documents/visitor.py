"""What a connection has said about itself, and what the front end counts; for both protocols."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import msgspec

from millrace.core.documents.operations import OperationStatus, Outcome, Verb
from millrace.server.documents.backend import BucketHost, DocumentBackend, Stat
from millrace.server.documents.flushing import DelayedFlushes

DEFAULT_BUCKET: Final = "default"
_OK: Final = OperationStatus.OK  # A name, for it is asked for with every answer.


class Pending(msgspec.Struct, frozen=True):
    """An answer that is not known yet: what is done, and how its result is worded.  `is_wait`: it
    changes nothing any more, so it is given up when nobody is there to hear of it."""

    work: Awaitable[Any]
    word: Callable[[Any], bytes]
    request_bytes: int = 0  # What it keeps in memory.
    is_wait: bool = False


class Exclusive(msgspec.Struct, frozen=True):
    """Begins when all before it are answered, and nothing behind it begins before it is: a flush
    sees all that was stored before it, and nothing of what comes after."""

    begin: Callable[[], Awaitable[Any]]
    word: Callable[[Any], bytes]


class Last(msgspec.Struct, frozen=True):
    """An answer, and then the connection is closed."""

    answer: bytes = b""


Answer = bytes | Pending | Exclusive | Last


class FrontEndCounts:
    """Since the node started, or since somebody said `stats reset`."""

    def __init__(self) -> None:
        self.connections_now = 0
        self.connections_total = 0
        self.connections_refused = 0
        self.held_bytes = 0  # Of requests that are not whole yet, of all connections.
        self.reset()

    def reset(self) -> None:
        self.read_bytes = 0
        self.written_bytes = 0
        self.flushes = 0
        self.malformed = 0
        self.successes = [0] * len(Verb)
        self.failures = [0] * len(Verb)

    def count(self, verb: Verb, outcome: Outcome) -> None:
        if outcome.status is _OK:
            self.successes[verb] += 1
        else:
            self.failures[verb] += 1

    def stats(self) -> Iterator[Stat]:
        """Under memcached's names where it has one."""
        stores = (Verb.SET, Verb.ADD, Verb.REPLACE, Verb.APPEND, Verb.PREPEND)
        named: dict[str, int] = {
            "curr_connections": self.connections_now,
            "total_connections": self.connections_total,
            "rejected_connections": self.connections_refused,
            "cmd_get": self._calls(Verb.GET) + self._calls(Verb.GET_AND_TOUCH),
            "cmd_set": sum(self._calls(verb) for verb in stores),
            "cmd_flush": self.flushes,
            "cmd_touch": self._calls(Verb.TOUCH) + self._calls(Verb.GET_AND_TOUCH),
            "get_hits": self.successes[Verb.GET],
            "get_misses": self.failures[Verb.GET],
            "delete_hits": self.successes[Verb.DELETE],
            "delete_misses": self.failures[Verb.DELETE],
            "incr_hits": self.successes[Verb.INCREMENT],
            "incr_misses": self.failures[Verb.INCREMENT],
            "decr_hits": self.successes[Verb.DECREMENT],
            "decr_misses": self.failures[Verb.DECREMENT],
            "touch_hits": self.successes[Verb.TOUCH],
            "touch_misses": self.failures[Verb.TOUCH],
            "bytes_read": self.read_bytes,
            "bytes_written": self.written_bytes,
            "malformed_requests": self.malformed,
            "request_bytes_held": self.held_bytes,
        }
        return ((name, str(value)) for name, value in named.items())

    def _calls(self, verb: Verb) -> int:
        return self.successes[verb] + self.failures[verb]


class Visitor:
    """The one at the other end of a connection."""

    def __init__(
        self, backend: DocumentBackend, counts: FrontEndCounts, flushes: DelayedFlushes
    ) -> None:
        self.backend = backend
        self.counts = counts
        self.flushes = flushes
        self.bucket = DEFAULT_BUCKET
        self.is_map_aware = False
        self.wants_mutation_seqs = False
        self.map_told = b""  # The newest map that it was sent with a refusal.

    def host(self) -> BucketHost | None:
        return self.backend.bucket(self.bucket)

    def stats(self, group: str) -> list[Stat] | None:
        """None: there is no such group."""
        host = self.host()
        found = host.stats(group) if host is not None else ()
        if group:
            return None if found is None or host is None else list(found)
        version = ("version", self.backend.version)
        return [version, ("bucket", self.bucket), *self.counts.stats(), *(found or ())]
