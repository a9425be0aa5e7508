"""Records as they were decoded last: whoever lists the same keys again and again decodes only what
was changed.

A cluster's records hardly ever change, and the keeper lists all of them several times a second.
Decoding them anew was a fifth of what an idle cluster with hundreds of logs cost.

  I1  A record is given out again only for an entry of the same key, version and value: versions
      never come back (`contract.py`, I2), unless a repository is restored from a copy.
  I2  As long as an entry is listed unchanged its record is the same object, so `is` tells whether
      anything was written.
  I3  What is kept is what the last listing had, and no more.
  I4  Where every record is for itself (`each`), one that cannot be read is nobody else's trouble:
      whoever lists the family hears which it is, and its log says so once for each value.
"""

import logging
from collections.abc import Iterator
from typing import Generic, TypeVar

from millrace.errors import UnreadableMetadata
from millrace.meta.contract import Entry
from millrace.meta.keys import KeyFamily

Id = TypeVar("Id")
T = TypeVar("T")

logger = logging.getLogger("millrace")


class DecodedFamily(Generic[Id, T]):
    def __init__(self, family: KeyFamily[Id, T]) -> None:
        self._family = family
        self._known: dict[str, tuple[Entry, T | None]] = {}  # None: it cannot be read.
        self._entries: tuple[Entry, ...] = ()

    def find(self, entry: Entry) -> T | None:
        """None if the key is absent."""
        if not entry.version:
            return None
        known = self._known_of(entry)
        record = None if known is None else known[1]
        return self._family.decode(entry) if record is None else record

    def listed(self, entries: tuple[Entry, ...]) -> list[T]:
        """Of all entries of the family; raises UnreadableMetadata if one cannot be read."""
        self._look(entries)
        return [
            self._family.decode(entry) if record is None else record
            for entry, record in self._known.values()
        ]

    def by_id(self, entries: tuple[Entry, ...]) -> dict[Id, T]:
        """As `listed`."""
        ids = (self._family.id_of(entry.key) for entry in entries)
        return dict(zip(ids, self.listed(entries), strict=True))

    def each(self, entries: tuple[Entry, ...]) -> Iterator[tuple[Id, T | None, int]]:
        """Of all entries of the family: id, record and version.  None: the record cannot be read.
        A key without an id is of nobody.  Keeps I4."""
        self._look(entries)
        for entry, record in self._known.values():
            try:
                id = self._family.id_of(entry.key)
            except UnreadableMetadata:
                continue
            yield id, record, entry.version

    def _look(self, entries: tuple[Entry, ...]) -> None:
        """Keeps I3."""
        if entries != self._entries:
            self._known = {
                entry.key: self._known_of(entry) or (entry, self._decode(entry))
                for entry in entries
            }
            self._entries = entries

    def _known_of(self, entry: Entry) -> tuple[Entry, T | None] | None:
        """Keeps I1 and I2."""
        known = self._known.get(entry.key)
        if known is None or (known[0].version, known[0].value) != (entry.version, entry.value):
            return None
        return known

    def _decode(self, entry: Entry) -> T | None:
        try:
            self._family.id_of(entry.key)
            return self._family.decode(entry)
        except UnreadableMetadata as error:
            logger.error("metadata.unreadable", extra={"fields": {"detail": str(error)}})
            return None
