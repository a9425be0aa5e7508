"""The project for `spark-pipelines` makes the tables that its page prints."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.printed import printed_session, typed
from tests.docs.test_examples import CLEANING_TIMEOUT_S, EXAMPLES, SESSION_TIMEOUT_S, env

__all__ = ["env"]


@pytest.fixture
def project(tmp_path: Path, env: dict[str, str]) -> Iterator[Path]:
    """A copy, and whatever a run leaves there."""
    copy = tmp_path / "examples"
    shutil.copytree(EXAMPLES, copy)
    project = copy / "declarative"
    yield project
    print((project / "run.txt").read_text())
    if (project / ".millrace" / "dev").exists():  # The session did not come to its end.
        command = ["millrace", "dev", "down", "--wipe", "--yes"]
        subprocess.run(command, cwd=project, env=env, timeout=CLEANING_TIMEOUT_S, check=True)


@pytest.mark.timeout(SESSION_TIMEOUT_S + CLEANING_TIMEOUT_S)
def test_the_project_works_as_printed(project: Path, env: dict[str, str]) -> None:
    expected = printed_session(EXAMPLES / "declarative" / "README.md")
    assert typed(expected, project, env, SESSION_TIMEOUT_S) == expected
