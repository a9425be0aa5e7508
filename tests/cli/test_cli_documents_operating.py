"""`millrace rebalance` and `millrace failover`, and what `bucket info` says of what is stuck."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millrace
from millrace.client.sync import connect
from millrace.core.documents.failover_request import FailoverRequest
from millrace.core.documents.rebalance import RebalanceRecord
from millrace.local import LocalCluster
from tests.cli.commands import Command
from tests.support.clusters import soon

BUCKET = "operated"
PARTITIONS = 6
DELETED = 77  # The id of another bucket.


@pytest.fixture(scope="module")
def operated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Nodes of its own: they are killed."""
    with LocalCluster.create(tmp_path_factory.mktemp("operated") / "cluster", 3) as made:
        made.start()
        with connect(made.addresses) as client:
            bucket = client.create_bucket(BUCKET, partitions=PARTITIONS, replicas=1)
            for number in range(20):
                bucket.set(b"k%d" % number, b"v", durability="majority")
        yield made


@pytest.fixture
def call(alone: Command, operated: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("MILLRACE_CLUSTER", ",".join(operated.addresses))
    return alone


def seats(call: Command) -> list[dict[str, Any]]:
    """When nothing is under way."""
    told = soon(
        lambda: call("partition", "ls", BUCKET, "--format", "json").json,
        lambda found: not any(each["problem"] for each in found),
        what="every partition is well",
    )
    return [each["seat"] for each in told]


def masters(call: Command) -> Counter[int]:
    return Counter(seat["active"] for seat in seats(call))


def test_a_rebalance_is_planned_and_run(call: Command) -> None:
    planned = call("rebalance", "plan", BUCKET, "--nodes", "1,2", "--moves")
    assert planned.code == 0, planned.err
    assert "→" in planned.out and "copied to" in planned.out
    moves = call("rebalance", "plan", BUCKET, "--nodes", "1,2", "--format", "json").json["moves"]
    assert f"{len(moves)} moves" in planned.err
    assert masters(call) == {1: 2, 2: 2, 3: 2}, "a plan changes nothing"
    ran = call("rebalance", "run", BUCKET, "--nodes", "1,2", "--format", "json")
    assert ran.code == 0, ran.err
    assert (ran.json["state"], ran.json["done"]) == ("done", ran.json["moves"])
    assert masters(call) == {1: 3, 2: 3}
    assert "rebalance over nodes 1, 2: done" in call("rebalance", "status", BUCKET).out
    for number in range(20):
        assert call("kv", "get", BUCKET, f"k{number}").out == "v"
    assert call("rebalance", "run", BUCKET).code == 0
    assert masters(call) == {1: 2, 2: 2, 3: 2}
    assert "nothing has to be moved" in call("rebalance", "plan", BUCKET).err


def test_what_cannot_be_rebalanced(call: Command) -> None:
    call("rebalance", "plan", BUCKET, "--nodes", "1,9").refused_with("nodes 9 are no live nodes")
    call("rebalance", "plan", BUCKET, "--nodes", "one").refused_with("give numbers of nodes")
    call("rebalance", "stop", BUCKET).refused_with("no rebalance of bucket 'operated' runs")
    call("rebalance", "status", "nowhere").failed_with("no bucket 'nowhere'")


def test_what_was_wanted_of_a_deleted_bucket_of_the_name_is_in_nobodys_way(
    call: Command, operated: LocalCluster
) -> None:
    """It was asked for while that was deleted, and is never done."""
    asyncio.run(leave_behind(operated))
    assert "rebalance" not in call("bucket", "ls").out
    assert "rebalance" not in call("bucket", "info", BUCKET).out
    call("rebalance", "status", BUCKET).refused_with("was never rebalanced")
    call("rebalance", "stop", BUCKET).refused_with("no rebalance of bucket 'operated' runs")
    assert call("rebalance", "run", BUCKET).code == 0
    assert call("failover", BUCKET, "--partition", "0", "--yes").code == 0


async def leave_behind(operated: LocalCluster) -> None:
    async with await millrace.connect(operated.addresses) as client:
        directory = client.directory
        rebalance, failover = (
            RebalanceRecord((), bucket=DELETED),
            FailoverRequest((), bucket=DELETED),
        )
        _, version = await directory.read_rebalance(BUCKET)
        assert await directory.replace_rebalance(BUCKET, rebalance, version)
        _, version = await directory.read_failover(BUCKET)
        assert await directory.replace_failover(BUCKET, failover, version)


def test_a_failover_by_node_takes_all_its_partitions(call: Command) -> None:
    had = [number for number, seat in enumerate(seats(call)) if seat["active"] == 2]
    ran = call("failover", BUCKET, "--node", "2", "--yes", "--format", "json")
    assert ran.code == 0, (ran.out, ran.err)
    assert [each["partition"] for each in ran.json["partitions"]] == had
    assert all(each["master"] not in (0, 2) for each in ran.json["partitions"])
    assert 2 not in masters(call)
    again = call("failover", BUCKET, "--node", "2", "--yes")
    again.refused_with("node 2 is the master of none of them")


def test_a_failover_of_a_partition_begins_an_entry_of_its_log(call: Command) -> None:
    seats(call)
    before = call("partition", "failover-log", BUCKET, "0", "--format", "json").json
    ran = call("failover", BUCKET, "--partition", "0", "--yes")
    assert ran.code == 0, ran.err
    seats(call)
    after = call("partition", "failover-log", BUCKET, "0", "--format", "json").json
    assert len(after) == len(before) + 1
    assert after[1:] == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param((), "which partitions?", id="none"),
        pytest.param(("--node", "9"), "there is no node 9", id="no such node"),
        pytest.param(("--partition", "77"), "has no partition 77", id="no such partition"),
        pytest.param(("--partition", "0"), "add --yes to go ahead", id="not confirmed"),
    ],
)
def test_what_cannot_be_failed_over(call: Command, arguments: tuple[str, ...], words: str) -> None:
    call("failover", BUCKET, *arguments).refused_with(words)


def test_what_is_stuck_is_told_and_forced(
    alone: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only copies of some partitions are on a node that is gone."""
    with LocalCluster.create(tmp_path / "stuck", 3) as cluster:
        cluster.start()
        monkeypatch.setenv("MILLRACE_CLUSTER", ",".join(cluster.addresses))
        made = alone("bucket", "create", "single", "--partitions", "3", "--replicas", "2")
        assert made.code == 0, made.err
        made_safe = alone("kv", "set", "single", "k", "v", "--durability", "persist_to_majority")
        assert made_safe.code == 0, made_safe.err
        cluster.kill(2)
        cluster.kill(3)
        stuck = soon(
            lambda: alone("bucket", "info", "single"),
            lambda ran: "2 of 3 copies must be known" in ran.out,
            what="partitions are stuck",
        )
        assert stuck.code == 1
        assert "without a master" in alone("bucket", "ls").out
        forced = alone(
            "failover", "single", "--partition", "0", "--partition", "1", "--partition", "2",
            "--force", "--yes", "--timeout", "40s",
        )  # fmt: skip
        assert forced.code == 0, (forced.out, forced.err)
        soon(lambda: alone("kv", "get", "single", "k").out, lambda out: out == "v")
        served = alone("bucket", "info", "single", "--format", "json").json
        assert served["is_served"]
