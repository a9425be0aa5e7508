"""`millrace bucket`: make, list, describe and remove buckets.

Documents are in `kv.py`, how buckets look in `bucket_info.py`.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.output import Tone, confirm
from millrace.cli.session import (
    FormatOption,
    YesOption,
    duration_ms,
    run_async,
    session_of,
    size_bytes,
)

if TYPE_CHECKING:
    from millrace.client.bucket_describing import BucketDescription
    from millrace.core.documents.map import BucketRecord
    from millrace.core.documents.rebalance import RebalanceRecord
    from millrace.types import NodeId

app = typer.Typer(name="bucket", help="Make and look after buckets.", no_args_is_help=True)

BucketArgument = Annotated[str, typer.Argument(metavar="BUCKET", help="The bucket's name.")]


@app.command()
def create(
    context: typer.Context,
    name: BucketArgument,
    partitions: Annotated[
        int, typer.Option("--partitions", help="Over how many documents are spread, for ever.")
    ] = 64,
    replicas: Annotated[
        int, typer.Option("--replicas", help="Copies of each partition besides its master.")
    ] = 1,
    memory: Annotated[
        int | None,
        typer.Option(
            "--memory",
            parser=size_bytes,
            metavar="SIZE",
            show_default="256MiB",
            help="On each node; values beyond it are read from disk.",
        ),
    ] = None,
    value_max: Annotated[
        int | None,
        typer.Option(
            "--value-max",
            parser=size_bytes,
            metavar="SIZE",
            show_default="20MiB",
            help="Larger values are refused.",
        ),
    ] = None,
    purge_after: Annotated[
        int | None,
        typer.Option(
            "--purge-after",
            parser=duration_ms,
            metavar="DURATION",
            show_default="3d",
            help="How long deletions are remembered; who follows changes and was away for longer "
            "begins anew.",
        ),
    ] = None,
    format: FormatOption = None,
) -> None:
    """Make a bucket, and wait until masters serve all of its partitions."""
    from millrace.cli.bucket_info import record_json, show_nodes

    session = session_of(context)
    chosen: dict[str, Any] = {"partitions": partitions, "replicas": replicas}
    if memory is not None:
        chosen["memory_bytes"] = memory
    if value_max is not None:
        chosen["value_bytes_max"] = value_max
    if purge_after is not None:
        chosen["purge_after_s"] = purge_after // 1000

    async def work() -> "BucketRecord":
        async with session.connected() as client:
            bucket = await client.create_bucket(name, timeout_ms=session.timeout_ms, **chosen)
            return bucket.asker.map.record

    record = run_async(work())
    output = session.output(format)
    if output.is_json:
        output.json(record_json(record))
        return
    where = show_nodes(sorted({node for seat in record.seats for node in seat.holders}))
    output.say(f"bucket {name} made: {partitions} partitions on nodes {where}", Tone.GOOD)


@app.command("ls")
def list_buckets(context: typer.Context, format: FormatOption = None) -> None:
    """List the buckets."""
    from millrace.cli.bucket_info import HEADINGS, listed_json, row

    session = session_of(context)

    async def work() -> "list[tuple[BucketRecord, RebalanceRecord | None, frozenset[NodeId]]]":
        async with session.connected() as client:
            records = await session.within(client.buckets())
            live = (await session.within(client.directory.view())).live
            return [
                (each, await session.within(client.directory.last_rebalance(each)), live)
                for each in records
            ]

    found = sorted(run_async(work()), key=lambda each: each[0].name)
    output = session.output(format)
    if output.is_json:
        output.json([listed_json(*each) for each in found])
    elif found:
        output.table(HEADINGS, [row(*each) for each in found])
    else:
        output.say("no buckets yet; `millrace bucket create NAME` makes one")


@app.command()
def info(context: typer.Context, name: BucketArgument, format: FormatOption = None) -> None:
    """Show a bucket: what each node has of it, how far replicas are behind, what is stuck and why.

    Only looks.  `partition ls` shows all partitions.  Exit code 1 if a partition has no master that
    serves it.
    """
    from millrace.cli.bucket_info import described_json, show_bucket

    session = session_of(context)

    async def work() -> "BucketDescription":
        from millrace.client.bucket_describing import describe_bucket

        async with session.connected() as client:
            return await session.within(describe_bucket(client, name))

    description = run_async(work())
    output = session.output(format)
    if output.is_json:
        output.json(described_json(description))
    else:
        show_bucket(output, description)
    if not all(each.is_served for each in description.partitions):
        raise typer.Exit(1)


@app.command("rm")
def remove(context: typer.Context, name: BucketArgument, yes: YesOption = False) -> None:
    """Delete a bucket and all its documents."""
    session = session_of(context)

    async def work() -> None:
        async with session.connected() as client:
            await session.within(client.bucket(name))
            confirm(f"Delete bucket {name} and all its documents?", yes=yes)
            await client.delete_bucket(name)

    run_async(work())
    session.output().say(f"bucket {name} is deleted")
