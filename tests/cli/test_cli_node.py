"""`millrace node run` and what keeps a node from starting; each says what to do."""

import shutil
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import pytest

from millrace import config
from millrace.local.cluster import free_ports
from tests.cli.commands import Command, Ran, start_process

WAIT_S = 30


class Site:
    """A configuration file for a node that stands alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "node.toml"
        listen, admin = free_ports(2)
        self.node: dict[str, Any] = {
            "id": 1,
            "data": str(folder / "data"),
            "listen": f"127.0.0.1:{listen}",
            "admin": f"127.0.0.1:{admin}",
            "roles": ["storage", "sequencer", "metadata"],
        }
        self.cluster: dict[str, Any] = {"name": "one", "start_timeout_ms": 300}

    def run(self) -> Ran:
        """Until it gives up."""
        process = self.start()
        out, problem = process.communicate(timeout=WAIT_S)
        *_, last = problem.decode().split("error: ")
        return Ran(process.returncode, out.decode(), f"error: {last}")

    def start(self) -> Any:
        lines = ["[node]", *_settings(self.node), "[cluster]", *_settings(self.cluster)]
        self.file.write_text("\n".join(lines))
        return start_process("node", "run", str(self.file), cwd=self.folder)

    def stop(self, process: Any) -> None:
        process.terminate()
        process.communicate(timeout=WAIT_S)
        assert process.returncode == 0

    def wait_ready(self, process: Any) -> None:
        """Its first line of log after it serves."""
        for line in process.stderr:
            if msgspec.json.decode(line)["event"] == "node.started":
                return
        raise AssertionError("the node did not start")


def _settings(values: dict[str, Any]) -> list[str]:
    return [f"{name} = {msgspec.json.encode(value).decode()}" for name, value in values.items()]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture(scope="module")
def data_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a node that served and was killed left behind."""
    site = Site(tmp_path_factory.mktemp("once"))
    process = site.start()
    site.wait_ready(process)
    process.kill()
    process.communicate(timeout=WAIT_S)
    return Path(site.node["data"])


@pytest.fixture
def used(site: Site, data_once: Path) -> Site:
    shutil.copytree(data_once, site.node["data"])
    return site


def test_the_example_configuration_works(alone: Command, site: Site) -> None:
    text = alone("node", "config").out
    parsed = config.parse(text.encode(), "example")
    assert parsed.hosts_metadata
    for section in parsed.__struct_fields__:
        for field in getattr(parsed, section).__struct_fields__:
            assert f"{field} = " in text


def test_a_node_runs_until_it_is_told_to_stop(site: Site) -> None:
    process = site.start()
    site.wait_ready(process)
    with urllib.request.urlopen(f"http://{site.node['admin']}/healthz", timeout=WAIT_S) as answer:
        assert answer.status == 200
    site.stop(process)


def _other_cluster(site: Site) -> None:
    site.cluster["name"] = "two"


def _other_node(site: Site) -> None:
    site.node["id"] = 2


def _newer_version(site: Site) -> None:
    store = str(Path(site.node["data"]) / "store")
    with lmdb.open(store, max_dbs=16, map_size=1 << 30) as environment:
        identity = environment.open_db(b"identity")
        with environment.begin(write=True, db=identity) as transaction:
            assert transaction.get(b"format") is not None
            transaction.put(b"format", b"99")


def _corrupted(site: Site) -> None:
    file = Path(site.node["data"]) / "store" / "data.mdb"
    file.write_bytes(b"\xa5" * file.stat().st_size)


def _cut_short(site: Site) -> None:
    file = Path(site.node["data"]) / "store" / "data.mdb"
    file.write_bytes(file.read_bytes()[:8192])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        pytest.param(_other_cluster, ("belongs to cluster", "correct"), id="another cluster"),
        pytest.param(_other_node, ("belongs to node 1", "own directory"), id="another node"),
        pytest.param(_newer_version, ("format 99", "newer version"), id="newer version"),
        pytest.param(_corrupted, ("garbage", "other replicas"), id="corrupted"),
        pytest.param(_cut_short, ("cut short", "other replicas"), id="cut short"),
    ],
)
def test_a_data_directory_that_does_not_fit(
    used: Site, spoil: Callable[[Site], None], words: tuple[str, ...]
) -> None:
    spoil(used)
    ran = used.run()
    if spoil is _other_cluster:  # Then it is the configuration that is wrong.
        ran.refused_with(*words)
    else:
        ran.failed_with(*words)


@pytest.mark.parametrize("setting", ["listen", "admin"])
def test_a_port_in_use(site: Site, setting: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        site.node[setting] = f"127.0.0.1:{taken.getsockname()[1]}"
        site.run().failed_with(site.node[setting], "another process")


def test_no_metadata_repository(site: Site) -> None:
    site.node["roles"] = ["storage"]
    site.cluster["metadata_address"] = f"127.0.0.1:{free_ports(1)[0]}"
    site.run().failed_with("cannot start without the metadata repository")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ("node",)),
        ("[node", ("node.toml",)),
        ("[node]\nid = 0\ndata = 'x'", ("node.id",)),
        ("[node]\nid = 1\ndata = 'x'\ncolour = 'red'", ("colour",)),
        (
            "[node]\nid = 1\ndata = 'x'\nroles = ['metadata']\nlisten = 'here'",
            ("node.listen", "host:port"),
        ),
        *(
            (f"[node]\nid = 1\ndata = 'x'\nroles = ['metadata']\n{settings}", words)
            for settings, words in (
                ("listen = ''", ("node.listen", "host:port")),
                ("listen = '::1:7700'", ("node.listen", "[host]:port")),
                ("listen = '0.0.0.0:7700'", ("every interface", "set node.advertise")),
                ("listen = '[::]:7700'", ("every interface", "set node.advertise")),
                ("advertise = 'mill'", ("node.advertise", "host:port")),
                ("advertise = '0.0.0.0:7700'", ("node.advertise", "others cannot reach")),
                ("advertise = 'mill:0'", ("node.advertise", "others cannot reach")),
                ("admin = 'mill:70000'", ("node.admin", "host:port")),
            )
        ),
        ("[node]\nid = 1\ndata = 'x'\n[cluster]\nmetadata_address = 'x'", ("host:port",)),
        ("[node]\nid = 1\ndata = 'x'", ("metadata_address",)),
        ("[node]\nid = 1\ndata = 'x'\n[cluster]\nmetadata = 'etcd'", ("cluster.etcd",)),
    ],
)
def test_a_bad_configuration(
    alone: Command, tmp_path: Path, text: str, words: tuple[str, ...]
) -> None:
    file = tmp_path / "node.toml"
    file.write_text(text)
    alone("node", "run", str(file)).refused_with("node.toml", *words)
    alone("node", "run", "--log-level", "debug", str(file)).refused_with(*words)


def test_no_configuration(alone: Command) -> None:
    alone("node", "run", "nowhere.toml").refused_with("nowhere.toml", "No such file")
