"""A small real run of the Spark benchmark, through the command line, in a process of its own."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench import __main__ as command_line
from bench.spark.profile import SPARK_FULL, SPARK_QUICK, SparkProfile, rounds
from bench.workloads import QUICK, SIZES, plan

ROOT = Path(__file__).resolve().parents[2]
RUN_SECONDS_MAX = 400
# Little code runs long here: compile it quickly.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SMALL_RUN = """
import sys
from bench import __main__ as command_line
from bench.spark.profile import SparkProfile

command_line.SPARK_QUICK = SparkProfile(
    name="tiny", rows=(0, 3_000, 0), warm_up_rounds=0, rounds=2, size_seconds_max=1.0,
    bursts=2, burst_records=4, burst_seconds_max=1.0,
    latency_rounds=2, latency_records=2, latency_seconds_max=1.0,
)
sys.exit(command_line.main(["spark", "--quick", "--out", sys.argv[1]]))
"""


def processes_that_mention(text: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = entry.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue  # It ended meanwhile.
            if text in command:
                found.append(command)
    return found


@pytest.mark.timeout(RUN_SECONDS_MAX + 50)
def test_spark_runs_through_the_command_line_and_leaves_nothing_behind(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    finished = subprocess.run(
        [sys.executable, "-c", SMALL_RUN, str(tmp_path / "results")],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary), "JDK_JAVA_OPTIONS": QUICK_JAVA},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    (saved,) = (tmp_path / "results").glob("*-spark-quick.json")
    spark = json.loads(saved.read_text())["spark"]
    assert spark["failures"] == {}
    assert [(each["mode"], each["source"]) for each in spark["rates"]] == [
        ("batch read", "millrace"),
        ("batch read", "memory"),
        ("batch read", "parquet"),
        ("stream, AvailableNow", "millrace"),
        ("stream, AvailableNow", "memory"),
    ]
    for each in spark["rates"]:
        assert [sample["records"] for sample in each["rounds"]] == [3_000, 3_000]
        assert each["summary"]["records_per_second"] > 0
    assert [(each["mode"], each["writer"]) for each in spark["writes"]] == [
        ("batch write", "client"),
        ("batch write", "millrace"),
        ("stream write", "millrace"),
        ("batch write, size untold", "millrace"),
    ]
    for each in spark["writes"]:
        assert [sample["records"] for sample in each["rounds"]] == [3_000, 3_000]
    for group, count in (("triggers", 2), ("latencies", 2)):
        for times in spark[group]:
            assert [len(values) for values in times["rounds_ms"]] == [count, count]
            assert times["median_ms"] > 0
    assert len(spark["targets"]) == 5
    assert list(temporary.glob("millrace-bench-*")) == []
    assert processes_that_mention(str(temporary)) == []


@pytest.mark.parametrize("profile", [SPARK_FULL, SPARK_QUICK], ids=lambda each: each.name)
def test_the_size_that_has_a_target_is_always_measured(profile: SparkProfile) -> None:
    assert 1024 in dict(profile.sizes)


def test_a_full_run_measures_every_size() -> None:
    assert [size for size, _ in SPARK_FULL.sizes] == list(SIZES)


def test_rounds_end_with_their_time_but_not_before_two() -> None:
    over = time.perf_counter() - 1
    assert list(rounds(5, over)) == [0, 1]
    assert list(rounds(3, over + 1000)) == [0, 1, 2]


def test_spark_is_a_command_and_has_no_workloads_for_peers() -> None:
    assert command_line.parse(["spark", "--quick"]).command == "spark"
    assert plan("spark", QUICK) == []
