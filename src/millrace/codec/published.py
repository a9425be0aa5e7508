"""Blocks that publish: their records lie in another log, and the body says where.

Such a block takes as many positions of its log as it publishes rows, whatever their number: one
append makes all of them appear.  Its header speaks of the rows, so that times are found and filters
decided without looking at them: their oldest and newest timestamps, and whether any has a key.  The
body is msgpack: who publishes (`core/publications.py` decides whether that counts), which log the
rows lie in, and the ranges of it in the order in which the rows follow each other.

  I1  The ranges have exactly as many positions as the block: else it is damaged.
  I2  A range holds whole blocks of the other log, so a block of it can be seen at the positions
      that were published (`blocks.shifted`) without reaching out of the block that publishes.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

import msgspec

from millrace.codec.blocks import HEADER_BYTES, Flags, Header
from millrace.codec.drafts import Draft
from millrace.codec.header import BODY_BYTES_MAX, checksum_of
from millrace.errors import CorruptBlock, UsageError
from millrace.limits import PUBLISHED_RECORDS_MAX
from millrace.types import FIRST_LSN, LSN_MAX, NO_TOKEN, Block, EntryKind, Epoch, LogId, Lsn


class StagedRange(msgspec.Struct, frozen=True, array_like=True):
    """Positions [first, first + count) of the log that the rows lie in."""

    first: Lsn
    count: int

    @property
    def end(self) -> Lsn:
        return Lsn(self.first + self.count)


class StagedRows(msgspec.Struct, frozen=True):
    """Rows that lie in a log beside the one that they are for."""

    log: LogId
    ranges: tuple[StagedRange, ...]
    size_bytes: int  # Of the blocks that they lie in.
    timestamp_min_us: int
    timestamp_max_us: int
    has_keys: bool
    staged_at_ms: int  # When the first of them was begun with.

    @property
    def count(self) -> int:
        return sum(each.count for each in self.ranges)


class Placed(msgspec.Struct, frozen=True):
    """A piece of a staged range, and where its first position was published."""

    first: Lsn
    end: Lsn
    at: Lsn

    @property
    def shift(self) -> int:
        return self.at - self.first


class Publication(msgspec.Struct, frozen=True, array_like=True):
    """The body of a block that publishes."""

    app: str
    version: int
    mark: int  # Of this attempt to publish them in this log: another one has another mark.
    log: LogId
    size_bytes: int
    staged_at_ms: int
    ranges: tuple[StagedRange, ...]

    def placed(self, block_first: Lsn, first: Lsn, end: Lsn) -> Iterator[Placed]:
        """Where positions [first, end) of a block that begins at `block_first` lie."""
        ends = list(accumulate(each.count for each in self.ranges))
        at = first - block_first
        for number in range(bisect_right(ends, at), len(ends)):
            lying = self.ranges[number]
            offset = at - (ends[number] - lying.count)
            count = min(lying.count - offset, end - block_first - at)
            if count <= 0:
                return
            piece_first = Lsn(lying.first + offset)
            yield Placed(piece_first, Lsn(piece_first + count), Lsn(block_first + at))
            at += count


_DECODER: Final = msgspec.msgpack.Decoder(Publication)


def joined(ranges: Sequence[StagedRange]) -> tuple[StagedRange, ...]:
    """The same positions in the same order, in as few ranges as there can be."""
    found: list[StagedRange] = []
    for each in ranges:
        if found and found[-1].end == each.first:
            found[-1] = StagedRange(found[-1].first, found[-1].count + each.count)
        else:
            found.append(each)
    return tuple(found)


def draft_published(app: str, version: int, mark: int, rows: StagedRows) -> Draft:
    """A block that publishes these rows."""
    if not 1 <= rows.count <= PUBLISHED_RECORDS_MAX:
        raise UsageError(
            f"1 to {PUBLISHED_RECORDS_MAX} rows of a log are published at once, not {rows.count}"
        )
    publication = Publication(
        app, version, mark, rows.log, rows.size_bytes, rows.staged_at_ms, rows.ranges
    )
    body = msgspec.msgpack.encode(publication)
    if len(body) > BODY_BYTES_MAX:
        raise UsageError(
            f"the rows lie in {len(rows.ranges)} places, which is more than one block can say: "
            "stage more rows at a time, or publish fewer"
        )
    flags = Flags.PUBLISHED | Flags.HAS_KEYS if rows.has_keys else Flags.PUBLISHED
    template = Header(
        flags,
        EntryKind.DATA,
        rows.count,
        LogId(0),
        Lsn(0),
        Epoch(0),
        NO_TOKEN,
        rows.timestamp_min_us,
        rows.timestamp_max_us,
        len(body),
        len(body),
        checksum_of(body),
    )
    return Draft(bytearray(HEADER_BYTES) + body, template)


def publication_of(block: Block) -> Publication:
    """What a block says that publishes.  Keeps I1; raises CorruptBlock."""
    assert block.is_published
    try:
        publication = _DECODER.decode(memoryview(block.data)[HEADER_BYTES:])
    except (msgspec.DecodeError, UnicodeDecodeError) as invalid:
        raise CorruptBlock(f"{block!r}: where its rows lie cannot be read: {invalid}") from invalid
    for each in publication.ranges:
        if each.count < 1 or each.first < FIRST_LSN or each.end > LSN_MAX:
            raise CorruptBlock(f"{block!r}: {each} is no range of a log")
    count = sum(each.count for each in publication.ranges)
    if count != block.count:
        raise CorruptBlock(f"{block!r} says where {count} rows lie, and has {block.count}")
    return publication
