"""What the Spark benchmark says of its figures: ratios, targets, tables, JSON."""

import io
import json
from datetime import datetime
from pathlib import Path

import pytest
from rich.console import Console

from bench import report
from bench.measure import Sample
from bench.spark import report as spark_report
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
from bench.workloads import QUICK

TRIGGER = "trigger, one record, 1 KiB"


def rates(mode: Mode, source: Source, *records: int, payload_bytes: int = 1024) -> Rates:
    samples = [Sample(count, count * payload_bytes, 1.0, 1.0, None) for count in records]
    return Rates(mode, source, payload_bytes, samples, [2.0] * len(samples))


def a_run() -> SparkRun:
    return SparkRun(
        "Spark 4.3",
        rates=[
            rates(Mode.BATCH, Source.MILLRACE, 600, 60, 660),
            rates(Mode.BATCH, Source.MEMORY, 1000, 100, 1000),
            rates(Mode.BATCH, Source.PARQUET, 1200, 120, 1200),
            rates(Mode.STREAM, Source.MILLRACE, 540, 54, 594),
            rates(Mode.STREAM, Source.MEMORY, 800, 80, 800),
        ],
        triggers=[
            Times(TRIGGER, Source.MILLRACE, [[110.0, 120.0, 130.0]], {"addBatch": [50.0, 52.0]}),
            Times(TRIGGER, Source.MEMORY, [[100.0, 100.0, 110.0]], {"addBatch": [40.0, 42.0]}),
        ],
        latencies=[
            Times("record to sink, 1 KiB", Source.MILLRACE, [[80.0, 90.0]]),
            Times("record to sink, 1 KiB", Source.MEMORY, [[70.0, 80.0]]),
        ],
        writes=[
            rates(Mode.WRITE, Source.CLIENT, 1000, 100, 1000),
            rates(Mode.WRITE, Source.MILLRACE, 700, 70, 770),
            rates(Mode.STREAM_WRITE, Source.MILLRACE, 800, 80, 880),
        ],
    )


def whole_run(spark: SparkRun) -> report.Run:
    return report.Run(datetime(2026, 1, 2, 3, 4, 5), "spark", QUICK, {}, {}, [], 12.0, spark)


def test_rates_are_paired_by_round_with_records_of_the_same_size() -> None:
    run = a_run()
    other = rates(Mode.BATCH, Source.MEMORY, 1, 1, 1, payload_bytes=100)
    found = rate_ratio(run.rates[0], [other, *run.rates], Mode.BATCH, Source.MEMORY)
    assert found == pytest.approx(0.6)
    assert rate_ratio(other, run.rates, Mode.BATCH, Source.MEMORY) is None


def test_median_times_are_paired_by_round() -> None:
    ours = Times(TRIGGER, Source.MILLRACE, [[12.0], [120.0], [1200.0]])
    theirs = Times(TRIGGER, Source.MEMORY, [[10.0], [100.0], [1000.0]])
    assert median_ratio(ours, [ours, theirs]) == pytest.approx(1.2)


def test_a_95th_percentile_is_one_over_all_rounds() -> None:
    ours = Times(TRIGGER, Source.MILLRACE, [[float(n) for n in range(1, 11)], [100.0] * 10])
    theirs = Times(TRIGGER, Source.MEMORY, [[50.0] * 20])
    assert ours.at(0.95) == 100.0
    assert p95_ratio(ours, [ours, theirs]) == 2.0


def test_times_without_a_figure_have_no_ratio() -> None:
    empty = Times(TRIGGER, Source.MILLRACE)
    memory = Times(TRIGGER, Source.MEMORY, [[1.0]])
    assert empty.at(0.5) is None
    assert (median_ratio(empty, [memory]), p95_ratio(empty, [memory])) == (None, None)
    assert (median_ratio(memory, []), p95_ratio(memory, [])) == (None, None)


@pytest.mark.parametrize(
    ("found", "is_ceiling", "is_met"),
    [
        pytest.param(0.9, False, False, id="below a floor"),
        pytest.param(1.0, False, True, id="at a floor"),
        pytest.param(1.0, True, True, id="at a ceiling"),
        pytest.param(1.1, True, False, id="above a ceiling"),
        pytest.param(None, True, False, id="not measured"),
    ],
)
def test_a_target_is_met_or_missed(found: float | None, is_ceiling: bool, is_met: bool) -> None:
    assert Target("rate", found, 1.0, is_ceiling).is_met is is_met


