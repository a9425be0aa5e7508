"""What is told of a run of the benchmark of documents."""

import io
import json

import pytest
from rich.console import Console

from bench.documents import report
from bench.documents.results import (
    BACKFILL,
    LOOPBACK,
    MEMCACHED,
    MILLRACE,
    DocumentsRun,
    Measured,
    Round,
    SnapshotCost,
    rate_ratio,
    targets,
)


def rounds(*rates: float, cpu_s: float | None = 0.5) -> list[Round]:
    return [Round(1_000, 256, 1_000 / rate, 2_000 / rate, cpu_s, 0.1) for rate in rates]


def found() -> DocumentsRun:
    return DocumentsRun(
        {MILLRACE: "one node", MEMCACHED: "1.6"},
        [
            Measured("set", MILLRACE, rounds(20_000, 30_000, 10_000)),
            Measured("set", MEMCACHED, rounds(40_000, 30_000, 40_000)),
            Measured("get", MILLRACE, rounds(20_000)),
            Measured(BACKFILL, MILLRACE, failure="the stream broke off"),
            Measured(BACKFILL, LOOPBACK, rounds(1_000_000, cpu_s=None)),
        ],
        [
            SnapshotCost(1_000, 300.0, 3_000.0, 100_000, 300_000),
            SnapshotCost(1_000_000, 330.0, 6_000.0, 100_000_000, 101_000_000),
        ],
    )


def test_rates_are_medians_and_ratios_are_paired_by_round() -> None:
    ours, theirs = found().measured[:2]
    assert ours.rate == pytest.approx(20_000)
    assert ours.settled_rate == pytest.approx(10_000)
    assert rate_ratio(ours, theirs) == pytest.approx(0.5)
    assert rate_ratio(ours, ours) is None
    assert rate_ratio(ours, None) is None


@pytest.mark.parametrize(
    ("cpu_s", "server_us"), [(0.5, 500.0), (None, None)], ids=["known", "no /proc"]
)
def test_processor_time_is_by_document(cpu_s: float | None, server_us: float | None) -> None:
    measured = Measured("set", MILLRACE, rounds(1_000, 2_000, cpu_s=cpu_s))
    assert measured.server_cpu_us == server_us
    assert measured.client_cpu_us == pytest.approx(100.0)


def test_what_was_not_measured_is_no_target_met() -> None:
    told = {target.name.split(",")[0]: target.is_met for target in targets(found())}
    assert told == {
        "set": True,
        "get": False,
        "multi-set": False,
        "change stream": False,
        "ten snapshots": True,
        "a snapshot of 1": True,
    }


def test_a_target_is_told_with_its_bound() -> None:
    lines = report.target_lines(found())
    assert "set, documents/s of one node: 20,000, at least 15,000: met" in lines
    assert "get, documents/s of one node: 20,000, at least 25,000: missed" in lines
    assert "multi-set, documents/s of one node: not measured, at least 60,000: missed" in lines
    assert "ten snapshots, memory against one: 1.010, at most 1.050: met" in lines


def test_tables_are_whole() -> None:
    run = found()
    assert {len(row) for row in report.rows(run)} == {len(report.HEADINGS)}
    assert {len(row) for row in report.snapshot_rows(run)} == {len(report.SNAPSHOT_HEADINGS)}
    assert report.rows(run)[0][:3] == ("set", MILLRACE, "20,000")
    assert report.rows(run)[0][-2:] == ("0.5×", "")
    assert report.rows(run)[3][2] == "failed"
    assert report.snapshot_rows(run)[1][-1] == "1.00 %"


def test_it_is_told_in_three_ways() -> None:
    run = found()
    assert json.loads(json.dumps(report.as_json(run)))["measured"][0]["server_cpu_us"] == 500.0
    assert "- memcached: 1.6" in report.as_markdown(run)
    stream = io.StringIO()
    report.print_tables(run, Console(file=stream, width=200))
    assert "at least 15,000: met" in stream.getvalue()
