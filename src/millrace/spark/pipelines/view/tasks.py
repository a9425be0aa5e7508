"""What the tasks of a view do, as functions of Arrow batches.

    changed documents ──by document key──▶ DocumentShard ──by view key──▶ GroupShard ──▶ results

Every shard is visited in every batch, also when nothing came for it: in a batch that runs again,
what it answered the first time may be needed though its input is gone (`bucket_state/shard.py`).
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millrace.errors import FunctionFailed
from millrace.spark.pipelines.bucket_state.batches import Batches, by_shard, latest_of, task_number
from millrace.spark.pipelines.bucket_state.shard import check_host
from millrace.spark.pipelines.view.documents import (
    NO_ROWS,
    DocumentAnswer,
    DocumentShard,
    Failure,
    pack_rows,
)
from millrace.spark.pipelines.view.groups import GroupShard
from millrace.spark.pipelines.view.mapping import encode_view_key, split_failures, text_of
from millrace.spark.pipelines.view.reduces import Reduce
from millrace.spark.pipelines.view.set_aside import write_set_aside
from millrace.spark.pipelines.view.table import write_part
from millrace.spark.pipelines.view.work import Work
from millrace.spark.workers import freeze, plain_errors

RESULT_FIELDS: Final = "key binary, value binary"  # As JSON; a value that is null is gone.
CHANGE_FIELDS: Final = "view_key binary, value binary, times bigint"
_RESULT: Final = pa.schema({"key": pa.binary(), "value": pa.binary()})
_ROW: Final = msgspec.json.Decoder(dict[str, Any])


def document_stage(work: Work) -> Callable[[Batches], Batches]:
    """From (shard, key, value, version, row) to CHANGE_FIELDS.  `value` is null for what is gone;
    `row`, for SQL alone, has what the select gave for the document."""

    def run(batches: Batches) -> Batches:
        with plain_errors():
            check_host(work.driver_host)
            freeze()
            came = by_shard(batches)
            for number in work.shards_of(task_number()):
                answer = _documents_of(work, number, came.get(number))
                if work.set_aside is not None and answer.failures:
                    write_set_aside(work.set_aside, work.batch, number, answer.failures)
                yield from answer.table().to_batches()

    return run


def group_stage(work: Work) -> Callable[[Batches], Batches]:
    """From (shard, view_key, value, times) to RESULT_FIELDS."""

    def run(batches: Batches) -> Batches:
        with plain_errors():
            check_host(work.driver_host)
            freeze()
            reduce = work.made_reduce()
            came = by_shard(batches)
            for number in work.shards_of(task_number()):
                yield from _results_of(work, number, reduce, came.get(number))

    return run


def _results_of(work: Work, number: int, reduce: Reduce, came: pa.Table | None) -> Batches:
    shard = GroupShard.open(work.state, number, reduce)
    changes = () if came is None else _rows(came, "view_key", "value", "times")
    results = shard.take(work.batch, changes).results
    if work.table is not None and results:
        write_part(work.table, number, shard, work.batch)
    keys = pa.array([result.key for result in results], pa.binary())
    values = pa.array([result.value for result in results], pa.binary())
    yield pa.record_batch([keys, values], schema=_RESULT)


def _documents_of(work: Work, number: int, came: pa.Table | None) -> DocumentAnswer:
    shard = DocumentShard.open(work.state, number)
    before = shard.answered(work.batch)
    if before is not None:
        return before
    documents, failures = ({}, ()) if came is None else _mapped(work, came)
    if failures and work.set_aside is None:
        raise FunctionFailed(
            f"document {text_of(failures[0].document)!r}: {failures[0].reason}. The view stands "
            "where it was: correct the document, or set such documents aside with "
            "on_error=set_aside (--on-error set_aside); with another map function it is another "
            "view, under another name"
        )
    return shard.take(work.batch, documents, failures)


def _mapped(work: Work, came: pa.Table) -> tuple[dict[bytes, bytes], tuple[Failure, ...]]:
    if work.map is None:
        return _selected(came, work.made_reduce())
    latest = latest_of(came)
    live = latest.filter(pc.is_valid(latest["value"]))
    keys, values = _list(live, "key"), _list(live, "value")
    mapped = work.made_map().rows(keys, values)
    documents, failures = split_failures(keys, mapped)
    gone = latest.filter(pc.is_null(latest["value"]))
    return documents | dict.fromkeys(_list(gone, "key"), NO_ROWS), failures


def _selected(came: pa.Table, reduce: Reduce) -> tuple[dict[bytes, bytes], tuple[Failure, ...]]:
    """What a SQL select gave: of each document a line without a row, and one for each row."""
    rows: dict[bytes, list[bytes]] = {}
    failures: dict[bytes, Failure] = {}
    for key, row in _rows(came, "key", "row"):
        mine = rows.setdefault(key, [])
        if row is not None:
            try:
                given = _ROW.decode(row)
                mine += (encode_view_key(given.get("key")), reduce.encode(given.get("value")))
            except (ValueError, TypeError) as error:
                failures[key] = Failure(key, str(error))
    documents = {key: NO_ROWS if key in failures else pack_rows(rows[key]) for key in rows}
    return documents, tuple(failures.values())


def _rows(table: pa.Table, *names: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(_list(table, name) for name in names), strict=True)


def _list(table: pa.Table, name: str) -> list[Any]:
    return table[name].to_pylist()
