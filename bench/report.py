"""Tells what was measured: a table for the terminal, Markdown and JSON for the record.

The JSON holds every round, so that another question can be asked of it later; the tables hold
medians.  Ratios above 1 mean that the row's peer is better than the one it is held against.
"""

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench import empty_commits
from bench.documents import report as documents_report
from bench.documents.results import DocumentsRun
from bench.empty_commits import EmptyCommits
from bench.measure import Ratio, Sample, Summary, ratio, summarise
from bench.peer import Kind
from bench.pipelines import report as pipelines_report
from bench.pipelines.results import PipelinesRun
from bench.runner import PeerResult, WorkloadResult
from bench.spark import report as spark_report
from bench.spark.results import SparkRun
from bench.workloads import Profile

SCHEMA: Final = 1
REFERENCES: Final = ("nats", "limits", "chain", "commit", "all-send-all")
FIGURES: Final = (
    "workload",
    "peer",
    "records/s",
    "MB/s",
    "p50",
    "p99",
    "p99.9",
    "CPU s/GB",
)
COPIES_TITLE: Final = "Bytes received for each byte delivered, median and most over rounds"
NOTES: Final = (
    "Medians over interleaved rounds. `vs` is the rate against that peer, paired by round: "
    "above 1 is better.",
    "`ack disk`: fsync on every replica before the answer (NATS: `sync_interval: always`). "
    "`ack memory`: no fsync before the answer (NATS: its default).",
    "The limits move one copy; three replicas on one disk share it. Their pipelined latencies "
    "are those of a block.",
    "A star marks a workload that the clock ended before all its records were done.",
)
CACHE_FILLED: Final = (
    "What memory was free was filled with clean pages of the page cache before each workload of "
    "appends and reads, and before Spark and servers of documents started, for two minutes at most "
    "(`bench/page_cache.py`): on a virtual machine the host may be slow to hand out pages that "
    "nobody has touched."
)


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run and what must be known to compare it with another."""

    started: datetime
    name: str
    profile: Profile
    peers: Mapping[str, str]  # Name to description.
    failures: Mapping[str, str]
    results: Sequence[WorkloadResult]
    seconds: float
    spark: SparkRun | None = None  # None if the run had no such part.
    empty_commits: Sequence[EmptyCommits] = ()
    documents: DocumentsRun | None = None
    pipelines: PipelinesRun | None = None

    @property
    def all_failures(self) -> dict[str, str]:
        """By peer, or by part of the benchmarks of Spark, documents and pipelines."""
        others = (self.spark, self.documents, self.pipelines)
        parts = [part.failures for part in others if part is not None]
        return {name: text for each in (self.failures, *parts) for name, text in each.items()}


def ratios(result: WorkloadResult) -> dict[str, Ratio]:
    """Every measured peer against every measured reference, as `millrace/nats`."""
    measured = {name: peer.samples for name, peer in result.peers.items() if peer.samples}
    return {
        f"{name}/{reference}": ratio(samples, measured[reference])
        for name, samples in measured.items()
        for reference in REFERENCES
        if reference in measured and reference != name
    }


def references(results: Sequence[WorkloadResult]) -> list[str]:
    """Those that took part: the others get no column."""
    measured = {name for result in results for name in result.peers}
    return [reference for reference in REFERENCES if reference in measured]


def headings(results: Sequence[WorkloadResult]) -> tuple[str, ...]:
    return (*FIGURES, *(f"vs {reference}" for reference in references(results)))


def rows(results: Sequence[WorkloadResult]) -> list[tuple[str, ...]]:
    """The cells of the table, by `headings`."""
    held_against = references(results)
    return [
        _row(result, name, peer, held_against)
        for result in results
        for name, peer in result.peers.items()
    ]


def _row(
    result: WorkloadResult, name: str, peer: PeerResult, held_against: Sequence[str]
) -> tuple[str, ...]:
    workload = result.workload.name
    if not peer.samples:
        return (workload, name, "failed", *[""] * (len(FIGURES) + len(held_against) - 3))
    summary = summarise(peer.samples)
    against = ratios(result)
    compared = [_ratio_text(against.get(f"{name}/{reference}")) for reference in held_against]
    return (workload, name, *_figures(result.workload.kind, summary), *compared)


def _figures(kind: Kind, summary: Summary) -> list[str]:
    latencies = [_time_text(us) for us in (summary.p50_us, summary.p99_us, summary.p999_us)]
    if kind is Kind.RESTART:
        return ["", "", latencies[0], "", "", ""]
    star = "*" if summary.is_cut_short else ""
    cpu = summary.cpu_seconds_per_gigabyte
    return [
        f"{summary.records_per_second:,.0f}{star}",
        _number_text(summary.megabytes_per_second),
        *latencies,
        "" if cpu is None else _number_text(cpu),
    ]


def _number_text(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _time_text(us: float | None) -> str:
    if us is None:
        return ""
    if us >= 1e6:
        return f"{us / 1e6:.2f} s"
    return f"{us / 1e3:.2f} ms" if us >= 1e3 else f"{us:.0f} µs"


def _ratio_text(value: Ratio | None) -> str:
    if value is None or value.rate is None:
        return ""
    return f"{value.rate:.1f}×" if value.rate >= 10 else f"{value.rate:.2g}×"


def as_json(run: Run) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "started": run.started.isoformat(timespec="seconds"),
        "seconds": round(run.seconds, 1),
        "name": run.name,
        "revision": revision(),
        "machine": machine(),
        "profile": asdict(run.profile),
        "peers": dict(run.peers),
        "failures": dict(run.failures),
        "results": [_result_json(result) for result in run.results],
        "spark": None if run.spark is None else spark_report.as_json(run.spark),
        "empty_commits": empty_commits.as_json(run.empty_commits),
        "documents": None if run.documents is None else documents_report.as_json(run.documents),
        "pipelines": None if run.pipelines is None else pipelines_report.as_json(run.pipelines),
    }


def _result_json(result: WorkloadResult) -> dict[str, Any]:
    workload = result.workload
    return {
        "workload": {
            "name": workload.name,
            "kind": workload.kind.value,
            "payload_bytes": workload.payload_bytes,
            "ack": workload.ack.value,
            "count": workload.count,
        },
        "peers": {name: _peer_json(peer) for name, peer in result.peers.items()},
        "ratios": {name: asdict(value) for name, value in ratios(result).items()},
    }


def _peer_json(peer: PeerResult) -> dict[str, Any]:
    return {
        "summary": asdict(summarise(peer.samples)) if peer.samples else None,
        "way": peer.way,
        "tried_records_per_second": peer.tried,
        "failure": peer.failure,
        "rounds": [asdict(sample) for sample in peer.samples],
    }


def as_markdown(run: Run) -> str:
    machine_text = ", ".join(str(value) for value in machine().values() if value)
    lines = [
        f"# Benchmark {run.name}, {run.started:%Y-%m-%d %H:%M}",
        "",
        f"{run.profile.name} run, {run.seconds:.0f} s, revision {revision() or 'unknown'}; "
        f"{machine_text}.",
        *(["", CACHE_FILLED] if run.profile.is_cache_filled else []),
        "",
        *(f"- {name}: {text}" for name, text in run.peers.items()),
        *(f"- {name} was left out: {text}" for name, text in run.all_failures.items()),
        "",
        *(_table_lines(run.results) if run.results else []),
        *(spark_report.as_markdown(run.spark) if run.spark else []),
        *(empty_commits.as_markdown(run.empty_commits) if run.empty_commits else []),
        *(documents_report.as_markdown(run.documents) if run.documents else []),
        *(pipelines_report.as_markdown(run.pipelines) if run.pipelines else []),
        *_busy_lines(run.results),
        *_copies_lines(run.results),
        *_tuning_lines(run.results),
    ]
    return "\n".join(lines)


def _table_lines(results: Sequence[WorkloadResult]) -> list[str]:
    columns = headings(results)
    return [
        "| " + " | ".join(columns) + " |",
        "|---|---|" + "--:|" * (len(columns) - 2),
        *("| " + " | ".join(row) + " |" for row in rows(results)),
        "",
        *(f"{note}\n" for note in NOTES),
    ]


def _tuning_lines(results: Sequence[WorkloadResult]) -> list[str]:
    """Which window or way each peer was measured with, and what the others gave."""
    lines = [
        f"- {result.workload.name}, {name}: **{peer.way}** of "
        + ", ".join(f"{way} ({rate:,.0f}/s)" for way, rate in peer.tried.items())
        for result in results
        for name, peer in result.peers.items()
        if peer.tried
    ]
    return ["## Windows and ways of reading that were tried", "", *lines, ""] if lines else []


def busy_rows(results: Sequence[WorkloadResult]) -> list[str]:
    """Of pipelined appends, in the round of each peer whose rate was the median, or next to it."""
    return [
        f"{result.workload.name}, {name}: {sample.busy}"
        for result in results
        if result.workload.kind is Kind.APPEND_PIPELINED
        for name, peer in result.peers.items()
        if peer.samples and (sample := middle(peer.samples)).busy is not None
    ]


def copies_rows(results: Sequence[WorkloadResult]) -> list[str]:
    """Of reads: what single copy delivery saves, and what a round that was disturbed costs."""
    lines: list[str] = []
    for result in results:
        for name, peer in result.peers.items():
            copies = sorted(each.copies for each in peer.samples if each.copies is not None)
            if copies:
                median = copies[(len(copies) - 1) // 2]
                lines.append(f"{result.workload.name}, {name}: {median:.3f}, most {copies[-1]:.3f}")
    return lines


def middle(samples: Sequence[Sample]) -> Sample:
    ordered = sorted(samples, key=lambda sample: sample.records_per_second)
    return ordered[(len(ordered) - 1) // 2]


def _busy_lines(results: Sequence[WorkloadResult]) -> list[str]:
    lines = [f"- {row}" for row in busy_rows(results)]
    return ["## Processors while appending, in cores", "", *lines, ""] if lines else []


def _copies_lines(results: Sequence[WorkloadResult]) -> list[str]:
    lines = [f"- {row}" for row in copies_rows(results)]
    return [f"## {COPIES_TITLE}", "", *lines, ""] if lines else []


def print_table(run: Run, console: Console) -> None:
    if run.results:
        console.print(_terminal_table(run))
        for note in NOTES:
            console.print(note, style="dim", markup=False)
        for row in busy_rows(run.results):
            console.print(row, style="dim", markup=False, highlight=False)
        if copies := copies_rows(run.results):
            console.print(f"{COPIES_TITLE}:", style="dim")
        for row in copies:
            console.print(row, style="dim", markup=False, highlight=False)
    if run.empty_commits:
        empty_commits.print_table(run.empty_commits, console)
    if run.spark is not None:
        spark_report.print_tables(run.spark, console)
    if run.documents is not None:
        documents_report.print_tables(run.documents, console)
    if run.pipelines is not None:
        pipelines_report.print_tables(run.pipelines, console)
    for name, text in run.all_failures.items():
        console.print(f"{name} was left out: {text}", style="yellow", markup=False)


def _terminal_table(run: Run) -> Table:
    table = Table(title=f"Benchmark {run.name} ({run.profile.name})")
    for number, heading in enumerate(headings(run.results)):
        table.add_column(heading, justify="left" if number < 2 else "right", no_wrap=True)
    before = ""
    for row in rows(run.results):
        if before and row[0] != before:
            table.add_section()
        table.add_row("" if row[0] == before else row[0], *row[1:])
        before = row[0]
    return table


def save(run: Run, directory: Path) -> tuple[Path, Path]:
    """Kept by date: a later run never overwrites an earlier one."""
    directory.mkdir(parents=True, exist_ok=True)
    stem = f"{run.started:%Y-%m-%d-%H%M%S}-{run.name}"
    json_path, markdown_path = directory / f"{stem}.json", directory / f"{stem}.md"
    json_path.write_text(json.dumps(as_json(run), indent=1) + "\n")
    markdown_path.write_text(as_markdown(run))
    return json_path, markdown_path


def machine() -> dict[str, str]:
    return {
        "processor": _processor(),
        "cores": f"{os.cpu_count()} cores",
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def revision() -> str:
    """The commit that was measured; empty outside a repository."""
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.strip()
