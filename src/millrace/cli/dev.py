"""`millrace dev`: a cluster of real processes on this machine, in a folder.

I1  `up` leaves a cluster that serves, or nothing that it started.
I2  Data is removed only by `down --wipe`, which asks.
I3  One command at a time changes a folder's cluster; another says so and ends.
"""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from millrace.cli.output import Cell, Tone, confirm
from millrace.cli.session import (
    DEV_VARIABLE,
    FormatOption,
    Session,
    YesOption,
    dev_folder,
    run_async,
    session_of,
)
from millrace.errors import Unavailable, UsageError
from millrace.local import LocalCluster
from millrace.local.cluster import NODES_MAX
from millrace.local.lock import locked

NODES = 5
FIRST_PORT = 7701  # As in the documentation; other ports if somebody has them.
KEEPER_POLLS_MAX = 100
KEEPER_POLL_S = 0.05

app = typer.Typer(name="dev", help="A cluster on this machine.", no_args_is_help=True)

FolderOption = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        envvar=DEV_VARIABLE,
        show_default=".millrace/dev",
        help="Where the cluster lives.",
    ),
]
NumbersArgument = Annotated[list[int], typer.Argument(metavar="NODE...", help="Their numbers.")]


@app.command()
def up(
    context: typer.Context,
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", min=1, max=NODES_MAX, show_default="5", help="How many nodes."),
    ] = None,
    folder: FolderOption = None,
    etcd: Annotated[
        str,
        typer.Option(
            "--etcd",
            metavar="URL,...",
            help="Keep metadata in this etcd; otherwise node 1 hosts it.",
        ),
    ] = "",
    location: Annotated[
        list[str] | None,
        typer.Option(
            "--location",
            help="Of node 1, 2, ...: region.dc.cluster.row.rack; repeat or use commas.",
        ),
    ] = None,
) -> None:
    """Start a local cluster, or the stopped nodes of the one that is there."""
    session = session_of(context)
    place = _folder(folder)
    place.mkdir(parents=True, exist_ok=True)
    with locked(place):
        if (place / "cluster.json").exists():
            cluster = _restart(session, place, nodes)
        else:
            places = [part for text in location or () for part in text.split(",")]
            urls = [url.strip() for url in etcd.split(",") if url.strip()]
            cluster = _make(session, place, nodes or NODES, urls, places)
        run_async(_wait_for_keeper(session, cluster))
    _announce(session, cluster, place)


@app.command()
def down(
    context: typer.Context,
    folder: FolderOption = None,
    wipe: Annotated[bool, typer.Option("--wipe", help="Remove the folder and all data.")] = False,
    yes: YesOption = False,
) -> None:
    """Stop every node.  Data stays, and `dev up` starts them again, unless you --wipe."""
    output = session_of(context).output()
    with _opened(folder) as cluster:
        if wipe:
            confirm(f"Remove {cluster.folder} and all its data?", yes=yes)
            cluster.destroy()
            output.say(f"removed {cluster.folder}")
        else:
            cluster.stop_all()
            output.say("stopped; `millrace dev up` starts it again, `dev down --wipe` removes it")


@app.command()
def kill(context: typer.Context, numbers: NumbersArgument, folder: FolderOption = None) -> None:
    """Kill nodes without warning (SIGKILL), to see what happens."""
    _each(context, folder, numbers, "killed", lambda cluster, number: cluster.kill(number))


@app.command()
def stop(context: typer.Context, numbers: NumbersArgument, folder: FolderOption = None) -> None:
    """Stop nodes in order (SIGTERM)."""
    _each(context, folder, numbers, "stopped", lambda cluster, number: cluster.stop(number))


@app.command()
def start(context: typer.Context, numbers: NumbersArgument, folder: FolderOption = None) -> None:
    """Start nodes that were stopped or killed."""
    output = session_of(context).output()
    with _opened(folder) as cluster:
        cluster.check_startable(numbers)
        running = {number for number in numbers if cluster.is_running(number)}
        cluster.start(numbers, output.say)  # Together: some may need others.
    for number in numbers:
        output.say(f"node {number} {'runs already' if number in running else 'started'}")


@app.command("add-node")
def add_node(
    context: typer.Context,
    folder: FolderOption = None,
    location: Annotated[str, typer.Option("--location", help="region.dc.cluster.row.rack.")] = "",
) -> None:
    """Add a node to the cluster and start it.  Logs that use all nodes move to it by themselves."""
    output = session_of(context).output()
    with _opened(folder) as cluster:
        node = cluster.add_node(location)
        cluster.check_startable([node.id])
        cluster.start([node.id], output.say)
    output.say(f"node {node.id} serves at {node.address}", Tone.GOOD)


