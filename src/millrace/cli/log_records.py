"""`millrace log append|read|tail|get`: records in and out.

Registered on the application of `log.py`.
"""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli.log import NameArgument
from millrace.cli.output import Cell, Output, Tone
from millrace.cli.records import Renderer, json_of, renderer_of, show_gap
from millrace.cli.session import FormatOption, Session, run_async, session_of
from millrace.errors import TimedOut, UsageError
from millrace.types import Ack, Gap

if TYPE_CHECKING:
    from millrace.cli.copies import Copy
    from millrace.client import Log, Reader
    from millrace.core.read_stream import Deliver
    from millrace.types import Lsn, Record

RECORDS_MAX = 1 << 62
LOOK_MS = 500  # How often a log that brings nothing is looked at: is it sealed?

RecordFormatOption = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="FORMAT",
        show_default="table",
        help="table, json, ndjson, raw (values only), or a template with %l position, %k key, "
        "%v value, %t time, %h headers.",
    ),
]


def register(app: typer.Typer) -> None:
    app.command()(append)
    app.command()(read)
    app.command()(tail)
    app.command()(get)


def append(
    context: typer.Context,
    name: NameArgument,
    values: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[VALUE]...", help="The records; without any, each line of stdin is one."
        ),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="Key of every record.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME=VALUE", help="Header of every record; repeat."),
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option(
            "--timestamp",
            metavar="TIME",
            help="Instead of now: 2026-08-21T10:00:00, with a zone (Z, +02:00) or in UTC; "
            "2026-08-21; or seconds since 1970, like 1787306400.25.",
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option("--batch", min=1, help="At most so many records in a block."),
    ] = None,
    ack: Annotated[
        Ack | None, typer.Option("--ack", help="disk or memory, instead of the log's own.")
    ] = None,
    format: FormatOption = None,
) -> None:
    """Append records; print their positions as they are acknowledged."""
    from millrace.cli.append import Appending, Stamp, append_lines, to_bytes

    session = session_of(context)
    stamp = Stamp.parse(key, header or [], timestamp)
    output = session.output(format)

    async def work() -> None:
        async with session.connected() as client:
            log = await session.within(client.log(name))
            appending = Appending(log, stamp, ack, batch, session.timeout_ms, output)
            try:
                if values:
                    await appending.append([to_bytes(value) for value in values])
                else:
                    await append_lines(appending)
            finally:
                appending.report()

    run_async(work())


def read(
    context: typer.Context,
    name: NameArgument,
    first: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="POSITION",
            help="start, end, 47, -3 (third from the end), +2, @2026-08-21T10:00:00.",
        ),
    ] = "start",
    until: Annotated[
        str, typer.Option("--until", metavar="POSITION", help="Up to and without this position.")
    ] = "end",
    count: Annotated[
        int | None, typer.Option("-n", "--count", min=0, help="At most so many records.")
    ] = None,
    format: RecordFormatOption = "",
) -> None:
    """Read records, oldest first.  Gaps are lines of their own."""
    session = session_of(context)
    shown = format or session.format.value
    renderer_of(shown)  # A wrong format is found before the cluster is asked.

    async def work() -> None:
        async with session.connected() as client:
            log = await session.within(client.log(name))
            async with await session.within(log.read(first, until)) as reader:
                await _print_all(session.output(), reader, Renderer(shown), count)

    run_async(work())


def tail(
    context: typer.Context,
    name: NameArgument,
    count: Annotated[
        int, typer.Option("-n", "--count", min=0, help="Begin so many records before the end.")
    ] = 10,
    follow: Annotated[
        bool, typer.Option("-f/", "--follow/--no-follow", help="Wait for more, until Ctrl-C.")
    ] = True,
    format: RecordFormatOption = "",
) -> None:
    """Show the newest records, and those to come.  Ends when the log is sealed."""
    session = session_of(context)
    shown = format or session.format.value
    renderer = Renderer(shown, is_endless=follow)
    output = session.output()

    async def work() -> None:
        async with session.connected() as client:
            log = await session.within(client.log(name))
            first = await log.resolve(f"-{count}", timeout_ms=session.timeout_ms)
            if follow:
                end = await _print_until_sealed(output, log, first, renderer)
                output.say(f"log {name} is sealed: nothing comes after {end - 1}")
                return
            async with await session.within(log.read(first)) as reader:
                await _print_all(output, reader, renderer, None)

    run_async(work())


