"""What a finished run is told as: rows, Markdown, JSON, files kept by date."""

import io
import json
from datetime import datetime
from pathlib import Path

from rich.console import Console

from bench import report
from bench.measure import Latency, Sample
from bench.peer import Ack, Kind
from bench.runner import PeerResult, WorkloadResult
from bench.workloads import QUICK, Workload

APPEND = Workload(Kind.APPEND_PIPELINED, 1024, Ack.DISK, 1000)


def rounds(*records: int, is_cut_short: bool = False) -> list[Sample]:
    latency = Latency(1000, 900.0, 2_500.0, 1_500_000.0)
    return [
        Sample(count, count * 1024, 1.0, count / 1000, latency, is_cut_short) for count in records
    ]


def a_run() -> report.Run:
    append = WorkloadResult(
        APPEND,
        {
            "millrace": PeerResult(rounds(3000, 3300, 2700), "256", {"64": 1000.0, "256": 3000.0}),
            "nats": PeerResult(rounds(1000, 1100, 900, is_cut_short=True), "64"),
            "limits": PeerResult(rounds(30000, 33000, 27000)),
        },
    )
    restart = WorkloadResult(
        Workload(Kind.RESTART, 1024, Ack.DISK, 10),
        {
            "millrace": PeerResult([Sample(1, 0, 0.5, None, Latency(1, 5e5, 5e5, 5e5))]),
            "nats": PeerResult(failure="no leader"),
        },
    )
    return report.Run(
        datetime(2026, 1, 2, 3, 4, 5),
        "append",
        QUICK,
        {"millrace": "five nodes"},
        {"other": "would not start"},
        [append, restart],
        12.0,
    )


def test_every_row_fits_the_headings() -> None:
    results = a_run().results
    assert {len(row) for row in report.rows(results)} == {len(report.headings(results))}


def test_a_row_tells_medians_and_ratios() -> None:
    assert report.rows(a_run().results)[0] == (
        "append, pipelined, 1 KiB, ack disk",
        "millrace",
        "3,000",
        "3.07",
        "900 µs",
        "2.50 ms",
        "1.50 s",
        "977",
        "3×",
        "0.1×",
    )


def test_a_row_that_the_clock_ended_has_a_star() -> None:
    assert report.rows(a_run().results)[1][2] == "1,000*"


def test_a_restart_is_told_as_a_time() -> None:
    row = report.rows(a_run().results)[3]
    assert row[2:] == ("", "", "500.00 ms", "", "", "", "", "")


def test_a_failure_is_a_row_too() -> None:
    assert report.rows(a_run().results)[4][1:3] == ("nats", "failed")


def test_ratios_hold_every_peer_against_every_reference() -> None:
    found = report.ratios(a_run().results[0])
    assert set(found) == {"millrace/nats", "millrace/limits", "nats/limits", "limits/nats"}
    assert found["millrace/nats"].rate == 3.0


def test_the_files_are_named_by_date_and_hold_every_round(tmp_path: Path) -> None:
    json_path, markdown_path = report.save(a_run(), tmp_path / "results")
    assert json_path.name == "2026-01-02-030405-append.json"
    assert markdown_path.name == "2026-01-02-030405-append.md"
    saved = json.loads(json_path.read_text())
    append = saved["results"][0]
    assert append["workload"]["name"] == APPEND.name
    assert [r["records"] for r in append["peers"]["nats"]["rounds"]] == [1000, 1100, 900]
    assert append["peers"]["millrace"]["summary"]["records_per_second"] == 3000
    assert append["ratios"]["millrace/nats"]["rate"] == 3.0
    assert saved["results"][1]["peers"]["nats"]["failure"] == "no leader"


def test_markdown_is_one_table_and_tells_what_was_tried_and_left_out() -> None:
    lines = report.as_markdown(a_run()).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + len(report.rows(a_run().results))
    assert {line.count("|") for line in table} == {len(report.headings(a_run().results)) + 1}
    assert "- other was left out: would not start" in lines
    assert any("**256** of 64 (1,000/s), 256 (3,000/s)" in line for line in lines)


def test_the_terminal_table_names_a_workload_once() -> None:
    stream = io.StringIO()
    report.print_table(a_run(), Console(file=stream, width=150))
    assert stream.getvalue().count(APPEND.name) == 1
    assert "other was left out: would not start" in stream.getvalue()


def test_reads_tell_how_often_a_byte_came() -> None:
    rounds = [Sample(1, 0, 1.0, None, None, copies=copies) for copies in (1.0, 3.0, 1.004)]
    workload = Workload(Kind.READ_ARROW, 1024, Ack.DISK, 10)
    peers = {"millrace": PeerResult(rounds), "nats": PeerResult([Sample(1, 0, 1.0, None, None)])}
    (row,) = report.copies_rows([WorkloadResult(workload, peers)])
    assert row == "read, Arrow, 1 KiB, millrace: 1.004, most 3.000"
