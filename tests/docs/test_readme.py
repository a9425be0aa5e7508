"""The README's session works as printed, and so do its Python lines and make targets."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
STEP_TIMEOUT_S = 60


def session() -> list[tuple[str, list[str]]]:
    """Commands and the lines that must come out of each."""
    text = README.split("<!-- session -->")[1].split("```console\n")[1].split("```")[0]
    steps: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            steps.append((line[2:], []))
        else:
            steps[-1][1].append(line)
    return steps


def matches(pattern: str, line: str) -> bool:
    """`...` stands for anything."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("..."))), line) is not None


@pytest.fixture
def environment() -> dict[str, str]:
    bin_folder = str(Path(sys.executable).parent)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE")}
    return kept | {"PATH": bin_folder + os.pathsep + kept["PATH"], "NO_COLOR": "1"}


def test_the_session_works_as_printed(tmp_path: Path, environment: dict[str, str]) -> None:
    assert len(session()) >= 8
    try:
        for command, expected in session():
            done = subprocess.run(
                command,
                shell=True,
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=STEP_TIMEOUT_S,
            )
            assert done.returncode == 0, f"{command}: {done.stderr}"
            printed = done.stdout.splitlines()
            assert len(printed) == len(expected), f"{command} printed {printed}"
            for pattern, line in zip(expected, printed, strict=True):
                assert matches(pattern, line), f"{command}: {line!r} is not {pattern!r}"
    finally:
        subprocess.run(
            "millrace dev down --wipe --yes", shell=True, cwd=tmp_path, env=environment, check=False
        )


def test_the_python_lines_work(tmp_path: Path, environment: dict[str, str]) -> None:
    code = README.split("```python\n")[1].split("```")[0]
    try:
        up = subprocess.run(
            ["millrace", "dev", "up", "--nodes", "3"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=STEP_TIMEOUT_S,
            check=True,
        )
        code = code.replace("127.0.0.1:7701", up.stdout.strip())
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=STEP_TIMEOUT_S,
        )
        assert done.returncode == 0, done.stderr
        assert "b'hello'" in done.stdout
    finally:
        subprocess.run(
            ["millrace", "dev", "down", "--wipe", "--yes"],
            cwd=tmp_path,
            env=environment,
            check=False,
        )


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"`?make ([a-z]+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
