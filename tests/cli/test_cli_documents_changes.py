"""`millrace changes` and `millrace kv watch`."""

import contextlib
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace.cli.change_lines import ChangeRenderer
from millrace.client.changes import BatchCause, ChangeBatch
from millrace.client.sync import connect
from millrace.core.documents.document import Cas, ChangeKind, Document, PartitionId, Seq
from millrace.local import LocalCluster
from tests.cli.commands import Command, start_process

WAIT_S = 30
P3 = PartitionId(3)


@pytest.fixture(scope="module")
def bucket(cluster: LocalCluster) -> str:
    with connect(cluster.addresses) as client:
        made = client.create_bucket("streamed", partitions=4, replicas=1)
        made.set_many({b"user:%d" % n: b"v%d" % n for n in range(10)})
        made.set_many({b"job:1": b"\xff\x00", b"job:2": b"x"})
        made.delete(b"job:2")
    return "streamed"


def changes(text: str) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in text.splitlines()]


def test_everything_up_to_now(millrace: Command, bucket: str) -> None:
    told = millrace("changes", "tail", bucket, "--to-now", "--format", "json").json
    newest = {each["key"]: each for each in told}
    assert len(newest) == 12
    assert newest["user:7"]["value"] == "v7"
    assert newest["job:1"]["value_base64"] == "/wA="
    assert newest["job:2"]["kind"] == "deletion" and "value" not in newest["job:2"]
    for number in range(4):
        seqs = [each["seq"] for each in told if each["partition"] == number]
        assert seqs == sorted(seqs)


def test_as_lines(millrace: Command, bucket: str) -> None:
    shown = millrace("changes", "tail", bucket, "--to-now", "--prefix", "job:2").out
    (words,) = [line.split() for line in shown.splitlines()]
    assert words[3:] == ["deletion", "job:2"]


def test_only_keys_of_some(millrace: Command, bucket: str) -> None:
    ran = millrace(
        "changes",
        "tail",
        bucket,
        "--to-now",
        "--keys-only",
        "--prefix",
        "user:",
        "--format",
        "json",
    )
    assert {each["key"] for each in ran.json} == {f"user:{n}" for n in range(10)}
    assert not any("value" in each for each in ran.json)


def test_as_many_as_wanted(millrace: Command, bucket: str) -> None:
    ran = millrace("changes", "tail", bucket, "--from-start", "-n", "3", "--format", "ndjson")
    assert ran.code == 0, ran.err
    assert len(changes(ran.out)) == 3


def test_some_partitions(millrace: Command, bucket: str) -> None:
    options = ("--partition", "1", "--partition", "2", "--format", "json")
    told = millrace("changes", "tail", bucket, "--to-now", *options).json
    assert {each["partition"] for each in told} == {1, 2}
    millrace("changes", "tail", bucket, "--partition", "9").refused_with("give some of 0 to 3")


def test_it_goes_on_where_it_ended(millrace: Command, bucket: str, tmp_path: Path) -> None:
    options = ("--to-now", "--state", str(tmp_path / "place"), "--format", "json")
    assert len(millrace("changes", "tail", bucket, *options).json) >= 12
    assert millrace("changes", "tail", bucket, *options).json == []
    assert millrace("kv", "set", bucket, "late", "x").code == 0
    (late,) = millrace("changes", "tail", bucket, *options).json
    assert late["key"] == "late"
    assert millrace("kv", "delete", bucket, "late").code == 0


@pytest.mark.parametrize("prefix", [(), ("--prefix", "user:")], ids=["all", "by prefix"])
def test_and_within_a_batch(
    millrace: Command, bucket: str, tmp_path: Path, prefix: tuple[str, ...]
) -> None:
    """By a prefix: behind its last document a snapshot goes on, and the place must not."""
    place = ("--state", str(tmp_path / "place"), "--format", "json")
    told: list[tuple[int, int]] = []
    for limit in (("--from-start", "-n", "1"), ("-n", "1"), ("-n", "3"), ("--to-now",)):
        ran = millrace("changes", "tail", bucket, *prefix, *limit, *place)
        told += [(each["partition"], each["seq"]) for each in ran.json]
    whole = millrace("changes", "tail", bucket, *prefix, "--to-now", "--format", "json").json
    assert sorted(told) == sorted((each["partition"], each["seq"]) for each in whole)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param(("user:1", "-n", "2"), ["v1", "again"], id="as it is, then its changes"),
        pytest.param(("user:1", "--from-now", "-n", "1"), ["again"], id="from now on"),
        pytest.param(("user:", "--prefix", "-n", "31"), None, id="all that begin so"),
    ],
)
def test_watching(
    cluster: LocalCluster, bucket: str, arguments: tuple[str, ...], expected: list[str] | None
) -> None:
    with connect(cluster.addresses) as client:
        opened = client.bucket(bucket)
        opened.set(b"user:1", b"v1")
        watching = start_process(
            "kv", "watch", bucket, *arguments, "--format", "ndjson", cluster=cluster
        )
        while watching.poll() is None:
            # Whoever watches from now on is told of one of these: its stream begins some time.
            opened.set(b"user:1", b"again")
            opened.set(b"user:10", b"other")
            with contextlib.suppress(subprocess.TimeoutExpired):
                watching.wait(0.2)
        out, problem = watching.communicate(timeout=WAIT_S)
    assert (watching.returncode, problem) == (0, b"")
    told = changes(out.decode())
    if expected is None:
        assert {f"user:{n}" for n in range(10)} <= {each["key"] for each in told}
    else:
        assert {each["key"] for each in told} == {"user:1"}
        assert [each["value"] for each in told][-1] == expected[-1]
        assert len(told) == len(expected)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(("tail", "streamed", "--format", "xml"), "'xml' is not a format", id="format"),
        pytest.param(("tail", "streamed", "--prefix", "k" * 251), "251 bytes", id="prefix"),
        pytest.param(("tail", "streamed", "--count", "0"), "count", id="count"),
    ],
)
def test_what_cannot_be_followed(
    millrace: Command, bucket: str, arguments: tuple[str, ...], words: str
) -> None:
    millrace("changes", *arguments).refused_with(words)


