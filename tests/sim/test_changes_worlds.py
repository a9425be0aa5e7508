"""Worlds in which queries read a bucket's changes: whatever happens to the cluster, to drivers and
to tasks, the table that is merged from the rows is the bucket in the end."""

from functools import cache

import pytest

from millrace.sim.run import REQUIRED_OF_CHANGES, Summary, run_many
from millrace.sim.seeds import LogKind

SEEDS_FIRST, SEEDS_COUNT = 0, 200
SECONDS_MAX = 1_800  # Processors that are slow or shared must not fail it.


@cache
def summary() -> Summary:
    return run_many(SEEDS_FIRST, SEEDS_COUNT, jobs=2, kind=LogKind.CHANGES)


@pytest.mark.timeout(SECONDS_MAX)
def test_queries_converge_and_take_back_nothing_else() -> None:
    failures = summary().failures
    assert not failures, "\n".join(f"{one.replay}  # {one.violation}" for one in failures)


@pytest.mark.timeout(SECONDS_MAX)
def test_everything_happened_to_queries() -> None:
    assert summary().never_happened(REQUIRED_OF_CHANGES) == []
