"""How people write positions: `start`, `end`, `47`, `e7n42`, `-3`, `+2`, `@2026-08-21T10:00:00`.

`e7n42` is a position of a sequenced log: offset 42 of epoch 7; the number that it stands for will
do as well.  `-3` is the third from the end, `+2` two after the start, `@time` the first block that
reaches that time (with a zone, or in UTC; `@1724230000` is in seconds).
"""

import datetime
from enum import Enum
from typing import Final

import msgspec

from millrace import lsn
from millrace.errors import UsageError
from millrace.types import LSN_MAX, Lsn

Position = int | str | datetime.datetime


class Anchor(Enum):
    START = "start"
    END = "end"
    LSN = "lsn"
    TIME = "time"


class ParsedPosition(msgspec.Struct, frozen=True):
    anchor: Anchor
    offset: int = 0  # LSN: the position itself.  TIME: microseconds.


START: Final = ParsedPosition(Anchor.START)
TIME_US_MIN: Final = -(1 << 63)
TIME_US_MAX: Final = (1 << 63) - 1


def parse(text: Position) -> ParsedPosition:
    if isinstance(text, int):
        return ParsedPosition(Anchor.LSN, _checked(text, str(text)))
    if isinstance(text, datetime.datetime):
        return ParsedPosition(Anchor.TIME, _checked_time(_since_epoch_us(text), str(text)))
    if not isinstance(text, str):
        raise UsageError(f"{text!r} is not a position: give a number, a word or a datetime")
    text = text.strip()
    match text:
        case "start":
            return START
        case "end":
            return ParsedPosition(Anchor.END)
    if text.startswith("@"):
        return ParsedPosition(Anchor.TIME, _checked_time(_microseconds(text), text))
    if (named := lsn.parse(text)) is not None:
        return ParsedPosition(Anchor.LSN, named)
    digits = text[1:] if text[:1] in "+-" else text
    if not digits.isascii() or not digits.isdigit():
        raise UsageError(
            f"{text!r} is not a position: write start, end, 47, e7n42 in a sequenced log, -3, +2 "
            "or @2026-08-21T10:00:00"
        )
    number = _checked(int(digits), text)
    if text[0] == "-":
        return ParsedPosition(Anchor.END, -number)
    if text[0] == "+":
        return ParsedPosition(Anchor.START, number)
    return ParsedPosition(Anchor.LSN, number)


def exact(position: int | str, argument: str) -> Lsn:
    """The position that is meant, without asking anybody: a number, or the text of one."""
    if isinstance(position, int | str):
        parsed = parse(position)
        if parsed.anchor is Anchor.LSN:
            return Lsn(parsed.offset)
    raise UsageError(
        f"{argument}={position!r}: give a position itself, as `append` returns it (47) or as it is "
        "written ('e7n42')"
    )


def check_holds_record(parsed: ParsedPosition) -> None:
    """Raises UsageError for the position before all others."""
    if parsed.anchor is Anchor.LSN and not parsed.offset:
        raise UsageError("no record is at 0: positions begin at 1, or at e1n1 in a sequenced log")


def _checked(number: int, text: str) -> int:
    if not 0 <= number <= LSN_MAX:
        raise UsageError(f"{text} is not a position: it must lie between 0 and {LSN_MAX}")
    return number


def _checked_time(time_us: int, text: str) -> int:
    if not TIME_US_MIN <= time_us <= TIME_US_MAX:
        raise UsageError(f"{text} is not a time that records can have: @1724230000 is in seconds")
    return time_us


def _microseconds(text: str) -> int:
    try:
        if text[1:].replace(".", "", 1).isdigit():
            return int(float(text[1:]) * 1_000_000)
        return _since_epoch_us(datetime.datetime.fromisoformat(text[1:]))
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"{text!r} is not a time: write @2026-08-21T10:00:00, with a zone or in UTC"
        ) from error


def _since_epoch_us(moment: datetime.datetime) -> int:
    """Without a zone it is UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return int(moment.timestamp() * 1_000_000)


def resolve(parsed: ParsedPosition, start: Lsn, end: Lsn) -> Lsn:
    """The position itself; a TIME, and how far it is back from the END, must have been looked up.
    Clamped to the log's end where it is relative to its start."""
    match parsed.anchor:
        case Anchor.START:
            return min(Lsn(start + parsed.offset), end)
        case Anchor.END:
            return end
        case _:
            return Lsn(parsed.offset)
