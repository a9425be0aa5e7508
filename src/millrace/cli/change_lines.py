"""How changes look, and printing them as they come: aligned lines, or JSON.

A rollback takes back what was printed: its documents are lines with the cause `rollback`, which
replace what was said of these keys before.  A line `wipe` says that all that was printed of the
partition no longer counts, and comes again.

In JSON a wipe is `{"wipe": {"partition": 3}}`.
"""

import asyncio
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from millrace.cli.output import Output, Tone
from millrace.cli.records import show_text, show_time, text_or_base64
from millrace.errors import UsageError

if TYPE_CHECKING:
    from millrace.client.bucket import Bucket
    from millrace.client.changes import ChangeBatch, ChangeConsumer, ConsumerState
    from millrace.core.documents.document import Document

FORMATS: Final = ("table", "json", "ndjson")
COUNT_MAX: Final = 1 << 62
UNTOLD: Final = "-"
BEGIN_S: Final = 5.0  # For masters of partitions that nothing came of.

ChangeFormatOption = Annotated[
    str,
    typer.Option("--format", metavar="FORMAT", show_default="table", help="table, json or ndjson."),
]


class Following(msgspec.Struct, frozen=True):
    """What is wanted of a bucket's changes."""

    partitions: Sequence[int] | None = None
    is_from_now: bool = False
    is_finite: bool = False
    is_keys_only: bool = False
    key_prefix: bytes = b""
    only_key: bytes | None = None
    count: int | None = None


class ChangeRenderer:
    def __init__(self, format: str, *, is_endless: bool, has_values: bool = True) -> None:
        if format not in FORMATS:
            raise UsageError(f"{format!r} is not a format: use one of {', '.join(FORMATS)}")
        self._format = "ndjson" if format == "json" and is_endless else format
        self._has_values = has_values
        self._is_first = True

    def begin(self) -> bytes:
        return b"[" if self._format == "json" else b""

    def end(self) -> bytes:
        return b"\n]\n" if self._format == "json" else b""

    def wipe(self, partition: int) -> bytes:
        if self._format == "table":
            return f"{partition:>4}  wipe\n".encode()
        return self._join([msgspec.json.encode({"wipe": {"partition": partition}})])

    def changes(self, batch: "ChangeBatch", documents: "Sequence[Document]") -> bytes:
        render = self._line if self._format == "table" else self._json
        return self._join([render(batch, document) for document in documents])

    def _line(self, batch: "ChangeBatch", document: "Document") -> bytes:
        moment = show_time(document.cas) if document.cas else UNTOLD
        kind = document.kind.name.lower()
        cause = "" if batch.cause.value == "stream" else f"{batch.cause.value} "
        value = show_text(document.value or b"") if self._has_values else ""
        where = f"{batch.partition:>4}  {document.seq:>8}  {moment:<24}"
        shown = f"{where}  {cause + kind:<10}  {show_text(document.key):<8}  {value}"
        return shown.rstrip().encode() + b"\n"

    def _json(self, batch: "ChangeBatch", document: "Document") -> bytes:
        shown: dict[str, Any] = {
            "partition": batch.partition,
            "seq": document.seq,
            "cause": batch.cause.value,
            "kind": document.kind.name.lower(),
            "timestamp_us": document.cas or None,
            "cas": document.cas,
            **text_or_base64("key", document.key),
        }
        if self._has_values and not document.is_deleted:
            shown.update(text_or_base64("value", document.value or b""))
        shown.update(flags=document.flags, expiry_s=document.expiry_s)
        return msgspec.json.encode(shown)

    def _join(self, parts: list[bytes]) -> bytes:
        if not parts:
            return b""
        if self._format == "json":
            lead = b"\n" if self._is_first else b",\n"
            self._is_first = False
            return lead + b",\n".join(parts)
        if self._format == "ndjson":
            return b"\n".join(parts) + b"\n"
        return b"".join(parts)


async def follow(
    output: Output,
    bucket: "Bucket",
    renderer: ChangeRenderer,
    wanted: Following,
    state: "ConsumerState | None" = None,
) -> None:
    """Print changes until there are no more, or so many were."""
    from millrace.client.changes import ChangeConsumer

    left = COUNT_MAX if wanted.count is None else wanted.count
    consumer = ChangeConsumer(
        bucket,
        f"command:{os.getpid()}",
        state,
        partitions=wanted.partitions,
        is_from_now=wanted.is_from_now,
        is_finite=wanted.is_finite,
        is_keys_only=wanted.is_keys_only,
        key_prefix=wanted.key_prefix,
    )
    output.write(renderer.begin())
    async with consumer:
        while left > 0 and (batch := await consumer.take()) is not None:
            printed = _print_batch(output, renderer, batch, wanted.only_key, left)
            left -= printed
            if left <= 0 and batch.seq and not wanted.only_key:
                consumer.ack(batch, printed)
        if state is not None and left <= 0:
            await _begin_all(output, consumer)
    output.write(renderer.end())
    output.flush()


async def _begin_all(output: Output, consumer: "ChangeConsumer") -> None:
    """The next time it goes on where it ended, also with partitions that nothing came of."""
    try:
        async with asyncio.timeout(BEGIN_S):
            await consumer.begun()
    except TimeoutError:
        missing = ", ".join(map(str, consumer.not_begun))
        text = f"partitions {missing} have no master: they have no place in the state yet"
        output.say(text, Tone.WARNING)


def _print_batch(
    output: Output, renderer: ChangeRenderer, batch: "ChangeBatch", only: bytes | None, most: int
) -> int:
    """How many changes were printed."""
    if batch.cause.value == "wipe":
        output.write(renderer.wipe(batch.partition))
        output.flush()
        return 0
    documents = batch.documents
    if only is not None:
        documents = [document for document in documents if document.key == only]
    printed = documents[:most]
    output.write(renderer.changes(batch, printed))
    output.flush()
    return len(printed)
