"""`millrace kv`: documents of a bucket, one at a time.

Keys and values are the bytes that were typed; a value may also come from stdin.
"""

import sys
import time
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from millrace.cli.bucket import BucketArgument
from millrace.cli.change_lines import ChangeFormatOption
from millrace.cli.session import FormatOption, Session, duration_ms, run_async, session_of, to_bytes
from millrace.errors import DocumentMissing, UsageError

if TYPE_CHECKING:
    from millrace.client import Bucket, Changed

T = TypeVar("T")
RELATIVE_EXPIRY_S_MAX: Final = 30 * 86_400  # Beyond it the protocol takes a moment, not a duration.

app = typer.Typer(name="kv", help="Read and change documents.", no_args_is_help=True)


class DurabilityWord(Enum):
    MAJORITY = "majority"
    MAJORITY_AND_PERSIST_ON_MASTER = "majority_and_persist_on_master"
    PERSIST_TO_MAJORITY = "persist_to_majority"


def _expiry_ms(text: str) -> int:
    return 0 if text == "never" else duration_ms(text)


KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="1 to 250 bytes.")]
DurabilityOption = Annotated[
    DurabilityWord | None,
    typer.Option(
        "--durability",
        help="Wait until it is safer than in the master's memory: majority (in the memory of most "
        "copies), majority_and_persist_on_master, persist_to_majority (on most disks).",
    ),
]
CasOption = Annotated[
    int, typer.Option("--cas", min=0, help="Only if this is still its version, as `get` told it.")
]


@app.command()
def get(
    context: typer.Context, bucket: BucketArgument, key: KeyArgument, format: FormatOption = None
) -> None:
    """Print a document's value, byte for byte; with --format json, its version and partition too.

    Exit code 1 if there is none.
    """
    from millrace.cli.records import text_or_base64

    session = session_of(context)
    name = to_bytes(key)

    async def work(opened: "Bucket") -> Any:
        return await opened.get(name, timeout_ms=session.timeout_ms), opened.partition_of(name)

    found, partition = _run(session, bucket, work)
    if found is None:
        raise _missing(bucket, key)
    output = session.output(format)
    if output.is_json:
        told = {"partition": partition, "cas": found.cas, "flags": found.flags}
        shown = {**text_or_base64("key", name), **text_or_base64("value", found.value)}
        output.json({**shown, **told})
        return
    output.write(found.value)
    if sys.stdout.isatty():
        output.write(b"\n")


@app.command("set")
def set_document(
    context: typer.Context,
    bucket: BucketArgument,
    key: KeyArgument,
    value: Annotated[
        str | None, typer.Argument(metavar="[VALUE]", help="Without one, all of stdin.")
    ] = None,
    expiry: Annotated[
        int | None,
        typer.Option(
            "--expiry", parser=duration_ms, metavar="DURATION", help="It is gone after this."
        ),
    ] = None,
    flags: Annotated[
        int, typer.Option("--flags", min=0, max=2**32 - 1, help="Kept with it for whoever reads.")
    ] = 0,
    cas: CasOption = 0,
    durability: DurabilityOption = None,
    format: FormatOption = None,
) -> None:
    """Store a document, whether there is one already or not."""
    from millrace.core.documents.document import Cas

    session = session_of(context)
    content = sys.stdin.buffer.read() if value is None else to_bytes(value)

    async def work(opened: "Bucket") -> "Changed":
        return await opened.set(
            to_bytes(key),
            content,
            flags=flags,
            expiry_s=expiry_s(expiry or 0),
            cas=Cas(cas),
            durability=None if durability is None else durability.value,
            timeout_ms=session.timeout_ms,
        )

    _tell(session, format, key, _run(session, bucket, work))