@app.command()
def status(
    context: typer.Context, folder: FolderOption = None, format: FormatOption = None
) -> None:
    """Show the processes of the local cluster.  `millrace cluster status` shows its health."""
    cluster = LocalCluster.open(_folder(folder))
    output = session_of(context).output(format)
    running = {node.id: cluster.is_running(node.id) for node in cluster.nodes}
    if output.is_json:
        nodes = [
            {
                "id": node.id,
                "is_running": running[node.id],
                "pid": node.pid if running[node.id] else None,
                "address": node.address,
                "admin": node.admin,
                "documents": node.documents,
                "folder": node.folder,
            }
            for node in cluster.nodes
        ]
        output.json({"name": cluster.name, "folder": str(cluster.folder), "nodes": nodes})
        return
    up_cell, down_cell = Cell("running", Tone.GOOD), Cell("stopped", Tone.BAD)
    output.table(
        ("node", "state", "pid", "address", "documents", "admin", "log file"),
        [
            (
                node.id,
                up_cell if running[node.id] else down_cell,
                node.pid if running[node.id] else "–",
                node.address,
                node.documents or "any",
                node.admin,
                f"{node.folder}/node.log",
            )
            for node in cluster.nodes
        ],
    )


def _folder(folder: Path | None) -> Path:
    return folder.absolute() if folder is not None else dev_folder()


@contextmanager
def _opened(folder: Path | None) -> Iterator[LocalCluster]:
    """The cluster, for a command that changes it; keeps I3."""
    place = _folder(folder)
    LocalCluster.open(place)  # Says so if there is none: only what is there can be locked.
    with locked(place):
        yield LocalCluster.open(place)


def _each(
    context: typer.Context,
    folder: Path | None,
    numbers: list[int],
    done: str,
    act: Callable[[LocalCluster, int], None],
) -> None:
    with _opened(folder) as cluster:
        for number in numbers:
            cluster.node(number)  # A wrong number is found before anything happens.
        for number in numbers:
            act(cluster, number)
            session_of(context).output().say(f"node {number} {done}")


def _restart(session: Session, place: Path, nodes: int | None) -> LocalCluster:
    cluster = LocalCluster.open(place)
    if nodes is not None and nodes != len(cluster.nodes):
        raise UsageError(
            f"the cluster in {place} has {len(cluster.nodes)} nodes, not {nodes}: "
            "`millrace dev down --wipe` removes it"
        )
    cluster.start(say=session.output().say)
    return cluster


def _make(
    session: Session, place: Path, nodes: int, etcd: list[str], locations: list[str]
) -> LocalCluster:
    with _usual_ports() as first_port:
        cluster = LocalCluster.create(
            place, nodes, etcd=etcd, locations=locations, first_port=first_port
        )
        _start_or_remove(cluster, session.output().say)
    if not cluster.addresses[0].endswith(f":{FIRST_PORT}"):
        listening = ", ".join(f"node {node.id} on {node.address}" for node in cluster.nodes)
        session.output().say(
            f"somebody has the usual ports from {FIRST_PORT} on, so this cluster has others: "
            f"{listening}; `millrace dev status` shows them",
            Tone.WARNING,
        )
    return cluster


@contextmanager
def _usual_ports() -> Iterator[int | None]:
    """The first of them, for whoever's turn it is: two that found them free at once would start
    nodes on the same ones.  The turn is a name that belongs to this machine as its ports do, for
    all its users, and is free again when the process ends."""
    with socket.socket(socket.AF_UNIX) as turn:
        try:
            turn.bind(f"\0millrace-dev-{FIRST_PORT}")
        except OSError:
            yield None
        else:
            yield FIRST_PORT


def _start_or_remove(cluster: LocalCluster, say: Callable[[str], None]) -> None:
    """Keeps I1.  Nodes are started in a thread, which Ctrl-C does not reach: it always knows the
    processes that it made."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        starting = pool.submit(cluster.start, say=say)
        try:
            starting.result()
        except (KeyboardInterrupt, Unavailable):
            while not starting.done():  # It ends as soon as it sees that a node does not run.
                for node in cluster.nodes:
                    if cluster.is_running(node.id):
                        os.kill(node.pid, signal.SIGKILL)
                wait([starting], timeout=KEEPER_POLL_S)
            cluster.destroy()
            raise


async def _wait_for_keeper(session: Session, cluster: LocalCluster) -> None:
    """Nodes elect a keeper just after they start; until then the cluster does not look well."""
    import asyncio

    from millrace.client import connect

    async with await connect(cluster.addresses, timeout_ms=session.timeout_ms) as client:
        for _ in range(KEEPER_POLLS_MAX):
            if (await client.status()).keeper is not None:
                return
            await asyncio.sleep(KEEPER_POLL_S)


def _announce(session: Session, cluster: LocalCluster, place: Path) -> None:
    output = session.output()
    output.line(",".join(cluster.addresses))
    output.say(f"{len(cluster.nodes)} nodes serve; their folder is {place}", Tone.GOOD)
    if place == dev_folder():
        output.say("next: `millrace log create events`, `millrace log append events hello`,")
        output.say("or: `millrace bucket create users`, `millrace kv set users ann hello`")
    else:
        output.say("next: set MILLRACE_CLUSTER to that line, then `millrace log create events`")
