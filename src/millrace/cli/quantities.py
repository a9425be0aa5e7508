"""How people write amounts: `7d`, `12h`, `30m`, `1.5s`, `200ms`; `10GiB`, `500MB`, `4096`; and
moments: `2026-08-21`, `2026-08-21T10:00:00+02:00`, `1787306400.25`.

Parsing refuses with what would have been right; showing picks the unit a person would.
"""

import datetime
import re
from decimal import Decimal
from typing import Final

from millrace.errors import UsageError

DURATION_UNITS_MS: Final = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
SIZE_UNITS_BYTES: Final = {
    "": 1,
    "B": 1,
    "KB": 1_000,
    "MB": 1_000_000,
    "GB": 1_000_000_000,
    "TB": 1_000_000_000_000,
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
    "TIB": 1 << 40,
}
_AMOUNT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_SECONDS: Final = re.compile(r"[0-9]+(?:\.[0-9]{1,6})?")
_DATE_WITHOUT_DASHES: Final = re.compile(r"(?:19|20)[0-9]{2}(?:0[1-9]|1[0-2])[0-3][0-9]")
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_YEAR_10000_S: Final = 253_402_300_800


def parse_duration_ms(text: str) -> int:
    match = _AMOUNT.fullmatch(text.strip())
    unit = DURATION_UNITS_MS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise UsageError(f"{text!r} is not a duration: write 7d, 12h, 30m, 10s or 500ms")
    return _above_zero(float(match[1]) * unit, text, "duration")


def parse_size_bytes(text: str) -> int:
    match = _AMOUNT.fullmatch(text.strip())
    unit = SIZE_UNITS_BYTES.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise UsageError(f"{text!r} is not a size: write 10GiB, 500MB, 64KiB or a number of bytes")
    return _above_zero(float(match[1]) * unit, text, "size")


def parse_moment_us(text: str) -> int:
    """Microseconds since 1970.  A time without a zone is in UTC; a number is in seconds."""
    given = text.strip()
    if _DATE_WITHOUT_DASHES.fullmatch(given):
        raise UsageError(f"{text!r} may be a date or seconds: write {_dashed(given)} or {given}.0")
    if _SECONDS.fullmatch(given):
        if int(given.partition(".")[0]) >= _YEAR_10000_S:
            raise UsageError(f"{text!r} lies beyond the year 9999: give seconds, not milliseconds")
        return int(Decimal(given) * 1_000_000)
    try:
        moment = datetime.datetime.fromisoformat(given)
    except ValueError:
        raise UsageError(
            f"{text!r} is not a time: write 2026-08-21T10:00:00, with a zone (Z, +02:00) or in "
            "UTC, 2026-08-21, or seconds since 1970"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return (moment - _EPOCH) // datetime.timedelta(microseconds=1)


def _dashed(date: str) -> str:
    return f"{date[:4]}-{date[4:6]}-{date[6:]}"


def _above_zero(amount: float, text: str, kind: str) -> int:
    if amount < 1:
        raise UsageError(f"{text!r} is too small for a {kind}")
    return int(amount)


def show_duration(duration_ms: int) -> str:
    """The two largest units: `3d 4h`, `12m 5s`, `1.2s`."""
    if duration_ms < 1_000:
        return f"{duration_ms}ms"
    if duration_ms < 60_000:
        return f"{duration_ms / 1000:.3g}s"
    shown: list[str] = []
    for unit in ("d", "h", "m", "s"):
        count, duration_ms = divmod(duration_ms, DURATION_UNITS_MS[unit])
        if count:
            shown.append(f"{count}{unit}")
        elif shown:
            break
    return " ".join(shown[:2])


def show_size(size_bytes: int) -> str:
    amount = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{size_bytes} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
