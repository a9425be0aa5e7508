"""Every scenario file of the project holds."""

from pathlib import Path

import pytest

from millrace.scenario import MACHINES, run_file

FILES = sorted((Path(__file__).parents[1] / "scenarios").glob("*.txt"))
FIGURES = {
    "001": ("documents_walkthrough", "documents_start_seq"),
    "002": (
        "chain_append",
        "chain_read",
        "chain_head_fails",
        "chain_tail_fails",
        "chain_client_fails_before_writing",
        "chain_client_fails_after_head",
    ),
    "004": ("commit_empty", "commit_sync", "commit_sync_gap"),
}
PASSAGES = {
    "Report": "commit_bad_reports",
    "Commit and its context": "commit_history",
    "Empty commit context": "commit_empty",
    "Invariant of the commit context": "commit_invariant",
    "Recovery of log stream replica": "commit_recovery",
    "Synchronization": "commit_sync",
    "Report of replica": "commit_silent",
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    result = run_file(path)
    assert result.has_passed, result.diff
    assert result.steps > 0


def text_of(name: str) -> str:
    return next(path for path in FILES if path.stem == name).read_text(encoding="utf-8")


@pytest.mark.parametrize(("seed", "names"), FIGURES.items(), ids=FIGURES)
def test_every_figure_of_the_specification_has_a_file(seed: str, names: tuple[str, ...]) -> None:
    for name in names:
        assert text_of(name).startswith(f"# Seed {seed}, ")


@pytest.mark.parametrize(("passage", "name"), PASSAGES.items(), ids=PASSAGES.values())
def test_every_passage_about_commit_contexts_has_a_file(passage: str, name: str) -> None:
    assert text_of(name).startswith(f'# Seed 004, "{passage}"')


@pytest.mark.parametrize("name", MACHINES)
def test_every_machine_is_used(name: str) -> None:
    assert any(f"\nmachine {name}\n" in path.read_text(encoding="utf-8") for path in FILES)


TABLES = {
    # Of seed 001, by number: its answer, and what its written rule says.  T9 it calls impossible.
    1: ("start 0 first", "as written 0"),
    2: ("start 5 equal_logs", "as written 0"),
    3: ("start 7 equal_logs", "as written 6"),
    4: ("start 5 branched", "as written 5"),
    5: ("start 6 branched", "as written 6"),
    6: ("start 7 branched", "as written 7"),
    7: ("start 6 branched", "as written 6"),
    8: ("start 0 no_common_id", "as written 0"),
    9: ("refuse stale_master", "as written 7"),
}


@pytest.mark.parametrize(("number", "answers"), TABLES.items(), ids=[f"T{n}" for n in TABLES])
def test_the_tables_of_the_change_streams_seed(number: int, answers: tuple[str, str]) -> None:
    """A file that was rewritten by mistake holds, and says something else."""
    step = text_of("documents_start_seq").split(f"# Table {number}: ")[1].split("----\n")[1]
    assert tuple(step.split("\n\n")[0].splitlines()) == answers


WALKTHROUGH = {
    # By the seed's drawing ("canvas"): what the state lines of the servers must say there.
    2: (("A", "high 5 queue 1..5 disk none"), ("B", "of 5")),
    3: (
        ("A", "high 8 queue none disk 1..8"),
        ("B", "queue 5 disk 1..4 snapshot 0"),
        ("C", "of 8 queue 5..6 disk 1..4 snapshot 0"),
    ),
    5: (("B", "seen 7 of 8 queue 6..7 disk 1..5 snapshot 5"), ("C", "disk 1..8 snapshot 8")),
    7: (("A", "gone"), ("B", "queue 6..7 disk 1..5 snapshot 5"), ("C", "disk 1..8 snapshot 8")),
    8: (("B", "log deadbeef@5,cafebabe@0 high 7 queue none disk 1..7"),),
    9: (("B", "high 10 queue 8..10 disk 1..7"), ("D", "log deadbeef@5,cafebabe@0 snapshot 0")),
    12: (
        ("B", "high 12 queue 11..12 disk 1..10"),
        ("C", "log deadbeef@5,cafebabe@0 snapshot 5"),
        ("D", "of 12 queue 1..4"),
    ),
    13: (
        ("B", "high 14 queue 11..14 disk 1..10"),
        ("C", "of 14"),
        ("D", "of 12 queue 5..8 disk 1..4 snapshot 0"),
    ),
}


@pytest.mark.parametrize("canvas", WALKTHROUGH, ids=lambda canvas: f"canvas {canvas}")
def test_the_numbers_of_the_walk_through(canvas: int) -> None:
    """They stand in the seed's drawings, not in what the machine happens to do."""
    lines = text_of("documents_walkthrough").split(f"# Canvas {canvas},")[1].split("# Canvas ")[0]
    for server, said in WALKTHROUGH[canvas]:
        states = [line for line in lines.splitlines() if f"{line} ".startswith(f"{server} ")]
        assert any(f"{said} " in f"{line} " for line in states), (server, said)


def round_trips(name: str, first: str) -> int:
    """Requests of the step that begins with `first`."""
    step = text_of(name).split(f"{first}\n----\n")[1].split("\n\n")[0]
    return sum(line.startswith(("A -> ", "B -> ")) for line in step.splitlines())


def test_an_append_takes_four_round_trips_and_a_read_one() -> None:
    """C7, counted in the files of the two figures."""
    assert round_trips("chain_append", "client A append x") == 4
    assert round_trips("chain_read", "client B read 1") == 1
