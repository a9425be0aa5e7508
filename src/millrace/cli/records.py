"""How records and gaps look: aligned lines, JSON, raw values, or a template of your own.

A gap is a line of its own: `gap 120..131 hole`, in JSON `{"gap": {...}}`.  Where lines must hold
nothing but values (raw and templates) it goes to stderr.
"""

import base64
import datetime
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millrace.errors import UsageError
from millrace.types import Gap, Record

if TYPE_CHECKING:
    from millrace.core.read_stream import Deliver

FORMATS: Final = ("table", "json", "ndjson", "raw")
NO_KEY: Final = "-"
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_ESCAPES: Final = {"n": "\n", "t": "\t", "0": "\0", "\\": "\\"}

Render = Callable[[Record], bytes]


class Renderer:
    """Turns what a reader delivers into bytes; one call for each block."""

    def __init__(self, format: str, *, is_endless: bool = False) -> None:
        self._format = "ndjson" if format == "json" and is_endless else format
        self._render = renderer_of(self._format)
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
            return show_gap(gap).encode() + b"\n"
        return self._join([msgspec.json.encode({"gap": gap})])

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


def renderer_of(format: str) -> Render:
    match format:
        case "table":
            return _table_line
        case "json" | "ndjson":
            return _json
        case "raw":
            return lambda record: record.value + b"\n"
        case _:
            return _template(format)


def show_gap(gap: Gap) -> str:
    return f"gap {gap.first}..{gap.last} {gap.kind.value}"


def show_time(timestamp_us: int) -> str:
    """Writers may choose any 64 bits: what is no date is shown as the number it is."""
    try:
        moment = _EPOCH + datetime.timedelta(microseconds=timestamp_us)
    except OverflowError:
        return f"{timestamp_us}us"
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def json_of(record: Record) -> dict[str, Any]:
    """Text where it is text; other bytes as base64 in a field of another name."""
    shown: dict[str, Any] = {"lsn": record.lsn, "timestamp_us": record.timestamp}
    shown.update(_text_or_base64("key", record.key) if record.key is not None else {"key": None})
    shown.update(_text_or_base64("value", record.value))
    shown["headers"] = [
        {"name": name, **_text_or_base64("value", value)} for name, value in record.headers
    ]
    return shown


def _json(record: Record) -> bytes:
    return msgspec.json.encode(json_of(record))


def _text_or_base64(field: str, data: bytes) -> dict[str, str]:
    try:
        return {field: data.decode()}
    except UnicodeDecodeError:
        return {f"{field}_base64": base64.b64encode(data).decode()}


def _table_line(record: Record) -> bytes:
    key = NO_KEY if record.key is None else show_text(record.key)
    time = show_time(record.timestamp)
    return f"{record.lsn:>8}  {time}  {key:<8}  {show_text(record.value)}\n".encode()


def show_text(data: bytes) -> str:
    """On one line, whatever it is: what a terminal must not get is escaped."""
    text = data.decode(errors="backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _template(template: str) -> Render:
    r"""`%l %k %v %t %h %%` and the escapes \n \t \0 \\; a line end is added unless there is one."""
    if "%" not in template:
        raise UsageError(
            f"{template!r} is not a format: use one of {', '.join(FORMATS)}, or a template with "
            "%l (position), %k (key), %v (value), %t (time), %h (headers)"
        )
    parts = re.split(r"(%.|\\.)", template, flags=re.DOTALL)
    makers = [_maker(part) for part in parts if part]
    ending = b"" if template.endswith((r"\n", r"\0", "\n")) else b"\n"
    return lambda record: b"".join(make(record) for make in makers) + ending


def _maker(part: str) -> Render:
    match part:
        case "%v":
            return lambda record: record.value
        case "%l":
            return lambda record: b"%d" % record.lsn
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
