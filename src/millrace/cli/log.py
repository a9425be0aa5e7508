"""`millrace log`: make, list, describe, trim, seal and remove logs.

Appending and reading are in `log_records.py`.
"""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.output import Cell, Output, Tone, confirm
from millrace.cli.quantities import show_duration, show_size
from millrace.cli.session import (
    FormatOption,
    Session,
    YesOption,
    duration_ms,
    run_async,
    session_of,
    size_bytes,
)
from millrace.errors import PositionBeyondTail
from millrace.types import Ack, LogAttributes, LogInfo, WritePath

if TYPE_CHECKING:
    from millrace.client import LogDescription
    from millrace.core.projection import Projection

app = typer.Typer(name="log", help="Make, fill, read and look after logs.", no_args_is_help=True)

_UNTOLD = "–"  # Whoever knows does not answer.

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The log.")]


@app.command()
def create(
    context: typer.Context,
    name: NameArgument,
    copies: Annotated[int, typer.Option("--copies", help="How many nodes hold each record.")] = 3,
    write_path: Annotated[
        WritePath, typer.Option("--write-path", help="Who orders and copies: chain, so far.")
    ] = WritePath.CHAIN,
    ack: Annotated[
        Ack,
        typer.Option(
            "--ack", help="Acknowledge when each copy is on disk, or in memory: disk or memory."
        ),
    ] = Ack.DISK,
    retention: Annotated[
        int | None,
        typer.Option(
            "--retention",
            parser=duration_ms,
            metavar="DURATION",
            help="Forget records older than this, e.g. 7d.",
        ),
    ] = None,
    retention_bytes: Annotated[
        int | None,
        typer.Option(
            "--retention-bytes",
            parser=size_bytes,
            metavar="SIZE",
            help="Forget the oldest records beyond this size, e.g. 10GiB.",
        ),
    ] = None,
    compression: Annotated[
        bool, typer.Option("--compression/--no-compression", help="Compress blocks with zstd.")
    ] = True,
    format: FormatOption = None,
) -> None:
    """Make a log."""
    session = session_of(context)

    async def work() -> tuple[LogInfo, "Projection"]:
        async with session.connected() as client:
            log = await client.create_log(
                name,
                replication=copies,
                write_path=write_path,
                ack=ack,
                compression=compression,
                retention_ms=retention,
                retention_bytes=retention_bytes,
            )
            return log.info, log.projection

    info, projection = run_async(work())
    output = session.output(format)
    if output.is_json:
        output.json({"info": info, "projection": projection})
    else:
        output.say(f"log {name} made: nodes {show_chain(projection.chain)}", Tone.GOOD)


@app.command("ls")
def list_logs(context: typer.Context, format: FormatOption = None) -> None:
    """List the logs."""
    session = session_of(context)

    async def work() -> tuple[list[LogInfo], dict[int, "Projection"]]:
        async with session.connected() as client:
            logs = await session.within(client.logs())
            projections = await session.within(client.directory.projections())
            return logs, {projection.log: projection for projection in projections}

    logs, projections = run_async(work())
    logs.sort(key=lambda info: info.name)
    output = session.output(format)
    if output.is_json:
        output.json([{"info": info, "projection": projections.get(info.id)} for info in logs])
    elif logs:
        output.table(
            ("log", "copies", "nodes", "epoch", "state", "retention", "age"),
            [_row(info, projections.get(info.id)) for info in logs],
        )
    else:
        output.say("no logs yet; `millrace log create NAME` makes one")


@app.command()
def info(context: typer.Context, name: NameArgument, format: FormatOption = None) -> None:
    """Show a log: where it begins and ends, its chain, what each node holds.

    Only looks: a node that does not answer is shown so, and stays in the chain.
    """
    session = session_of(context)

    async def work() -> "LogDescription":
        async with session.connected() as client:
            log = await session.within(client.log(name))
            return await log.describe(timeout_ms=session.timeout_ms)

    description = run_async(work())
    output = session.output(format)
    if output.is_json:
        output.json(description)
    else:
        show(output, description)


