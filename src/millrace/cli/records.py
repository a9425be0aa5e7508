"""How records and gaps look: aligned lines, JSON, raw values, or a template of your own.

A gap is a line of its own: `gap 120..131 hole`, in JSON `{"gap": {...}}`.  Where lines must hold
nothing but values (raw and templates) it goes to stderr.

Positions are shown as people write them in this log, `47` or `e7n42`.  In JSON they are numbers;
where the text is another it stands beside them: `position` of a record, `positions` of a range.
"""

import base64
import datetime
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millrace.errors import UsageError
from millrace.types import Gap, Lsn, Record

if TYPE_CHECKING:
    from millrace.core.read_stream import Deliver

FORMATS: Final = ("table", "json", "ndjson", "raw")
NO_KEY: Final = "-"
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_ESCAPES: Final = {"n": "\n", "t": "\t", "0": "\0", "\\": "\\"}

Render = Callable[[Record], bytes]
Show = Callable[[Lsn], str]  # A position, as people write it in the log at hand.


class Renderer:
    """Turns what a reader delivers into bytes; one call for each block."""

    def __init__(self, format: str, *, is_endless: bool = False, show: Show = str) -> None:
        self._format = "ndjson" if format == "json" and is_endless else format
        self.show = show
        self._render = renderer_of(self._format, show)
        self._is_first = True

    @property
    def shows_gaps(self) -> bool:
        return self._format in ("table", "json", "ndjson")

    def begin(self) -> bytes:
        return b"[" if self._format == "json" else b""

    def end(self) -> bytes:
        return b"\n]\n" if self._format == "json" else b""

    def block(self, part: "Deliver", records_max: int) -> tuple[bytes, int]:
        """The first `records_max` records of a block, and how many those are."""
        count = min(part.end - part.first, records_max)
        if self._format == "raw":
            return self._raw(part, count), count
        from millrace.codec.blocks import records

        end = type(part.first)(part.first + count)
        return self._join([self._render(r) for r in records(part.block, part.first, end)]), count

    def gap(self, gap: Gap) -> bytes:
        if self._format == "table":
            return show_gap(gap, self.show).encode() + b"\n"
        return self._join([msgspec.json.encode({"gap": json_of_gap(gap, self.show)})])

    def record(self, record: Record) -> bytes:
        return self._join([self._render(record)])

    def _raw(self, part: "Deliver", count: int) -> bytes:
        from millrace.codec.arrow import record_batch

        end = type(part.first)(part.first + count)
        batch = record_batch(part.block, columns=["value"], first=part.first, end=end)
        values: list[bytes] = batch.column(0).to_pylist()  # type: ignore[assignment]
        return b"\n".join(values) + b"\n" if values else b""

    def _join(self, parts: list[bytes]) -> bytes:
        if self._format == "json":
            lead = b"\n" if self._is_first else b",\n"
            self._is_first = False
            return lead + b",\n".join(parts)
        if self._format == "ndjson":
            return b"\n".join(parts) + b"\n"
        return b"".join(parts)


def renderer_of(format: str, show: Show = str) -> Render:
    match format:
        case "table":
            return lambda record: _table_line(record, show)
        case "json" | "ndjson":
            return lambda record: msgspec.json.encode(json_of(record, show))
        case "raw":
            return lambda record: record.value + b"\n"
        case _:
            return _template(format, show)


def show_gap(gap: Gap, show: Show = str) -> str:
    return f"gap {show(gap.first)}..{show(gap.last)} {gap.kind.value}"


def show_range(first: Lsn, last: Lsn, show: Show) -> str:
    return show(first) if first == last else f"{show(first)}..{show(last)}"


def json_of_gap(gap: Gap, show: Show = str) -> dict[str, Any]:
    shown = {"kind": gap.kind.value, "first": gap.first, "last": gap.last}
    return {**shown, **positions_json(gap.first, gap.last, show)}


def positions_json(first: Lsn, last: Lsn, show: Show) -> dict[str, str]:
    """The text of a range, where it is not the numbers themselves."""
    return {} if show(last) == str(last) else {"positions": show_range(first, last, show)}


def show_time(timestamp_us: int) -> str:
    """Writers may choose any 64 bits: what is no date is shown as the number it is."""
    try:
        moment = _EPOCH + datetime.timedelta(microseconds=timestamp_us)
    except OverflowError:
        return f"{timestamp_us}us"
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def json_of(record: Record, show: Show = str) -> dict[str, Any]:
    """Text where it is text; other bytes as base64 in a field of another name."""
    shown: dict[str, Any] = {"lsn": record.lsn}
    if (position := show(record.lsn)) != str(record.lsn):
        shown["position"] = position
    shown["timestamp_us"] = record.timestamp
    shown.update(text_or_base64("key", record.key) if record.key is not None else {"key": None})
    shown.update(text_or_base64("value", record.value))
    shown["headers"] = [
        {"name": name, **text_or_base64("value", value)} for name, value in record.headers
    ]
    return shown


def text_or_base64(field: str, data: bytes) -> dict[str, str]:
    try:
        return {field: data.decode()}
    except UnicodeDecodeError:
        return {f"{field}_base64": base64.b64encode(data).decode()}


def _table_line(record: Record, show: Show) -> bytes:
    key = NO_KEY if record.key is None else show_text(record.key)
    time = show_time(record.timestamp)
    return f"{show(record.lsn):>8}  {time}  {key:<8}  {show_text(record.value)}\n".encode()


def show_text(data: bytes) -> str:
    """On one line, whatever it is: what a terminal must not get is escaped."""
    text = data.decode(errors="backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _template(template: str, show: Show) -> Render:
    r"""`%l %k %v %t %h %%` and the escapes \n \t \0 \\; a line end is added unless there is one."""
    if "%" not in template:
        raise UsageError(
            f"{template!r} is not a format: use one of {', '.join(FORMATS)}, or a template with "
            "%l (position), %k (key), %v (value), %t (time), %h (headers)"
        )
    parts = re.split(r"(%.|\\.)", template, flags=re.DOTALL)
    makers = [_maker(part, show) for part in parts if part]
    ending = b"" if template.endswith((r"\n", r"\0", "\n")) else b"\n"
    return lambda record: b"".join(make(record) for make in makers) + ending


def _maker(part: str, show: Show) -> Render:
    match part:
        case "%v":
            return lambda record: record.value
        case "%l":
            return lambda record: show(record.lsn).encode()
        case "%k":
            return lambda record: record.key or b""
        case "%t":
            return lambda record: show_time(record.timestamp).encode()
        case "%h":
            return lambda record: b",".join(n.encode() + b"=" + v for n, v in record.headers)
        case "%%":
            return lambda _: b"%"
    if part.startswith("%"):
        raise UsageError(f"{part!r} means nothing in a template: use %l, %k, %v, %t, %h or %%")
    fixed = (_ESCAPES.get(part[1:], part) if part.startswith("\\") else part).encode()
    return lambda _: fixed
