"""`millrace log append|read|tail|get`: records in and out.

Registered on the application of `log.py`.
"""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.log import NameArgument
from millrace.cli.output import Cell, Output, Tone
from millrace.cli.records import Renderer, Show, json_of, json_of_gap, renderer_of, show_gap
from millrace.cli.session import (
    FormatOption,
    Session,
    position,
    run_async,
    session_of,
    to_bytes,
)
from millrace.cli.waiting import take
from millrace.errors import UsageError
from millrace.types import Ack, Gap, GapKind, Lsn

if TYPE_CHECKING:
    from millrace.cli.copies import Copy
    from millrace.client import Log, Reader
    from millrace.core.read_stream import Deliver
    from millrace.types import Record

RECORDS_MAX = 1 << 62

COPIES_HELP = "Ask every node of the log, and compare; of commit logs `log verify` does."
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
    from millrace.cli.append import Appending, Stamp, append_lines

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
            parser=position,
            metavar="POSITION",
            help="start, end, 47, e7n42, -3 (third from the end), +2, @2026-08-21T10:00:00.",
        ),
    ] = "start",
    until: Annotated[
        str,
        typer.Option(
            "--until",
            parser=position,
            metavar="POSITION",
            help="Where to end, exclusive: e1n5 reads e1n4 last. Not before --from.",
        ),
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
                renderer = Renderer(shown, show=log.show)
                await _print_all(session.output(), reader, renderer, count, log)

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
    renderer_of(shown)
    output = session.output()

    async def work() -> None:
        async with session.connected() as client:
            log = await session.within(client.log(name))
            first = await log.resolve(f"-{count}", timeout_ms=session.timeout_ms)
            renderer = Renderer(shown, is_endless=follow, show=log.show)
            if follow:
                async with log.reader(max(first, Lsn(1)), None) as reader:
                    await _print_all(output, reader, renderer, None, log, is_endless=True)
                end = await session.within(log.sealed_end()) or first
                last = log.show(Lsn(end - 1))
                output.say(f"log {name} is sealed: nothing comes after {last}")
                return
            async with await session.within(log.read(first)) as reader:
                await _print_all(output, reader, renderer, None, log)

    run_async(work())


def get(
    context: typer.Context,
    name: NameArgument,
    at: Annotated[
        str,
        typer.Argument(
            parser=position, metavar="POSITION", help="47; e7n42 in a sequenced log; start."
        ),
    ],
    copies: Annotated[bool, typer.Option("--copies", help=COPIES_HELP)] = False,
    format: RecordFormatOption = "",
) -> None:
    """Show one record; with --copies, which nodes hold it and whether they agree.

    Exit code 1 if copies do not agree, or if not all nodes answered.
    """
    from millrace.cli.copies import read_copies
    from millrace.client.positions import Anchor, check_holds_record, parse

    session = session_of(context)
    shown = format or session.format.value
    renderer_of(shown)
    parsed = parse(at)
    check_holds_record(parsed)

    async def work() -> "tuple[Record | Gap, list[Copy], Show]":
        async with session.connected() as client:
            log = await session.within(client.log(name))
            lsn = Lsn(parsed.offset)
            if parsed.anchor is not Anchor.LSN:
                lsn = await log.resolve(at, timeout_ms=session.timeout_ms)
            found = await log.get(lsn, timeout_ms=session.timeout_ms)
            held = await read_copies(client, log, lsn) if copies else []
            return found, held, log.show

    found, held, show = run_async(work())
    if copies:
        _print_copies(session, shown, found, held, show)
    else:
        _print_one(session.output(), shown, found, show)


# -- Printing ---------------------------------------------------------------------------------


async def _print_all(
    output: Output,
    reader: "Reader",
    renderer: Renderer,
    count: int | None,
    log: "Log",
    is_endless: bool = False,
) -> None:
    left = RECORDS_MAX if count is None else count
    output.write(renderer.begin())
    while left > 0 and (part := await take(output, reader, log, is_endless)) is not None:
        left -= _print_part(output, renderer, part, left)
    output.write(renderer.end())


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
        output.say(show_gap(gap, renderer.show), Tone.WARNING)


def _one_json(found: "Record | Gap", show: Show) -> dict[str, Any]:
    return {"gap": json_of_gap(found, show)} if isinstance(found, Gap) else json_of(found, show)


def _print_one(output: Output, format: str, found: "Record | Gap", show: Show) -> None:
    if format == "json":
        output.json(_one_json(found, show))
        return
    renderer = Renderer(format, show=show)
    if isinstance(found, Gap):
        _print_gap(output, renderer, found)
    else:
        output.write(renderer.record(found))


def _print_copies(
    session: Session, format: str, found: "Record | Gap", held: "list[Copy]", show: Show
) -> None:
    from millrace.cli.copies import Agreement, compare, verdict_on

    output = session.output()
    agreement = compare(held)
    is_bridged = isinstance(found, Gap) and found.kind is GapKind.BRIDGE
    is_agreed = agreement is Agreement.AGREE or (is_bridged and agreement is Agreement.NO_COPY)
    if format == "json":
        shown = _one_json(found, show)
        record = shown if isinstance(found, Gap) else {"record": shown}
        told = {"copies": held, "is_agreed": is_agreed, "agreement": agreement}
        output.json({**record, **told})
    elif format == "table":
        _print_one(output, format, found, show)
        good, bad = Tone.PLAIN, Tone.BAD
        output.table(
            ("node", "holds", "checksum", "size"),
            [(c.node, Cell(c.state, bad if c.checksum is None else good), *_sum(c)) for c in held],
        )
        tone = Tone.WARNING if agreement is Agreement.NOT_ALL_ANSWERED else Tone.BAD
        output.line(verdict_on(held, agreement), Tone.GOOD if is_agreed else tone)
    else:
        raise UsageError("--copies is shown as table or json")
    sys.stdout.flush()
    if not is_agreed:
        raise typer.Exit(1)


def _sum(copy: "Copy") -> tuple[str, str]:
    checksum = "–" if copy.checksum is None else f"{copy.checksum:08x}"
    return checksum, f"{copy.size} B" if copy.size else "–"