def test_what_is_taken_back_is_told() -> None:
    renderer = ChangeRenderer("table", is_endless=True)
    gone = Document(b"k", b"", Seq(0), Cas(0), kind=ChangeKind.DELETION)
    batch = ChangeBatch(P3, BatchCause.ROLLBACK, (gone,))
    assert renderer.changes(batch, batch.documents).split() == [
        b"3",
        b"0",
        b"-",
        b"rollback",
        b"deletion",
        b"k",
    ]
    assert renderer.wipe(3) == b"   3  wipe\n"
    lines = ChangeRenderer("json", is_endless=True)
    assert msgspec.json.decode(lines.wipe(3)) == {"wipe": {"partition": 3}}
    told = msgspec.json.decode(lines.changes(batch, batch.documents))
    assert (told["cause"], told["timestamp_us"]) == ("rollback", None)


# -- Explaining -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "first", "more"),
    [
        pytest.param(
            ("b2:5,a1:0", "a1:0", "--seen", "7"),
            "it streams from 5 on: branched",
            "what it took of 6..7 is undone first",
            id="branched",
        ),
        pytest.param(
            ("b2:5,a1:0", "b2:5,a1:0", "--seen", "7", "--snapshot", "6"),
            "it streams from 7 on: equal_logs",
            "it goes on where it stopped",
            id="equal",
        ),
        pytest.param(
            ("a1:0", "none"), "it streams from 0 on: first", "it has nothing yet", id="first"
        ),
        pytest.param(
            ("c3:0", "a1:0", "--seen", "7"),
            "it streams from 0 on: no_common_id",
            "all that it has is undone first",
            id="nothing in common",
        ),
        pytest.param(
            ("b2:5,a1:0", "a1:0", "--seen", "4", "--purged", "9"),
            "it streams from 0 on: purged",
            "deletions up to 9",
            id="purged",
        ),
        pytest.param(
            ("b2:9,a1:0", "a1:0", "--seen", "7", "--snapshot", "5", "--running", "8"),
            "it streams from 7 on: snapshot_contained",
            "the running snapshot ends at 8",
            id="snapshot contained",
        ),
        pytest.param(
            ("a1:0", "b2:5,a1:0", "--seen", "7"),
            "it does not stream from there: stale_master",
            "ask that one",
            id="stale",
        ),
        pytest.param(
            ("a1:0", "a1:0", "--seen", "7", "--high", "3"),
            "it does not stream from there: lagging",
            "it has only 3",
            id="lagging",
        ),
        pytest.param(
            ("none", "a1:0", "--seen", "7"),
            "it does not stream from there: no_master",
            "never was a master",
            id="no master",
        ),
    ],
)
def test_a_rollback_is_explained(
    alone: Command, arguments: tuple[str, ...], first: str, more: str
) -> None:
    ran = alone("changes", "explain-rollback", *arguments)
    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[0] == first
    assert more in ran.out


def test_a_rollback_as_json(alone: Command) -> None:
    branched = alone(
        "changes", "explain-rollback", "b2:5,a1:0", "a1:0", "--seen", "7", "--format", "json"
    ).json
    assert (branched["start"], branched["reason"], branched["undone"]) == (5, "branched", 2)
    stale = ("a1:0", "b2:5,a1:0", "--seen", "7", "--format", "json")
    refused = alone("changes", "explain-rollback", *stale).json
    assert (refused["start"], refused["is_refused"]) == (None, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(("a1", "none"), "'a1' is no entry", id="no seq"),
        pytest.param(("xyz:1", "none"), "'xyz:1' is no entry", id="no id"),
        pytest.param(("0:1", "none"), "no failover id", id="id 0"),
        pytest.param(("a1:0,b2:5", "none"), "after a lower one", id="oldest first"),
        pytest.param(("a1:0", "a1:0"), "Give --seen", id="how far"),
        pytest.param(
            ("a1:0", "a1:0", "--seen", "4", "--snapshot", "5"), "these cannot be", id="order"
        ),
    ],
)
def test_what_cannot_be_explained(alone: Command, arguments: tuple[str, ...], words: str) -> None:
    alone("changes", "explain-rollback", *arguments).refused_with(words)
