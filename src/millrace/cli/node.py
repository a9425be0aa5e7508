"""`millrace node`: run a node, look at the nodes of a cluster."""

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from millrace.cli.cluster import node_row, read_status, state_of
from millrace.cli.quantities import show_duration, show_size
from millrace.cli.session import FormatOption, run_async, session_of
from millrace.errors import UsageError

if TYPE_CHECKING:
    from millrace.client.cluster import ClusterStatus, NodeStatus

app = typer.Typer(
    name="node", help="Run a node; look at the nodes of a cluster.", no_args_is_help=True
)


class LogLevel(Enum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Place(msgspec.Struct, frozen=True):
    """What a node does for one log."""

    log: str
    epoch: int
    position: str  # head, middle, tail or alone; member of a nodeset; empty: it only sequences.
    is_sequencer: bool


@app.command()
def run(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Its configuration (TOML).")],
    log_level: Annotated[
        LogLevel, typer.Option("--log-level", help="The least that is logged.")
    ] = LogLevel.INFO,
) -> None:
    """Run a node until SIGTERM or Ctrl-C.  Its events are JSON lines on stderr."""
    from millrace.cli.node_process import run_node

    run_node(file, log_level.value)


@app.command("ls")
def list_nodes(context: typer.Context, format: FormatOption = None) -> None:
    """List the nodes of the cluster."""
    session = session_of(context)
    status = run_async(read_status(session))
    output = session.output(format)
    if output.is_json:
        output.json(status.nodes)
        return
    headings = ("node", "state", "address", "location", "disk", "logs", "up")
    output.table(headings, [node_row(node, status) for node in status.nodes])


@app.command()
def info(
    context: typer.Context,
    number: Annotated[int, typer.Argument(metavar="NODE", help="Its number.")],
    format: FormatOption = None,
) -> None:
    """Show one node, and what it does for which logs."""
    session = session_of(context)
    status = run_async(read_status(session))
    node = _find(status, number)
    places = _places(status, number)
    output = session.output(format)
    if output.is_json:
        output.json({"node": node, "is_keeper": status.keeper == number, "logs": places})
        return
    output.table(("node", str(number)), _facts(node, status))
    output.line("")
    output.table(
        ("log", "epoch", "position", "sequencer"),
        [(p.log, p.epoch, p.position or "–", "yes" if p.is_sequencer else "no") for p in places],
    )


@app.command("config")
def show_config() -> None:
    """Print an example configuration with every setting explained."""
    from millrace.cli.example import example

    print(example(), end="")


def _find(status: "ClusterStatus", number: int) -> "NodeStatus":
    for node in status.nodes:
        if node.info.id == number:
            return node
    known = ", ".join(str(node.info.id) for node in status.nodes)
    raise UsageError(f"there is no node {number}: the cluster has {known}")


def _facts(node: "NodeStatus", status: "ClusterStatus") -> list[list[str]]:
    facts = [
        ["state", state_of(node, status).text],
        ["address", node.info.address],
        ["admin", node.info.admin or "–"],
        ["location", node.info.location or "–"],
        ["roles", ", ".join(role.value for role in node.info.roles)],
        ["instance", node.info.instance],
    ]
    if (told := node.description) is not None:
        disk = f"{show_size(told.bytes_used)} of {show_size(told.bytes_total)}"
        facts += [
            ["disk", disk],
            ["connections", str(told.connections)],
            ["up", show_duration(told.uptime_ms)],
            ["software", told.software],
        ]
    return facts


def _places(status: "ClusterStatus", number: int) -> list[Place]:
    names = {log.id: log.name for log in status.logs}
    places = []
    for projection in status.projections:
        is_sequencer = projection.sequencer == number
        if projection.log in names and (is_sequencer or number in projection.chain):
            position = _position(list(projection.chain), number)
            places.append(Place(names[projection.log], projection.epoch, position, is_sequencer))
    for record in status.epochs:
        is_sequencer = record.sequencer == number
        if record.log in names and (is_sequencer or number in record.nodeset):
            position = "member" if number in record.nodeset else ""
            places.append(Place(names[record.log], record.epoch, position, is_sequencer))
    return places


def _position(chain: list[int], number: int) -> str:
    if number not in chain:
        return ""
    if len(chain) == 1:
        return "alone"
    return {0: "head", len(chain) - 1: "tail"}.get(chain.index(number), "middle")
