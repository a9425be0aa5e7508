"""memcached's text protocol over a real socket, against partitions in memory."""

import pytest

from tests.support.document_backend import MemoryHost, ServedDocuments, default_backend
from tests.support.memcached_wire import WireClient


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        pytest.param(b"set k 1 0 1\r\nx\r\n", b"STORED\r\n", id="set"),
        pytest.param(b"add k 1 0 1\r\nx\r\n", b"STORED\r\n", id="add"),
        pytest.param(b"replace k 1 0 1\r\nx\r\n", b"NOT_STORED\r\n", id="replace"),
        pytest.param(b"append k 1 0 1\r\nx\r\n", b"NOT_STORED\r\n", id="append"),
        pytest.param(b"prepend k 1 0 1\r\nx\r\n", b"NOT_STORED\r\n", id="prepend"),
        pytest.param(b"cas k 1 0 1 5\r\nx\r\n", b"NOT_FOUND\r\n", id="cas"),
        pytest.param(b"cas k 1 0 1 0\r\nx\r\n", b"NOT_FOUND\r\n", id="cas 0"),
        pytest.param(b"delete k\r\n", b"NOT_FOUND\r\n", id="delete"),
        pytest.param(b"incr k 1\r\n", b"NOT_FOUND\r\n", id="incr"),
        pytest.param(b"touch k 5\r\n", b"NOT_FOUND\r\n", id="touch"),
        pytest.param(b"get k\r\n", b"END\r\n", id="get"),
        pytest.param(b"gat 5 k\r\n", b"END\r\n", id="gat"),
        pytest.param(b"flush_all\r\n", b"OK\r\n", id="flush"),
        pytest.param(b"verbosity 1\r\n", b"OK\r\n", id="verbosity"),
        pytest.param(b"version\r\n", b"VERSION 0.1.0\r\n", id="version"),
        pytest.param(b"nonsense\r\n", b"ERROR\r\n", id="nonsense"),
        pytest.param(b"stats nonsense\r\n", b"CLIENT_ERROR no such statistics\r\n", id="stats"),
    ],
)
def test_without_a_document(client: WireClient, said: bytes, answer: bytes) -> None:
    assert client.say(said) == answer


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        pytest.param(b"set k 1 0 1\r\nx\r\n", b"STORED\r\n", id="set"),
        pytest.param(b"add k 1 0 1\r\nx\r\n", b"NOT_STORED\r\n", id="add"),
        pytest.param(b"replace k 1 0 1\r\nx\r\n", b"STORED\r\n", id="replace"),
        pytest.param(b"append k 1 0 1\r\nx\r\n", b"STORED\r\n", id="append"),
        pytest.param(b"cas k 1 0 1 5\r\nx\r\n", b"EXISTS\r\n", id="cas"),
        pytest.param(b"cas k 1 0 1 0\r\nx\r\n", b"EXISTS\r\n", id="cas 0"),
        pytest.param(b"delete k\r\n", b"DELETED\r\n", id="delete"),
        pytest.param(b"incr k 5\r\n", b"15\r\n", id="incr"),
        pytest.param(b"decr k 50\r\n", b"0\r\n", id="decr"),
        pytest.param(b"touch k 5\r\n", b"TOUCHED\r\n", id="touch"),
        pytest.param(b"set k 0 0 1048577\r\n" + bytes(1048577) + b"\r\n",
                     b"SERVER_ERROR object too large for cache\r\n", id="too large"),
    ],
)  # fmt: skip
def test_with_a_document(client: WireClient, said: bytes, answer: bytes) -> None:
    assert client.say(b"set k 3 0 2\r\n10\r\n") == b"STORED\r\n"
    assert client.say(said) == answer


def test_a_document_is_read_with_flags_and_on_demand_with_cas(client: WireClient) -> None:
    client.say(b"set k 3 0 2\r\n10\r\n")
    assert client.say(b"get k\r\n", b"END\r\n") == b"VALUE k 3 2\r\n10\r\nEND\r\n"
    line, _, rest = client.say(b"gets k\r\n", b"END\r\n").partition(b"\r\n")
    *words, cas = line.split(b" ")
    assert (words, rest) == ([b"VALUE", b"k", b"3", b"2"], b"10\r\nEND\r\n")
    assert client.say(b"cas k 0 0 2 %b\r\n11\r\n" % cas) == b"STORED\r\n"


def test_many_keys_are_read_in_their_order(client: WireClient) -> None:
    for key in (b"a", b"b", b"c"):
        client.say(b"set %b 0 0 1\r\n%b\r\n" % (key, key))
    found = client.say(b"get c missing a b\r\n", b"END\r\n")
    assert found == b"VALUE c 0 1\r\nc\r\nVALUE a 0 1\r\na\r\nVALUE b 0 1\r\nb\r\nEND\r\n"


