"""`millrace pipeline`: jobs over logs and buckets, each in a process of its own.

`run` is in `pipeline_run.py`, `query` in `pipeline_query.py`, what a running one looks like in
`pipeline_show.py`.
"""

import time
from pathlib import Path
from typing import Annotated, Final

import typer

from millrace.cli import pipeline_query, pipeline_run
from millrace.cli.output import Cell, Output, Tone
from millrace.cli.pipeline_run import folder_of
from millrace.cli.pipeline_show import TONES, Followed, lag_text, progress_text, watch
from millrace.cli.quantities import show_duration
from millrace.cli.session import FormatOption, duration_ms, session_of
from millrace.errors import TimedOut
from millrace.spark.pipelines import control
from millrace.spark.pipelines.control import State, Status
from millrace.spark.pipelines.folder import now_ms, older
from millrace.spark.pipelines.running import process_of

POLL_S: Final = 0.1
STOP_WAIT_MS: Final = 300_000
LINES: Final = 20

app = typer.Typer(
    name="pipeline",
    help="Jobs over logs and buckets that run on Spark: views, copies, backups.",
    no_args_is_help=True,
)
app.add_typer(pipeline_run.app)
pipeline_query.register(app)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="As it was called by `run`.")]
HomeOption = Annotated[
    Path | None,
    typer.Option("--home", help="Its folder, if it was run on another machine or by another user."),
]


@app.command("ls")
def list_pipelines(context: typer.Context, format: FormatOption = None) -> None:
    """List the pipelines that were run here, also those that run no more."""
    output = session_of(context).output(format)
    found = [control.status(folder) for folder in control.folders()]
    if output.is_json:
        output.json(found)
        return
    output.table(
        ("name", "kind", "state", "rows", "rows/s", "lag", "last report"),
        [_row(status) for status in found],
    )


@app.command("status")
def show_status(
    context: typer.Context,
    name: NameArgument,
    is_watched: Annotated[
        bool, typer.Option("--watch", help="Go on showing it until it ends, or Ctrl-C.")
    ] = False,
    home: HomeOption = None,
    format: FormatOption = None,
) -> None:
    """Show what a pipeline does, how far it is, and how it ended.

    Exit code 1 if it failed or was killed.
    """
    folder = folder_of(name, home)
    output = session_of(context).output(format)
    if is_watched and process_of(folder) is not None:
        watch(folder, output)
    else:
        _describe(control.status(folder), output)
    is_bad = control.status(folder).state in (State.FAILED, State.KILLED)
    raise typer.Exit(1 if is_bad else 0)


@app.command()
def stop(
    context: typer.Context,
    name: NameArgument,
    force: Annotated[
        bool,
        typer.Option("--force", help="Kill it: what it was at is done again by the next run."),
    ] = False,
    wait: Annotated[
        int | None,
        typer.Option(
            "--wait",
            parser=duration_ms,
            metavar="DURATION",
            show_default=show_duration(STOP_WAIT_MS),
            help="How long its current batch may take.",
        ),
    ] = None,
    home: HomeOption = None,
) -> None:
    """Stop a pipeline when its current batch is done.  `run` with its name goes on from there."""
    folder = folder_of(name, home)
    output = session_of(context).output()
    process = control.ask_to_stop(folder)
    if force:
        control.kill(folder)
        output.say(f"{name} was killed")
        return
    wait_ms = wait or STOP_WAIT_MS
    deadline_s = time.monotonic() + wait_ms / 1000
    while process.is_alive:
        if time.monotonic() > deadline_s:
            raise TimedOut(
                f"{name} is still at its batch after {show_duration(wait_ms)}: it stops when that "
                "is done; --force kills it, --wait waits longer"
            )
        time.sleep(POLL_S)
    output.say(f"{name} has stopped")


@app.command()
def logs(
    context: typer.Context,
    name: NameArgument,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many.")] = LINES,
    is_followed: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")
    ] = False,
    is_spark: Annotated[
        bool, typer.Option("--spark", help="What Spark and Java say, with tracebacks.")
    ] = False,
    home: HomeOption = None,
) -> None:
    """Print what a pipeline has said."""
    folder = folder_of(name, home)
    output = session_of(context).output()
    file = folder.spark_log_file if is_spark else folder.log_file
    followed = Followed(file)
    for line in _last_lines(file, followed.size_bytes, lines):
        output.line(line)
    while is_followed:
        output.flush()
        time.sleep(POLL_S)
        for line in followed.lines():
            output.line(line)


def _last_lines(file: Path, size_bytes: int, count: int) -> list[str]:
    """Of what the file has up to there, and the part before it."""
    found: list[str] = []
    for part, end in ((older(file), None), (file, size_bytes)):
        if part.exists():
            found += part.read_bytes()[:end].decode(errors="replace").splitlines()
    return found[-count:] if count else []


def _row(status: Status) -> tuple[str | Cell, ...]:
    state = Cell(status.state.value, TONES[status.state])
    progress = status.progress
    if progress is None:
        return (status.name, status.kind, state, "–", "–", "–", "–")
    rate = f"{progress.rows_per_s:,.0f}" if status.state is State.RUNNING else "–"
    age = f"{show_duration(max(0, now_ms() - progress.at_ms))} ago"
    return status.name, status.kind, state, f"{progress.rows:,}", rate, lag_text(progress), age


def _describe(status: Status, output: Output) -> None:
    if output.is_json:
        output.json(status)
        return
    running = f", process {status.pid}" if status.pid else ""
    output.line(f"{status.name}: {status.kind}, {status.state.value}{running}", TONES[status.state])
    output.line(f"  {progress_text(status.progress)}")
    if status.end and status.end.error:
        output.line(f"  error: {status.end.error}", Tone.BAD)
    if status.end and status.end.conclusion:
        for line in status.end.conclusion.summary.splitlines():
            output.line(f"  {line}")
    for field, value in status.settings.items():
        if value not in (None, "", [], {}):
            output.line(f"  {field} = {value}", Tone.FAINT)
    output.line(f"  folder {status.home}", Tone.FAINT)
