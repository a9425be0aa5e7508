"""A cluster of real processes for the commands, and the command line itself, in this process."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.cli.main import run
from millrace.local import LocalCluster
from millrace.local.cluster import fresh_process
from tests.cli.commands import Command, Ran


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster.create(tmp_path_factory.mktemp("cli") / "cluster", 4) as made:
        made.start()
        yield made


@pytest.fixture
def alone(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    """The command line in an empty folder: it knows no cluster."""
    monkeypatch.chdir(tmp_path)
    for variable in ("MILLRACE_CLUSTER", "MILLRACE_DEV"):
        monkeypatch.delenv(variable, raising=False)

    def call(*arguments: str, stdin: bytes = b"") -> Ran:
        lines = tmp_path / "stdin"
        lines.write_bytes(stdin)
        capfd.readouterr()
        with lines.open() as file, monkeypatch.context() as patch:
            # Nodes of `millrace dev` are what the next command takes for such.
            patch.setattr(LocalCluster, "launch", staticmethod(fresh_process))
            patch.setattr(sys, "stdin", file)
            code = run(arguments)
        return Ran(code, *capfd.readouterr())

    return call


@pytest.fixture
def millrace(alone: Command, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("MILLRACE_CLUSTER", ",".join(cluster.addresses))
    return alone
