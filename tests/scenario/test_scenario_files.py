"""Every scenario file of the project holds."""

from pathlib import Path

import pytest

from millrace.scenario import MACHINES, run_file

FILES = sorted((Path(__file__).parents[1] / "scenarios").glob("*.txt"))
FIGURES = (
    "chain_append",
    "chain_read",
    "chain_head_fails",
    "chain_tail_fails",
    "chain_client_fails_before_writing",
    "chain_client_fails_after_head",
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    result = run_file(path)
    assert result.has_passed, result.diff
    assert result.steps > 0


def test_every_figure_of_the_specification_has_a_file() -> None:
    assert set(FIGURES) <= {path.stem for path in FILES}
    for name in FIGURES:
        path = next(path for path in FILES if path.stem == name)
        assert path.read_text(encoding="utf-8").startswith("# Seed 002, ")


@pytest.mark.parametrize("name", MACHINES)
def test_every_machine_is_used(name: str) -> None:
    assert any(f"\nmachine {name}\n" in path.read_text(encoding="utf-8") for path in FILES)


def round_trips(name: str, first: str) -> int:
    """Requests of the step that begins with `first`."""
    path = next(path for path in FILES if path.stem == name)
    step = path.read_text(encoding="utf-8").split(f"{first}\n----\n")[1].split("\n\n")[0]
    return sum(line.startswith(("A -> ", "B -> ")) for line in step.splitlines())


def test_an_append_takes_four_round_trips_and_a_read_one() -> None:
    """C7, counted in the files of the two figures."""
    assert round_trips("chain_append", "client A append x") == 4
    assert round_trips("chain_read", "client B read 1") == 1
