"""The Typer application: global options, a sub-application for every noun, and `failover`."""

import os
import sys
from typing import Annotated, Any, Final

import typer

import millrace
from millrace.cli import (
    bench,
    bucket,
    changes,
    cluster,
    cluster_nodes,
    dev,
    failover,
    kv,
    log,
    log_create,
    log_records,
    log_set,
    log_verify,
    node,
    partition,
    pipeline,
    pipeline_run,
    reader,
    rebalance,
    scenario,
    sim,
    stream,
    verify_backup,
)
from millrace.cli.main import FAILED, WRONG
from millrace.cli.output import Format
from millrace.cli.quantities import show_duration
from millrace.cli.session import CLUSTER_VARIABLE, TIMEOUT_MS, Session, duration_ms

app = typer.Typer(
    name="millrace",
    cls=pipeline_run.RootGroup,
    help="Millrace: replicated logs and documents.  `millrace dev up` starts a cluster here.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
log_create.register(log.app)
log_set.register(log.app)
log_records.register(log.app)
log_verify.register(log.app)
cluster_nodes.register(cluster.app)
for noun in (
    dev,
    log,
    stream,
    reader,
    bucket,
    kv,
    partition,
    changes,
    rebalance,
    pipeline,
    cluster,
    node,
    bench,
    sim,
    scenario,
):
    app.add_typer(noun.app)
failover.register(app)
verify_backup.register(app)

# Whatever is wrong with a command line is a kind of the error that BadParameter is a kind of.
# Its own name is not public in every version of Typer.
WrongCommandLine: Final[Any] = typer.BadParameter.__mro__[2]


def _show_version(is_asked: bool) -> None:
    if is_asked:
        print(f"millrace {millrace.__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    cluster: Annotated[
        str,
        typer.Option(
            "--cluster",
            envvar=CLUSTER_VARIABLE,
            metavar="HOST:PORT,...",
            help="Any nodes of the cluster; otherwise the local one made here by `dev up`.",
        ),
    ] = "",
    timeout: Annotated[
        int | None,
        typer.Option(
            "--timeout",
            parser=duration_ms,
            metavar="DURATION",
            show_default=show_duration(TIMEOUT_MS),
            help="How long to wait for answers.",
        ),
    ] = None,
    format: Annotated[
        Format, typer.Option("--format", help="table or json; commands take it too.")
    ] = Format.TABLE,
    no_color: Annotated[
        bool,
        typer.Option("--no-color", help="Plain text, as in a pipe or when NO_COLOR is set."),
    ] = False,
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version."),
    ] = False,
) -> None:
    has_color = not (no_color or os.environ.get("NO_COLOR"))
    context.obj = Session(cluster, timeout or TIMEOUT_MS, format, has_color)


def run_app(arguments: list[str]) -> int:
    """The exit code; errors of the package pass through."""
    try:
        code = app(arguments, prog_name="millrace", standalone_mode=False)
    except WrongCommandLine as error:
        return _complain(error)
    except typer.Abort:
        return FAILED
    return code if isinstance(code, int) else 0


def _complain(error: Any) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return WRONG
    print(f"error: {error.format_message()}", file=sys.stderr)
    context: typer.Context | None = getattr(error, "ctx", None)
    if context is not None:
        print(f"`{context.command_path} --help` shows what it takes", file=sys.stderr)
    return WRONG
