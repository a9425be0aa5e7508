"""How records of one stream look: as those of a log do, with their position in the stream."""

from typing import TYPE_CHECKING

import msgspec

from millrace.cli.records import Renderer, json_of, json_of_gap
from millrace.types import Gap

if TYPE_CHECKING:
    from millrace.client.stream_reading import StreamEntry


class StreamRenderer:
    def __init__(self, format: str, stream: int) -> None:
        self._format = format
        self._stream = stream
        self._renderer = Renderer(format)
        self._is_first = True

    @property
    def shows_gaps(self) -> bool:
        return self._renderer.shows_gaps

    def begin(self) -> bytes:
        return self._renderer.begin()

    def end(self) -> bytes:
        return self._renderer.end()

    def show(self, found: "StreamEntry | Gap") -> bytes:
        """In a table `position in the stream | the record as in its log`; a gap's positions are
        those of the stream."""
        if self._format in ("json", "ndjson"):
            return self._json(found)
        if isinstance(found, Gap):
            return self._renderer.gap(found)
        line = self._renderer.record(found.record)
        return b"%8d %s" % (found.position, line) if self._format == "table" else line

    def _json(self, found: "StreamEntry | Gap") -> bytes:
        told = (
            {"gap": json_of_gap(found, str)}
            if isinstance(found, Gap)
            else {"local": found.position, **json_of(found.record, str)}
        )
        line = msgspec.json.encode({"stream": self._stream, **told})
        if self._format == "ndjson":
            return line + b"\n"
        lead, self._is_first = b"\n" if self._is_first else b",\n", False
        return lead + line
