"""`millrace log create`: what can be chosen of a log.

Registered on the application of `log.py`.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.log import NameArgument
from millrace.cli.output import Tone
from millrace.cli.session import FormatOption, duration_ms, run_async, session_of, size_bytes
from millrace.errors import UsageError
from millrace.types import Ack, CopysetOrder, LocalScd, LogInfo, WritePath

if TYPE_CHECKING:
    from millrace.client.log_standing import LogStanding

CopiesOption = Annotated[int, typer.Option("--copies", help="How many nodes hold each record.")]
WritePathOption = Annotated[
    WritePath,
    typer.Option(
        "--write-path",
        help="Who orders records and copies them: sequenced (a sequencer, to any nodes that are "
        "well), chain (the clients, node by node) or commit (streams store, a committer orders).",
    ),
]
AckOption = Annotated[
    Ack,
    typer.Option(
        "--ack", help="Acknowledge when each copy is on disk, or in memory: disk or memory."
    ),
]
RetentionOption = Annotated[
    int | None,
    typer.Option(
        "--retention",
        parser=duration_ms,
        metavar="DURATION",
        help="Forget records older than this, e.g. 7d.",
    ),
]
RetentionBytesOption = Annotated[
    int | None,
    typer.Option(
        "--retention-bytes",
        parser=size_bytes,
        metavar="SIZE",
        help="Forget the oldest records beyond this size, e.g. 10GiB.",
    ),
]
CompressionOption = Annotated[
    bool, typer.Option("--compression/--no-compression", help="Compress blocks with zstd.")
]


def _of_sequenced(*names: str, help: str, **more: Any) -> Any:
    return typer.Option(*names, help=f"Sequenced: {help}", **more)


AcrossOption = Annotated[
    list[str] | None,
    _of_sequenced(
        "--across",
        metavar="SCOPE=N",
        help="copies lie in at least N racks, rows, clusters, data centers or regions, e.g. "
        "rack=2; repeat.",
    ),
]
NodesetOption = Annotated[
    int | None,
    _of_sequenced("--nodeset-size", help="how many nodes the log may use; all if not given."),
]
ExtrasOption = Annotated[
    int | None,
    _of_sequenced("--extras", help="nodes sent a copy beyond those needed, to wait for none."),
]
SyncLeadersOption = Annotated[
    int | None,
    _of_sequenced(
        "--sync-leaders", help="first nodes of a copyset that must have a block before release; 1."
    ),
]
LeadersOption = Annotated[
    int | None,
    _of_sequenced("--leaders", help="first nodes that should have it in the end; the copies."),
]
StickyOption = Annotated[
    int | None,
    _of_sequenced(
        "--sticky-bytes",
        parser=size_bytes,
        metavar="SIZE",
        help="what one copyset is given before another is drawn; 32MiB.",
    ),
]
ScdOption = Annotated[
    bool | None,
    _of_sequenced("--scd/--no-scd", help="readers are sent one copy of each block, or all."),
]
LocalScdOption = Annotated[
    LocalScd | None,
    _of_sequenced("--local-scd", help="nodes near the reader send first: off, region or rack."),
]
OrderOption = Annotated[
    CopysetOrder | None,
    _of_sequenced(
        "--copyset-order",
        help="who of a copyset sends first: stored, shuffled or shuffled_per_client.",
    ),
]
StreamsOption = Annotated[
    int | None,
    typer.Option("--streams", help="Commit: how many streams take appends side by side; 1."),
]


def register(app: typer.Typer) -> None:
    app.command()(create)


def create(
    context: typer.Context,
    name: NameArgument,
    copies: CopiesOption = 3,
    write_path: WritePathOption = WritePath.SEQUENCED,
    ack: AckOption = Ack.DISK,
    retention: RetentionOption = None,
    retention_bytes: RetentionBytesOption = None,
    compression: CompressionOption = True,
    across: AcrossOption = None,
    nodeset_size: NodesetOption = None,
    extras: ExtrasOption = None,
    sync_leaders: SyncLeadersOption = None,
    leaders: LeadersOption = None,
    sticky_bytes: StickyOption = None,
    scd: ScdOption = None,
    local_scd: LocalScdOption = None,
    copyset_order: OrderOption = None,
    streams: StreamsOption = None,
    format: FormatOption = None,
) -> None:
    """Make a log."""
    from millrace.cli.log_info import log_json

    session = session_of(context)
    chosen = {
        "nodeset_size": nodeset_size,
        "extras": extras,
        "sync_leaders": sync_leaders,
        "leaders": leaders,
        "sticky_bytes": sticky_bytes,
        "scd": scd,
        "local_scd": local_scd,
        "copyset_order": copyset_order,
        "streams": streams,
    }
    more = {option: value for option, value in chosen.items() if value is not None}
    replication = {**scopes(across or []), "node": copies} if across else copies

    async def work() -> "tuple[LogInfo, LogStanding]":
        async with session.connected() as client:
            log = await client.create_log(
                name,
                replication=replication,
                write_path=write_path,
                ack=ack,
                compression=compression,
                retention_ms=retention,
                retention_bytes=retention_bytes,
                **more,
            )
            return log.info, log.standing

    info, standing = run_async(work())
    output = session.output(format)
    if output.is_json:
        output.json(log_json(info, standing))
    else:
        output.say(f"log {name} made: {_where(standing)}", Tone.GOOD)


def _where(standing: "LogStanding") -> str:
    from millrace.cli.commit_logs import where
    from millrace.cli.log_info import show_chain, show_nodes, show_replication
    from millrace.core.commit.record import CommitRecord
    from millrace.core.projection import Projection

    if isinstance(standing, Projection):
        return f"nodes {show_chain(standing.chain)}"
    if isinstance(standing, CommitRecord):
        return where(standing)
    copies = show_replication(standing.replication)
    return f"{copies}, on nodes {show_nodes(standing.nodeset)}"


def scopes(across: list[str]) -> dict[str, int]:
    scopes: dict[str, int] = {}
    for text in across:
        scope, _, factor = text.partition("=")
        if not factor.isdecimal() or not scope or scope in scopes:
            raise UsageError(f"--across {text!r}: write SCOPE=N, each scope once, e.g. rack=2")
        scopes[scope] = int(factor)
    return scopes
