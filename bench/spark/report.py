"""Tells what the Spark benchmark found: tables for the terminal and Markdown, and JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench.measure import summarise
from bench.spark.results import (
    Mode,
    Rates,
    Source,
    SparkRun,
    Target,
    Times,
    median_ratio,
    p95_ratio,
    part_medians_ms,
    rate_ratio,
    targets,
)

RATE_HEADINGS: Final = (
    "workload",
    "source",
    "rows/s",
    "MB/s",
    "rows/s, start to end",
    "CPU s/GB",
    "vs memory",
    "vs its batch read",
)
WRITE_HEADINGS: Final = ("workload", "writer", "rows/s", "MB/s", "CPU s/GB", "vs client")
TIME_HEADINGS: Final = ("workload", "source", "median", "p95", "vs memory", "p95 vs memory")
PART_HEADINGS: Final = ("part of a trigger", "millrace", "memory")
NOTES: Final = (
    "All rows go to Spark's `noop` sink. `memory`: a Python source that has the same columns, "
    "batches and partitions and nothing to fetch, which is the ceiling of a Python source. "
    "`parquet`: the same rows in files without compression.",
    "Rates are medians over interleaved rounds, ratios are paired by round (of the 95th "
    "percentiles: over all rounds). A batch is timed from `spark.read` to the end of the action. "
    "A stream's rate is rows by `triggerExecution` of the micro-batches that had rows; `start to "
    "end` is by the clock from `start()` until the query has ended, with the start of its Python "
    "processes. So a batch has its planning in it and a stream's rate has not: more than 100 % of "
    "the batch read means that planning took longer than the bookkeeping of the micro-batch. CPU "
    "counts this process, Java, Spark's Python workers and all nodes, for a stream from start to "
    "end.",
    "Written is what lies in memory already, into a new log each time: by Spark's sink from "
    "Spark's cache (a stream: cut out of a constant by Spark), and by the plain client, which "
    "appends Arrow tables of its own (`append_table`), as many at once, without Spark. Logs are "
    "not compressed. What Spark writes is staged and published; the log has every row afterwards.",
    "Trigger: `triggerExecution` of micro-batches of one record, of which there are more when a "
    "trigger begins, so that no source waits for data in it (`maxRecordsPerTrigger=1`). Record to "
    "sink: one record at a time, while the query waits for it, from the acknowledgement of its "
    "append (memory: from when it can be read) until `foreachBatch` has collected it. Both queries "
    "run at once and take turns. Ratios of times below 1 are better than memory.",
)

Rows = list[tuple[str, ...]]


def rate_rows(run: SparkRun) -> Rows:
    """The cells of the table of rates, by RATE_HEADINGS."""
    return [_rate_row(rates, run.rates) for rates in run.rates]


def _rate_row(rates: Rates, all_rates: Sequence[Rates]) -> tuple[str, ...]:
    if not rates.samples:
        return (rates.name, rates.source.value, "failed", *[""] * (len(RATE_HEADINGS) - 3))
    summary = summarise(rates.samples)
    cpu = summary.cpu_seconds_per_gigabyte
    wall = median(
        sample.records / seconds
        for sample, seconds in zip(rates.samples, rates.wall_seconds, strict=True)
    )
    is_ceiling, is_stream = rates.source is Source.MEMORY, rates.mode is Mode.STREAM
    vs_memory = None if is_ceiling else rate_ratio(rates, all_rates, rates.mode, Source.MEMORY)
    vs_batch = rate_ratio(rates, all_rates, Mode.BATCH, rates.source) if is_stream else None
    return (
        rates.name,
        rates.source.value,
        f"{summary.records_per_second:,.0f}",
        f"{summary.megabytes_per_second:,.0f}",
        f"{wall:,.0f}" if is_stream else "",
        "" if cpu is None else f"{cpu:.2f}",
        _share_text(vs_memory),
        _share_text(vs_batch),
    )


def write_rows(run: SparkRun) -> Rows:
    """The cells of the table of writes, by WRITE_HEADINGS."""
    return [_write_row(rates, run.writes) for rates in run.writes]


def _write_row(rates: Rates, all_rates: Sequence[Rates]) -> tuple[str, ...]:
    if not rates.samples:
        return (rates.name, rates.source.value, "failed", *[""] * (len(WRITE_HEADINGS) - 3))
    summary = summarise(rates.samples)
    cpu = summary.cpu_seconds_per_gigabyte
    is_client = rates.source is Source.CLIENT
    vs_client = None if is_client else rate_ratio(rates, all_rates, Mode.WRITE, Source.CLIENT)
    return (
        rates.name,
        rates.source.value,
        f"{summary.records_per_second:,.0f}",
        f"{summary.megabytes_per_second:,.0f}",
        "" if cpu is None else f"{cpu:.2f}",
        _share_text(vs_client),
    )


def time_rows(run: SparkRun) -> Rows:
    """The cells of the table of times, by TIME_HEADINGS."""
    return [_time_row(times, group) for group in (run.triggers, run.latencies) for times in group]


def _time_row(times: Times, group: Sequence[Times]) -> tuple[str, ...]:
    found = [times.at(share) for share in (0.5, 0.95)]
    is_ceiling = times.source is Source.MEMORY
    against = [] if is_ceiling else [median_ratio(times, group), p95_ratio(times, group)]
    return (
        times.name,
        times.source.value,
        *("failed" if value is None else f"{value:,.0f} ms" for value in found),
        *("" if value is None else f"{value:.2f}×" for value in against or (None, None)),
    )


def part_rows(run: SparkRun) -> Rows:
    """Spark's own division of a trigger, medians, by PART_HEADINGS."""
    medians = {times.source: part_medians_ms(times) for times in run.triggers}
    names = sorted({name for parts in medians.values() for name in parts})
    sources = (Source.MILLRACE, Source.MEMORY)
    return [
        (name, *(_milliseconds_text(medians.get(source, {}).get(name)) for source in sources))
        for name in names
    ]