def test_gat_changes_the_expiry(client: WireClient, host: MemoryHost) -> None:
    client.say(b"set k 0 10 1\r\nx\r\n")
    assert client.say(b"gat 100 k\r\n", b"END\r\n") == b"VALUE k 0 1\r\nx\r\nEND\r\n"
    host.now_offset_us = 50_000_000
    assert client.say(b"get k\r\n", b"END\r\n") != b"END\r\n"
    host.now_offset_us = 101_000_000
    assert client.say(b"get k\r\n") == b"END\r\n"


def test_a_negative_expiry_is_over(client: WireClient) -> None:
    assert client.say(b"set k 0 -1 1\r\nx\r\n") == b"STORED\r\n"
    assert client.say(b"get k\r\n") == b"END\r\n"


def test_what_is_no_number_cannot_be_counted(client: WireClient) -> None:
    client.say(b"set k 0 0 1\r\nx\r\n")
    answer = b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"
    assert client.say(b"incr k 1\r\n") == answer


@pytest.mark.parametrize(
    "said",
    [
        b"set k 0 0 1 noreply\r\ny\r\n",
        b"add k 0 0 1 noreply\r\ny\r\n",
        b"cas k 0 0 1 5 noreply\r\ny\r\n",
        b"delete missing noreply\r\n",
        b"incr k 1 noreply\r\n",
        b"touch missing 1 noreply\r\n",
        b"flush_all noreply\r\n",
        b"flush_all 100 noreply\r\n",
        b"verbosity 1 noreply\r\n",
    ],
    ids=lambda said: said.split(b"\r\n")[0].decode(),
)
def test_noreply_is_never_answered(client: WireClient, said: bytes) -> None:
    client.say(b"set k 0 0 1\r\nx\r\n")
    assert client.say(said + b"version\r\n").startswith(b"VERSION")


def test_a_flush_deletes_everything_before_what_is_pipelined_behind(client: WireClient) -> None:
    client.send(b"set a 0 0 1\r\nx\r\nflush_all\r\nadd a 0 0 1\r\ny\r\nget a\r\n")
    expected = b"STORED\r\nOK\r\nSTORED\r\nVALUE a 0 1\r\ny\r\nEND\r\n"
    assert client.text_until(b"END\r\n") == expected


def test_statistics(client: WireClient) -> None:
    client.say(b"get missing\r\n")
    general = client.say(b"stats\r\n", b"END\r\n").split(b"\r\n")
    assert b"STAT get_misses 1" in general and b"STAT bucket default" in general
    assert client.say(b"stats reset\r\n") == b"RESET\r\n"
    assert b"STAT get_misses 0\r\n" in client.say(b"stats\r\n", b"END\r\n")
    assert b"STAT high_seq:0 0\r\n" in client.say(b"stats partitions\r\n", b"END\r\n")


@pytest.mark.parametrize(
    ("attribute", "state"),
    [("is_congested", True), ("is_serving", False)],
    ids=["congested", "off"],
)
def test_a_node_in_trouble_says_so(
    client: WireClient, host: MemoryHost, attribute: str, state: bool
) -> None:
    setattr(host, attribute, state)
    assert client.say(b"set k 0 0 1\r\nx\r\n") == b"SERVER_ERROR temporary failure\r\n"


def test_a_document_that_cannot_be_read_is_not_taken_for_a_missing_one(
    served: ServedDocuments, client: WireClient, host: MemoryHost
) -> None:
    client.say(b"set k 0 0 1\r\nx\r\n")
    served.call(host.evict_everything)
    host.disk.clear()
    assert client.say(b"get other k\r\n") == b"SERVER_ERROR temporary failure\r\n"


def test_an_answer_has_a_largest_size(client: WireClient) -> None:
    client.say(b"set k 0 0 1048576\r\n" + bytes(1 << 20) + b"\r\n")
    answer = client.say(b"get" + b" k" * 40 + b"\r\n")
    assert answer == b"SERVER_ERROR out of memory writing get response\r\n"


def test_a_get_has_a_largest_number_of_keys(client: WireClient) -> None:
    assert client.say(b"get" + b" k" * 20_000 + b"\r\n") == b"CLIENT_ERROR too many keys\r\n"


def test_without_a_bucket_nothing_is_served() -> None:
    backend = default_backend()
    backend.drop("default")
    with ServedDocuments(backend) as served, WireClient(served.port) as client:
        for said in (b"get k\r\n", b"get k j\r\n", b"delete k\r\n", b"flush_all\r\n"):
            assert client.say(said) == b"SERVER_ERROR no bucket\r\n"
