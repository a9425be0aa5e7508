"""A task of an audit: one node's copies of a part, as rows.

A block's checksums are computed twice: by the node, when it reads the block from its disk, and
here, when the block has arrived.  Only then is a copy sound.

I1  There is one row for each copy, and one row more for each task, which says how it went: whoever
    brings the rows together sees which nodes were heard.
"""

from collections.abc import Iterator
from typing import Final

import msgspec
import pyarrow as pa

from millrace.core.auditing import CopyState, Evidence, Part, SeenCopy
from millrace.core.messages import Inspect, Inspected, Message
from millrace.errors import MillraceError, Unavailable
from millrace.limits import READ_BATCH_BYTES
from millrace.spark import workers
from millrace.types import Block, Copy, EntryKind, Epoch, Extent, Lsn, NodeId, Placement, Token

ASK_TIMEOUT_MS: Final = 30_000
TRIES_MAX: Final = 3
HEARD: Final = "heard"  # Beside the states of copies: the node told of all of the part.
SILENT: Final = "silent"

SCHEMA: Final = (
    "part int, log string, stream int, node int, state string, first bigint, last bigint, "
    "kind string, epoch bigint, recovery bigint, wave int, copyset array<int>, token string, "
    "checksum bigint, size_bytes bigint, trim_end bigint, detail string"
)
_TYPES: Final[dict[str, pa.DataType]] = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "string": pa.string(),
    "array<int>": pa.list_(pa.int32()),
}
_COLUMNS: Final = [column.split() for column in SCHEMA.split(", ")]
ARROW: Final = pa.schema([pa.field(name, _TYPES[kind]) for name, kind in _COLUMNS])


class Task(msgspec.Struct, frozen=True):
    cluster: str
    cluster_id: str
    number: int  # Of the part.
    part: Part
    node: NodeId


def read(task: Task) -> Iterator[pa.RecordBatch]:
    workers.freeze()
    part, at, trim_end = task.part, task.part.first, Lsn(0)
    while at < part.end:
        page = _ask(task, Inspect(part.number, at, part.end, READ_BATCH_BYTES))
        if not isinstance(page, Inspected) or page.next_lsn <= at:
            why = page if isinstance(page, str) else f"it answers {page}"
            yield _batch([_told(task, SILENT, trim_end, why)])
            return
        trim_end = max(trim_end, page.trim_end)
        yield _batch(_rows(task, page))
        at = page.next_lsn
    yield _batch([_told(task, HEARD, trim_end, "")])


def _ask(task: Task, request: Inspect) -> Message | str:
    """The answer, or why there is none."""
    why = ""
    for _ in range(TRIES_MAX):
        try:
            client = workers.client(task.cluster, task.cluster_id)
            return workers.run(client.ask_node(task.node, request, ASK_TIMEOUT_MS))
        except Unavailable as problem:
            why = str(problem)
        except MillraceError as problem:  # A block that was damaged on its way, for example.
            why = f"{type(problem).__name__}: {problem}"
    return why


Row = dict[str, object]


def _told(task: Task, state: str, trim_end: Lsn, detail: str) -> Row:
    return {**_place(task), "state": state, "trim_end": trim_end, "detail": detail}


def _place(task: Task) -> Row:
    part = task.part
    return {"part": task.number, "log": part.log, "stream": part.stream, "node": task.node}


def _rows(task: Task, page: Inspected) -> list[Row]:
    if page.damage:
        copy = page.copies[0]
        return [_row(task, SeenCopy(copy, CopyState.DAMAGED, page.damage), None)]
    pairs = zip(page.copies, page.blocks, strict=True)
    return [_row(task, _compared(copy, block), block) for copy, block in pairs]


def _compared(copy: Copy, block: Block) -> SeenCopy:
    """The block is whole: it was checked when it arrived."""
    if copy.extent == block.extent():
        return SeenCopy(copy)
    detail = f"the index says {copy.extent}, the block is {block.extent()}"
    return SeenCopy(copy, CopyState.MISFILED, detail)


def _row(task: Task, seen: SeenCopy, block: Block | None) -> Row:
    extent, placement = seen.copy.extent, seen.copy.placement
    return {
        **_place(task),
        "state": seen.state.value,
        "first": extent.first,
        "last": extent.last,
        "kind": extent.kind.name.lower(),
        "epoch": None if block is None else block.epoch,
        "recovery": placement.recovery,
        "wave": placement.wave,
        "copyset": list(placement.copyset),
        "token": f"{extent.token.client}:{extent.token.request}",
        "checksum": extent.checksum,
        "size_bytes": extent.size,
        "detail": seen.detail,
    }


def _batch(rows: list[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=ARROW)


# -- The way back ----------------------------------------------------------------------------------


def evidence_in(table: pa.Table) -> list[Evidence]:
    """What the nodes said of one part, from its rows.  Keeps the order of positions."""
    copies: dict[NodeId, list[SeenCopy]] = {}
    ends: dict[NodeId, Row] = {}
    for row in table.sort_by([("node", "ascending"), ("first", "ascending")]).to_pylist():
        if row["state"] in (HEARD, SILENT):
            ends[NodeId(row["node"])] = row
        else:
            copies.setdefault(NodeId(row["node"]), []).append(_seen(row))
    return [
        Evidence(
            node,
            tuple(copies.get(node, ())),
            Lsn(int(str(end["trim_end"]))),
            str(end["detail"]) if end["state"] == SILENT else "",
        )
        for node, end in ends.items()
    ]


def _seen(row: dict[str, object]) -> SeenCopy:
    client, _, request = str(row["token"]).partition(":")
    extent = Extent(
        msgspec.convert(row["first"], Lsn),
        msgspec.convert(row["last"], Lsn),
        EntryKind[str(row["kind"]).upper()],
        Token(int(client), int(request)),
        msgspec.convert(row["checksum"], int),
        msgspec.convert(row["size_bytes"], int),
    )
    placement = Placement(
        msgspec.convert(row["copyset"], tuple[NodeId, ...]),
        msgspec.convert(row["wave"], int),
        msgspec.convert(row["recovery"], Epoch),
    )
    return SeenCopy(Copy(extent, placement), CopyState(row["state"]), str(row["detail"]))
