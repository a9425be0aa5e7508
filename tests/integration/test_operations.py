"""What an operator meets: health, metrics, log lines, signals, and words when a start fails."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest
from prometheus_client.parser import text_string_to_metric_families

from millrace.errors import Unavailable
from millrace.local import LocalCluster
from millrace.local.cluster import free_ports, is_healthy
from millrace.server.metrics import METRICS
from tests.support.clusters import MakeCluster, connected, http_get, run, soon

EXIT_TIMEOUT_S = 20


def test_healthz_tells_who_and_how(calm_cluster: LocalCluster) -> None:
    for node in calm_cluster.nodes:
        status, _, body = http_get(node.admin, "/healthz")
        health = json.loads(body)
        assert status == 200
        assert health["status"] == "ok"
        assert health["node"] == node.id
        assert health["process"] == node.pid
        assert health["cluster"] == calm_cluster.name
        assert health["is_full"] is False


def test_metrics_are_prometheus_text_and_complete(calm_cluster: LocalCluster) -> None:
    status, headers, body = http_get(calm_cluster.nodes[0].admin, "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain")
    families = {family.name: family for family in text_string_to_metric_families(body)}
    assert {info.name for info in METRICS} <= families.keys()
    for info in METRICS:
        assert families[info.name].type == info.kind
        assert families[info.name].documentation == info.help
    assert families["millrace_frames_received"].samples[0].value > 0


def test_unknown_pages_are_not_found(calm_cluster: LocalCluster) -> None:
    assert http_get(calm_cluster.nodes[0].admin, "/nothing")[0] == 404


def test_every_log_line_is_an_event_in_json(make_cluster: MakeCluster) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await client.create_log("events", write_path="chain")
            await log.append(b"one")

    cluster = make_cluster(3)
    run(body(cluster))
    cluster.stop_all()
    for node in cluster.nodes:
        lines = [json.loads(line) for line in cluster.log_text(node.id).splitlines()]
        assert {"node.started", "node.stopped"} <= {line["event"] for line in lines}
        for line in lines:
            assert line["node"] == node.id
            assert line["level"] in ("info", "warning", "error")
            assert line["time"].endswith("Z")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_node_in_order(make_cluster: MakeCluster, number: signal.Signals) -> None:
    cluster = make_cluster(1, is_started=False)
    process = node_process(cluster, 1)
    try:
        soon(lambda: is_healthy(cluster.node(1).admin), what="the node's start")
        process.send_signal(number)
        _, said = process.communicate(timeout=EXIT_TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert '"node.stopped"' in said


# -- Starts that must fail ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("two") / "cluster"
    with LocalCluster.create(folder, 2, lease_ttl_ms=1_500) as cluster:
        cluster.start()
        cluster.stop(2)
        yield cluster


@pytest.fixture
def stopped(two_nodes: LocalCluster) -> Iterator[LocalCluster]:
    """Two nodes that have run, so that they have data; the second is stopped.  What a test does
    to its configuration is taken back."""
    path = Path(two_nodes.node(2).folder) / "node.toml"
    text = path.read_text()
    yield two_nodes
    path.write_text(text)
    if two_nodes.is_running(2):
        two_nodes.stop(2)


def test_a_port_in_use(stopped: LocalCluster) -> None:
    port = int(stopped.node(2).address.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        assert f"127.0.0.1:{port} is in use" in refusal(stopped, 2)


def test_an_admin_port_in_use(stopped: LocalCluster) -> None:
    port = int(stopped.node(2).admin.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        assert f"admin port 127.0.0.1:{port}" in refusal(stopped, 2)


def test_ports_that_another_cluster_took_meanwhile(
    make_cluster: MakeCluster, calm_cluster: LocalCluster
) -> None:
    """Its node is healthy, and not the one that was started."""
    late = make_cluster(1, is_started=False)
    mine, theirs = late.node(1), calm_cluster.node(1)
    for name in ("address", "admin", "documents"):
        edit(late, 1, getattr(mine, name), getattr(theirs, name))
        setattr(mine, name, getattr(theirs, name))
    assert is_healthy(mine.admin)
    with pytest.raises(Unavailable, match=r"stopped while starting(.|\n)*is in use"):
        late.start()


def test_another_cluster_by_name(stopped: LocalCluster) -> None:
    edit(stopped, 2, 'name = "local"', 'name = "elsewhere"')
    assert "elsewhere" in refusal(stopped, 2)


def test_the_data_of_another_cluster(stopped: LocalCluster, make_cluster: MakeCluster) -> None:
    other = make_cluster(2)
    other.stop(2)
    edit(other, 2, other.node(1).address, stopped.node(1).address)
    assert "belongs to cluster" in refusal(other, 2)


def test_the_data_of_another_node(stopped: LocalCluster) -> None:
    edit(stopped, 2, "id = 2", "id = 3")
    assert "belongs to node 2, not to node 3" in refusal(stopped, 2)


def test_a_directory_of_a_newer_version(stopped: LocalCluster) -> None:
    before = write_format(stopped, 2, b"99")
    said = refusal(stopped, 2)
    write_format(stopped, 2, before)
    assert "format 99" in said
    assert "newer version" in said


def test_two_processes_on_one_directory(stopped: LocalCluster) -> None:
    text = (Path(stopped.node(1).folder) / "node.toml").read_text()
    for address in (stopped.node(1).address, stopped.node(1).admin):
        text = text.replace(address, f"127.0.0.1:{free_ports(1)[0]}")
    twin = Path(stopped.node(2).folder) / "node.toml"
    twin.write_text(text)
    said = refusal(stopped, 2)
    assert "another process" in said.lower() or "in use" in said
    assert is_healthy(stopped.node(1).admin)


def test_a_node_that_is_alive_elsewhere(stopped: LocalCluster) -> None:
    """The same id with another directory, while the first one runs."""
    stopped.start([2])
    text = (Path(stopped.node(2).folder) / "node.toml").read_text()
    data = str(Path(stopped.node(2).folder) / "data")
    first = stopped.node(2)
    for address in (first.address, first.admin, first.documents):
        text = text.replace(address, f"127.0.0.1:{free_ports(1)[0]}")
    twin = Path(stopped.node(2).folder) / "twin.toml"
    twin.write_text(text.replace(data, f"{data}-twin"))
    process = node_process(stopped, 2, "twin.toml")
    _, said = process.communicate(timeout=EXIT_TIMEOUT_S)
    assert process.returncode == 2  # One of the two configurations is wrong.
    assert "alive with another data directory" in said


def test_no_metadata_node(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2, is_started=False)
    edit(cluster, 2, "[cluster]\n", "[cluster]\nstart_timeout_ms = 500\n")
    assert "cannot start without the metadata repository" in refusal(cluster, 2)


def refusal(cluster: LocalCluster, number: int) -> str:
    """What a node says that refuses to start; one line, no traceback."""
    (Path(cluster.node(number).folder) / "node.log").unlink(missing_ok=True)
    with pytest.raises(Unavailable, match="stopped while starting"):
        cluster.start([number])
    said = cluster.log_text(number)
    assert "Traceback" not in said, said
    assert "error: " in said
    return said


def write_format(cluster: LocalCluster, number: int, version: bytes) -> bytes:
    """Change the version a stopped node's directory says it has; the one it said before."""
    store = Path(cluster.node(number).folder) / "data" / "store"
    with lmdb.open(os.fspath(store), max_dbs=8, map_size=64 << 20) as environment:
        table = environment.open_db(b"identity")
        with environment.begin(db=table, write=True) as transaction:
            before = transaction.get(b"format")
            transaction.put(b"format", version)
    assert before is not None
    return before


def edit(cluster: LocalCluster, number: int, old: str, new: str) -> None:
    path = Path(cluster.node(number).folder) / "node.toml"
    text = path.read_text()
    assert old in text, text
    path.write_text(text.replace(old, new))


def node_process(
    cluster: LocalCluster, number: int, configuration: str = "node.toml"
) -> "subprocess.Popen[str]":
    path = Path(cluster.node(number).folder) / configuration
    return subprocess.Popen(
        [sys.executable, "-m", "millrace", "node", "run", str(path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
