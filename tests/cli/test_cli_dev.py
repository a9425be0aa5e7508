"""`millrace dev` and `millrace cluster`, through a cluster's whole life."""

from pathlib import Path

import pytest

from millrace.local import LocalCluster
from tests.cli.commands import Command


# The nodes are meant to outlive the command; Python warns when it forgets a running process.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_cluster_lives_and_dies(alone: Command) -> None:
    up = alone("dev", "up", "--nodes", "3", "--location", "a,b", "--location", "c")
    assert up.code == 0, up.err
    try:
        _is_well(alone, up.out.strip())
        _degrades(alone)
        _loses_its_metadata(alone)
        _comes_back(alone)
        _goes_away(alone)
    finally:
        folder = Path(".millrace/dev").absolute()
        if folder.exists():
            LocalCluster.open(folder).destroy()


def _is_well(alone: Command, addresses: str) -> None:
    told = alone("dev", "status", "--format", "json").json
    assert [node["is_running"] for node in told["nodes"]] == [True] * 3
    assert ",".join(node["address"] for node in told["nodes"]) == addresses
    assert alone("log", "create", "events").code == 0  # Found by the folder.
    assert alone("log", "append", "events", "a").out == "1\n"
    status = alone("cluster", "status")
    assert status.code == 0
    assert status.out.startswith("ok: cluster local: 3 of 3 nodes, 1 logs\n")
    assert "keeper" in status.out
    shown = alone("cluster", "status", "--format", "json").json
    assert shown["health"]["is_healthy"]
    assert [node["description"]["node"]["location"] for node in shown["status"]["nodes"]] == [
        "a",
        "b",
        "c",
    ]
    assert alone("cluster", "check").out == "ok: cluster local: 3 of 3 nodes, 1 logs\n"
    again = alone("dev", "up")
    assert (again.code, again.out.strip()) == (0, addresses)


def _degrades(alone: Command) -> None:
    alone("dev", "kill", "9").failed_with("no node 9")
    assert alone("dev", "kill", "3").err == "node 3 killed\n"
    alone("dev", "kill", "3").failed_with("node 3 does not run")
    assert "stopped" in alone("dev", "status").out
    assert alone("log", "append", "events", "b").out == "2\n"
    check = alone("cluster", "check", "--format", "json")
    assert check.code == 1
    assert check.json["findings"][0]["subject"] == "node 3"
    assert "log_degraded" in {finding["problem"] for finding in check.json["findings"]}
    status = alone("cluster", "status")
    assert status.code == 1
    assert status.out.startswith("critical: node 3: ")


def _loses_its_metadata(alone: Command) -> None:
    """Node 1 hosts the repository."""
    assert alone("dev", "kill", "1").code == 0
    alone("log", "ls").failed_with("metadata repository", "Start the node that hosts it")
    check = alone("cluster", "check", "--timeout", "500ms", "--format", "json")
    assert check.code == 1
    assert check.json["findings"][0]["problem"] == "unreachable"


def _comes_back(alone: Command) -> None:
    assert alone("dev", "start", "1", "3").err == "node 1 started\nnode 3 started\n"
    read = alone("log", "read", "events", "--format", "raw")
    assert (read.code, read.out) == (0, "a\nb\n")


def _goes_away(alone: Command) -> None:
    assert alone("dev", "stop", "2").err == "node 2 stopped\n"
    assert alone("dev", "down").code == 0
    told = alone("dev", "status", "--format", "json").json
    assert [node["pid"] for node in told["nodes"]] == [None] * 3
    alone("log", "ls").failed_with("no node of the cluster answers")
    alone("dev", "down", "--wipe").failed_with("--yes")
    assert alone("dev", "down", "--wipe", "--yes").code == 0
    assert not Path(".millrace/dev").exists()


def test_up_that_fails_leaves_nothing(alone: Command) -> None:
    alone("dev", "up", "--nodes", "0").failed_with("between 1 and 64")
    assert not Path(".millrace").exists()
