"""A run can be told to a person: first and last line replay it, every process has a column."""

from millrace.sim.explain import explain


def test_a_run_is_explained() -> None:
    lines = explain(5, events_shown=20).splitlines()
    assert lines[0] == lines[-1] == "millrace sim explain 5"
    assert lines[1] == "all guarantees held"
    header = next(line for line in lines if "time ms" in line)
    assert {"meta", "n1", "w1", "r1"} <= set(header.split())
    events = [line for line in lines if " * " in line or ".    *" in line]
    assert 10 <= len(events) <= 20
    assert any(line.startswith("log 1: epoch") for line in lines)
