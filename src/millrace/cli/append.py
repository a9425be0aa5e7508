"""`log append`: values of the command line, or lines of stdin as they come.

What has come while an append was under way goes out together: a slow pipe is appended line by
line and a fast one in large blocks, in order.

  I1  What was acknowledged is printed, also when another record fails.
  I2  A record whose outcome is unknown is never sent a second time as a new one.
"""

import asyncio
import sys
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from millrace.cli.output import Output, Tone
from millrace.cli.quantities import parse_moment_us
from millrace.cli.records import positions_json, show_range
from millrace.cli.session import to_bytes
from millrace.cli.stdin_lines import StdinLines
from millrace.client import Log, UnknownAppend
from millrace.codec.drafts import HeaderPairs
from millrace.core.append import Appended
from millrace.errors import OutcomeUnknown, UsageError
from millrace.limits import BLOCK_BYTES_TARGET, BLOCK_RECORDS_MAX
from millrace.types import Ack, WritePath

BLOCKS_AT_ONCE: Final = 8


class Stamp(msgspec.Struct, frozen=True):
    """What every record of this command gets besides its value."""

    key: bytes | None = None
    headers: HeaderPairs = ()
    timestamp_us: int | None = None

    @property
    def size(self) -> int:
        """About what it adds to each record, in bytes."""
        pairs = sum(len(name.encode()) + len(content) for name, content in self.headers)
        return pairs + len(self.key or b"")

    @classmethod
    def parse(cls, key: str | None, headers: list[str], timestamp: str | None) -> "Stamp":
        for header in headers:
            if not header.partition("=")[1]:
                raise UsageError(f"--header {header!r}: write NAME=VALUE")
        pairs = tuple(
            (name, to_bytes(value))
            for name, _, value in (header.partition("=") for header in headers)
        )
        moment = None if timestamp is None else parse_moment_us(timestamp)
        return cls(None if key is None else to_bytes(key), pairs, moment)


class Appending:
    """One command's appends, and what has been acknowledged of them."""

    def __init__(
        self,
        log: Log,
        stamp: Stamp,
        ack: Ack | None,
        batch: int | None,
        timeout_ms: int,
        output: Output,
    ) -> None:
        self.output = output
        self._log = log
        self._stamp = stamp
        self._ack = ack
        self._records_max = min(batch or BLOCK_RECORDS_MAX, BLOCK_RECORDS_MAX)
        self._timeout_ms = timeout_ms
        self._ranges: list[Appended] = []
        is_commit = log.info.attributes.write_path is WritePath.COMMIT
        # What one command appends keeps its order.
        self._stream = log.streams.next_stream() if is_commit else None

    async def append(self, values: list[bytes]) -> None:
        blocks = list(_blocks(values, self._records_max, self._stamp.size))
        for first in range(0, len(blocks), BLOCKS_AT_ONCE):
            asks = map(self._append_block, blocks[first : first + BLOCKS_AT_ONCE])
            outcomes = await asyncio.gather(*asks, return_exceptions=True)
            done = [each for each in outcomes if not isinstance(each, BaseException)]
            self._acknowledged([appended for each in done for appended in each])
            for each in outcomes:
                if isinstance(each, BaseException):
                    raise each

    def report(self) -> None:
        """Keeps I1 for JSON, which is one object for the whole command."""
        if self.output.is_json:
            count = sum(each.last - each.first + 1 for each in self._ranges)
            ranges = [self._range_json(each) for each in self._ranges]
            self.output.json({"log": self._log.name, "records": count, "ranges": ranges})

    def _range_json(self, each: Appended) -> dict[str, Any]:
        text = positions_json(each.first, each.last, self._log.show)
        return {"first": each.first, "last": each.last, **text}

    async def _append_block(self, values: list[bytes]) -> list[Appended]:
        stamp = self._stamp
        try:
            return await self._log.append_many(
                values,
                keys=None if stamp.key is None else [stamp.key] * len(values),
                timestamps_us=stamp.timestamp_us,
                headers=[stamp.headers] * len(values) if stamp.headers else None,
                ack=self._ack,
                timeout_ms=self._timeout_ms,
                stream=self._stream,
            )
        except UnknownAppend as unknown:
            return [await self._settle(unknown)]

    async def _settle(self, unknown: UnknownAppend) -> Appended:
        """Keeps I2."""
        self.output.say(
            f"{_known_of(unknown)}; asking for {self._timeout_ms / 1000:g} s more, "
            "`millrace cluster status` shows which nodes do not answer",
            Tone.WARNING,
        )
        try:
            return await self._log.resume(unknown, timeout_ms=self._timeout_ms)
        except UnknownAppend as still:
            raise OutcomeUnknown(
                f"{_known_of(still)}; when the cluster is well again, "
                f"`millrace log tail {self._log.name} --no-follow` shows whether it did"
            ) from still

    def _acknowledged(self, ranges: list[Appended]) -> None:
        merged = _merged(ranges)
        if self.output.is_json:
            self._ranges = _merged([*self._ranges, *merged])
            return
        for each in merged:
            self.output.line(show_range(each.first, each.last, self._log.show))
        sys.stdout.flush()


def _known_of(unknown: UnknownAppend) -> str:
    """Without what a program should do."""
    return str(unknown).partition(";")[0]


async def append_lines(appending: Appending) -> None:
    """Each line of stdin, without its line end, until stdin ends."""
    if sys.stdin.isatty():
        appending.output.say("each line becomes a record; Ctrl-D ends")
    lines = StdinLines()
    # On a terminal the positions themselves show the progress.
    is_bar_wanted = not sys.stdin.isatty() and not sys.stdout.isatty()
    with appending.output.progress("records", is_wanted=is_bar_wanted) as progress:
        while values := await lines.take():
            await appending.append(values)
            progress.advance(len(values))


def _blocks(values: list[bytes], records_max: int, stamp_size: int) -> Iterator[list[bytes]]:
    """Values that go into one block each, with their stamps: a block has one outcome."""
    first = size = 0
    for index, value in enumerate(values):
        grown = size + len(value) + stamp_size
        is_full = grown > BLOCK_BYTES_TARGET or index - first == records_max
        if is_full and index > first:
            yield values[first:index]
            first, size = index, 0
        size += len(value) + stamp_size
    if first < len(values):
        yield values[first:]


def _merged(ranges: list[Appended]) -> list[Appended]:
    merged: list[Appended] = []
    for each in ranges:
        if merged and merged[-1].last + 1 == each.first:
            merged[-1] = Appended(merged[-1].first, each.last)
        else:
            merged.append(each)
    return merged