@app.command()
def trim(
    context: typer.Context,
    name: NameArgument,
    before: Annotated[
        str,
        typer.Option(
            "--before",
            metavar="POSITION",
            help="Forget what lies below: 47, -1000 (the last 1000 stay), @2026-08-21T10:00, end.",
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be forgotten.")
    ] = False,
    yes: YesOption = False,
    format: FormatOption = None,
) -> None:
    """Forget the oldest records of a log, for ever."""
    session = session_of(context)
    point, start = run_async(_trim_point(session, name, before))
    records = max(point - start, 0)
    if not dry_run:
        confirm(f"Forget {records} records of log {name}, up to {point - 1}?", yes=yes)
        point = run_async(_trim(session, name, point))
    output = session.output(format)
    if output.is_json:
        output.json({"log": name, "trim_end": point, "records": records, "is_done": not dry_run})
    else:
        verbs = ("would forget", "would begin") if dry_run else ("forgot", "begins")
        output.say(f"{verbs[0]} {records} records; log {name} {verbs[1]} at {point}")


@app.command()
def seal(context: typer.Context, name: NameArgument, yes: YesOption = False) -> None:
    """Take no more appends, for ever; what is there stays readable."""
    session = session_of(context)

    async def work() -> None:
        async with session.connected() as client:
            log = await session.within(client.log(name))
            confirm(f"Seal log {name} for ever?", yes=yes)
            await log.seal(timeout_ms=session.timeout_ms)

    run_async(work())
    session.output().say(f"log {name} is sealed")


@app.command("rm")
def remove(context: typer.Context, name: NameArgument, yes: YesOption = False) -> None:
    """Delete a log and everything in it."""
    session = session_of(context)

    async def work() -> None:
        async with session.connected() as client:
            await session.within(client.log(name))
            confirm(f"Delete log {name} and all its records?", yes=yes)
            await client.delete_log(name)

    run_async(work())
    session.output().say(f"log {name} is deleted")


async def _trim_point(session: Session, name: str, before: str) -> tuple[int, int]:
    async with session.connected() as client:
        log = await session.within(client.log(name))
        start, end = await session.within(log.bounds())
        point = await session.within(log.resolve(before))
        if point > end:
            raise PositionBeyondTail(
                f"cannot trim log {name!r} before {point}: its next position is {end}"
            )
        return point, start


async def _trim(session: Session, name: str, point: int) -> int:
    async with session.connected() as client:
        log = await session.within(client.log(name))
        return await log.trim(point, timeout_ms=session.timeout_ms)


# -- Showing ----------------------------------------------------------------------------------


def show_chain(chain: tuple[int, ...]) -> str:
    return "→".join(map(str, chain))


def _copies(projection: "Projection") -> str:
    return f"{len(projection.chain)} of {projection.replication} copies"


def _row(info: LogInfo, projection: "Projection | None") -> list[str | int | Cell]:
    attributes = info.attributes
    age = show_duration(max(int(time.time() * 1000) - info.created_ms, 0))
    tail: list[str | int | Cell] = [_retention(attributes), age]
    if projection is None:
        return [info.name, attributes.replication, "–", "–", "being deleted", *tail]
    nodes = show_chain(projection.chain)
    state = _state(projection)
    return [info.name, attributes.replication, nodes, projection.epoch, state, *tail]


def _state(projection: "Projection") -> Cell:
    if not projection.is_redundant:
        return Cell("no redundancy", Tone.BAD)
    if projection.is_degraded:
        return Cell("degraded", Tone.WARNING)
    return Cell("sealed", Tone.FAINT) if projection.is_sealed else Cell("ok", Tone.GOOD)


def _retention(attributes: LogAttributes) -> str:
    limits = []
    if attributes.retention_ms is not None:
        limits.append(show_duration(attributes.retention_ms))
    if attributes.retention_bytes is not None:
        limits.append(show_size(attributes.retention_bytes))
    return ", ".join(limits) or "all"


def show(output: Output, description: "LogDescription") -> None:
    info, projection = description.info, description.projection
    attributes = info.attributes
    start, end, issued = description.trim_end, description.readable_end, description.issued_last
    records = _UNTOLD if start is None or end is None else max(end - start, 0)
    facts: list[tuple[str, Any]] = [
        ("state", _state(projection)),
        ("records", records),
        ("begins at", _UNTOLD if start is None else start),
        ("next position", _UNTOLD if end is None else end),
        ("last issued", _UNTOLD if issued is None else issued),
        ("epoch", f"{projection.epoch}, since {projection.reason.value}"),
        ("nodes", f"{show_chain(projection.chain)} ({_copies(projection)})"),
        ("sequencer", f"node {projection.sequencer}"),
        ("write path", attributes.write_path.value),
        ("acknowledged", "on disk" if attributes.ack is Ack.DISK else "in memory"),
        ("retention", _retention(attributes)),
        ("compression", "yes" if attributes.compression else "no"),
        ("number", info.id),
    ]
    output.table(("log", info.name), facts)
    output.line("")
    output.table(
        ("node", "standing", "epoch", "holds", "blocks", "size"),
        [_member_row(node, description) for node in projection.chain],
    )


def _member_row(node: int, description: "LogDescription") -> list[str | int | Cell]:
    member = description.members.get(node)
    if member is None:
        return [node, Cell("no answer", Tone.BAD), "–", "–", "–", "–"]
    holds = f"{member.trim_end}..{member.contiguous_end - 1}" if member.blocks else "nothing"
    size = show_size(member.bytes)
    return [node, member.standing.value, member.epoch, holds, member.blocks, size]
