"""The blocks of several streams as one commit log: in its order, by its positions.

Each stream's runs say which part of it comes when.  They are walked side by side, and whichever
stream's entry is lowest in the commit log is next.  What is asked of a stream is a protocol, so
that every store reads in this one way, whatever it is made of.

Invariants:

  I1  Whatever is held, a look is bounded: runs count like entries, as a replica that has lost
      blocks may have runs without any.
  I2  A block is touched only when it is its turn.
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Generic, Protocol, TypeVar

from millrace.codec.blocks import seen_at
from millrace.core.commit.record import StreamCommit, log_of_stream
from millrace.errors import CorruptBlock
from millrace.limits import SCAN_BLOCKS_MAX, SHIP_ENTRIES_MAX
from millrace.types import Block, Extent, Lsn

Entry = TypeVar("Entry")  # What a store has of a block before it reads it.


class StreamView(Protocol[Entry]):
    """One stream, as a store holds it now."""

    def runs(self, first: Lsn, end: Lsn) -> Iterable[StreamCommit]:
        """Those that intersect [first, end) of the commit log, in order."""

    def entries(self, first: Lsn, end: Lsn) -> Iterable[tuple[Lsn, Entry]]:
        """What intersects [first, end) of the stream, in order, with its first position."""

    def extent(self, first: Lsn, entry: Entry) -> Extent: ...

    def read(self, first: Lsn, entry: Entry) -> Block:
        """Raises CorruptBlock if it is damaged."""


class Found(Generic[Entry]):
    """An entry of a stream that begins at `at` of the commit log."""

    __slots__ = ("at", "entry", "local", "view")

    def __init__(self, view: StreamView[Entry], at: Lsn, local: Lsn, entry: Entry) -> None:
        self.view = view
        self.at = at
        self.local = local
        self.entry = entry

    def extent(self) -> Extent:
        """By its position in the commit log."""
        held = self.view.extent(self.local, self.entry)
        last = Lsn(self.at + held.last - held.first)
        return Extent(self.at, last, held.kind, held.token, held.checksum, held.size)

    def read(self) -> Block:
        block = self.view.read(self.local, self.entry)
        return seen_at(block, log_of_stream(block.log), self.at)


def ship(
    views: Sequence[StreamView[Entry]], first: Lsn, end: Lsn, bytes_max: int
) -> tuple[list[Block], Lsn]:
    """The blocks to send, and up to where was looked: `end` if at everything."""
    blocks: list[Block] = []
    size = 0
    for looked, (at, found) in enumerate(_walk_all(views, first, end)):
        if looked >= SHIP_ENTRIES_MAX:
            return blocks, at
        if found is None:
            continue
        size += found.view.extent(found.local, found.entry).size
        if blocks and (size > bytes_max or len(blocks) >= SCAN_BLOCKS_MAX):
            return blocks, at
        try:
            blocks.append(found.read())
        except CorruptBlock:
            if blocks:
                return blocks, at
            raise
    return blocks, max(first, end)


def index(views: Sequence[StreamView[Entry]], first: Lsn, end: Lsn, limit: int) -> list[Extent]:
    """As many as `limit`, looking at no more runs and entries than a shipment does."""
    steps = islice(_walk_all(views, first, end), SHIP_ENTRIES_MAX)
    return list(islice((found.extent() for _, found in steps if found is not None), limit))


_Step = tuple[Lsn, Found[Entry] | None]  # None: a run begins here.


def _walk_all(views: Sequence[StreamView[Entry]], first: Lsn, end: Lsn) -> Iterator[_Step[Entry]]:
    if first >= end:
        return iter(())
    return merge(*(_walk(view, first, end) for view in views), key=itemgetter(0))


def _walk(view: StreamView[Entry], first: Lsn, end: Lsn) -> Iterator[_Step[Entry]]:
    for run in view.runs(first, end):
        yield run.first, None
        ahead = run.first - run.local
        local_first = Lsn(max(first, run.first) - ahead)
        local_end = Lsn(min(end, run.end) - ahead)
        for local, entry in view.entries(local_first, local_end):
            at = Lsn(local + ahead)
            yield at, Found(view, at, local, entry)
