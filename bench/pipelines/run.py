"""Runs the benchmark of pipelines: one cluster, one session, the parts one after another.

A part that fails is named in the result, and the others go on.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bench.pipelines import changes, view
from bench.pipelines.profile import PipelinesProfile
from bench.pipelines.results import PipelinesRun
from bench.progress import progress
from bench.spark import sink
from bench.spark.run import FAILURE_CHARS, FAILURES
from bench.spark.stage import Stage, open_stage


def measure(profile: PipelinesProfile) -> PipelinesRun:
    run = PipelinesRun()
    parts: dict[str, Callable[[Stage], None]] = {
        "log sink": lambda stage: sink.measure(stage, profile.sink, run.writes),
        "change source": lambda stage: changes.measure(stage, profile, run.measured),
        "view": lambda stage: view.measure_view(stage, profile, run.measured),
    }
    with _named(run, "start"), open_stage() as stage:
        run.description = stage.describe()
        for name, part in parts.items():
            with _named(run, name):
                part(stage)
    return run


@contextmanager
def _named(run: PipelinesRun, name: str) -> Iterator[None]:
    try:
        yield
    except FAILURES as failure:
        run.failures[f"pipelines, {name}"] = str(failure)[:FAILURE_CHARS]
        progress(f"  failed: {str(failure)[:FAILURE_CHARS]}")
