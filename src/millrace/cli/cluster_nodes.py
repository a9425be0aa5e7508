"""`millrace cluster drain`, `mark-unrecoverable` and `events`: what operators do about nodes."""

from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli.output import Cell, Output, Tone, confirm
from millrace.cli.quantities import show_size
from millrace.cli.records import show_time
from millrace.cli.session import FormatOption, YesOption, run_async, session_of
from millrace.types import AuthoritativeStatus

if TYPE_CHECKING:
    from millrace.client.standings import NodeStanding, StatusEvent

NodeArgument = Annotated[int, typer.Argument(metavar="NODE", help="Its number.")]

_TONES = {
    AuthoritativeStatus.FULLY_AUTHORITATIVE: Tone.GOOD,
    AuthoritativeStatus.UNDERREPLICATION: Tone.BAD,
    AuthoritativeStatus.UNAVAILABLE: Tone.WARNING,
    AuthoritativeStatus.AUTHORITATIVE_EMPTY: Tone.FAINT,
}


def drain(
    context: typer.Context,
    number: NodeArgument,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Stop, and let it take new copies again.")
    ] = False,
) -> None:
    """Have a node's copies of sequenced and commit logs made elsewhere, so that it can be removed.

    It stays alive and serves until it is `authoritative_empty`; `millrace cluster status` shows how
    far that is, and for which logs too few other nodes are left to take the copies.  Chain logs are
    not touched: they leave a node when it is stopped.
    """
    session = session_of(context)

    async def work() -> None:
        async with session.connected() as client:
            await session.within(client.drain(number, cancel=cancel))

    run_async(work())
    said = "takes copies again" if cancel else "is drained: its copies are made elsewhere"
    session.output().say(f"node {number} {said}")


def mark_unrecoverable(
    context: typer.Context, number: NodeArgument, yes: YesOption = False
) -> None:
    """Wait no more for a dead node: its disk is lost.

    Readers that wait for it go on, and are told of a loss (DATALOSS) where it held the last copy.
    A node that died just now counts as alive until its lease has run out (`cluster.lease_ttl_ms`).
    """
    session = session_of(context)

    async def work() -> None:
        async with session.connected() as client:
            await session.within(client.mark_unrecoverable(number))

    confirm(f"Give up everything that only node {number} holds?", yes=yes)
    run_async(work())
    session.output().say(f"node {number} is not waited for any more")


def events(context: typer.Context, format: FormatOption = None) -> None:
    """Show what became of nodes, newest last: lost, drained, rebuilt, back."""
    session = session_of(context)

    async def work() -> "tuple[list[StatusEvent], dict[int, NodeStanding]]":
        async with session.connected() as client:
            found = await session.within(client.events())
            standings = await session.within(client.statuses())
            return found, {int(node): standing for node, standing in standings.items()}

    found, standings = run_async(work())
    output = session.output(format)
    if output.is_json:
        output.json(found)
        return
    if not found:
        output.say("nothing ever happened to a node")
        return
    output.table(("when", "node", "status", "why"), [_row(event) for event in found])
    show_rebuilds(output, standings)


def _row(event: "StatusEvent") -> list[str | int | Cell]:
    change = event.change
    status = Cell(change.status.value, _TONES[change.status])
    return [show_time(change.since_ms * 1000), event.node, status, change.reason]


def show_rebuilds(output: Output, standings: "dict[int, NodeStanding]") -> None:
    """How far donors are with the nodes that are being rebuilt."""
    rows = [
        [
            node,
            donor,
            Cell("finished", Tone.GOOD) if report.is_finished else "at work",
            f"{report.blocks_done} blocks, {show_size(report.bytes_done)}",
            f"{report.blocks_left} blocks, {show_size(report.bytes_left)}",
            report.waits_for or "–",
        ]
        for node, standing in sorted(standings.items())
        for donor, report in sorted(standing.donors.items())
    ]
    if rows:
        output.line("")
        output.table(("rebuilding", "donor", "state", "done", "left", "waits for"), rows)


def register(app: typer.Typer) -> None:
    app.command()(drain)
    app.command("mark-unrecoverable")(mark_unrecoverable)
    app.command()(events)
