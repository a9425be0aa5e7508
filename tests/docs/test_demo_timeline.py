"""The curves of the demo's picture, from times that are known."""

from millrace.demo.spark_messages import Batch
from millrace.demo.timeline import Timeline

START_S = 1_000.0


def timeline() -> Timeline:
    """100 records before the start, counted; then 600, in three micro-batches."""
    return Timeline(
        started_s=START_S,
        acknowledgements=[
            (START_S - 1, 100),
            (START_S + 0.25, 200),
            (START_S + 1.25, 400),
            (START_S + 1.75, 700),
        ],
        batches=[
            Batch(START_S - 0.5, START_S - 0.25, 100, 101),
            Batch(START_S + 0.25, START_S + 0.5, 100, 201),
            Batch(START_S + 1.25, START_S + 1.5, 200, 401),
            Batch(START_S + 2.0, START_S + 2.5, 300, 701),
        ],
    )


def test_append_rate_is_by_equal_steps_and_leaves_out_what_came_before() -> None:
    steps = timeline().append_rate(0.5)
    assert steps.edges_s == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert steps.values == [200.0, 0.0, 400.0, 600.0]


def test_input_rate_has_a_step_for_each_micro_batch() -> None:
    steps = timeline().input_rate()
    assert steps.edges_s == [0.0, 0.5, 1.5, 2.5]
    assert steps.values == [200.0, 200.0, 300.0]


def test_lag_rises_with_acknowledgements_and_falls_when_a_micro_batch_is_done() -> None:
    assert timeline().lag()[1:] == [
        (0.0, 0),
        (0.25, 100),
        (0.5, 0),
        (1.25, 200),
        (1.5, 0),
        (1.75, 300),
        (2.5, 0),
    ]


def test_spark_may_count_a_record_before_its_writer_hears_of_it() -> None:
    early = Timeline(
        started_s=START_S,
        acknowledgements=[(START_S + 2, 10)],
        batches=[Batch(START_S, START_S + 1, 10, 11)],
    )
    assert early.lag() == [(0.0, 0), (0.0, 0), (1.0, 0), (2.0, 0)]
