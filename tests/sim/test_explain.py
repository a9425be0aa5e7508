"""A run can be told to a person: first and last line replay it, every process has a column."""

import pytest

from millrace.sim.explain import explain


@pytest.mark.parametrize(
    ("seed", "people", "log"),
    [
        ("chain:5", {"w1", "r1"}, "log 1: epoch"),
        ("sequenced:1", {"sw1", "sr1"}, "log 11: epoch"),
        ("commit:4", {"cw1", "cr1"}, "log 31: term"),
    ],
)
def test_a_run_is_explained(seed: str, people: set[str], log: str) -> None:
    lines = explain(seed, events_shown=20).splitlines()
    assert lines[0] == lines[-1] == f"millrace sim explain {seed}"
    assert lines[1] == "all guarantees held"
    header = next(line for line in lines if "time ms" in line)
    assert {"meta", "n1"} | people <= set(header.split())
    events = [line for line in lines if " * " in line or ".    *" in line]
    assert 10 <= len(events) <= 20
    assert any(line.startswith(log) for line in lines)
