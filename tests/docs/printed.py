"""What the documentation prints: sessions to type into a shell, and what must come out."""

import os
import re
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

MARK = "<!-- session -->"


class Step(NamedTuple):
    command: str
    lines: list[str]  # What it prints on stdout, without empty lines.


def lines(text: str) -> list[str]:
    """Those that are not empty."""
    return [line for line in text.splitlines() if line.strip()]


def is_as_printed(pattern: str, line: str) -> bool:
    """`...` stands for anything."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("..."))), line) is not None


def printed_session(page: Path) -> list[Step]:
    """The one console block of the page that is marked."""
    text = page.read_text().split(MARK)[1].split("```console\n")[1].split("```")[0]
    steps: list[Step] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            steps.append(Step(line[2:], []))
        elif line.strip():
            steps[-1].lines.append(line)
    return steps


def typed(steps: list[Step], folder: Path, env: Mapping[str, str], timeout_s: float) -> list[Step]:
    """The same commands with what they printed, typed one after the other into one shell."""
    border = "-- step {} --"
    script = "\n".join(
        f"echo '{border.format(index)}'\n{step.command}" for index, step in enumerate(steps)
    )
    shell = subprocess.Popen(
        ["sh", "-e", "-c", script],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, messages = shell.communicate(timeout=timeout_s)
    except BaseException:
        os.killpg(shell.pid, signal.SIGKILL)
        raise
    assert shell.returncode == 0, f"{printed}\n{messages}"
    parts = re.split(border.format(r"\d+") + "\n", printed)[1:]
    return [Step(step.command, lines(part)) for step, part in zip(steps, parts, strict=True)]
