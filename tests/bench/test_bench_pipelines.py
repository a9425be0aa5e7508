"""What the benchmark of pipelines says of its targets, and how it tells it."""

import json

import pytest

from bench.measure import Sample
from bench.pipelines import report
from bench.pipelines.results import (
    CHANGES,
    CONSUMER,
    KEPT,
    OFFERED,
    SNAPSHOT,
    STREAM,
    VIEW,
    Measured,
    PipelinesRun,
    targets,
)
from bench.spark.results import Mode, Rates, Source


def samples(*rates: float) -> list[Sample]:
    """A round each, of so many records in a second."""
    return [Sample(int(rate), int(rate) * 100, 1.0, 0.5, None) for rate in rates]


def run_with(
    *, sink: float = 60, stream: float = 70, view: float = 21_000, snapshot: float = 1
) -> PipelinesRun:
    return PipelinesRun(
        description="as it was",
        writes=[
            Rates(Mode.WRITE, Source.CLIENT, 1024, samples(100, 100)),
            Rates(Mode.WRITE, Source.MILLRACE, 1024, samples(sink, sink)),
            Rates(Mode.STREAM_WRITE, Source.MILLRACE, 1024, samples(sink, sink)),
            Rates(Mode.UNTOLD_WRITE, Source.MILLRACE, 1024, samples(40, 40)),
        ],
        measured=[
            Measured(CHANGES, CONSUMER, samples(100, 200)),
            Measured(CHANGES, STREAM, samples(stream, 2 * stream)),
            Measured(CHANGES, SNAPSHOT, samples(snapshot)),
            Measured(VIEW, OFFERED, samples(24_000)),
            Measured(VIEW, KEPT, samples(view)),
        ],
    )


@pytest.mark.parametrize(
    ("run", "met"),
    [
        pytest.param(run_with(), [True, True, True, True], id="all are met"),
        pytest.param(run_with(sink=49), [False, False, True, True], id="a slow sink"),
        pytest.param(run_with(stream=49), [True, True, False, True], id="a slow source"),
        pytest.param(run_with(view=19_999), [True, True, True, False], id="a slow view"),
    ],
)
def test_a_target_is_met_or_missed(run: PipelinesRun, met: list[bool]) -> None:
    assert [target.is_met for target in targets(run)] == met


def test_a_part_that_failed_is_no_figure() -> None:
    run = run_with()
    run.measured[1].samples.clear()
    assert not targets(run)[2].is_met
    assert report.rows(run)[5][2:4] == ("failed", "")


def test_the_table_holds_each_rate_against_the_client_of_the_same_rounds() -> None:
    shown = {(row[0], row[1]): row[-1] for row in report.rows(run_with())}
    assert shown[CHANGES, STREAM] == "70%"
    assert shown["log, stream write, 1 KiB", "Spark"] == "60%"
    assert shown["log, batch write, size untold, 1 KiB", "Spark"] == "40%"
    assert shown[CHANGES, CONSUMER] == shown["log, batch write, 1 KiB", "client"] == ""


def test_the_record_keeps_every_round() -> None:
    told = json.loads(json.dumps(report.as_json(run_with())))
    assert [len(each["rounds"]) for each in told["measured"]] == [2, 2, 2, 2, 2, 2, 1, 1, 1]
    assert "| changes of a bucket | Spark, stream | 105 |" in "\n".join(
        report.as_markdown(run_with())
    )
