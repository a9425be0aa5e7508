"""`millrace failover`: other masters, now.

It is a command of its own, registered on the application itself.
"""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from millrace.cli.bucket import BucketArgument
from millrace.cli.output import Output, Tone, confirm
from millrace.cli.session import FormatOption, YesOption, run_async, session_of
from millrace.errors import UsageError

if TYPE_CHECKING:
    from millrace.core.documents.failover_request import FailoverRequest
    from millrace.core.documents.map import BucketRecord

NAMED_MAX: Final = 8


def register(app: typer.Typer) -> None:
    app.command()(failover)


def failover(
    context: typer.Context,
    bucket: BucketArgument,
    node: Annotated[
        int | None,
        typer.Option("--node", help="Take all partitions from this node, whatever it has."),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", help="Only these; the best copy becomes the master. Repeat."),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Even if too few copies answer to know what was acknowledged, or the master "
            "before does not say that it stopped: those that do not answer are given up, and what "
            "they alone have is lost.",
        ),
    ] = False,
    yes: YesOption = False,
    format: FormatOption = None,
) -> None:
    """Give partitions other masters, at once.

    When a master's node dies this happens by itself.  It is for nodes in trouble, and, with
    --force, for partitions whose other copies will not come back.  A node that is well is emptied
    without any loss by `rebalance run --nodes`.  Exit code 1 if some partition got no other master.
    """
    from millrace.client import bucket_admin
    from millrace.client.bucket_describing import read_record

    session = session_of(context)

    async def work() -> "tuple[BucketRecord, FailoverRequest, BucketRecord]":
        async with session.connected() as client:
            chosen = partition or ()
            asked = await session.within(
                bucket_admin.plan_failover(client, bucket, node=node, partitions=chosen)
            )
            if not asked.asked:
                raise UsageError(
                    f"node {node} is the master of none of them: nothing is to be done"
                )
            before = await session.within(read_record(client, bucket))
            live = (await session.within(client.directory.view())).live
            confirm(_question(bucket, asked, force, is_live=node in live), yes=yes)
            ended = await bucket_admin.fail_over(
                client, bucket, asked, is_forced=force, timeout_ms=session.timeout_ms
            )
            return before, ended, await session.within(read_record(client, bucket))

    before, ended, after = run_async(work())
    output = session.output(format)
    if output.is_json:
        output.json(_json(before, ended, after))
    else:
        _show(output, before, ended, after)
    if ended.state.value != "done":
        raise typer.Exit(1)


def _question(bucket: str, asked: "FailoverRequest", is_forced: bool, *, is_live: bool) -> str:
    numbers = asked.partitions
    named = ", ".join(map(str, numbers[:NAMED_MAX])) + (" ..." if len(numbers) > NAMED_MAX else "")
    what = f"Choose other masters of {len(numbers)} partitions of bucket {bucket} ({named})?"
    loss = "Changes that only the masters before have are lost."
    if is_forced:
        loss = "Changes that only copies have which do not answer are lost."
    if is_live:
        loss += " The node lives: `millrace rebalance run --nodes` empties it without loss."
    return f"{loss} {what}"


def _json(
    before: "BucketRecord", ended: "FailoverRequest", after: "BucketRecord"
) -> dict[str, Any]:
    return {
        "state": ended.state,
        "detail": ended.detail,
        "partitions": [
            {
                "partition": number,
                "master_before": before.seat(number).active,
                "master": after.seat(number).active,
            }
            for number in ended.partitions
        ],
    }


def _show(
    output: Output, before: "BucketRecord", ended: "FailoverRequest", after: "BucketRecord"
) -> None:
    output.table(
        ("partition", "master before", "master"),
        [
            (number, before.seat(number).active or "none", after.seat(number).active or "none")
            for number in ended.partitions
        ],
    )
    match ended.state.value:
        case "done":
            output.say(f"{len(ended.partitions)} partitions have got a master anew", Tone.GOOD)
        case "failed":
            output.say(f"not all could be done: {ended.detail}", Tone.BAD)
        case _:
            more = f": {ended.detail}" if ended.detail else ""
            name = after.name
            output.say(
                f"not done in time{more}; the keeper goes on, `millrace bucket info {name}` shows "
                "how far it is",
                Tone.WARNING,
            )
