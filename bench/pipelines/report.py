"""Tells what the benchmark of pipelines found: tables for the terminal and for the record."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console

from bench.measure import summarise
from bench.pipelines.results import Measured, PipelinesRun, targets
from bench.spark.report import markdown_table, target_text, terminal_table

HEADINGS: Final = ("workload", "peer", "rows/s", "MB/s", "CPU s/GB", "vs client")
NOTES: Final = (
    "Medians over interleaved rounds; `vs client` is paired by round. CPU counts this process, "
    "Java, Spark's Python workers and all nodes.",
    "Writes to a log: rows that lie in memory, by Spark's sink and by the client's "
    "`append_table`. Spark is told how large rows of up to 1 KiB are (`expect_rows`), but for "
    "`size untold`.",
    "Changes: all of a bucket from the beginning, by the source `millrace-changes` and by a "
    "`ChangeConsumer` that takes Arrow batches.",
    "View: documents are written at a fixed rate while the view runs; its rate is what it had "
    "taken in at the end, by the time.",
)


def rows(run: PipelinesRun) -> list[tuple[str, ...]]:
    """The cells of the table, by HEADINGS."""
    return [_row(run, each) for each in run.rows]


def _row(run: PipelinesRun, measured: Measured) -> tuple[str, ...]:
    if not measured.samples:
        return (measured.workload, measured.peer, "failed", *[""] * (len(HEADINGS) - 3))
    summary = summarise(measured.samples)
    cpu, against = summary.cpu_seconds_per_gigabyte, run.against(measured)
    return (
        measured.workload,
        measured.peer,
        f"{summary.records_per_second:,.0f}",
        f"{summary.megabytes_per_second:,.0f}",
        "" if cpu is None else f"{cpu:.2f}",
        "" if against is None else f"{against:.0%}",
    )


def target_lines(run: PipelinesRun) -> list[str]:
    return [target_text(target) for target in targets(run)]


def as_json(run: PipelinesRun) -> dict[str, Any]:
    return {
        "description": run.description,
        "measured": [_measured_json(run, each) for each in run.rows],
        "targets": [{**asdict(target), "is_met": target.is_met} for target in targets(run)],
        "failures": run.failures,
    }


def _measured_json(run: PipelinesRun, measured: Measured) -> dict[str, Any]:
    return {
        "workload": measured.workload,
        "peer": measured.peer,
        "summary": asdict(summarise(measured.samples)) if measured.samples else None,
        "vs_client": run.against(measured),
        "rounds": [asdict(sample) for sample in measured.samples],
    }


def as_markdown(run: PipelinesRun) -> list[str]:
    return [
        "## Pipelines",
        "",
        run.description,
        "",
        *markdown_table(HEADINGS, rows(run), words=2),
        *_listed(target_lines(run)),
        *(f"{note}\n" for note in NOTES),
    ]


def _listed(lines: Sequence[str]) -> list[str]:
    return [*(f"- {line}" for line in lines), ""] if lines else []


def print_tables(run: PipelinesRun, console: Console) -> None:
    if run.rows:
        console.print(terminal_table(HEADINGS, rows(run), 2, title="Pipelines"))
    for line in target_lines(run):
        console.print(line, markup=False)
    for note in NOTES:
        console.print(note, style="dim", markup=False)
