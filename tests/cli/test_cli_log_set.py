"""`millrace log set` and `millrace dev add-node`: what is changed of a log and a cluster that are
there."""

import itertools
from collections.abc import Iterator

import pytest

from millrace.local import LocalCluster
from tests.cli.commands import Command

_numbers = itertools.count(1)


@pytest.fixture
def log(millrace: Command) -> str:
    name = f"changed-{next(_numbers)}"
    assert millrace("log", "create", name, "--copies", "2").code == 0
    return name


def test_copies_and_nodes_are_changed_from_a_new_epoch_on(millrace: Command, log: str) -> None:
    told = millrace("log", "set", log, "--copies", "3", "--nodeset-size", "3", "--format", "json")
    assert told.code == 0, told.err
    assert told.json["info"]["attributes"]["replication"] == 3
    assert len(told.json["epochs"]["nodeset"]) == 3
    again = millrace("log", "set", log, "--nodeset-size", "all")
    assert again.code == 0, again.err
    assert f"log {log} changed" in again.err + again.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param((), "say what to change", id="nothing"),
        pytest.param(("--nodeset-size", "0"), "a number of nodes, or all", id="no nodes"),
        pytest.param(("--nodeset-size", "1"), "a copyset of 2 copies", id="too small"),
        pytest.param(("--across", "rack=2"), "give --copies as well", id="scopes without copies"),
    ],
)
def test_what_makes_no_sense_is_refused(
    millrace: Command, log: str, options: tuple[str, ...], words: str
) -> None:
    millrace("log", "set", log, *options).refused_with(words)


def test_what_the_cluster_cannot_do_fails(millrace: Command, log: str) -> None:
    millrace("log", "set", log, "--copies", "9").failed_with("cannot be stored so")
    millrace("log", "set", "nowhere", "--copies", "2").failed_with("no log 'nowhere'")


@pytest.fixture(scope="module")
def racks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("racks") / "cluster"
    places = [f"eu.fra.c1.row1.{rack}" for rack in ("a", "a", "b")]
    with LocalCluster.create(folder, 3, locations=places) as made:
        made.start()
        yield made


@pytest.fixture
def spread(alone: Command, racks: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("MILLRACE_CLUSTER", ",".join(racks.addresses))
    return alone


def test_other_copies_stay_spread_over_what_they_were(spread: Command) -> None:
    assert spread("log", "create", "wide", "--copies", "2", "--across", "rack=2").code == 0
    told = spread("log", "set", "wide", "--copies", "3", "--format", "json")
    assert told.code == 0, told.err
    assert told.json["info"]["attributes"]["across"] == [["rack", 2]]
    assert told.json["epochs"]["replication"] == {"factors": [[1, 2], [0, 3]]}


def test_copies_that_are_too_few_for_what_they_are_spread_over(spread: Command) -> None:
    assert spread("log", "create", "narrow", "--copies", "3", "--across", "rack=2").code == 0
    refused = spread("log", "set", "narrow", "--copies", "1")
    refused.refused_with("over rack=2, which 1 cannot do", "--copies 1 --across rack=1")
    told = spread("log", "set", "narrow", "--copies", "1", "--across", "rack=1", "--format", "json")
    assert told.code == 0, told.err
    assert told.json["info"]["attributes"]["across"] == [["rack", 1]]


# The nodes are meant to outlive the command; Python warns when it forgets a running process.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_node_is_added_to_a_local_cluster(alone: Command) -> None:
    folder = "grown"
    try:
        assert alone("dev", "up", "--nodes", "1", "--folder", folder).code == 0
        added = alone("dev", "add-node", "--folder", folder)
        assert added.code == 0, added.err
        shown = alone("dev", "status", "--folder", folder, "--format", "json").json
        assert [node["is_running"] for node in shown["nodes"]] == [True, True]
    finally:
        alone("dev", "down", "--folder", folder, "--wipe", "--yes")