@app.command()
def delete(
    context: typer.Context,
    bucket: BucketArgument,
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="One or more.")],
    durability: DurabilityOption = None,
    format: FormatOption = None,
) -> None:
    """Delete documents.  Exit code 1 if some of them do not exist; the others are deleted."""
    session = session_of(context)

    async def work(opened: "Bucket") -> list[bytes]:
        return await opened.delete_many(
            [to_bytes(key) for key in keys],
            durability=None if durability is None else durability.value,
            timeout_ms=session.timeout_ms,
        )

    existed = _run(session, bucket, work)
    missing = [key for key in keys if to_bytes(key) not in existed]
    output = session.output(format)
    if output.is_json:
        gone = [key for key in keys if key not in missing]
        output.json({"deleted": _keys_json(gone), "missing": _keys_json(missing)})
    if missing:
        raise _missing(bucket, *missing)


@app.command()
def touch(
    context: typer.Context,
    bucket: BucketArgument,
    key: KeyArgument,
    expiry: Annotated[
        int,
        typer.Argument(
            parser=_expiry_ms, metavar="EXPIRY", help="It is gone after this, e.g. 12h; or never."
        ),
    ],
) -> None:
    """Give a document another expiry.  Exit code 1 if there is none."""
    session = session_of(context)

    async def work(opened: "Bucket") -> bool:
        return await opened.touch(to_bytes(key), expiry_s(expiry), timeout_ms=session.timeout_ms)

    if not _run(session, bucket, work):
        raise _missing(bucket, key)


@app.command()
def watch(
    context: typer.Context,
    bucket: BucketArgument,
    key: KeyArgument,
    prefix: Annotated[bool, typer.Option("--prefix", help="All keys that begin with KEY.")] = False,
    from_now: Annotated[
        bool, typer.Option("--from-now", help="Only what changes from now on.")
    ] = False,
    count: Annotated[
        int | None, typer.Option("-n", "--count", min=1, help="End after so many changes.")
    ] = None,
    format: ChangeFormatOption = "",
) -> None:
    """Print a document as it is, and whatever becomes of it, until Ctrl-C."""
    from millrace.cli.change_lines import ChangeRenderer, Following, follow

    session = session_of(context)
    name = to_bytes(key)
    if not name:
        raise UsageError("which key?  It has 1 to 250 bytes")
    renderer = ChangeRenderer(format or session.format.value, is_endless=count is None)

    async def work(opened: "Bucket") -> None:
        following = Following(
            partitions=None if prefix else (opened.partition_of(name),),
            is_from_now=from_now,
            key_prefix=name,
            only_key=None if prefix else name,
            count=count,
        )
        await follow(session.output(), opened, renderer, following)

    _run(session, bucket, work)


# -- How --------------------------------------------------------------------------------------


def expiry_s(after_ms: int) -> int:
    """As the protocol wants it."""
    seconds = -(-after_ms // 1000)
    return seconds if seconds <= RELATIVE_EXPIRY_S_MAX else int(time.time()) + seconds


def _run(session: Session, bucket: str, work: "Callable[[Bucket], Awaitable[T]]") -> T:
    async def connected() -> T:
        async with session.connected() as client:
            return await work(await session.within(client.bucket(bucket)))

    return run_async(connected())


def _tell(session: Session, format: Any, key: str, changed: "Changed") -> None:
    from millrace.cli.bucket_info import show_id
    from millrace.cli.records import text_or_base64

    output = session.output(format)
    token = changed.token
    if output.is_json:
        where = {"partition": token.partition, "seq": token.seq, "id": show_id(token.id)}
        output.json({**text_or_base64("key", to_bytes(key)), "cas": changed.cas, **where})


def _keys_json(keys: list[str]) -> list[str | dict[str, str]]:
    """A key that is no text is `{"key_base64": ...}`."""
    from millrace.cli.records import text_or_base64

    told = (text_or_base64("key", to_bytes(key)) for key in keys)
    return [each.get("key", each) for each in told]


def _missing(bucket: str, *keys: str) -> DocumentMissing:
    named = ", ".join(repr(key) for key in keys)
    what = "document" if len(keys) == 1 else "documents"
    return DocumentMissing(f"bucket {bucket!r} has no {what} {named}")