def test_the_targets_are_those_of_what_was_measured() -> None:
    found = {target.name: target.found for target in targets(a_run())}
    assert found == {
        "batch read, 1 KiB: rate against memory": pytest.approx(0.6),
        "stream, AvailableNow, 1 KiB: rate against batch read": pytest.approx(0.9),
        "trigger, one record, 1 KiB: time against memory": pytest.approx(1.2),
        "batch write, 1 KiB: rate against the client": pytest.approx(0.7),
        "stream write, 1 KiB: rate against the client": pytest.approx(0.8),
    }
    assert targets(SparkRun("")) == []


def test_every_row_fits_its_headings() -> None:
    run = a_run()
    assert {len(row) for row in spark_report.rate_rows(run)} == {len(spark_report.RATE_HEADINGS)}
    assert {len(row) for row in spark_report.write_rows(run)} == {len(spark_report.WRITE_HEADINGS)}
    assert {len(row) for row in spark_report.time_rows(run)} == {len(spark_report.TIME_HEADINGS)}
    assert {len(row) for row in spark_report.part_rows(run)} == {len(spark_report.PART_HEADINGS)}


def test_rows_tell_medians_and_ratios() -> None:
    run = a_run()
    batch, *_, stream, memory_stream = spark_report.rate_rows(run)
    assert batch == ("batch read, 1 KiB", "millrace", "600", "1", "", "2219.46", "60%", "")
    assert stream[2:5] == ("540", "1", "270")
    assert stream[6:] == ("68%", "90%")
    assert memory_stream[6:] == ("", "80%")
    assert spark_report.write_rows(run)[:2] == [
        ("batch write, 1 KiB", "client", "1,000", "1", "1395.09", ""),
        ("batch write, 1 KiB", "millrace", "700", "1", "1902.39", "70%"),
    ]
    assert spark_report.time_rows(run)[:2] == [
        (TRIGGER, "millrace", "120 ms", "130 ms", "1.20×", "1.18×"),
        (TRIGGER, "memory", "100 ms", "110 ms", "", ""),
    ]
    assert spark_report.part_rows(run) == [("addBatch", "51.0 ms", "41.0 ms")]
    assert part_medians_ms(run.triggers[0]) == {"addBatch": 51.0}


def test_what_failed_is_told() -> None:
    run = SparkRun(
        "Spark 4.3",
        rates=[Rates(Mode.BATCH, Source.MILLRACE, 1024)],
        triggers=[Times(TRIGGER, Source.MILLRACE)],
        writes=[Rates(Mode.WRITE, Source.MILLRACE, 1024)],
        failures={"Spark, throughput": "no rows came"},
    )
    assert spark_report.rate_rows(run)[0][1:3] == ("millrace", "failed")
    assert spark_report.write_rows(run)[0][1:3] == ("millrace", "failed")
    assert spark_report.time_rows(run)[0][1:3] == ("millrace", "failed")
    text = report.as_markdown(whole_run(run))
    assert "- Spark, throughput was left out: no rows came" in text
    assert "rate against memory: not measured, at least 0.50: missed" in text


def test_a_run_of_spark_alone_has_its_tables_and_no_others() -> None:
    text = report.as_markdown(whole_run(a_run()))
    assert "| " + " | ".join(spark_report.RATE_HEADINGS) + " |" in text
    assert "| " + " | ".join(report.FIGURES) not in text
    assert "- batch read, 1 KiB: rate against memory: 0.60, at least 0.50: met" in text
    stream = io.StringIO()
    report.print_table(whole_run(a_run()), Console(file=stream, width=150))
    assert stream.getvalue().count("batch read, 1 KiB") == 2  # The table and a target.
    assert "vs its batch read" in stream.getvalue()


def test_the_file_holds_every_round(tmp_path: Path) -> None:
    path, _ = report.save(whole_run(a_run()), tmp_path)
    spark = json.loads(path.read_text())["spark"]
    assert [each["records"] for each in spark["rates"][0]["rounds"]] == [600, 60, 660]
    assert spark["rates"][0]["vs_memory"] == pytest.approx(0.6)
    assert spark["rates"][3]["wall_seconds"] == [2.0, 2.0, 2.0]
    assert spark["writes"][1]["vs_client"] == pytest.approx(0.7)
    assert spark["triggers"][0]["rounds_ms"] == [[110.0, 120.0, 130.0]]
    assert [target["is_met"] for target in spark["targets"]] == [True] * 5
