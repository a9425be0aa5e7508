"""The examples print what their page says, on a cluster of their own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.printed import printed_session, typed
from tests.support.spark import QUICK_JAVA, user_env

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
SESSION_TIMEOUT_S = 840
CLEANING_TIMEOUT_S = 60


@pytest.fixture
def env() -> dict[str, str]:
    programs = str(Path(sys.executable).parent)
    given = {name: value for name, value in user_env().items() if "MILLRACE" not in name}
    return given | {
        "PATH": programs + os.pathsep + given["PATH"],
        "JDK_JAVA_OPTIONS": QUICK_JAVA,
        "NO_COLOR": "1",
    }


@pytest.fixture
def folder(tmp_path: Path, env: dict[str, str]) -> Iterator[Path]:
    """A copy of the examples, and whatever they leave there."""
    copy = tmp_path / "examples"
    shutil.copytree(EXAMPLES, copy)
    yield copy
    if (copy / ".millrace" / "dev").exists():  # The session did not come to its end.
        command = ["millrace", "dev", "down", "--wipe", "--yes"]
        subprocess.run(command, cwd=copy, env=env, timeout=CLEANING_TIMEOUT_S, check=True)


@pytest.mark.timeout(SESSION_TIMEOUT_S + CLEANING_TIMEOUT_S)
def test_the_session_works_as_printed(folder: Path, env: dict[str, str]) -> None:
    expected = printed_session(EXAMPLES / "README.md")
    assert typed(expected, folder, env, SESSION_TIMEOUT_S) == expected


def test_every_example_is_in_the_session() -> None:
    commands = " ".join(step.command for step in printed_session(EXAMPLES / "README.md"))
    for path in EXAMPLES.glob("*.py"):
        assert path.name in commands
