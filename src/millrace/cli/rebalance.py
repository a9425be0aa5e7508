"""`millrace rebalance`: spread a bucket's partitions over its nodes, while it is used."""

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.bucket import BucketArgument
from millrace.cli.output import Output, Tone
from millrace.cli.session import FormatOption, Session, run_async, session_of
from millrace.errors import UsageError

if TYPE_CHECKING:
    from millrace.client.bucket_admin import RebalancePlan
    from millrace.core.documents.rebalance import Move, RebalanceRecord

app = typer.Typer(name="rebalance", help="Spread a bucket over its nodes.", no_args_is_help=True)


def _numbers(text: str) -> str:
    if not all(part.strip().isdecimal() for part in text.split(",")):
        raise typer.BadParameter(f"{text!r}: give numbers of nodes, like 1,2,3")
    return text


NodesOption = Annotated[
    str | None,
    typer.Option(
        "--nodes",
        parser=_numbers,
        metavar="N,N,...",
        show_default="all that live",
        help="The nodes that the bucket is to be on; it leaves the others.",
    ),
]


@app.command()
def plan(
    context: typer.Context,
    bucket: BucketArgument,
    nodes: NodesOption = None,
    moves: Annotated[bool, typer.Option("--moves", help="List every move.")] = False,
    format: FormatOption = None,
) -> None:
    """Show what a rebalance would move; nothing is changed."""
    from millrace.client.bucket_admin import plan_rebalance

    session = session_of(context)

    async def work() -> "RebalancePlan":
        async with session.connected() as client:
            return await session.within(plan_rebalance(client, bucket, _parse(nodes)))

    planned = run_async(work())
    output = session.output(format)
    if output.is_json:
        output.json(_plan_json(planned))
        return
    output.table(("node", "masters", "replicas"), [[*each] for each in _loads(planned)])
    if moves:
        output.line("")
        output.table(
            ("partition", "master", "replicas", "copied to"), map(_move_row, planned.moves)
        )
    output.say(_count(planned))


@app.command()
def run(
    context: typer.Context,
    bucket: BucketArgument,
    nodes: NodesOption = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Until it is over, however long that takes.")
    ] = True,
    format: FormatOption = None,
) -> None:
    """Spread the partitions evenly, one after another, while documents are read and changed.

    The keeper does it: Ctrl-C ends the waiting alone, `rebalance stop` the rebalance.  Exit code 1
    if it failed or was stopped.
    """
    from millrace.client.bucket_admin import begin_rebalance, watch_rebalance

    session = session_of(context)
    output = session.output(format)

    async def work() -> "RebalanceRecord | None":
        async with session.connected() as client:
            planned = await session.within(begin_rebalance(client, bucket, _parse(nodes)))
            output.say(_count(planned))
            if not wait:
                return await session.within(client.directory.last_rebalance(planned.record))
            with output.progress("moving", len(planned.moves)) as step:
                done = 0

                def changed(record: "RebalanceRecord") -> None:
                    nonlocal done
                    step.advance(record.done - done)
                    done = record.done

                return await watch_rebalance(client, bucket, changed)

    _tell(session, format, bucket, run_async(work()))


@app.command()
def status(context: typer.Context, bucket: BucketArgument, format: FormatOption = None) -> None:
    """Show how far a bucket's last rebalance is.  Exit code 1 if it failed or was stopped."""
    _tell(session_of(context), format, bucket, _read(session_of(context), bucket))


@app.command()
def stop(context: typer.Context, bucket: BucketArgument) -> None:
    """Begin no more moves; those under way are finished or undone.  What was moved stays there."""
    from millrace.client.bucket_admin import stop_rebalance

    session = session_of(context)

    async def work() -> "RebalanceRecord":
        async with session.connected() as client:
            return await session.within(stop_rebalance(client, bucket))

    stopped = run_async(work())
    done = f"{stopped.done} of {stopped.moves} moves were done"
    session.output().say(f"the rebalance of bucket {bucket} is stopped: {done}")


# -- How --------------------------------------------------------------------------------------


def _parse(nodes: str | None) -> list[int]:
    return [int(part) for part in nodes.split(",")] if nodes else []


def _read(session: Session, bucket: str) -> "RebalanceRecord | None":
    from millrace.client.bucket_describing import read_record

    async def work() -> "RebalanceRecord | None":
        async with session.connected() as client:
            record = await session.within(read_record(client, bucket))
            return await session.within(client.directory.last_rebalance(record))

    return run_async(work())


def _tell(session: Session, format: Any, bucket: str, record: "RebalanceRecord | None") -> None:
    from millrace.core.documents.rebalance import RebalanceState

    if record is None:
        raise UsageError(
            f"bucket {bucket!r} was never rebalanced; `millrace rebalance run {bucket}` does it"
        )
    output = session.output(format)
    if output.is_json:
        output.json(record)
    else:
        _show(output, record)
    if record.state in (RebalanceState.FAILED, RebalanceState.STOPPED):
        raise typer.Exit(1)


def _show(output: Output, record: "RebalanceRecord") -> None:
    from millrace.cli.bucket_info import show_rebalance, tone_of
    from millrace.core.documents.rebalance import RebalanceState

    is_done = record.state is RebalanceState.DONE
    output.line(show_rebalance(record), Tone.GOOD if is_done else tone_of(record))


def _loads(plan: "RebalancePlan") -> list[tuple[int, str, str]]:
    """Masters and replicas of each node, now and then."""
    masters = Counter(seat.active for seat in plan.record.seats)
    replicas = Counter(node for seat in plan.record.seats for node in seat.replicas)
    masters_then = Counter(copies.active for copies in plan.wanted)
    replicas_then = Counter(node for copies in plan.wanted for node in copies.replicas)
    nodes = sorted({*plan.nodes, *masters, *replicas} - {0})
    return [
        (
            node,
            _change(masters[node], masters_then[node]),
            _change(replicas[node], replicas_then[node]),
        )
        for node in nodes
    ]


def _change(now: int, then: int) -> str:
    return str(now) if now == then else f"{now} → {then}"


def _count(plan: "RebalancePlan") -> str:
    copied = sum(bool(move.newcomer) for move in plan.moves)
    if not plan.moves:
        return "nothing has to be moved"
    return f"{len(plan.moves)} moves, of which {copied} copy a partition to another node"


def _move_row(move: "Move") -> list[str | int]:
    from millrace.cli.bucket_info import show_nodes

    return [move.partition, move.active, show_nodes(move.replicas), move.newcomer or "–"]


def _plan_json(plan: "RebalancePlan") -> dict[str, Any]:
    return {"nodes": plan.nodes, "moves": plan.moves, "wanted": plan.wanted}
