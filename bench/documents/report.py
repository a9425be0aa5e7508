"""Tells what the benchmark of documents found: tables for the terminal and Markdown, and JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench.documents.requests import VALUE_BYTES
from bench.documents.results import (
    REFERENCES,
    DocumentsRun,
    Measured,
    Target,
    rate_ratio,
    targets,
)

TITLE: Final = f"Documents of {VALUE_BYTES} B"
SNAPSHOTS_TITLE: Final = "Snapshots of the write queue"
HEADINGS: Final = (
    "workload",
    "peer",
    "documents/s",
    "until at rest",
    "MB/s",
    "server CPU µs",
    "per server core",
    "client CPU µs",
    *(f"vs {reference}" for reference in REFERENCES),
)
SNAPSHOT_HEADINGS: Final = (
    "documents queued",
    "a snapshot",
    "the write after it",
    "memory with one",
    "with ten",
    "more",
)
NOTES: Final = (
    "One client for all servers, in memcached's binary protocol with 1,024 requests under way: "
    "requests are encoded before the clock starts, answers are checked after it has stopped. "
    "`millrace` is one node with one core to itself, and so is `memcached`; `millrace-3` and the "
    "client share what the machine has. `multi-set` of memcached is as many quiet sets and a "
    "no-op.",
    "`documents/s` is by the clock until the last answer; `until at rest` until all is flushed "
    "and at the replicas too, and so long the server's processor time is counted. `per server "
    "core` is what a second of it does. CPU is by document. memcached writes nothing to disk.",
    "The change streams are taken as Arrow batches by `ChangeConsumer`; the loopback moves as "
    "many bytes as their values have.",
)
SNAPSHOT_NOTE: Final = (
    "Memory is that of the queue and its documents without values; between two of the ten "
    "snapshots a hundred documents are written again."
)

Rows = list[tuple[str, ...]]


def rows(run: DocumentsRun) -> Rows:
    """The cells of the table, by HEADINGS."""
    return [_row(each, run) for each in run.measured]


def _row(measured: Measured, run: DocumentsRun) -> tuple[str, ...]:
    name, rate, cpu_us = measured.workload, measured.rate, measured.server_cpu_us
    if rate is None:
        return (name, measured.peer, "failed", *[""] * (len(HEADINGS) - 3))
    against = [rate_ratio(measured, run.find(name, reference)) for reference in REFERENCES]
    return (
        name,
        measured.peer,
        _count_text(rate),
        _count_text(measured.settled_rate),
        _count_text(measured.megabytes_per_second),
        _time_text(cpu_us),
        _count_text(1e6 / cpu_us if cpu_us else None),
        _time_text(measured.client_cpu_us),
        *("" if ratio is None else f"{ratio:.2g}×" for ratio in against),
    )


def _count_text(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _time_text(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def snapshot_rows(run: DocumentsRun) -> Rows:
    """The cells of the table of snapshots, by SNAPSHOT_HEADINGS."""
    return [
        (
            f"{cost.documents:,}",
            f"{cost.snapshot_ns:,.0f} ns",
            f"{cost.write_after_ns:,.0f} ns",
            f"{cost.one_bytes:,} B",
            f"{cost.ten_bytes:,} B",
            f"{100 * (cost.growth - 1):.2f} %",
        )
        for cost in run.snapshots
    ]


def target_lines(run: DocumentsRun) -> list[str]:
    return [_target_text(target) for target in targets(run)]


def _target_text(target: Target) -> str:
    side = "at most" if target.is_ceiling else "at least"
    word = "met" if target.is_met else "missed"
    return f"{target.name}: {_figure(target.found)}, {side} {_figure(target.bound)}: {word}"


def _figure(value: float | None) -> str:
    if value is None:
        return "not measured"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3f}"


def as_json(run: DocumentsRun) -> dict[str, Any]:
    return {
        "peers": run.peers,
        "measured": [
            {
                **asdict(each),
                "documents_per_second": each.rate,
                "server_cpu_us": each.server_cpu_us,
                "client_cpu_us": each.client_cpu_us,
            }
            for each in run.measured
        ],
        "snapshots": [asdict(cost) for cost in run.snapshots],
        "targets": [{**asdict(target), "is_met": target.is_met} for target in targets(run)],
        "failures": run.failures,
    }


def as_markdown(run: DocumentsRun) -> list[str]:
    return [
        f"## {TITLE}",
        "",
        *(f"- {name}: {text}" for name, text in run.peers.items()),
        "",
        *_table_lines(HEADINGS, 2, rows(run)),
        *(f"{note}\n" for note in NOTES),
        f"### {SNAPSHOTS_TITLE}",
        "",
        *_table_lines(SNAPSHOT_HEADINGS, 0, snapshot_rows(run)),
        f"{SNAPSHOT_NOTE}\n",
        "### Targets",
        "",
        *(f"- {line}" for line in target_lines(run)),
        "",
    ]


def _table_lines(headings: Sequence[str], names: int, cells: Rows) -> list[str]:
    """The first columns are names, the others figures."""
    return [
        "| " + " | ".join(headings) + " |",
        "|" + "---|" * names + "--:|" * (len(headings) - names),
        *("| " + " | ".join(row) + " |" for row in cells),
        "",
    ]


def print_tables(run: DocumentsRun, console: Console) -> None:
    _print_table(TITLE, HEADINGS, 2, rows(run), console)
    _print_table(SNAPSHOTS_TITLE, SNAPSHOT_HEADINGS, 0, snapshot_rows(run), console)
    for note in (*NOTES, SNAPSHOT_NOTE):
        console.print(note, style="dim", markup=False)
    for line in target_lines(run):
        console.print(line, markup=False, highlight=False)


def _print_table(
    title: str, headings: Sequence[str], names: int, cells: Rows, console: Console
) -> None:
    if not cells:
        return
    table = Table(title=title)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < names else "right", no_wrap=True)
    for row in cells:
        table.add_row(*row)
    console.print(table)
