"""`millrace log set`: change what was chosen of a log that is there.

Registered on the application of `log.py`.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli.log import NameArgument
from millrace.cli.log_create import AcrossOption, scopes
from millrace.cli.output import Tone
from millrace.cli.session import FormatOption, run_async, session_of

if TYPE_CHECKING:
    from millrace.client.changing import NodesetSize
    from millrace.core.epochs import EpochRecord
    from millrace.types import LogInfo


def _nodeset_size(text: str) -> "NodesetSize":
    if text == "all":
        return "all"
    if not text.isdecimal() or not int(text):
        raise typer.BadParameter(f"{text!r}: give a number of nodes, or all")
    return int(text)


def register(app: typer.Typer) -> None:
    app.command("set")(set_log)


def set_log(
    context: typer.Context,
    name: NameArgument,
    copies: Annotated[
        int | None, typer.Option("--copies", help="How many nodes hold each new record.")
    ] = None,
    nodeset_size: Annotated[
        str | None,
        typer.Option(
            "--nodeset-size",
            parser=_nodeset_size,
            metavar="N|all",
            help="How many nodes the log may use from now on.",
        ),
    ] = None,
    across: AcrossOption = None,
    format: FormatOption = None,
) -> None:
    """Change the copies or the nodes of a sequenced log, in a new epoch.

    What is in the log stays as it was stored.  Appends and readers go on.  Options that are not
    given stay as they are, --across too when only --copies is given; --across needs --copies.
    """
    from millrace.cli.log_info import log_json, show_nodes, show_replication

    session = session_of(context)
    if across and copies is None:
        raise typer.BadParameter("--across: give --copies as well")
    replication = {**scopes(across), "node": copies} if across and copies else copies

    async def work() -> "tuple[LogInfo, EpochRecord]":
        async with session.connected() as client:
            return await client.change_log(
                name,
                replication=replication,
                nodeset_size=nodeset_size,  # type: ignore[arg-type]  # As its parser makes it.
                timeout_ms=session.timeout_ms,
            )

    info, record = run_async(work())
    output = session.output(format)
    if output.is_json:
        output.json(log_json(info, record))
        return
    where = f"{show_replication(record.replication)}, on nodes {show_nodes(record.nodeset)}"
    output.say(f"log {name} changed: {where}, from epoch {record.since} on", Tone.GOOD)
