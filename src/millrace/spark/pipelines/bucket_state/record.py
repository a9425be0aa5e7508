"""What a state was made for, kept in its folder: it fits nothing else."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from millrace.errors import StateMismatch
from millrace.spark.pipelines.whole_files import write_whole

T = TypeVar("T", bound=msgspec.Struct)
Tell = Callable[[str, object, object], str]  # Of a field: what it was, and what is wanted now.


def made_or_compared(file: Path, wanted: T, tell: Tell, *, own: str = "") -> T:
    """The record in the file, which is made when there is none.  The field `own` is the state's:
    it need not be the same.  Raises StateMismatch, in the words of `tell`."""
    if not file.exists():
        write_whole(file, msgspec.json.format(msgspec.json.encode(wanted)))
        return wanted
    known = msgspec.json.decode(file.read_bytes(), type=type(wanted))
    for field in wanted.__struct_fields__:
        before, now = getattr(known, field), getattr(wanted, field)
        if field != own and before != now:
            raise StateMismatch(tell(field, before, now))
    return known


def read_known(file: Path, kind: type[T], what: str) -> T:
    """Raises StateMismatch if there is none; `what` is what it would be the record of."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except FileNotFoundError:
        raise StateMismatch(
            f"{file.parent} has no {file.name}: it is no {what} that ever ran"
        ) from None
