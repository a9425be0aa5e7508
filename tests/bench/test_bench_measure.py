"""The arithmetic that every figure of the benchmark rests on."""

import subprocess
import sys
import time

import pytest

from bench.measure import (
    Latency,
    Load,
    Sample,
    cpu_seconds,
    cpu_seconds_per_gigabyte,
    latency_of,
    percentile,
    ratio,
    summarise,
    tree_cpu_seconds,
)

BURN = "import time\nwhile time.process_time() < 0.2: pass\n"
# Starts a child, waits for it, then stays: its time is that of a reaped child.
BURN_IN_CHILD = (
    f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN!r}])\n"
    "print('done', flush=True)\nsys.stdin.read()\n"
)
# Starts a child that burns and stays, so that it is a living grandchild of the test.
BURN_AND_STAY = BURN + "print('done', flush=True)\ninput()\n"
BURN_IN_LIVING_CHILD = (
    f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN_AND_STAY!r}])\n"
)


def sample(
    records: int = 100,
    seconds: float = 1.0,
    *,
    payload_bytes: int = 1_000_000_000,
    cpu: float | None = 1.0,
    p50_us: float | None = None,
) -> Sample:
    latency = None if p50_us is None else Latency(100, p50_us, p50_us * 2, p50_us * 3)
    return Sample(records, payload_bytes, seconds, cpu, latency)


@pytest.mark.parametrize(
    ("count", "share", "expected"),
    [
        pytest.param(1, 0.5, 1, id="one value is every percentile"),
        pytest.param(1, 0.999, 1, id="also the highest"),
        pytest.param(2, 0.5, 1, id="the lower of two"),
        pytest.param(100, 0.5, 50, id="median"),
        pytest.param(100, 0.99, 99, id="p99 of a hundred is not the maximum"),
        pytest.param(100, 0.999, 100, id="p99.9 of a hundred is the maximum"),
        pytest.param(1000, 0.999, 999, id="p99.9 of a thousand"),
        pytest.param(10, 1.0, 10, id="all"),
    ],
)
def test_percentile_is_a_value_that_was_seen(count: int, share: float, expected: int) -> None:
    assert percentile(range(1, count + 1), share) == expected


def test_latencies_are_sorted_and_told_in_microseconds() -> None:
    assert latency_of([3_000, 1_000, 2_000]) == Latency(3, 2.0, 3.0, 3.0)


def test_no_latencies_have_no_percentiles() -> None:
    assert latency_of([]) is None


def test_a_load_counts_what_was_acknowledged_and_ends_at_its_deadline() -> None:
    load = Load([b"a", b"b"], seconds_max=1000.0)
    now_ns = load.acknowledge(time.perf_counter_ns())
    assert (load.acknowledged, len(load.latencies_ns)) == (1, 1)
    assert not load.is_over(now_ns)
    assert load.is_over(load.deadline_ns)


def test_summary_takes_the_median_round_and_not_the_mean() -> None:
    summary = summarise(
        [sample(100, p50_us=10.0), sample(1, p50_us=999.0), sample(120, p50_us=12.0)]
    )
    assert summary.rounds == 3
    assert summary.records_per_second == 100
    assert (summary.p50_us, summary.p99_us, summary.p999_us) == (12.0, 24.0, 36.0)


def test_processor_time_is_taken_over_all_rounds_together() -> None:
    rounds = [sample(cpu=0.04, payload_bytes=10**8), sample(cpu=0.06, payload_bytes=10**8)]
    assert cpu_seconds_per_gigabyte(rounds) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param([sample(cpu=None)], id="the system does not tell"),
        pytest.param([sample(cpu=1.0, payload_bytes=0)], id="no bytes were moved"),
        pytest.param([sample(cpu=0.01)], id="below what the clock resolves"),
    ],
)
def test_processor_time_is_left_out_rather_than_guessed(rounds: list[Sample]) -> None:
    assert cpu_seconds_per_gigabyte(rounds) is None


def test_a_ratio_pairs_rounds_so_that_shared_noise_cancels() -> None:
    ours = [sample(200), sample(20), sample(220)]
    theirs = [sample(100), sample(10), sample(110)]
    assert ratio(ours, theirs).rate == 2.0


def test_a_ratio_above_one_means_better_for_rates_and_for_costs() -> None:
    better = ratio([sample(200, p50_us=5.0, cpu=1.0)], [sample(100, p50_us=10.0, cpu=4.0)])
    assert (better.rate, better.p50, better.p99, better.p999, better.cpu) == (2, 2, 2, 2, 4)


def test_a_ratio_says_nothing_where_one_side_has_no_figure() -> None:
    partly = ratio([sample(200, p50_us=5.0)], [sample(100, cpu=None)])
    assert (partly.rate, partly.p50, partly.cpu) == (2.0, None, None)
    assert ratio([], [sample()]).rate is None


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(BURN_IN_CHILD, id="a child that ended"),
        pytest.param(BURN_IN_LIVING_CHILD, id="a child that lives"),
    ],
)
def test_the_time_of_a_servers_children_counts(program: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        used = tree_cpu_seconds([process.pid])
        everything = cpu_seconds([process.pid])
        process.communicate(b"\n", timeout=10)
    assert used is not None
    assert everything is not None
    assert used >= 0.19
    assert everything > used


def test_a_process_that_is_gone_used_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(10)
    assert tree_cpu_seconds([process.pid]) == 0