def target_lines(run: SparkRun) -> list[str]:
    return [target_text(target) for target in targets(run)]


def target_text(target: Target) -> str:
    side = "at most" if target.is_ceiling else "at least"
    word = "met" if target.is_met else "missed"
    found = "not measured" if target.found is None else f"{target.found:.2f}"
    return f"{target.name}: {found}, {side} {target.bound:.2f}: {word}"


def as_json(run: SparkRun) -> dict[str, Any]:
    return {
        "description": run.description,
        "rates": [_rates_json(rates, run.rates) for rates in run.rates],
        "writes": [_writes_json(rates, run.writes) for rates in run.writes],
        "triggers": [_times_json(times, run.triggers) for times in run.triggers],
        "latencies": [_times_json(times, run.latencies) for times in run.latencies],
        "targets": [{**asdict(target), "is_met": target.is_met} for target in targets(run)],
        "failures": run.failures,
    }


def _rates_json(rates: Rates, all_rates: Sequence[Rates]) -> dict[str, Any]:
    return {
        "mode": rates.mode.value,
        "source": rates.source.value,
        "payload_bytes": rates.payload_bytes,
        "summary": asdict(summarise(rates.samples)) if rates.samples else None,
        "vs_memory": rate_ratio(rates, all_rates, rates.mode, Source.MEMORY),
        "vs_batch_read": rate_ratio(rates, all_rates, Mode.BATCH, rates.source),
        "rounds": [asdict(sample) for sample in rates.samples],
        "wall_seconds": rates.wall_seconds,
    }


def _writes_json(rates: Rates, all_rates: Sequence[Rates]) -> dict[str, Any]:
    return {
        "mode": rates.mode.value,
        "writer": rates.source.value,
        "payload_bytes": rates.payload_bytes,
        "summary": asdict(summarise(rates.samples)) if rates.samples else None,
        "vs_client": rate_ratio(rates, all_rates, Mode.WRITE, Source.CLIENT),
        "rounds": [asdict(sample) for sample in rates.samples],
    }


def _times_json(times: Times, group: Sequence[Times]) -> dict[str, Any]:
    return {
        "name": times.name,
        "source": times.source.value,
        "median_ms": times.at(0.5),
        "p95_ms": times.at(0.95),
        "vs_memory": median_ratio(times, group),
        "p95_vs_memory": p95_ratio(times, group),
        "rounds_ms": times.rounds_ms,
        "parts_ms": part_medians_ms(times),
    }


def as_markdown(run: SparkRun) -> list[str]:
    return [
        "## Spark",
        "",
        run.description,
        "",
        *markdown_table(RATE_HEADINGS, rate_rows(run), words=2),
        *markdown_table(WRITE_HEADINGS, write_rows(run), words=2),
        *markdown_table(TIME_HEADINGS, time_rows(run), words=2),
        *markdown_table(PART_HEADINGS, part_rows(run), words=1),
        *(f"- {line}" for line in target_lines(run)),
        "",
        *(f"{note}\n" for note in NOTES),
    ]


def markdown_table(headings: Sequence[str], rows: Rows, *, words: int) -> list[str]:
    """The first `words` columns are words, the others numbers."""
    if not rows:
        return []
    return [
        "| " + " | ".join(headings) + " |",
        "|" + "---|" * words + "--:|" * (len(headings) - words),
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
    ]


def print_tables(run: SparkRun, console: Console) -> None:
    for headings, rows, words in (
        (RATE_HEADINGS, rate_rows(run), 2),
        (WRITE_HEADINGS, write_rows(run), 2),
        (TIME_HEADINGS, time_rows(run), 2),
        (PART_HEADINGS, part_rows(run), 1),
    ):
        if rows:
            console.print(terminal_table(headings, rows, words))
    for line in target_lines(run):
        console.print(line, markup=False)
    for note in NOTES:
        console.print(note, style="dim", markup=False)


def terminal_table(headings: Sequence[str], rows: Rows, words: int, title: str = "Spark") -> Table:
    table = Table(title=title)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < words else "right", no_wrap=True)
    before = ""
    for row in rows:
        is_same = row[0] == before
        if before and not is_same and words > 1:
            table.add_section()
        table.add_row("" if is_same else row[0], *row[1:])
        before = row[0]
    return table


def _share_text(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _milliseconds_text(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} ms"
