"""Calling the command line: in this process, or as one of its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from millrace.local import LocalCluster

SOURCES = Path(__file__).parents[2] / "src"


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.out)

    def failed_with(self, *words: str) -> None:
        """It could not be done: one line that begins with `error:`, says all that, and is no
        traceback."""
        self._complained(1, words)

    def refused_with(self, *words: str) -> None:
        """As `failed_with`, because what was given is wrong."""
        self._complained(2, words)

    def _complained(self, code: int, words: tuple[str, ...]) -> None:
        assert self.code == code, (self.code, self.out, self.err)
        assert sum(line.startswith("error: ") for line in self.err.splitlines()) == 1, self.err
        assert "Traceback" not in self.err
        for word in words:
            assert word in self.err


Command = Callable[..., Ran]


def start_process(*arguments: str, cluster: LocalCluster | None = None, **options: Any) -> Any:
    """The command line as a process of its own, for pipes, signals and terminals."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    if cluster is not None:
        environment["MILLRACE_CLUSTER"] = ",".join(cluster.addresses)
    streams: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    streams.update(options)
    return subprocess.Popen(
        [sys.executable, "-m", "millrace", *arguments], env=environment, **streams
    )
