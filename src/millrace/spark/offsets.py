"""Offset documents: how far a query has read, as its checkpoint keeps it.

    {"cluster": "5f0c...", "logs": {"clicks": {"id": 7, "next": 1001}}}

I1  The same place has the same text: Spark compares the text of two offsets to see whether there
    is anything new.
I2  A document says whose it is, so that a checkpoint of another cluster, or of a log that was
    deleted and made again, is refused and not taken for a position here.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from millrace.errors import UsageError
from millrace.types import LogId, Lsn


class LogOffset(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    id: LogId
    next: Lsn  # The first position that was not read.
    first: Lsn | None = None  # Of a log that joined with this offset: where it is read from.
    # Where the log ends, as progress reports say it and no checkpoint: how many records the
    # micro-batch takes, and how many are left up to here.
    taken: int | None = None
    waiting: int | None = None


class Offset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cluster: str
    logs: dict[str, LogOffset]

    def document(self) -> dict[str, Any]:
        """Keeps I1."""
        places = {name: msgspec.to_builtins(self.logs[name]) for name in sorted(self.logs)}
        return {"cluster": self.cluster, "logs": places}


def parse(document: Mapping[str, Any]) -> Offset:
    try:
        return msgspec.convert(dict(document), Offset)
    except msgspec.ValidationError as problem:
        raise UsageError(
            f"the checkpoint holds an offset that is not of a millrace log ({problem}): "
            f"{document!r}; give the query a checkpointLocation of its own"
        ) from None


def check_cluster(offset: Offset, cluster: str) -> None:
    """Keeps I2."""
    if offset.cluster != cluster:
        raise UsageError(
            f"the checkpoint belongs to the cluster {offset.cluster}, the option cluster leads to "
            f"{cluster}: correct the option, or give the query a new checkpointLocation"
        )


def remade(name: str, place: LogOffset, found: LogId) -> str:
    """What is wrong with the place of a log in a checkpoint; empty if nothing.  Keeps I2."""
    if place.id == found:
        return ""
    return (
        f"log {name!r} was deleted and made again since the checkpoint was written (its id was "
        f"{place.id}, it is {found}): the positions mean other records now; give the query a "
        "new checkpointLocation"
    )
