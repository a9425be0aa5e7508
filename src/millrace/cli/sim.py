"""`millrace sim`: the deterministic simulator, for developers."""

import typer

app = typer.Typer(name="sim", help="The deterministic simulator.", no_args_is_help=True)


@app.callback()
def sim() -> None:
    """Run the deterministic simulator (for developers)."""
