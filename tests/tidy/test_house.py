"""Habits that are cheaper to check than to discuss."""

import ast
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINES_MAX = 500
FUNCTION_LINES_MAX = 70
BANNED_NAMES = {"utils", "util", "helpers", "helper", "manager", "base", "impl", "misc", "common"}
BANNED_IN_TESTS = ("time.sleep(", "unittest.mock", "pytest.skip", "mark.skip", "mark.xfail")


def tracked(pattern: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / line for line in listed.stdout.split() if (ROOT / line).exists()]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


SOURCES = [path for path in tracked("*.py") if "tests" not in path.parts]
# `tests/support` may poll; it is where waiting for a condition lives.
TESTS = [p for p in tracked("tests/*.py") if p != Path(__file__) and "support" not in p.parts]


def test_a_module_is_one_decision() -> None:
    offenders = []
    for path in SOURCES:
        text = path.read_text()
        if text.count("\n") > LINES_MAX:
            offenders.append(f"{name_of(path)} is so long that it holds two ideas")
        if path.stem in BANNED_NAMES:
            offenders.append(f"{name_of(path)} is not named after what it decides")
        if not ast.get_docstring(ast.parse(text)):
            offenders.append(f"{name_of(path)} does not say what it is for")
    assert not offenders


def test_functions_fit_on_a_screen() -> None:
    offenders = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                length = node.end_lineno - node.lineno + 1
                if length > FUNCTION_LINES_MAX:
                    offenders.append(f"{name_of(path)}: {node.name} has {length} lines")
    assert not offenders


def test_tests_neither_sleep_nor_mock_nor_skip() -> None:
    texts = [(name_of(path), path.read_text()) for path in TESTS]
    assert not [
        f"{name}: {phrase}" for name, text in texts for phrase in BANNED_IN_TESTS if phrase in text
    ]


def test_no_todo_without_an_owner() -> None:
    for path in SOURCES:
        assert not re.search(r"\b(TODO|FIXME|XXX)\b", path.read_text()), name_of(path)


def test_links_in_the_docs_lead_somewhere() -> None:
    for page in tracked("*.md"):
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{name_of(page)} links to {target}"


def test_test_modules_have_names_of_their_own() -> None:
    """Pytest imports them by name: two of one name, and nothing is collected."""
    names = [path.name for path in tracked("tests/*.py") if path.name.startswith("test_")]
    assert sorted(names) == sorted(set(names))
