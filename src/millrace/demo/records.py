"""The records of the demo, each of which says which one it is.

A value is the record's number in 8 bytes, filled up with bytes made from it, so that a reader can
tell missing, doubled and foreign records apart.  The key is one of a few, in turn.
"""

import struct
from typing import Final

KEYS: Final = tuple(f"sensor-{number:02}".encode() for number in range(16))
RECORD_BYTES: Final = 100
_VALUE_BYTES: Final = RECORD_BYTES - len(KEYS[0])
_FILLER: Final = bytes(range(256)) * 2


def make_values(first: int, count: int) -> list[bytes]:
    """The values of records first .. first + count - 1."""
    pack = struct.Struct("<Q").pack
    size = _VALUE_BYTES - 8
    return [
        pack(number) + _FILLER[number % 251 : number % 251 + size]
        for number in range(first, first + count)
    ]


def make_keys(first: int, count: int) -> list[bytes]:
    """Their keys."""
    return [KEYS[number % len(KEYS)] for number in range(first, first + count)]


def number_of(value: bytes) -> int:
    number: int = struct.unpack_from("<Q", value)[0]
    return number
