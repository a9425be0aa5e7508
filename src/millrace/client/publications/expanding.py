"""Blocks that publish, made into what they publish: one part in, many out.

A block that counts becomes the parts of its rows, at its own positions; one that does not a HOLE.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from millrace.client.publications.staged_source import StagedSource
from millrace.codec.published import Placed, Publication, publication_of
from millrace.core.read_effects import Deliver
from millrace.errors import MetadataUnavailable
from millrace.types import Gap, GapKind, LogInfo, Lsn, Selection

if TYPE_CHECKING:
    from millrace.client.cluster import Client

RETRY_S: Final = 0.2  # While the metadata repository is away.


class Expanding:
    """Of one reader; close it, or use it as a context manager."""

    def __init__(self, client: "Client", target: LogInfo, selection: Selection | None) -> None:
        self._client = client
        self._target = target
        self.source = StagedSource(client, target, selection)
        self.waits_for = ""  # Why nothing comes, if that is known.

    async def parts(
        self, part: Deliver, following: Iterable[Deliver | Gap] = ()
    ) -> AsyncGenerator[Deliver | Gap, None]:
        """The part's rows.  `following` are parts that come next, as far as they are here."""
        publication = publication_of(part.block)
        if not await self._is_valid(publication, part.block.first):
            yield Gap(GapKind.HOLE, part.first, Lsn(part.end - 1))
            return
        record_bytes = publication.size_bytes / part.block.count
        pieces = list(publication.placed(part.block.first, part.first, part.end))
        for number, piece in enumerate(pieces):
            ahead = _ahead(pieces, number + 1, following)
            async for each in self.source.read(publication.log, piece, ahead, record_bytes):
                yield each

    async def _is_valid(self, publication: Publication, first: Lsn) -> bool:
        """Waits for the metadata repository, as readers wait for nodes."""
        while True:
            self._client.check_open()
            try:
                lookups = self._client.publications.lookups
                return await lookups.is_valid(self._target.id, publication, first)
            except MetadataUnavailable as error:
                self.waits_for = f"whether what lies at {first} was published: {error}"
                await asyncio.sleep(RETRY_S)
            finally:
                self.waits_for = ""

    async def close(self) -> None:
        await self.source.close()

    async def __aenter__(self) -> "Expanding":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _ahead(
    pieces: list[Placed], begin: int, following: Iterable[Deliver | Gap]
) -> Iterator[Placed]:
    """What is read next; whether it counts is not known yet, and does not matter."""
    for number in range(begin, len(pieces)):
        yield pieces[number]
    for part in following:
        if isinstance(part, Deliver) and part.block.is_published:
            yield from publication_of(part.block).placed(part.block.first, part.first, part.end)
