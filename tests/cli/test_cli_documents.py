"""`millrace bucket`, `kv` and `partition`."""

import time

import pytest

from millrace.cli.kv import RELATIVE_EXPIRY_S_MAX, expiry_s
from millrace.client.sync import connect
from millrace.local import LocalCluster
from tests.cli.commands import Command

PARTITIONS = 4
DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def bucket(cluster: LocalCluster) -> str:
    with connect(cluster.addresses) as client:
        client.create_bucket("users", partitions=PARTITIONS, replicas=1)
    return "users"


# -- Buckets ------------------------------------------------------------------------------------


def test_a_bucket_is_made_listed_and_removed(millrace: Command) -> None:
    made = millrace("bucket", "create", "brief", "--partitions", "2", "--memory", "8MiB")
    assert made.code == 0, made.err
    assert "bucket brief made: 2 partitions" in made.err
    rows = [line.split() for line in millrace("bucket", "ls").out.splitlines()]
    assert ["brief", "2", "1"] in [row[:3] for row in rows]
    told = millrace("bucket", "ls", "--format", "json").json
    (listed,) = [each for each in told if each["bucket"]["name"] == "brief"]
    assert listed["bucket"]["attributes"]["memory_bytes"] == 8 << 20
    assert millrace("bucket", "rm", "brief", "--yes").code == 0
    assert "brief" not in millrace("bucket", "ls").out


def test_making_one_tells_its_record(millrace: Command) -> None:
    made = millrace("bucket", "create", "told", "--partitions", "1", "--format", "json").json
    (seat,) = made["seats"]
    assert seat["active"] and len(seat["replicas"]) == 1 and len(seat["id"]) == 16
    assert millrace("bucket", "rm", "told", "--yes").code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(("users",), "there is a bucket 'users' already", id="exists"),
        pytest.param(("few", "--replicas", "3"), "", id="four nodes are enough"),
        pytest.param(("two words",), "is not a bucket name", id="name"),
        pytest.param(("none", "--partitions", "0"), "from 1 to 1024", id="partitions"),
        pytest.param(("many", "--replicas", "4"), "from 0 to 3", id="replicas"),
        pytest.param(("small", "--memory", "1KiB"), "memory_bytes", id="memory"),
    ],
)
def test_what_can_be_made(
    millrace: Command, bucket: str, arguments: tuple[str, ...], words: str
) -> None:
    ran = millrace("bucket", "create", *arguments)
    assert (ran.code == 0) == (not words)
    assert words in ran.err


def test_a_bucket_that_is_not_there(millrace: Command) -> None:
    for command in (("bucket", "info"), ("bucket", "rm"), ("partition", "ls"), ("kv", "get")):
        key = ("k",) if command[0] == "kv" else ()
        millrace(*command, "nowhere", *key).failed_with("no bucket 'nowhere'", "bucket ls")


def test_info_tells_what_each_node_has(millrace: Command, bucket: str) -> None:
    assert millrace("kv", "set", bucket, "counted", "x").code == 0
    shown = millrace("bucket", "info", bucket)
    assert shown.code == 0, shown.out
    assert f"bucket {bucket}: {PARTITIONS} partitions, 1 replicas" in shown.out
    assert "every partition is served" in shown.out
    told = millrace("bucket", "info", bucket, "--format", "json").json
    assert told["is_served"]
    assert sum(node["masters"] for node in told["nodes"]) == PARTITIONS
    assert sum(node["replicas"] for node in told["nodes"]) == PARTITIONS
    assert sum(node["documents"] for node in told["nodes"]) >= 1
    assert all(node["memory_bytes"] is not None for node in told["nodes"])


# -- Documents ------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["plain", "", "two\nlines\n", "ünïcode"])
def test_a_value_comes_back_byte_for_byte(millrace: Command, bucket: str, value: str) -> None:
    assert millrace("kv", "set", bucket, "ann", value).code == 0
    assert millrace("kv", "get", bucket, "ann").out == value


def test_a_value_from_stdin(millrace: Command, bucket: str) -> None:
    assert millrace("kv", "set", bucket, "piped", stdin=b"from a pipe\n").code == 0
    assert millrace("kv", "get", bucket, "piped").out == "from a pipe\n"


def test_a_document_with_its_version(millrace: Command, bucket: str) -> None:
    made = millrace("kv", "set", bucket, "bob", "1", "--flags", "7", "--format", "json").json
    read = millrace("kv", "get", bucket, "bob", "--format", "json").json
    assert read == {
        "key": "bob",
        "value": "1",
        "partition": made["partition"],
        "cas": made["cas"],
        "flags": 7,
    }


def test_a_version_that_is_not_the_newest_is_refused(millrace: Command, bucket: str) -> None:
    made = millrace("kv", "set", bucket, "cid", "1", "--format", "json").json
    assert millrace("kv", "set", bucket, "cid", "2", "--cas", str(made["cas"])).code == 0
    late = millrace("kv", "set", bucket, "cid", "3", "--cas", str(made["cas"]))
    late.failed_with("was changed since; read it again")


