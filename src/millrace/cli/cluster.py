"""`millrace cluster`: is it well?"""

from typing import TYPE_CHECKING

import typer

from millrace.cli import health
from millrace.cli.cluster_nodes import show_rebuilds
from millrace.cli.output import Cell, Output, Tone
from millrace.cli.quantities import show_duration, show_size
from millrace.cli.records import show_time
from millrace.cli.session import FormatOption, Session, run_async, session_of
from millrace.errors import Unavailable
from millrace.types import AuthoritativeStatus

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
    show_rebuilds(output, status.statuses)


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
    if health.is_drained_and_stopped(node, status):
        return Cell("drained, stopped", Tone.FAINT)
    if not node.is_live:
        return Cell(f"dead, {_dead_words(node, status)}", Tone.BAD)
    words = _status_words(node, status)
    if node.description is None:
        return Cell(", ".join(["silent", *words]), Tone.BAD)
    if node.description.is_full:
        return Cell(", ".join(["full", *words]), Tone.BAD)
    duties = ["keeper"] if status.keeper == node.info.id else []
    return Cell(", ".join(["live", *duties, *words]), Tone.WARNING if words else Tone.GOOD)


def _dead_words(node: "NodeStatus", status: "ClusterStatus") -> str:
    """Its status even if it is the usual one: it does not change at once when a node dies, and
    until it does nobody makes its copies anew."""
    standing = status.statuses.get(node.info.id)
    if standing is None:
        return AuthoritativeStatus.FULLY_AUTHORITATIVE.value
    entry = standing.entry
    word = "draining" if entry.is_draining and entry.rebuild else entry.status.value
    if entry.status is AuthoritativeStatus.FULLY_AUTHORITATIVE:
        return word
    return f"{word} since {show_time(entry.since_ms * 1000)}"


def _status_words(node: "NodeStatus", status: "ClusterStatus") -> list[str]:
    """Nothing of a node that holds all it should and takes more."""
    standing = status.statuses.get(node.info.id)
    if standing is None or not standing.entry.is_disabled:
        return []
    is_leaving = standing.entry.is_draining and bool(standing.entry.rebuild)
    return ["draining" if is_leaving else standing.entry.status.value]
