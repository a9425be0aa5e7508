"""`millrace sim`, `millrace scenario`, and the generated reference pages."""

from pathlib import Path

import pytest

from millrace.cli import reference
from tests.cli.commands import Command

ROOT = Path(__file__).parents[2]


def test_the_reference_pages_are_what_would_be_written() -> None:
    assert reference.stale(ROOT / reference.FOLDER) == [], "run `make docs`"


def test_a_stale_page_is_found(tmp_path: Path) -> None:
    for name, text in reference.pages().items():
        (tmp_path / name).write_text(text)
    assert reference.stale(tmp_path) == []
    (tmp_path / "errors.md").write_text("something else")
    (tmp_path / "cli.md").unlink()
    assert {Path(path).name for path in reference.stale(tmp_path)} == {"cli.md", "errors.md"}


def test_seeds(alone: Command) -> None:
    ran = alone("sim", "run", "--seeds", "2", "--first", "3", "--jobs", "1", "--format", "json")
    assert (ran.code, ran.json["runs"], ran.json["failures"]) == (0, 2, [])
    assert "1 seeds, 0 failed" in alone("sim", "run", "--seeds", "1", "--jobs", "1").out


def test_explaining_a_seed(alone: Command) -> None:
    ran = alone("sim", "explain", "3", "--events", "5")
    assert ran.code == 0
    assert ran.out.rstrip().endswith("millrace sim explain 3")


def test_canaries(alone: Command) -> None:
    listed = alone("sim", "canaries").out.splitlines()
    told = alone("sim", "canaries", "--format", "json").json
    assert len(listed) == len(told) + 1
    for line, canary in zip(listed[1:], told, strict=True):
        assert line.split(maxsplit=1) == [canary["name"], canary["meaning"]]
        assert canary["meaning"].endswith(".")
    ran = alone("sim", "run", "--canary", "reads_from_the_head", "--seeds", "50")
    assert (ran.code, "found by seed" in ran.out) == (0, True)
    alone("sim", "run", "--canary", "nightingale").refused_with("millrace sim canaries")


@pytest.mark.parametrize("text", ["", "nonsense\n", "\xff\xfe"])
def test_a_malformed_scenario(alone: Command, tmp_path: Path, text: str) -> None:
    file = tmp_path / "broken.txt"
    file.write_text(text, encoding="latin-1")
    ran = alone("scenario", "run", str(file))
    assert ran.code == 2
    assert ran.out.startswith("bad   ")
    assert "broken.txt" in ran.out


def test_a_scenario_that_is_missing(alone: Command) -> None:
    ran = alone("scenario", "run", "nowhere.txt")
    assert (ran.code, "nowhere.txt" in ran.out) == (2, True)


def test_scenarios_run(alone: Command) -> None:
    file = next((ROOT / "tests" / "scenarios").rglob("*.txt"))
    ran = alone("scenario", "run", str(file))
    assert (ran.code, ran.out.startswith("pass  ")) == (0, True)
