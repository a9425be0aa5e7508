"""`millrace stream`: look after the streams of a commit log."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli.log_records import RecordFormatOption
from millrace.cli.output import Tone, confirm
from millrace.cli.records import show_gap
from millrace.cli.session import FormatOption, YesOption, run_async, session_of
from millrace.types import Gap

if TYPE_CHECKING:
    from millrace.client import Log

app = typer.Typer(
    name="stream", help="Look after the streams of a commit log.", no_args_is_help=True
)

LogArgument = Annotated[str, typer.Argument(metavar="LOG", help="The log's name.")]
StreamArgument = Annotated[
    int, typer.Argument(metavar="STREAM", help="The stream's number; `stream ls` shows them.")
]
NodeOption = Annotated[int, typer.Option("--to", metavar="NODE", help="The node that gets it.")]


@app.command("ls")
def list_streams(context: typer.Context, log: LogArgument, format: FormatOption = None) -> None:
    """Show a log's streams: their replicas, how far they are committed, who is silent and why."""
    from millrace.cli.commit_logs import show_streams
    from millrace.client.describe_commits import CommitDescription

    session = session_of(context)

    async def work() -> CommitDescription:
        async with session.connected() as client:
            opened = await session.within(client.log(log))
            return await opened.streams.describe(session.timeout_ms)

    description = run_async(work())
    output = session.output(format)
    if output.is_json:
        output.json(description)
    else:
        show_streams(output, description)


@app.command()
def read(
    context: typer.Context,
    log: LogArgument,
    stream: StreamArgument,
    first: Annotated[
        int, typer.Option("--from", min=1, metavar="N", help="Position of the stream.")
    ] = 1,
    until: Annotated[
        int | None,
        typer.Option(
            "--until", min=1, metavar="N", help="Where to end, exclusive; what is committed now."
        ),
    ] = None,
    format: RecordFormatOption = "",
) -> None:
    """Read one stream by its own positions: each record with that and its position in the log."""
    from millrace.cli.stream_records import StreamRenderer

    session = session_of(context)
    renderer = StreamRenderer(format or session.format.value, stream)
    output = session.output()

    async def work() -> None:
        async with session.connected() as client:
            opened = await session.within(client.log(log))
            output.write(renderer.begin())
            timeout_ms = session.timeout_ms
            async for found in opened.read_stream(stream, first, until, timeout_ms=timeout_ms):
                if isinstance(found, Gap) and not renderer.shows_gaps:
                    output.say(show_gap(found, str), Tone.WARNING)
                else:
                    output.write(renderer.show(found))
            output.write(renderer.end())
            output.flush()

    run_async(work())


def _change(
    context: typer.Context, name: str, said: str, change: "Callable[[Log], Awaitable[object]]"
) -> None:
    session = session_of(context)

    async def work() -> None:
        async with session.connected() as client:
            await change(await session.within(client.log(name)))

    run_async(work())
    session.output(None).say(said, Tone.GOOD)


@app.command()
def add(context: typer.Context, log: LogArgument) -> None:
    """Give a log one more stream, on nodes that are alive."""
    _change(context, log, f"log {log} gets one more stream", lambda opened: opened.streams.add())


@app.command()
def seal(context: typer.Context, log: LogArgument, stream: StreamArgument) -> None:
    """Let a stream take no more appends; what is in it stays, and other streams go on."""

    async def change(opened: "Log") -> None:
        await opened.streams.set_open(stream, False)

    _change(context, log, f"stream {stream} of log {log} is being sealed", change)


@app.command()
def unseal(context: typer.Context, log: LogArgument, stream: StreamArgument) -> None:
    """Let a sealed stream take appends again."""

    async def change(opened: "Log") -> None:
        await opened.streams.set_open(stream, True)

    _change(context, log, f"stream {stream} of log {log} is being opened", change)


@app.command()
def sync(context: typer.Context, log: LogArgument, stream: StreamArgument, to: NodeOption) -> None:
    """Make a node a replica of a stream, beside those that it has."""

    async def change(opened: "Log") -> None:
        await opened.streams.move(stream, 0, to)

    _change(context, log, f"node {to} is being given stream {stream} of log {log}", change)


@app.command()
def move(
    context: typer.Context,
    log: LogArgument,
    stream: StreamArgument,
    source: Annotated[int, typer.Option("--from", metavar="NODE", help="The node that has it.")],
    to: NodeOption,
) -> None:
    """Move a replica of a stream to another node, while appends go on."""

    async def change(opened: "Log") -> None:
        await opened.streams.move(stream, source, to)

    said = f"stream {stream} of log {log} is being moved from node {source} to node {to}"
    _change(context, log, said, change)


@app.command("give-up")
def give_up(
    context: typer.Context, log: LogArgument, stream: StreamArgument, yes: YesOption = False
) -> None:
    """Go on without what no replica of a stream has any more: their disks are lost for good."""
    confirm(f"Give up what all replicas of stream {stream} of log {log} have lost?", yes=yes)

    async def change(opened: "Log") -> None:
        await opened.streams.give_up(stream)

    said = f"stream {stream} of log {log} goes on with what is left as soon as its replicas answer"
    _change(context, log, said, change)
