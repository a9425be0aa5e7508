"""Records as they were decoded last: whoever lists the same keys again and again decodes only what
was changed.

A cluster's records hardly ever change, and the keeper lists all of them several times a second.
Decoding them anew was a fifth of what an idle cluster with hundreds of logs cost.

  I1  A record is given out again only for an entry of the same key, version and value: versions
      never come back (`contract.py`, I2), unless a repository is restored from a copy.
  I2  As long as an entry is listed unchanged its record is the same object, so `is` tells whether
      anything was written.
  I3  What is kept is what the last listing had, and no more.
"""

from typing import Generic, TypeVar

from millrace.meta.contract import Entry
from millrace.meta.keys import KeyFamily

Id = TypeVar("Id")
T = TypeVar("T")


class DecodedFamily(Generic[Id, T]):
    def __init__(self, family: KeyFamily[Id, T]) -> None:
        self._family = family
        self._known: dict[str, tuple[Entry, T]] = {}
        self._entries: tuple[Entry, ...] = ()

    def find(self, entry: Entry) -> T | None:
        """None if the key is absent."""
        return self._decode(entry) if entry.version else None

    def listed(self, entries: tuple[Entry, ...]) -> list[T]:
        """Of all entries of the family.  Keeps I3."""
        if entries != self._entries:
            self._known = {entry.key: (entry, self._decode(entry)) for entry in entries}
            self._entries = entries
        return [record for _, record in self._known.values()]

    def by_id(self, entries: tuple[Entry, ...]) -> dict[Id, T]:
        """As `listed`."""
        ids = (self._family.id_of(entry.key) for entry in entries)
        return dict(zip(ids, self.listed(entries), strict=True))

    def _decode(self, entry: Entry) -> T:
        """Keeps I1 and I2."""
        known = self._known.get(entry.key)
        if known is not None and _is_same(known[0], entry):
            return known[1]
        return self._family.decode(entry)


def _is_same(before: Entry, now: Entry) -> bool:
    return before.version == now.version and before.value == now.value
