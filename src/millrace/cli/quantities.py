"""How people write amounts: `7d`, `12h`, `30m`, `1.5s`, `200ms`; `10GiB`, `500MB`, `4096`.

Parsing refuses with what would have been right; showing picks the unit a person would.
"""

import re
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
