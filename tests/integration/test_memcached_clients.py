"""memcached's clients and tools that nobody here wrote, against the front end on a real socket."""

import re
import subprocess
from collections.abc import Iterator

import bmemcached
import pytest
from pymemcache import serde
from pymemcache.client.base import Client as TextClient

from tests.support.debian_tools import find_tool
from tests.support.document_backend import ServedDocuments, default_backend, two_backends

TOOL_TIMEOUT_S = 120


@pytest.fixture(params=["one node", "one of two nodes"])
def served(request: pytest.FixtureRequest) -> Iterator[ServedDocuments]:
    """The second one passes half of the requests on, which no client may notice."""
    backend = default_backend() if request.param == "one node" else two_backends()[0]
    with ServedDocuments(backend) as served:
        yield served


# -- libmemcached -----------------------------------------------------------------------------


@pytest.mark.parametrize(("option", "tests"), [("-b", 27), ("-a", 27)], ids=["binary", "text"])
def test_memccapable_finds_nothing_wrong(served: ServedDocuments, option: str, tests: int) -> None:
    tool = find_tool("memccapable", "libmemcached-tools")
    ran = subprocess.run(
        [tool, "-h", served.host, "-p", str(served.port), option],
        capture_output=True,
        text=True,
        timeout=TOOL_TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(re.findall(r"\[pass\]", ran.stdout)) == tests, ran.stdout


def test_what_memccp_copies_memccat_prints(served: ServedDocuments, tmp_path: object) -> None:
    server = f"--servers={served.host}:{served.port}"
    file = f"{tmp_path}/poem"
    with open(file, "w") as poem:
        poem.write("so much depends\nupon\n")
    for options in ([], ["--binary"]):
        run = [find_tool("memccp", "libmemcached-tools"), server, *options, file]
        subprocess.run(run, capture_output=True, timeout=TOOL_TIMEOUT_S, check=True)
        run = [find_tool("memccat", "libmemcached-tools"), server, *options, "poem"]
        read = subprocess.run(run, capture_output=True, timeout=TOOL_TIMEOUT_S, check=True)
        assert read.stdout.strip() == b"so much depends\nupon"


# -- pymemcache (text) ------------------------------------------------------------------------


@pytest.fixture
def text(served: ServedDocuments) -> Iterator[TextClient]:
    client = TextClient((served.host, served.port), timeout=10, serde=serde.pickle_serde)
    yield client
    client.close()


def test_pymemcache_stores_and_reads(text: TextClient) -> None:
    assert text.set("k", {"a": 1}, expire=60, noreply=False)
    assert text.get("k") == {"a": 1}
    assert text.get("missing", default=5) == 5
    assert not text.add("k", 1, noreply=False)
    assert text.replace("k", "x", noreply=False)
    assert text.append("k", "y", noreply=False)
    assert text.prepend("k", "w", noreply=False)
    assert text.get("k") == "wxy"
    assert text.touch("k", 10, noreply=False)
    assert text.delete("k", noreply=False)
    assert not text.delete("k", noreply=False)


def test_pymemcache_compares_and_sets(text: TextClient) -> None:
    text.set("k", "1", noreply=False)
    value, cas = text.gets("k")
    assert value == "1"
    assert text.cas("k", "2", cas, noreply=False) is True
    assert text.cas("k", "3", cas, noreply=False) is False
    assert text.cas("missing", "3", cas, noreply=False) is None


def test_pymemcache_counts(text: TextClient) -> None:
    assert text.incr("n", 1) is None
    text.set("n", "10", noreply=False)
    assert text.incr("n", 5) == 15
    assert text.decr("n", 50) == 0


def test_pymemcache_stores_many(text: TextClient) -> None:
    wanted = {f"k{at}": f"v{at}" for at in range(500)}
    assert text.set_many(wanted, noreply=False) == []
    assert text.get_many([*wanted, "missing"]) == wanted
    assert text.flush_all(noreply=False)
    assert text.get_many(list(wanted)) == {}


def test_pymemcache_does_not_wait_for_answers(text: TextClient) -> None:
    for at in range(500):
        text.set("k", str(at), noreply=True)
    assert text.get("k") == "499"


def test_pymemcache_asks_about_the_server(text: TextClient) -> None:
    assert text.version() == b"0.1.0"
    assert b"curr_connections" in text.stats()
    text.quit()


# -- python-binary-memcached ------------------------------------------------------------------


@pytest.fixture(params=[None, "somebody"], ids=["anonymous", "with a name"])
def binary(
    served: ServedDocuments, request: pytest.FixtureRequest
) -> Iterator["bmemcached.Client"]:
    address = f"{served.host}:{served.port}"
    client = bmemcached.Client((address,), request.param, "secret", socket_timeout=10)
    yield client
    client.disconnect_all()


def test_bmemcached_stores_and_reads(binary: "bmemcached.Client") -> None:
    assert binary.set("k", {"a": [1, 2]}, time=60)
    assert binary.get("k") == {"a": [1, 2]}
    assert binary.get("missing") is None
    assert not binary.add("k", 1)
    assert binary.replace("k", "x")
    assert binary.get("k") == "x"
    assert binary.delete("k")
    assert binary.get("k") is None


def test_bmemcached_stores_what_it_compresses(binary: "bmemcached.Client") -> None:
    large = "all work and no play " * 10_000
    assert binary.set("k", large)
    assert binary.get("k") == large


def test_bmemcached_compares_and_sets(binary: "bmemcached.Client") -> None:
    binary.set("k", "1")
    value, cas = binary.gets("k")
    assert value == "1"
    assert binary.cas("k", "2", cas)
    assert not binary.cas("k", "3", cas)


def test_bmemcached_counts(binary: "bmemcached.Client") -> None:
    assert binary.incr("n", 5, default=10) == 10
    assert binary.incr("n", 5) == 15
    assert binary.decr("n", 50) == 0


def test_bmemcached_stores_many(binary: "bmemcached.Client") -> None:
    wanted = {f"k{at}": f"v{at}" for at in range(500)}
    assert binary.set_multi(wanted) == []
    assert binary.get_multi([*wanted, "missing"]) == wanted
    assert binary.flush_all()
    assert binary.get_multi(list(wanted)) == {}


def test_bmemcached_asks_about_the_server(binary: "bmemcached.Client") -> None:
    (stats,) = binary.stats().values()
    assert b"cmd_get" in stats or "cmd_get" in stats
