"""The registry: versioned keys, leases and the history of changes, as a pure state machine.

Time is an argument, nothing waits and nothing is random, so the simulator, the memory repository
and the embedded one share every rule.  The version of a key is the revision of the registry at
its last change, as in etcd: it never comes back with another meaning, not even when the key is
deleted and made again.

  I1  Each revision is one record of the history; `_history[i]` is revision `_floor + 1 + i`.
  I2  A lease that is due is gone before the operation that finds it so.
  I3  `_names` holds the keys of `_entries` in order, which is also the order of their UTF-8.
  I4  The history stays within its bounds of records and bytes; what fell out is reported lost.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Final

from millrace import limits
from millrace.meta import bounds
from millrace.meta.contract import ANY_VERSION, Change, Conflict, Entry, LeaseExpired

NEVER_MS: Final = 2**63
ROUNDING_MS: Final = 1  # Clocks round down: without it a lease could end a fraction too early.
HISTORY_BYTES_MAX: Final = 64 * limits.MIB
CHANGE_BYTES_TARGET: Final = limits.MIB  # A watcher far behind gets its changes in such pieces.


class Lease:
    __slots__ = ("deadline_ms", "keys", "ttl_ms")

    def __init__(self, ttl_ms: int, deadline_ms: int) -> None:
        self.ttl_ms = ttl_ms
        self.deadline_ms = deadline_ms
        self.keys: set[str] = set()


class Journal:
    """Names what changed since it was last emptied, for a repository that stores it."""

    __slots__ = ("keys", "leases")

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self.leases: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self.keys or self.leases)


class RegistryState:
    def __init__(
        self,
        revision: int = 0,
        next_lease: int = 1,
        journal: Journal | None = None,
        history_records_max: int = limits.WATCH_EVENTS_MAX,
        history_bytes_max: int = HISTORY_BYTES_MAX,
    ) -> None:
        self.revision = revision
        self.next_lease = next_lease
        self._journal = journal
        self._entries: dict[str, Entry] = {}
        self._names: list[str] = []
        self._leases: dict[int, Lease] = {}
        self._due_ms = NEVER_MS  # No lease is due before it; keeping one alive leaves it early.
        self._floor = revision
        self._history: list[tuple[Entry, ...]] = []
        self._history_bytes = 0
        self._history_records_max = history_records_max
        self._history_bytes_max = history_bytes_max

    def restore(self, entries: Iterable[Entry], ttls_ms: dict[int, int], now_ms: int) -> None:
        """Take in what was stored.  Leases begin anew: their holders could not renew them."""
        for lease, ttl_ms in ttls_ms.items():
            self._add_lease(lease, ttl_ms, now_ms)
        for entry in entries:
            self._entries[entry.key] = entry
            if entry.lease:
                self._leases[entry.lease].keys.add(entry.key)
        self._names = sorted(self._entries)

    # -- Keys ---------------------------------------------------------------------------------

    def get(self, key: str, now_ms: int) -> Entry:
        self.expire(now_ms)
        return self._entries.get(key) or _absent(key)

    def peek(self, key: str) -> Entry | None:
        """What is there, whatever the time."""
        return self._entries.get(key)

    def set(self, key: str, value: bytes, expected: int, lease: int, now_ms: int) -> Entry:
        bounds.check_key(key)
        bounds.check_value(key, value)
        current = self._match(key, expected, now_ms)
        if lease and lease not in self._leases:
            raise LeaseExpired(f"lease {lease} is unknown or has run out")
        entry = Entry(key, value, self.revision + 1, lease)
        if current.lease != lease:
            self._detach(current)
            if lease:
                self._leases[lease].keys.add(key)
        if current.version == 0:
            insort(self._names, key)
        self._entries[key] = entry
        self._record((entry,))
        return entry

    def delete(self, key: str, expected: int, now_ms: int) -> None:
        bounds.check_key(key)
        current = self._match(key, expected, now_ms)
        if current.version:
            self._detach(current)
            self._remove((key,))

    def list(self, prefix: str, now_ms: int) -> tuple[tuple[Entry, ...], int]:
        self.expire(now_ms)
        names = self._names
        first = end = bisect_left(names, prefix)
        while end < len(names) and names[end].startswith(prefix):
            end += 1
        return tuple(self._entries[name] for name in names[first:end]), self.revision

    def changes(self, prefix: str, after: int, until: int) -> Change:
        """What happened under `prefix` in the revisions (after, until], in pieces: the answer's
        revision is the one to go on from."""
        if after < self._floor or after > self.revision:
            return Change((), self.revision, lost=True)
        found: list[Entry] = []
        size = 0
        revision = after
        while revision < until and size < CHANGE_BYTES_TARGET:
            for entry in self._history[revision - self._floor]:
                if entry.key.startswith(prefix):
                    found.append(entry)
                    size += _size(entry)
            revision += 1
        return Change(tuple(found), revision)

    # -- Leases -------------------------------------------------------------------------------

    def grant(self, ttl_ms: int, now_ms: int) -> int:
        bounds.check_ttl(ttl_ms)
        self.expire(now_ms)
        lease = self.next_lease
        self.next_lease += 1
        self._add_lease(lease, ttl_ms, now_ms)
        self._note_lease(lease)
        return lease

    def keep_alive(self, lease: int, now_ms: int) -> None:
        self.expire(now_ms)
        held = self._leases.get(lease)
        if held is None:
            raise LeaseExpired(f"lease {lease} is unknown or has run out")
        held.deadline_ms = now_ms + held.ttl_ms + ROUNDING_MS

    def revoke(self, lease: int, now_ms: int) -> None:
        """An unknown lease is as good as revoked, so that a repeated revoke is harmless."""
        self.expire(now_ms)
        if lease in self._leases:
            self._end_lease(lease)

    def expire(self, now_ms: int) -> None:
        if now_ms < self._due_ms:
            return
        due = [lease for lease, held in self._leases.items() if held.deadline_ms <= now_ms]
        for lease in due:
            self._end_lease(lease)
        self._due_ms = min((held.deadline_ms for held in self._leases.values()), default=NEVER_MS)

    def next_due_ms(self) -> int | None:
        """When to call `expire` next; it may be early, never late."""
        return self._due_ms if self._leases else None

    def lease_ttl_ms(self, lease: int) -> int | None:
        held = self._leases.get(lease)
        return None if held is None else held.ttl_ms

    # -- Inner workings -----------------------------------------------------------------------

    def _add_lease(self, lease: int, ttl_ms: int, now_ms: int) -> None:
        deadline_ms = now_ms + ttl_ms + ROUNDING_MS
        self._leases[lease] = Lease(ttl_ms, deadline_ms)
        self._due_ms = min(self._due_ms, deadline_ms)

    def _match(self, key: str, expected: int, now_ms: int) -> Entry:
        bounds.check_expected(expected)
        current = self.get(key, now_ms)
        if expected not in (ANY_VERSION, current.version):
            raise Conflict(current)
        return current

    def _detach(self, entry: Entry) -> None:
        if entry.lease:
            self._leases[entry.lease].keys.discard(entry.key)

    def _end_lease(self, lease: int) -> None:
        keys = self._leases.pop(lease).keys
        self._note_lease(lease)
        if keys:
            self._remove(tuple(sorted(keys)))

    def _remove(self, keys: tuple[str, ...]) -> None:
        for key in keys:
            del self._entries[key]
            del self._names[bisect_left(self._names, key)]
        self._record(tuple(_absent(key) for key in keys))

    def _record(self, entries: tuple[Entry, ...]) -> None:
        self.revision += 1  # Keeps I1: one record, one revision.
        self._history.append(entries)
        self._history_bytes += sum(_size(entry) for entry in entries)
        if self._journal is not None:
            self._journal.keys.update(entry.key for entry in entries)
        if (
            len(self._history) > self._history_records_max
            or self._history_bytes > self._history_bytes_max
        ):
            self._shorten_history()

    def _shorten_history(self) -> None:
        # A quarter at a time, so that the cost of moving the rest is spread over many changes.
        records_kept = self._history_records_max * 3 // 4
        bytes_kept = self._history_bytes_max * 3 // 4
        cut = 0
        while len(self._history) - cut > records_kept or (
            self._history_bytes > bytes_kept and cut < len(self._history)
        ):
            self._history_bytes -= sum(_size(entry) for entry in self._history[cut])
            cut += 1
        del self._history[:cut]
        self._floor += cut

    def _note_lease(self, lease: int) -> None:
        if self._journal is not None:
            self._journal.leases.add(lease)


def _absent(key: str) -> Entry:
    return Entry(key, b"", 0)


def _size(entry: Entry) -> int:
    return len(entry.key) + len(entry.value) + 64  # 64: about what the objects themselves take.
