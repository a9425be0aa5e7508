"""What readers know of applications that publish: whether a block counts.

I1  What is remembered of an application is used only where it has decided for good
    (`core.publications.decides`).
I2  At most APPS_REMEMBERED_MAX records are held.
"""

from typing import Any, Final

from millrace.codec.published import Publication
from millrace.core.publications import PublicationRecord
from millrace.core.publishing import Held, ReadRecord, settle
from millrace.meta.directory import ClusterDirectory
from millrace.types import LogId, Lsn

APPS_REMEMBERED_MAX: Final = 1_024


class Lookups:
    def __init__(self, directory: ClusterDirectory) -> None:
        self._directory = directory
        self._known: dict[str, PublicationRecord] = {}  # In the order in which they were learned.
        self.made = 0  # How often the repository was asked.

    async def is_valid(self, log: LogId, publication: Publication, first: Lsn) -> bool:
        """Of a block of the log at `first`.  Raises MetadataUnavailable."""
        app, version, mark = publication.app, publication.version, publication.mark
        work = settle(self._known.get(app), log, version, mark, first)
        answer: Any = None
        while True:
            try:
                effect = work.send(answer)
            except StopIteration as finished:
                self._learn(app, finished.value.record)
                return bool(finished.value.is_valid)
            self.made += 1
            if isinstance(effect, ReadRecord):
                answer = Held(*await self._directory.read_publication(app))
            else:
                answer = await self._directory.replace_publication(effect.record, effect.expected)

    def _learn(self, app: str, record: PublicationRecord | None) -> None:
        if record is None or self._known.get(app) is record:
            return
        self._known.pop(app, None)
        self._known[app] = record
        if len(self._known) > APPS_REMEMBERED_MAX:  # Keeps I2.
            del self._known[next(iter(self._known))]
