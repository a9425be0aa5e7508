"""`millrace sim`: the deterministic simulator, for developers.

A seed decides everything about a run, so a failure is repeated by its number.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli.output import Output, Tone
from millrace.cli.session import FormatOption, session_of
from millrace.errors import UsageError
from millrace.sim.seeds import LogKind, seed_of

if TYPE_CHECKING:
    from millrace.sim.run import RunResult, Summary

SEEDS_MAX = 10_000_000
JOBS_MAX = 256

app = typer.Typer(
    name="sim", help="The deterministic simulator (for developers).", no_args_is_help=True
)


@app.command()
def run(
    context: typer.Context,
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, max=SEEDS_MAX, help="How many runs.")
    ] = 100,
    first: Annotated[int, typer.Option("--first", min=0, help="The first seed.")] = 1,
    jobs: Annotated[int, typer.Option("--jobs", min=1, max=JOBS_MAX, help="Processes.")] = 2,
    kind: Annotated[
        LogKind | None, typer.Option("--kind", help="Of all worlds; else the seeds draw it.")
    ] = None,
    canary: Annotated[
        str | None,
        typer.Option("--canary", help="Plant this bug and stop at the seed that finds it."),
    ] = None,
    format: FormatOption = None,
) -> None:
    """Run seeds.  Exit code 1 if one fails; with --canary, if none finds the bug."""
    output = session_of(context).output(format)
    if canary is not None:
        _hunt(output, canary, range(first, first + seeds), kind)
        return
    from millrace.sim.run import run_many

    with output.progress("seeds", seeds) as progress:
        summary = run_many(first, seeds, jobs, lambda _: progress.advance(1), kind)
    _report(output, summary)
    raise typer.Exit(1 if summary.failures else 0)


@app.command()
def explain(
    seed: Annotated[str, typer.Argument(metavar="SEED", help="The seed of a run.")],
    events: Annotated[
        int, typer.Option("--events", min=1, max=1_000_000, help="How many of the last events.")
    ] = 200,
) -> None:
    """Tell a run: its last events, a column for each process, and the state at the end."""
    from millrace.sim.explain import explain as tell

    print(tell(int(seed) if seed.isdigit() else seed, events))


@app.command()
def canaries(context: typer.Context, format: FormatOption = None) -> None:
    """List the bugs that can be planted, and what is wrong with each."""
    from millrace.sim.canaries import CANARIES

    output = session_of(context).output(format)
    meanings = [
        (name, " ".join((CANARIES[name].__doc__ or "").split())) for name in sorted(CANARIES)
    ]
    if output.is_json:
        output.json([{"name": name, "meaning": meaning} for name, meaning in meanings])
    else:
        output.table(("canary", "what is wrong"), meanings)


def _hunt(output: Output, canary: str, seeds: range, kind: LogKind | None) -> None:
    from millrace.sim.canaries import CANARIES
    from millrace.sim.run import run_seed

    if canary not in CANARIES:
        raise UsageError(f"there is no canary {canary!r}; `millrace sim canaries` lists them")
    found: RunResult | None = None
    with output.progress("seeds", len(seeds)) as progress:
        for seed in seeds:
            result = run_seed(seed_of(seed, kind), canary=canary)
            progress.advance(1)
            if not result.ok:
                found = result
                break
    if output.is_json:
        output.json({"canary": canary, "is_found": found is not None, "found": found})
    elif found is None:
        output.line(f"{canary}: not found in {len(seeds)} seeds", Tone.BAD)
    else:
        output.line(f"{canary}: found by seed {found.seed}: {found.violation}", Tone.GOOD)
    raise typer.Exit(0 if found is not None else 1)


def _report(output: Output, summary: "Summary") -> None:
    if output.is_json:
        output.json(summary)
        return
    for failure in summary.failures:
        output.line(f"seed {failure.seed}: {failure.violation}", Tone.BAD)
        output.line(f"    {failure.replay}")
    tone = Tone.BAD if summary.failures else Tone.GOOD
    output.line(
        f"{summary.runs} seeds, {len(summary.failures)} failed; {summary.events:,} events in "
        f"{summary.seconds:.1f}s ({summary.events_per_second:,.0f}/s)",
        tone,
    )
