"""What operators are told of nodes that are neither there nor gone, and of drains that wait."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.local import LocalCluster
from tests.cli.commands import Command, Ran
from tests.support.clusters import QUICK_KEEPER, soon

BLOCKS = 40  # Of so many copysets some leave out any one node.


@pytest.fixture
def four(alone: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    """One node more than a block has copies; the command line `alone` finds it."""
    monkeypatch.setattr("millrace.client.sequenced_path.END_TIMEOUT_MS", 2_000)
    folder = tmp_path / "four"
    with LocalCluster.create(folder, 4, keeper=QUICK_KEEPER, lease_ttl_ms=5_000) as cluster:
        cluster.start()
        monkeypatch.setenv("MILLRACE_CLUSTER", ",".join(cluster.addresses))
        yield cluster


def spread(call: Command, name: str) -> None:
    """A log with blocks on many copysets."""
    created = call("log", "create", name, "--copies", "3", "--sticky-bytes", "1")
    assert created.code == 0, created.err
    for _ in range(BLOCKS):
        assert call("log", "append", name, "record").code == 0


def test_a_drain_that_no_node_can_help_with_is_told(alone: Command, four: LocalCluster) -> None:
    spread(alone, "spread")
    assert alone("log", "create", "empty").code == 0
    four.pause(3)  # It would take the copies, and counts as alive for a while.
    assert alone("cluster", "drain", "4").code == 0
    four.kill(3)

    def is_stuck(ran: Ran) -> bool:
        return "drain is stuck" in ran.out

    shown = soon(lambda: alone("cluster", "status"), is_stuck)
    assert shown.code == 1
    assert not shown.out.startswith("ok")
    assert "warning: node 4: its drain is stuck: too few other nodes can take" in shown.out
    assert "log 'spread'" in shown.out
    assert "log 'empty'" not in shown.out.partition("\n\n")[0].replace("the metadata of log", "")
    # What its donors wait for names the log, too.
    told = alone("cluster", "status", "--format", "json").json["status"]["statuses"]["4"]
    waits = [each["waits_for"] for each in told["donors"].values() if each["blocks_left"]]
    assert waits and all(each.startswith(("log '", "the metadata of log '")) for each in waits)
    found = alone("cluster", "check", "--format", "json").json["findings"]
    assert "drain_stuck" in {finding["problem"] for finding in found}

    verified = alone("log", "verify", "spread")
    assert verified.code == 1
    assert "stuck: log spread: node 4 is drained: too few other nodes" in verified.out
    assert "log spread: " in verified.out.splitlines()[-1]
    told = alone("log", "verify", "spread", "--format", "json").json
    assert not told["is_sound"]
    assert [each["node"] for each in told["stuck"]] == [4]


def test_a_node_that_was_just_killed_is_given_up_when_its_lease_has_run_out(
    alone: Command, four: LocalCluster
) -> None:
    four.kill(3)
    early = alone("cluster", "mark-unrecoverable", "3", "--yes")
    early.failed_with("node 3 does not answer, but its lease still runs", "4 s", "try again")
    soon(
        lambda: alone("cluster", "mark-unrecoverable", "3", "--yes"),
        lambda ran: ran.code == 0,
    )


def test_a_log_whose_end_is_not_known_is_not_called_sound(
    alone: Command, four: LocalCluster
) -> None:
    """Its sequencer died, and two nodes are too few for a new one to recover what it left."""
    names = [f"log-{number}" for number in range(8)]
    sequencers = {}
    for name in names:
        assert alone("log", "create", name, "--copies", "3").code == 0
        assert alone("log", "append", name, "record").code == 0
        told = alone("log", "info", name, "--format", "json").json
        sequencers[name] = told["record"]["sequencer"]
    orphan = next(name for name in names if sequencers[name] in (3, 4))
    four.kill(3)
    four.kill(4)
    verified = alone("log", "verify", orphan)
    assert verified.code == 1
    assert verified.out.startswith(f"end_unknown: log {orphan}: "), verified.out
