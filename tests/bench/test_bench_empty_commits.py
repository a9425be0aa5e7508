"""Restart time and size of a replica do not depend on how many empty commits it heard of (M3)."""

import io

import pytest
from rich.console import Console

from bench import empty_commits
from bench.empty_commits import HEADINGS, EmptyCommits, measure

ROUNDS = 25
TRIES = 3
TOLERANCE = 0.2


def found() -> list[EmptyCommits]:
    return [
        EmptyCommits(1, 4096, 1000, [1.0, 2.0, 3.0]),
        EmptyCommits(1_000_000, 4096, 1000, [1.1, 1.9, 90.0]),
    ]


def test_a_million_take_what_one_does() -> None:
    """The pairs of a round are compared; when the machine is so busy that even their median is
    not to be trusted, they are taken again."""
    ratios = []
    for _ in range(TRIES):
        one, million = measure((1, 1_000_000), ROUNDS)
        assert (million.file_bytes, million.used_bytes) == (one.file_bytes, one.used_bytes)
        ratios.append(million.slower_than(one))
        if abs(ratios[-1] - 1) <= TOLERANCE:
            return
    pytest.fail(f"a restart after a million empty commits took {ratios} times as long")


def test_what_is_kept_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The measurement can tell a difference."""
    (few,) = measure((1,), 1)
    monkeypatch.setattr(empty_commits, "TRANSACTIONS", 100)
    (more,) = measure((1,), 1)
    assert more.used_bytes > few.used_bytes


def test_times_are_compared_by_round() -> None:
    one, million = found()
    assert million.restart_ms == pytest.approx(1.9)
    assert million.slower_than(one) == pytest.approx(1.1)


def test_both_are_told_side_by_side() -> None:
    table = empty_commits.rows(found())
    assert table[1] == ("1,000,000", "4,096 B", "1,000 B", "1.90 ms", "1.000× size, 1.10× time")
    lines = [line for line in empty_commits.as_markdown(found()) if line.startswith("|")]
    assert {line.count("|") for line in lines} == {len(HEADINGS) + 1}
    stream = io.StringIO()
    empty_commits.print_table(found(), Console(file=stream, width=120))
    assert "1.10× time" in stream.getvalue()