def get(
    context: typer.Context,
    name: NameArgument,
    lsn: Annotated[int, typer.Argument(metavar="LSN", min=1, help="The position.")],
    copies: Annotated[
        bool, typer.Option("--copies", help="Ask every node of the chain, and compare.")
    ] = False,
    format: RecordFormatOption = "",
) -> None:
    """Show one record; with --copies, which nodes hold it and whether they agree."""
    from millrace.cli.copies import read_copies

    session = session_of(context)
    shown = format or session.format.value
    renderer_of(shown)

    async def work() -> "tuple[Record | Gap, list[Copy]]":
        async with session.connected() as client:
            log = await session.within(client.log(name))
            found = await log.get(lsn, timeout_ms=session.timeout_ms)
            held = await read_copies(client, log, lsn) if copies else []
            return found, held

    found, held = run_async(work())
    if copies:
        _print_copies(session, shown, found, held)
    else:
        _print_one(session.output(), shown, found)


# -- Printing ---------------------------------------------------------------------------------


async def _print_all(
    output: Output, reader: "Reader", renderer: Renderer, count: int | None
) -> None:
    left = RECORDS_MAX if count is None else count
    output.write(renderer.begin())
    while left > 0 and (part := await reader.take()) is not None:
        left -= _print_part(output, renderer, part, left)
    output.write(renderer.end())


async def _print_until_sealed(output: Output, log: "Log", first: "Lsn", renderer: Renderer) -> int:
    """Follow the log; when it is sealed and all was printed, the end that it has for good."""
    end: int | None = None
    position: int = first
    async with log.reader(first, None) as reader:
        while True:
            # A seal changes the chain, which the reader hears of: nobody is asked until then.
            if end is None and log.projection.is_sealed:
                _, end = await log.readable_bounds()
            if end is not None and position >= end:
                return end
            try:
                part = await reader.take(LOOK_MS)
            except TimedOut:
                continue
            assert part is not None
            _print_part(output, renderer, part, RECORDS_MAX)
            position = part.last + 1 if isinstance(part, Gap) else part.end


def _print_part(output: Output, renderer: Renderer, part: "Deliver | Gap", records_max: int) -> int:
    """How many records were printed."""
    printed = 0
    if isinstance(part, Gap):
        _print_gap(output, renderer, part)
    else:
        text, printed = renderer.block(part, records_max)
        output.write(text)
    output.flush()
    return printed


def _print_gap(output: Output, renderer: Renderer, gap: Gap) -> None:
    if renderer.shows_gaps:
        output.write(renderer.gap(gap))
    else:
        output.say(show_gap(gap), Tone.WARNING)


def _print_one(output: Output, format: str, found: "Record | Gap") -> None:
    if format == "json":
        output.json({"gap": found} if isinstance(found, Gap) else json_of(found))
        return
    renderer = Renderer(format)
    if isinstance(found, Gap):
        _print_gap(output, renderer, found)
    else:
        output.write(renderer.record(found))


def _print_copies(session: Session, format: str, found: "Record | Gap", held: "list[Copy]") -> None:
    from millrace.cli.copies import agree

    output = session.output()
    does_agree = agree(held)
    if format == "json":
        record = {"gap": found} if isinstance(found, Gap) else {"record": json_of(found)}
        output.json({**record, "copies": held, "is_agreed": does_agree})
    elif format == "table":
        _print_one(output, format, found)
        good, bad = Tone.PLAIN, Tone.BAD
        output.table(
            ("node", "holds", "checksum", "size"),
            [(c.node, Cell(c.state, bad if c.checksum is None else good), *_sum(c)) for c in held],
        )
        verdict = "all copies agree" if does_agree else "the copies do NOT agree"
        output.line(verdict, Tone.GOOD if does_agree else Tone.BAD)
    else:
        raise UsageError("--copies is shown as table or json")
    sys.stdout.flush()
    if not does_agree:
        raise typer.Exit(1)


def _sum(copy: "Copy") -> tuple[str, str]:
    checksum = "–" if copy.checksum is None else f"{copy.checksum:08x}"
    return checksum, f"{copy.size} B" if copy.size else "–"
