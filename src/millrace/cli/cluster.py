"""`millrace cluster`: is it well?"""

from typing import TYPE_CHECKING

import typer

from millrace.cli import health
from millrace.cli.output import Cell, Output, Tone
from millrace.cli.quantities import show_duration, show_size
from millrace.cli.session import FormatOption, Session, run_async, session_of
from millrace.errors import Unavailable

if TYPE_CHECKING:
    from millrace.client.cluster import ClusterStatus, NodeStatus

app = typer.Typer(name="cluster", help="Is the cluster well?", no_args_is_help=True)


@app.command()
def status(context: typer.Context, format: FormatOption = None) -> None:
    """Show the whole cluster on one screen, problems first.  Exit code 1 if there are any."""
    session = session_of(context)
    found = run_async(read_status(session))
    verdict = health.judge(found)
    output = session.output(format)
    if output.is_json:
        output.json({"health": verdict, "status": found})
    else:
        _show(output, found, verdict)
    raise typer.Exit(0 if verdict.is_healthy else 1)


@app.command()
def check(context: typer.Context, format: FormatOption = None) -> None:
    """For monitors: one line for each problem.  Exit code 0 if healthy, 1 if not.

    A cluster that cannot be reached is a finding too, not an error.
    """
    session = session_of(context)
    try:
        verdict = health.judge(run_async(read_status(session)))
    except Unavailable as error:
        verdict = health.unreachable(str(error))
    output = session.output(format)
    if output.is_json:
        output.json(verdict)
    else:
        _show_findings(output, verdict)
    raise typer.Exit(0 if verdict.is_healthy else 1)


async def read_status(session: Session) -> "ClusterStatus":
    async with session.connected() as client:
        return await session.within(client.status())


def _show(output: Output, status: "ClusterStatus", verdict: health.Health) -> None:
    _show_findings(output, verdict)
    output.line("")
    output.table(
        ("node", "state", "address", "location", "disk", "logs", "up"),
        [node_row(node, status) for node in status.nodes],
    )


def _show_findings(output: Output, verdict: health.Health) -> None:
    logs = "1 log" if verdict.logs == 1 else f"{verdict.logs} logs"
    counted = f"{verdict.nodes_live} of {verdict.nodes} nodes live, {logs}"
    if verdict.is_healthy:
        output.line(f"ok: cluster {verdict.cluster}: {counted}", Tone.GOOD)
        return
    for finding in verdict.findings:
        tone = Tone.BAD if finding.level == "critical" else Tone.WARNING
        output.line(f"{finding.level}: {finding.subject}: {finding.detail}", tone)
    if verdict.nodes:
        output.line(f"cluster {verdict.cluster}: {counted}")


def node_row(node: "NodeStatus", status: "ClusterStatus") -> list[str | int | Cell]:
    info, told = node.info, node.description
    row: list[str | int | Cell] = [info.id, state_of(node, status), info.address]
    row.append(info.location or "–")
    if told is None:
        return [*row, "–", "–", "–"]
    disk = f"{show_size(told.bytes_used)} of {show_size(told.bytes_total)}"
    return [*row, disk, told.logs, show_duration(told.uptime_ms)]


def state_of(node: "NodeStatus", status: "ClusterStatus") -> Cell:
    if not node.is_live:
        return Cell("dead", Tone.BAD)
    if node.description is None:
        return Cell("silent", Tone.BAD)
    if node.description.is_full:
        return Cell("full", Tone.BAD)
    return Cell("live, keeper" if status.keeper == node.info.id else "live", Tone.GOOD)