@pytest.mark.parametrize(
    "durability", ["majority", "majority_and_persist_on_master", "persist_to_majority"]
)
def test_durability(millrace: Command, bucket: str, durability: str) -> None:
    ran = millrace("kv", "set", bucket, "safe", "x", "--durability", durability)
    assert ran.code == 0, ran.err


def test_deleting_tells_what_was_not_there(millrace: Command, bucket: str) -> None:
    assert millrace("kv", "set", bucket, "dan", "x").code == 0
    assert millrace("kv", "set", bucket, "eve", "x").code == 0
    millrace("kv", "delete", bucket, "dan", "nobody", "eve").failed_with("no document 'nobody'")
    for key in ("dan", "eve"):
        millrace("kv", "get", bucket, key).failed_with(f"no document '{key}'")
    assert millrace("kv", "set", bucket, "dan", "x").code == 0
    told = millrace("kv", "delete", bucket, "dan", "nobody", "--format", "json")
    assert told.json == {"deleted": ["dan"], "missing": ["nobody"]}
    told = millrace("kv", "delete", bucket, "\udcff", "--format", "json")
    assert told.json == {"deleted": [], "missing": [{"key_base64": "/w=="}]}


def test_touching(millrace: Command, bucket: str) -> None:
    assert millrace("kv", "set", bucket, "fay", "x", "--expiry", "60d").code == 0
    assert millrace("kv", "touch", bucket, "fay", "1h").code == 0
    assert millrace("kv", "touch", bucket, "fay", "never").code == 0
    assert millrace("kv", "get", bucket, "fay").out == "x"
    millrace("kv", "touch", bucket, "nobody", "1h").failed_with("no document 'nobody'")
    assert millrace("kv", "touch", bucket, "fay", "soon").code == 2


@pytest.mark.parametrize(
    ("after_ms", "seconds"),
    [(0, 0), (1, 1), (1_000, 1), (1_001, 2), (30 * DAY_MS, RELATIVE_EXPIRY_S_MAX)],
)
def test_expiries_are_rounded_up_to_seconds(after_ms: int, seconds: int) -> None:
    assert expiry_s(after_ms) == seconds


def test_a_far_expiry_is_a_moment() -> None:
    begun_s = int(time.time())
    assert begun_s + 31 * 86_400 <= expiry_s(31 * DAY_MS) <= int(time.time()) + 31 * 86_400


def test_a_key_that_is_too_long(millrace: Command, bucket: str) -> None:
    millrace("kv", "set", bucket, "k" * 251, "x").refused_with("1 to 250 bytes, not 251")


# -- Partitions -----------------------------------------------------------------------------------


def test_partitions_are_listed(millrace: Command, bucket: str) -> None:
    header, *rows = millrace("partition", "ls", bucket).out.splitlines()
    assert header.split() == ["partition", "master", "replicas", "term", "id", "seq", "behind"]
    assert [row.split()[0] for row in rows] == [str(number) for number in range(PARTITIONS)]


def test_the_copies_of_a_key_s_partition(millrace: Command, bucket: str) -> None:
    made = millrace("kv", "set", bucket, "gus", "x", "--durability", "majority")
    assert made.code == 0, made.err
    number = millrace("kv", "get", bucket, "gus", "--format", "json").json["partition"]
    told = millrace("partition", "info", bucket, "--key", "gus", "--format", "json").json
    assert told["number"] == number
    master, replica = told["copies"]
    assert (master["wanted"], master["hosted"]["state"]) == ("master", "active")
    assert (replica["wanted"], replica["behind"]) == ("replica", 0)
    shown = millrace("partition", "info", bucket, str(number)).out
    assert f"partition {number} of bucket {bucket}: master {master['node']}" in shown


def test_a_failover_log_is_what_explain_rollback_takes(millrace: Command, bucket: str) -> None:
    log = millrace("partition", "failover-log", bucket, "0").out
    told = millrace("partition", "failover-log", bucket, "0", "--format", "json").json
    assert log.splitlines() == [f"{entry['id']}:{entry['seq']}" for entry in told]
    explained = millrace("changes", "explain-rollback", log, log, "--seen", "4")
    assert "it streams from 4 on: equal_logs" in explained.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(("99",), "has no partition 99: it has 0 to 3", id="no such partition"),
        pytest.param((), "give the number of a partition, or --key", id="neither"),
        pytest.param(("1", "--key", "k"), "give the number of a partition, or", id="both"),
    ],
)
def test_which_partition(
    millrace: Command, bucket: str, arguments: tuple[str, ...], words: str
) -> None:
    millrace("partition", "info", bucket, *arguments).refused_with(words)


def test_a_node_without_a_copy_tells_no_failover_log(millrace: Command, bucket: str) -> None:
    told = millrace("partition", "info", bucket, "0", "--format", "json").json
    held = {copy["node"] for copy in told["copies"]}
    other = min({1, 2, 3, 4} - held)
    refused = millrace("partition", "failover-log", bucket, "0", "--node", str(other))
    refused.failed_with(f"node {other} does not tell one", *map(str, held))
