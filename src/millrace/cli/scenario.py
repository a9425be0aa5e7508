"""`millrace scenario`: run scenario files, in which people wrote events and what must follow."""

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="scenario", help="Run scenario files (for developers).", no_args_is_help=True
)


@app.callback()
def scenario() -> None:
    """Run scenario files (for developers)."""


@app.command()
def run(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Scenario files, or folders of them.")
    ],
    rewrite: Annotated[
        bool, typer.Option("--rewrite", help="Write what happened into the files; then read it.")
    ] = False,
) -> None:
    """Run scenarios.  Exit code 1 if any does not go as written."""
    from millrace.scenario import run_paths

    raise typer.Exit(run_paths(files, rewrite, sys.stdout))
