"""`millrace log`: list, describe, trim, seal and remove logs.

Making them is in `log_create.py`, appending and reading in `log_records.py`, how they look in
`log_info.py`.
"""

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from millrace.cli.output import confirm
from millrace.cli.session import (
    FormatOption,
    Session,
    YesOption,
    position,
    run_async,
    session_of,
)
from millrace.errors import PositionBeyondTail
from millrace.lsn import epoch_of
from millrace.types import LogInfo, Lsn

if TYPE_CHECKING:
    from millrace.client.any_description import AnyDescription
    from millrace.client.log_standing import LogStanding

app = typer.Typer(name="log", help="Make, fill, read and look after logs.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The log.")]


@app.command("ls")
def list_logs(context: typer.Context, format: FormatOption = None) -> None:
    """List the logs."""
    from millrace.cli.log_info import HEADINGS, listed_json, row
    from millrace.cli.redundancy import Presence

    session = session_of(context)

    async def work() -> "tuple[list[LogInfo], dict[int, LogStanding], Presence]":
        async with session.connected() as client:
            logs = await session.within(client.logs())
            live = (await session.within(client.directory.view())).live
            presence = Presence(live, await session.within(client.directory.statuses()))
            projections = await session.within(client.directory.projections())
            epochs = await session.within(client.sequenced())
            commits = await session.within(client.directory.commits())
            standings: list[LogStanding] = [*projections, *epochs, *commits]
            return logs, {each.log: each for each in standings}, presence

    logs, standings, presence = run_async(work())
    logs.sort(key=lambda info: info.name)
    output = session.output(format)
    if output.is_json:
        output.json([listed_json(info, standings.get(info.id), presence) for info in logs])
    elif logs:
        output.table(HEADINGS, [row(info, standings.get(info.id), presence) for info in logs])
    else:
        output.say("no logs yet; `millrace log create NAME` makes one")


@app.command()
def info(context: typer.Context, name: NameArgument, format: FormatOption = None) -> None:
    """Show a log: where it begins and ends, who writes it, what each node holds.

    Only looks: a node that does not answer is shown so, and nothing is done about it.
    """
    from millrace.cli.log_info import described_json, show_log

    session = session_of(context)

    async def work() -> "AnyDescription":
        async with session.connected() as client:
            log = await session.within(client.log(name))
            return await log.describe(timeout_ms=session.timeout_ms)

    description = run_async(work())
    output = session.output(format)
    if output.is_json:
        output.json(described_json(description))
    else:
        show_log(output, description)


@app.command()
def trim(
    context: typer.Context,
    name: NameArgument,
    before: Annotated[
        str,
        typer.Option(
            "--before",
            parser=position,
            metavar="POSITION",
            help="Forget what lies below: 47 or e7n42, -1000 (the last 1000 stay), "
            "@2026-08-21T10:00, end.",
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
    plan = run_async(_plan_trim(session, name, before))
    if not dry_run:
        confirm(f"Forget {plan.what} of log {name}, up to {plan.shown_last}?", yes=yes)
        run_async(_trim(session, name, plan.point))
    output = session.output(format)
    if output.is_json:
        told = {"log": name, "trim_end": plan.point, "records": plan.records}
        output.json({**told, "is_done": not dry_run, **plan.text_form})
    else:
        verbs = ("would forget", "would begin") if dry_run else ("forgot", "begins")
        output.say(f"{verbs[0]} {plan.what}; log {name} {verbs[1]} at {plan.shown}")


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


class _TrimPlan(msgspec.Struct, frozen=True):
    """What a trim would do."""

    point: Lsn
    shown: str  # The point as people write it.
    shown_last: str  # The last position that is forgotten.
    records: int | None  # None: the range spans epochs, whose ends nobody has looked up.

    @property
    def what(self) -> str:
        return "records" if self.records is None else f"{self.records} records"

    @property
    def text_form(self) -> dict[str, str]:
        """Beside the number, where the two differ."""
        return {} if self.shown == str(self.point) else {"position": self.shown}


async def _plan_trim(session: Session, name: str, before: str) -> _TrimPlan:
    async with session.connected() as client:
        log = await session.within(client.log(name))
        start, end = await session.within(log.bounds())
        point = max(await session.within(log.resolve(before)), start)
        if point > end:
            raise PositionBeyondTail(
                f"cannot trim log {name!r} before {log.show(point)}: "
                f"its next position is {log.show(end)}"
            )
        is_known = not log.is_sequenced or epoch_of(start) == epoch_of(point)
        records = max(point - start, 0) if is_known else None
        return _TrimPlan(point, log.show(point), log.show(Lsn(point - 1)), records)


async def _trim(session: Session, name: str, point: Lsn) -> Lsn:
    async with session.connected() as client:
        log = await session.within(client.log(name))
        return await log.trim(point, timeout_ms=session.timeout_ms)
