"""One seed, one run, bit for bit: on any machine, in any process, whatever strings hash to."""

import os
import subprocess
import sys

import pytest

from millrace.sim.run import run_seed
from millrace.sim.shape import Family, draw

SEEDS = ("chain:3", "chain:36", "sequenced:16", "commit:18", "both:3", "documents:8")
PROGRAM = """
import sys
from millrace.sim.run import run_seed
for seed in sys.argv[1:]:
    result = run_seed(seed)
    print(seed, result.trace_hash, result.events, result.violation)
"""


def in_another_process(hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", PROGRAM, *SEEDS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_a_seed_gives_the_same_run_twice() -> None:
    assert run_seed(SEEDS[0]) == run_seed(SEEDS[0])


def test_a_run_does_not_depend_on_how_strings_hash() -> None:
    runs = {in_another_process(hash_seed) for hash_seed in ("0", "1", "4711")}
    assert len(runs) == 1
    assert SEEDS[0] in runs.pop()


def test_seeds_differ() -> None:
    assert len({run_seed(seed).trace_hash for seed in SEEDS}) == len(SEEDS)


@pytest.mark.parametrize("count", [0, 1])
def test_runs_with_few_kinds_of_faults_are_common(count: int) -> None:
    shapes = [draw(seed) for seed in range(300)]
    assert sum(len(shape.families) == count for shape in shapes) > 15


def test_every_family_is_drawn() -> None:
    drawn = {family for seed in range(300) for family in draw(seed).families}
    assert drawn == set(Family)
