"""`millrace dev` and `millrace cluster`, through a cluster's whole life."""

import socket
import time
from pathlib import Path

import pytest

from millrace.cli import dev
from millrace.errors import Unavailable
from millrace.local import LocalCluster
from millrace.local.cluster import free_ports
from millrace.local.lock import locked
from tests.cli.commands import Command, start_process

LINE_CHARS_MAX = 300
UP_TIMEOUT_S = 60.0
ALL_USUAL_PORTS = 202  # And the one before them.
SOON_S = 10.0  # A third of what a node may take to start.


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
    # Found by the folder.  A chain log goes on with fewer nodes than copies.
    assert alone("log", "create", "events", "--write-path", "chain").code == 0
    assert alone("log", "append", "events", "a").out == "1\n"
    status = alone("cluster", "status")
    assert status.code == 0
    assert status.out.startswith("ok: cluster local: 3 of 3 nodes live, 1 log\n")
    assert "keeper" in status.out
    shown = alone("cluster", "status", "--format", "json").json
    assert shown["health"]["is_healthy"]
    assert [node["description"]["node"]["location"] for node in shown["status"]["nodes"]] == [
        "a",
        "b",
        "c",
    ]
    assert alone("cluster", "check").out == "ok: cluster local: 3 of 3 nodes live, 1 log\n"
    again = alone("dev", "up")
    assert (again.code, again.out.strip()) == (0, addresses)


def _degrades(alone: Command) -> None:
    alone("dev", "kill", "9").refused_with("no node 9")
    alone("dev", "start", "1", "9").refused_with("no node 9")
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
    missed = alone("log", "ls")
    missed.failed_with("metadata repository at 127.0.0.1:", "Start the node that hosts it")
    assert missed.err.count("metadata repository") == 1
    assert len(missed.err) < LINE_CHARS_MAX
    began_s = time.monotonic()
    alone("dev", "start", "3").failed_with("node 1, which hosts", "millrace dev start 1 3")
    assert time.monotonic() - began_s < SOON_S
    check = alone("cluster", "check", "--timeout", "500ms", "--format", "json")
    assert check.code == 1
    assert check.json["findings"][0]["problem"] == "unreachable"


def _comes_back(alone: Command) -> None:
    started = alone("dev", "start", "3", "1").err
    assert started.endswith("node 3 started\nnode 1 started\n")
    assert alone("dev", "start", "3").err == "node 3 runs already\n"
    read = alone("log", "read", "events", "--format", "raw")
    assert (read.code, read.out) == (0, "a\nb\n")


def _goes_away(alone: Command) -> None:
    assert alone("dev", "stop", "2").err == "node 2 stopped\n"
    assert alone("dev", "down").code == 0
    told = alone("dev", "status", "--format", "json").json
    assert [node["pid"] for node in told["nodes"]] == [None] * 3
    alone("log", "ls").failed_with("no node of the cluster answers")
    alone("dev", "down", "--wipe").refused_with("--yes")
    assert alone("dev", "down", "--wipe", "--yes").code == 0
    assert not Path(".millrace/dev").exists()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_another_cluster_says_which_ports_it_takes(
    alone: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        monkeypatch.setattr(dev, "FIRST_PORT", somebody.getsockname()[1])
        up = alone("dev", "up", "--nodes", "2")
    try:
        assert up.code == 0, up.err
        first, second = up.out.strip().split(",")
        assert "somebody has the usual ports" in up.err
        assert f"node 1 on {first}, node 2 on {second}" in up.err
    finally:
        LocalCluster.open(Path(".millrace/dev").absolute()).destroy()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_whoever_has_the_port_before_the_usual_ones_is_in_nobodys_way(
    alone: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """7700 is the usual port of other programs."""
    before, first, *_ = free_ports(ALL_USUAL_PORTS)
    monkeypatch.setattr(dev, "FIRST_PORT", first)
    with socket.create_server(("127.0.0.1", before)):
        up = alone("dev", "up", "--nodes", "1")
    try:
        assert up.code == 0, up.err
        assert up.out.strip() == f"127.0.0.1:{first}"
        assert "somebody has" not in up.err
    finally:
        LocalCluster.open(Path(".millrace/dev").absolute()).destroy()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_two_that_come_up_at_once_have_ports_of_their_own(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "other")]
    ups = [start_process("dev", "up", "--nodes", "1", "--folder", str(each)) for each in folders]
    try:
        printed = [up.communicate(timeout=UP_TIMEOUT_S) for up in ups]
        assert [up.returncode for up in ups] == [0, 0], printed
        assert len({addresses for addresses, _ in printed}) == len(ups), printed
    finally:
        for folder in folders:
            LocalCluster.open(folder).destroy()


def test_up_that_fails_leaves_nothing(alone: Command) -> None:
    for nodes in ("0", "65"):
        alone("dev", "up", "--nodes", nodes).refused_with("--nodes")
    assert not Path(".millrace").exists()


def test_a_folder_with_other_things_in_it_is_left_alone(alone: Command, tmp_path: Path) -> None:
    """Whoever removes a cluster removes its folder."""
    precious = tmp_path / "mine" / "thesis.txt"
    precious.parent.mkdir()
    precious.write_text("the only copy")
    up = alone("dev", "up", "--folder", str(precious.parent))
    up.refused_with("is not empty", "a folder of its own")
    assert [path.name for path in precious.parent.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("verb", ["up", "down", "kill 1", "stop 1", "start 1"])
def test_one_command_at_a_time_changes_a_cluster(alone: Command, verb: str) -> None:
    folder = Path(".millrace/dev").absolute()
    LocalCluster.create(folder, 1)
    with locked(folder):
        alone("dev", *verb.split()).failed_with("another `millrace dev` command", str(folder))
        assert alone("dev", "status").code == 0  # Looking is allowed.


def test_a_node_that_is_slow_to_start_is_told_of(tmp_path: Path) -> None:
    """Its metadata repository is elsewhere, and does not answer."""
    folder = tmp_path / "cluster"
    cluster = LocalCluster.create(folder, 1, etcd=["http://127.0.0.1:1"])
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        cluster.kill(1)

    with pytest.raises(Unavailable, match="node 1 stopped while starting"):
        cluster.start(say=say)
    assert said == [f"node 1 does not serve yet; its log is {folder}/node-1/node.log"]
