"""Logs of each write path say in the same words that nodes with copies are away."""

from collections.abc import Iterator

import pytest

from millrace.cli.redundancy import Presence, redundancy_of
from millrace.config import KeeperSettings
from millrace.core.epochs import EpochRecord
from millrace.core.replication import Replication
from millrace.local import LocalCluster
from millrace.types import AuthoritativeStatus, Epoch, LogId, NodeId
from tests.cli.commands import Command
from tests.support.clusters import soon

PATHS = ("chain", "sequenced", "commit")


@pytest.fixture
def losing(
    alone: Command, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LocalCluster]:
    """As many nodes as copies, and a keeper that waits: nothing is made anew meanwhile."""
    folder = tmp_path_factory.mktemp("losing") / "cluster"
    patient = KeeperSettings(rebuild_after_ms=600_000)
    with LocalCluster.create(folder, 3, keeper=patient) as made:
        made.start()
        monkeypatch.setenv("MILLRACE_CLUSTER", ",".join(made.addresses))
        yield made


def states(millrace: Command) -> dict[str, str]:
    listed = millrace("log", "ls", "--format", "json").json
    return {one["info"]["name"]: one["state"] for one in listed}


def problems(millrace: Command) -> set[tuple[str, str]]:
    told = millrace("cluster", "status", "--format", "json")
    found = told.json["health"]["findings"]
    assert told.code == (1 if found else 0)
    return {(one["subject"], one["problem"]) for one in found}


def test_all_kinds_of_logs_say_what_they_lack(alone: Command, losing: LocalCluster) -> None:
    for path in PATHS:
        assert alone("log", "create", path, "--write-path", path).code == 0
        assert alone("log", "append", path, "a").code == 0
    soon(lambda: states(alone), lambda told: told == dict.fromkeys(PATHS, "ok"))
    losing.kill(3)
    soon(lambda: states(alone), lambda told: told == dict.fromkeys(PATHS, "degraded"))
    assert {(f"log {path}", "log_degraded") for path in PATHS} <= problems(alone)
    for path in PATHS:
        assert "degraded" in alone("log", "info", path).out
    shown = alone("cluster", "status").out
    assert "dead, fully_authoritative" in shown
    assert "fully_authoritative until it has been away for keeper.rebuild_after_ms" in shown
    assert "its copies of sequenced logs are made anew only then" in shown
    losing.kill(2)
    soon(lambda: states(alone), lambda told: told == dict.fromkeys(PATHS, "no redundancy"))
    assert {(f"log {path}", "no_redundancy") for path in PATHS} <= problems(alone)
    for path in PATHS:
        assert "no redundancy" in alone("log", "info", path).out


def test_copies_of_a_record_are_not_said_to_disagree(alone: Command, losing: LocalCluster) -> None:
    assert alone("log", "create", "copied", "--copies", "2").code == 0
    assert alone("log", "append", "copied", "a").code == 0
    line = ("log", "get", "copied", "start", "--copies")
    assert alone(*line, "--format", "json").json["agreement"] == "agree"
    losing.kill(3)
    shown, told = alone(*line), alone(*line, "--format", "json")
    assert (shown.code, told.code) == (1, 1)
    assert "not all nodes answered: 3" in shown.out
    assert "NOT agree" not in shown.out
    assert (told.json["agreement"], told.json["is_agreed"]) == ("not_all_answered", False)


EMPTY = AuthoritativeStatus.AUTHORITATIVE_EMPTY
WIPED = AuthoritativeStatus.UNDERREPLICATION
AWAY = AuthoritativeStatus.UNAVAILABLE


@pytest.mark.parametrize(
    ("live", "statuses", "left"),
    [
        pytest.param((1, 2, 3, 4, 5), {}, 3, id="all there"),
        pytest.param((1, 2, 3, 4), {}, 2, id="one dead"),
        pytest.param((1, 2, 3, 4), {5: AWAY}, 2, id="dead for long"),
        pytest.param((1, 2, 3, 4), {5: EMPTY}, 3, id="dead and rebuilt"),
        pytest.param((1, 2, 3, 4, 5), {5: WIPED}, 2, id="alive with an empty disk"),
        pytest.param((1,), {}, 0, id="more dead than copies"),
    ],
)
def test_copies_of_the_block_that_suffers_most(
    live: tuple[int, ...], statuses: dict[int, AuthoritativeStatus], left: int
) -> None:
    nodeset = tuple(map(NodeId, range(1, 6)))
    record = EpochRecord(LogId(1), Epoch(1), NodeId(1), nodeset, Replication.of(3), Epoch(1))
    known = {NodeId(node): status for node, status in statuses.items()}
    presence = Presence(frozenset(map(NodeId, live)), known)
    assert redundancy_of(record, presence).left == left
