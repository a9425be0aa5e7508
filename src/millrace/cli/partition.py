"""`millrace partition`: where the partitions of a bucket are, and what history they have."""

from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli.bucket import BucketArgument
from millrace.cli.session import FormatOption, Session, run_async, session_of, to_bytes
from millrace.errors import PartitionUnavailable, UsageError

if TYPE_CHECKING:
    from millrace.client.bucket_describing import BucketDescription, CopyStanding, PartitionStanding

app = typer.Typer(name="partition", help="Look at a bucket's partitions.", no_args_is_help=True)

PartitionArgument = Annotated[
    int | None, typer.Argument(metavar="[PARTITION]", help="Its number, from 0; or give --key.")
]
KeyOption = Annotated[str | None, typer.Option("--key", help="The partition in which this key is.")]


@app.command("ls")
def list_partitions(
    context: typer.Context, bucket: BucketArgument, format: FormatOption = None
) -> None:
    """Show a bucket's partitions: master, replicas, how far they are."""
    from millrace.cli.bucket_info import PARTITION_HEADINGS, partition_json, partition_row

    session = session_of(context)
    found = run_async(_describe(session, bucket, None, None)).partitions
    output = session.output(format)
    if output.is_json:
        output.json([partition_json(each) for each in found])
    else:
        output.table(PARTITION_HEADINGS, [partition_row(each) for each in found])


@app.command()
def info(
    context: typer.Context,
    bucket: BucketArgument,
    partition: PartitionArgument = None,
    key: KeyOption = None,
    format: FormatOption = None,
) -> None:
    """Show the copies of a partition: what each node has, and what is wrong with it."""
    from millrace.cli.bucket_info import partition_json, show_partition

    session = session_of(context)
    found = _one(session, bucket, partition, key)
    output = session.output(format)
    if output.is_json:
        output.json(partition_json(found))
    else:
        show_partition(output, bucket, found)


@app.command("failover-log")
def failover_log(
    context: typer.Context,
    bucket: BucketArgument,
    partition: PartitionArgument = None,
    key: KeyOption = None,
    node: Annotated[
        int | None,
        typer.Option("--node", help="As this node has it.", show_default="the master"),
    ] = None,
    format: FormatOption = None,
) -> None:
    """Print a partition's failover log, newest entry first.

    Each entry is a failover id and the seq from which its master went on.  `changes
    explain-rollback` takes what this prints.
    """
    from millrace.cli.bucket_info import log_json, show_id

    session = session_of(context)
    copy = _copy(_one(session, bucket, partition, key), node)
    assert copy.hosted is not None
    output = session.output(format)
    if output.is_json:
        output.json(log_json(copy.hosted.log))
        return
    for entry in copy.hosted.log.entries:
        output.line(f"{show_id(entry.id)}:{entry.seq}")


def _one(
    session: Session, bucket: str, partition: int | None, key: str | None
) -> "PartitionStanding":
    if (partition is None) == (key is None):
        raise UsageError("give the number of a partition, or --key")
    (found,) = run_async(_describe(session, bucket, partition, key)).partitions
    return found


async def _describe(
    session: Session, bucket: str, partition: int | None, key: str | None
) -> "BucketDescription":
    from millrace.client.bucket_describing import describe_bucket

    async with session.connected() as client:
        if key is not None:
            opened = await session.within(client.bucket(bucket))
            partition = opened.partition_of(to_bytes(key))
        chosen = () if partition is None else (partition,)
        return await session.within(describe_bucket(client, bucket, chosen))


def _copy(standing: "PartitionStanding", node: int | None) -> "CopyStanding":
    """Of the master, if no node is named."""
    where = standing.seat.active if node is None else node
    for copy in standing.copies:
        if copy.node == where and copy.hosted is not None:
            return copy
    held = [str(copy.node) for copy in standing.copies if copy.hosted is not None]
    who = "its master does not answer" if node is None else f"node {node} does not tell one"
    raise PartitionUnavailable(
        f"partition {standing.number}: {who}; --node takes one of {', '.join(held) or '(none)'}"
    )
