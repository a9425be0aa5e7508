"""One sample of every message, made from the types of its fields, and its golden file.

`python tests/codec/message_samples.py --rewrite` records the golden files anew: do so only when
the wire format is meant to change.
"""

import sys
import typing
from enum import Enum
from pathlib import Path
from types import UnionType

import msgspec

from millrace.codec import blocks, frames
from millrace.core.messages import Message
from millrace.core.replication import Replication
from millrace.types import Block, EntryKind, LogId, Lsn

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "messages"
REQUEST_ID = 0x01020304


def sample(kind: type[Message]) -> Message:
    """Every field filled with a value that is not its default."""
    return _struct(kind)


def golden_path(kind: type[Message]) -> Path:
    return GOLDEN / f"{kind.__name__}.hex"


def golden_text(kind: type[Message]) -> str:
    data = b"".join(frames.encode(sample(kind), REQUEST_ID, is_answer=True))
    return "".join(f"{data[at : at + 32].hex(' ', 4)}\n" for at in range(0, len(data), 32))


def comparable(value: object) -> object:
    """Blocks compare by their bytes, everything else by itself."""
    if isinstance(value, Block):
        return bytes(value.data)
    if isinstance(value, tuple):
        return tuple(map(comparable, value))
    if isinstance(value, Message):
        return type(value), tuple(map(comparable, msgspec.structs.astuple(value)))
    return value


def _struct(kind: type) -> typing.Any:
    hints = typing.get_type_hints(kind)
    return kind(*(_value(hints[name], at) for at, name in enumerate(kind.__struct_fields__)))


def _value(kind: typing.Any, at: int) -> object:
    kind = getattr(kind, "__supertype__", kind)
    if typing.get_origin(kind) is tuple:
        parts = typing.get_args(kind)
        if parts[-1] is not Ellipsis:
            return tuple(_value(part, at + number) for number, part in enumerate(parts))
        return (_value(parts[0], at), _value(parts[0], at + 1))
    if typing.get_origin(kind) in (typing.Union, UnionType):
        return _value(typing.get_args(kind)[0], at)
    if kind is Block:
        return blocks.junk(LogId(7), Lsn(100 + at), 3, EntryKind.HOLE)
    if kind is Replication:  # One out of any numbers cannot be made.
        return Replication.of({"rack": 2, "node": 3})
    if issubclass(kind, bool):
        return True
    if issubclass(kind, Enum):
        return list(kind)[-1]
    if issubclass(kind, int):
        return 300 + at
    if issubclass(kind, str):
        return f"text {at}"
    if issubclass(kind, bytes):
        return bytes([at, 0xFF])
    return _struct(kind)


def rewrite() -> None:
    GOLDEN.mkdir(parents=True, exist_ok=True)
    kinds = frames.message_types()
    for stale in set(GOLDEN.glob("*.hex")) - {golden_path(kind) for kind in kinds}:
        stale.unlink()
    for kind in kinds:
        golden_path(kind).write_text(golden_text(kind))


if __name__ == "__main__" and sys.argv[1:] == ["--rewrite"]:
    rewrite()
