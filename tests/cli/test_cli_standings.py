"""What operators do about nodes and see of them, and whether a log is sound."""

import msgspec

from millrace.cli.cluster import state_of
from millrace.cli.health import Problem, judge
from millrace.client.blocked_rebuilds import BlockedLog
from millrace.client.cluster import ClusterStatus, NodeStatus
from millrace.client.standings import NodeStanding
from millrace.core.statuses import came, drain, gone, rebuilt
from millrace.local import LocalCluster
from millrace.types import NodeId, NodeInfo
from tests.cli.commands import Command
from tests.support.clusters import soon


def made(millrace: Command, name: str) -> str:
    created = millrace("log", "create", name, "--write-path", "sequenced", "--copies", "2")
    assert created.code == 0, created.err
    assert millrace("log", "append", name, stdin=b"one\ntwo\n").code == 0
    return name


def test_a_sound_log(millrace: Command) -> None:
    name = made(millrace, "verified")
    verified = soon(lambda: millrace("log", "verify", name), lambda ran: ran.code == 0)
    assert verified.out.startswith(f"ok: log {name}: ")
    assert "2 records" in verified.out
    told = millrace("log", "verify", name, "--format", "json").json
    assert told["is_sound"]
    assert told["verdict"]["counts"] == {}


def test_a_chain_log_cannot_be_verified(millrace: Command) -> None:
    assert millrace("log", "create", "chained", "--write-path", "chain").code == 0
    millrace("log", "verify", "chained").refused_with("chain log")


def test_a_node_is_drained_and_taken_back(millrace: Command, cluster: LocalCluster) -> None:
    made(millrace, "drained")
    assert millrace("cluster", "drain", "4").code == 0
    shown = soon(
        lambda: millrace("cluster", "status"), lambda ran: "authoritative_empty" in ran.out
    )
    assert "live, authoritative_empty" in shown.out
    assert millrace("cluster", "drain", "4", "--cancel").code == 0
    soon(lambda: millrace("cluster", "events"), lambda ran: "emptied" in ran.out)
    events = millrace("cluster", "events", "--format", "json").json
    assert [event["change"]["reason"] for event in events if event["node"] == 4] == [
        "drain",
        "rebuilt",
        "drain_cancelled",
        "emptied",
    ]


def test_nobody_drains_more_nodes_than_can_be_done_without(millrace: Command) -> None:
    millrace("log", "create", "wide", "--write-path", "sequenced", "--copies", "4")
    millrace("cluster", "drain", "4").refused_with("log 'wide' could not be written any more")
    assert millrace("log", "rm", "wide", "--yes").code == 0


def test_there_is_no_such_node(millrace: Command) -> None:
    millrace("cluster", "drain", "99").refused_with("no storage node 99", "1, 2, 3, 4")


def test_a_node_that_is_alive_is_not_given_up(millrace: Command) -> None:
    refused = millrace("cluster", "mark-unrecoverable", "2", "--yes")
    refused.refused_with("node 2 is alive", "Drain it instead")


def test_lost_copies_are_a_finding_and_a_drain_is_none() -> None:
    node = NodeStatus(NodeInfo(NodeId(3), "host:3"), False, None)
    status = ClusterStatus("c", (node,), (), (), NodeId(1))
    wiped, drained = came(None, "old", "new", 1), drain(None, "old", 1)
    assert wiped is not None
    assert drained is not None
    problems = [
        [finding.problem for finding in judge(found).findings]
        for entry in (wiped, drained)
        for found in [msgspec.structs.replace(status, statuses={3: NodeStanding(entry)})]
    ]
    assert problems == [[Problem.NODE_DEAD, Problem.COPIES_LOST], [Problem.NODE_DEAD]]


def test_a_node_that_was_drained_may_be_stopped() -> None:
    drained, lost = drain(None, "old", 1), gone(None, "old", 1)
    assert drained is not None
    assert lost is not None
    node = NodeStatus(NodeInfo(NodeId(3), "host:3"), False, None)
    told = []
    for entry in (rebuilt(drained, 2), rebuilt(lost, 2)):
        assert entry is not None
        standings = {3: NodeStanding(entry)}
        status = ClusterStatus("c", (node,), (), (), NodeId(1), statuses=standings)
        problems = [finding.problem for finding in judge(status).findings]
        told.append((problems, state_of(node, status).text.partition(" since")[0]))
    assert told == [
        ([], "drained, stopped"),
        ([Problem.NODE_DEAD], "dead, authoritative_empty"),
    ]


def test_a_drain_that_gets_nowhere_is_a_finding_that_names_its_logs() -> None:
    drained = drain(None, "old", 1)
    assert drained is not None
    blocked = tuple(BlockedLog(name, "too few", name == "b") for name in "abcde")
    status = msgspec.structs.replace(
        ClusterStatus("c", (NodeStatus(NodeInfo(NodeId(3), "host:3"), True, None),), (), (), None),
        statuses={3: NodeStanding(drained, blocked=blocked)},
    )
    found = [each for each in judge(status).findings if each.problem is Problem.DRAIN_STUCK]
    assert [each.subject for each in found] == ["node 3"]
    assert "log 'a', the metadata of log 'b', log 'c' and 2 more (too few)" in found[0].detail
