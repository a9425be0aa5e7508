"""JSON values as bytes that sort as the values do: the keys of a view, and the values it reduces.

    null < false < true < numbers < strings < arrays < objects

Numbers sort by size whether they are written as integers or not, so 1 and 1.0 are one value, and
come back as 1.  Strings sort by code point; arrays and objects entry by entry, an object's in the
order of their names.

  I1  encode(a) == encode(b) if and only if a and b are the same JSON value.
  I2  No encoding begins another: what stands behind one is kept apart from it.
  I3  No encoding begins with END, so `encoding + END` sorts behind all that begins with it.
"""

import struct
from typing import Any, Final

END: Final = b"\xff"
INTEGER_MIN: Final = -(2**63)
INTEGER_MAX: Final = 2**64 - 1

_STOP: Final = 0x00  # Of strings, arrays and objects: below all that may stand there instead.
_ESCAPE: Final = 0x01
_NULL, _FALSE, _TRUE, _NUMBER, _STRING, _ARRAY, _OBJECT = range(1, 8)
_STRING_MARK: Final = bytes([_STRING])
_NUMBER_BYTES: Final = struct.Struct(">BQH")
_DOUBLE: Final = struct.Struct(">d")
_BITS: Final = struct.Struct(">Q")
_SIGN_BIT: Final = 1 << 63
_ALL_BITS: Final = (1 << 64) - 1
_NO_REST: Final = 1 << 15  # What a double cannot say of a large integer is added to this.
_EXACT_MAX: Final = 2**53  # Up to here a double holds every integer.


def encode(value: Any) -> bytes:
    """Raises ValueError or TypeError for what is no JSON value."""
    kind = type(value)
    if kind is str:
        return _STRING_MARK + _escaped(value) + b"\0"
    if kind is int or kind is float:
        return _number(value)
    if value is None:
        return bytes([_NULL])
    if kind is bool:
        return bytes([_TRUE if value else _FALSE])
    if isinstance(value, dict):
        entries = sorted((encode(_name(name)), encode(each)) for name, each in value.items())
        return b"%c%s\0" % (_OBJECT, b"".join(name + each for name, each in entries))
    if isinstance(value, list | tuple):
        return b"%c%s\0" % (_ARRAY, b"".join(map(encode, value)))
    return _foreign(value)


def decode(encoded: bytes) -> Any:
    value, end = _read(encoded, 0)
    assert end == len(encoded), f"{end} of {len(encoded)} bytes are a value"
    return value


def is_number(encoded: bytes) -> bool:
    return encoded[0] == _NUMBER


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"an object's names are strings, and {name!r} is none")
    return name


def _escaped(text: str) -> bytes:
    plain = text.encode()
    if b"\0" in plain or b"\1" in plain:
        plain = plain.replace(b"\1", b"\1\2").replace(b"\0", b"\1\1")
    return plain


def _number(value: int | float) -> bytes:
    rest = _NO_REST
    if type(value) is int and not -_EXACT_MAX <= value <= _EXACT_MAX:
        if not INTEGER_MIN <= value <= INTEGER_MAX:
            raise ValueError(f"{value} does not fit into 64 bits")
        rest += value - int(float(value))
    (bits,) = _BITS.unpack(_DOUBLE.pack(value + 0.0))  # -0.0 becomes 0.0.
    if bits & 0x7FF0_0000_0000_0000 == 0x7FF0_0000_0000_0000:
        raise ValueError(f"{value} is no JSON number")
    return _NUMBER_BYTES.pack(_NUMBER, bits ^ (_ALL_BITS if bits & _SIGN_BIT else _SIGN_BIT), rest)


def _foreign(value: Any) -> bytes:
    """What pandas and NumPy make of numbers, and subclasses of the built-in types."""
    if hasattr(value, "item"):
        return encode(value.item())
    for kind in (str, int, float):
        if isinstance(value, kind):
            return encode(kind(value))
    raise TypeError(f"{value!r} of type {type(value).__name__} is no JSON value")


def _read(encoded: bytes, at: int) -> tuple[Any, int]:
    kind = encoded[at]
    if kind == _STRING:
        return _read_text(encoded, at + 1)
    if kind == _NUMBER:
        return _read_number(encoded, at), at + _NUMBER_BYTES.size
    if kind in (_ARRAY, _OBJECT):
        return _read_entries(encoded, at + 1, is_object=kind == _OBJECT)
    return {_NULL: None, _FALSE: False, _TRUE: True}[kind], at + 1


def _read_text(encoded: bytes, at: int) -> tuple[str, int]:
    end = encoded.index(_STOP, at)
    plain = encoded[at:end]
    if _ESCAPE in plain:
        plain = plain.replace(b"\1\1", b"\0").replace(b"\1\2", b"\1")
    return plain.decode(), end + 1


def _read_number(encoded: bytes, at: int) -> int | float:
    _, bits, rest = _NUMBER_BYTES.unpack_from(encoded, at)
    packed = _BITS.pack(bits ^ (_SIGN_BIT if bits & _SIGN_BIT else _ALL_BITS))
    number: float = _DOUBLE.unpack(packed)[0]
    if not number.is_integer():
        return number
    whole = int(number) + rest - _NO_REST
    return whole if INTEGER_MIN <= whole <= INTEGER_MAX else number


def _read_entries(encoded: bytes, at: int, is_object: bool) -> tuple[Any, int]:
    found = []
    while encoded[at] != _STOP:
        value, at = _read(encoded, at)
        found.append(value)
    entries = dict(zip(found[::2], found[1::2], strict=True)) if is_object else found
    return entries, at + 1
